//! A real nginx of the test's own, and what it answers, as data.
//!
//! A file of data has cases: `--- ` and a title, lines of config, and steps `step -> answer`.
//! An answer may be cut off at ` | `, and `…` stands for anything in it. A step is one of these:
//!
//! | step | its answer |
//! | --- | --- |
//! | `3x GET /page name:value body=5` | the statuses, and header fields and body of the last response |
//! | `3+ HEAD /page` | the same of requests that are sent together on one connection |
//! | `log …[error]…` | how many lines of the error log are like this |
//!
//! Spaces inside a value stand as their picture (U+2420). Numbers of seconds that are up to ten
//! minutes less than some days are shown as those days.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::cases::{controls, pictures};
use crate::console::is_like;
use crate::http::{Answer, Connection, request};
use crate::process::{Folder, Process, command, signal, until};

/// A running nginx, stopped when it is dropped.
pub struct Nginx {
    /// `None` where it runs by itself, as a daemon does.
    process: Option<Process>,
    id: u32,
    folder: Folder,
    port: u16,
}

/// The nginx to test with: the one that `TIDEGATE_NGINX` names, or the installed one. An
/// upgrade runs the program under the name that it was started by, so this is its whole path.
fn program() -> PathBuf {
    if let Some(program) = std::env::var_os("TIDEGATE_NGINX") {
        return program.into();
    }
    let path = std::env::var("PATH").expect("a PATH");
    let folders = path.split(':').chain(["/usr/sbin"]);
    let mut programs = folders.map(|folder| Path::new(folder).join("nginx"));
    let program = programs.find(|program| program.is_file());
    program.expect("`cargo xtask test` installs nginx")
}

/// Whether nginx runs under valgrind, which writes what it finds into the folder. It is too
/// slow then to be asked for more than a limit admits, and for the deadline of a store.
pub fn under_valgrind() -> bool {
    std::env::var_os("TIDEGATE_VALGRIND").is_some()
}

/// An nginx with the `nginx.conf` of a folder.
fn nginx(folder: &Folder) -> Command {
    let mut nginx = match under_valgrind() {
        true => {
            let tests = concat!(env!("CARGO_MANIFEST_DIR"), "/../tidegate-nginx/tests");
            let findings = folder.path("valgrind.%p");
            let mut valgrind = command("valgrind", "TERM");
            valgrind
                .args(["--quiet", "--trace-children=yes", "--leak-check=full"])
                .args(["--show-leak-kinds=definite", "--vgdb=no"])
                .arg(format!("--suppressions={tests}/valgrind.supp"))
                .arg(format!("--log-file={}", findings.display()))
                .arg(program());
            valgrind
        }
        false => command(program(), "TERM"),
    };
    nginx.arg("-p").arg(folder.root());
    nginx.arg("-c").arg(folder.path("nginx.conf"));
    nginx.arg("-e").arg(folder.path("error.log"));
    nginx
}

/// What `nginx -t` says of the `nginx.conf` in a folder.
pub fn check(folder: &Folder) -> String {
    let output = nginx(folder).arg("-t").output().expect("nginx");
    String::from_utf8(output.stderr).expect("text")
}

impl Nginx {
    /// With the `nginx.conf` in this folder, which listens on this port.
    pub fn start(folder: Folder, port: u16) -> Self {
        let mut nginx = nginx(&folder);
        nginx.args(["-g", "daemon off;"]);
        let mut process = Process::start(nginx);
        process.wait_for_port(port);
        let id = process.id();
        Self::with_workers(Some(process), id, folder, port)
    }

    /// As a daemon, whose program can be replaced while it runs.
    pub fn start_daemon(folder: Folder, port: u16) -> Self {
        let started = nginx(&folder).status().expect("nginx");
        assert!(started.success(), "{}", check(&folder));
        let id = until("a master", || master(&folder, "nginx.pid"));
        Self::with_workers(None, id, folder, port)
    }

    fn with_workers(process: Option<Process>, id: u32, folder: Folder, port: u16) -> Self {
        let started = Self {
            process,
            id,
            folder,
            port,
        };
        let workers = started.workers();
        until("workers", || (children(id).len() == workers).then_some(()));
        started
    }

    /// How many workers the config asks for.
    fn workers(&self) -> usize {
        let config = self.read("nginx.conf");
        let (_, number) = config.split_once("worker_processes ").expect("workers");
        let (number, _) = number.split_once(';').expect("an end");
        number.parse().expect("a number")
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn folder(&self) -> &Folder {
        &self.folder
    }

    /// The id of its master.
    pub fn id(&self) -> u32 {
        self.id
    }

    pub fn signal(&self, name: &str) {
        signal(self.id, name);
    }

    /// Waits until it ends by itself, and says whether all went well.
    pub fn ends(&mut self) -> bool {
        self.process.as_mut().expect("no daemon").ends()
    }

    pub fn worker_ids(&self) -> Vec<u32> {
        children(self.id)
    }

    /// Waits until all workers run, and none of these.
    pub fn wait_for_workers_other_than(&self, old: &[u32]) {
        let workers = self.workers();
        until("new workers", || {
            let now = self.worker_ids();
            let is_new = now.iter().all(|id| !old.contains(id));
            (is_new && now.len() == workers).then_some(())
        });
    }

    /// Has another config read, and waits until all workers are new.
    pub fn reload(&self, config: &str) {
        self.folder.write("nginx.conf", config);
        let before = self.worker_ids();
        self.signal("HUP");
        self.wait_for_workers_other_than(&before);
    }

    pub fn read(&self, file: &str) -> String {
        std::fs::read_to_string(self.folder.path(file)).expect("a file that nginx has made")
    }

    /// How many lines of the error log are like this.
    pub fn count(&self, pattern: &str) -> usize {
        let log = self.read("error.log");
        log.lines().filter(|line| is_like(line, pattern)).count()
    }

    /// Lines of the log that are at least errors, but for refusals.
    pub fn errors(&self) -> Vec<String> {
        let log = self.read("error.log");
        let grave = ["[emerg]", "[alert]", "[crit]", "[error]"];
        let lines = log
            .lines()
            .filter(|line| grave.iter().any(|grave| line.contains(grave)));
        let lines = lines.filter(|line| !line.contains("limiting requests"));
        lines.map(String::from).collect()
    }

    /// What comes of a step that is asked at a port.
    pub fn answer(&self, port: u16, step: &str) -> String {
        match step.strip_prefix("log ") {
            Some(pattern) => self.count(pattern).to_string(),
            None => ask(port, step),
        }
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        if self.process.is_none() {
            // After an upgrade there may be two.
            for file in ["nginx.pid", "nginx.pid.oldbin"] {
                if let Some(id) = master(&self.folder, file) {
                    signal(id, "TERM");
                    until("its end", || (!is_running(id)).then_some(()));
                }
            }
        }
        drop(self.process.take());
        if under_valgrind() && !std::thread::panicking() {
            let files = std::fs::read_dir(self.folder.root()).expect("a folder");
            let files = files.map(|file| file.expect("a file").path());
            let files = files.filter(|file| file.display().to_string().contains("valgrind."));
            let found: String = files
                .map(|file| std::fs::read_to_string(file).expect("text"))
                .collect();
            assert!(found.is_empty(), "valgrind: {found}");
        }
    }
}

/// The master that a file names, if it runs.
pub fn master(folder: &Folder, file: &str) -> Option<u32> {
    let id = std::fs::read_to_string(folder.path(file)).ok()?;
    let id = id.trim().parse().ok()?;
    is_running(id).then_some(id)
}

fn is_running(id: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{id}/stat"));
    stat.is_ok_and(|stat| !stat.contains(") Z "))
}

/// The processes that this one has started.
pub fn children(id: u32) -> Vec<u32> {
    let path = format!("/proc/{id}/task/{id}/children");
    let children = std::fs::read_to_string(path).unwrap_or_default();
    let ids = children.split_ascii_whitespace();
    ids.map(|id| id.parse().expect("an id")).collect()
}

/// A case of a file.
pub struct Case<'f> {
    pub title: &'f str,
    pub config: Vec<&'f str>,
    steps: Vec<(&'f str, &'f str)>,
}

/// The cases of a file.
pub fn cases(file: &str) -> Vec<Case<'_>> {
    let cases = file.split("\n--- ").skip(1).map(|case| {
        let case = case.split("\n\n# ").next().expect("a part");
        let (title, case) = case.split_once('\n').expect(case);
        let lines = case.lines().filter(|line| !line.is_empty());
        let (steps, config): (Vec<_>, Vec<_>) = lines.partition(|line| line.contains(" -> "));
        let steps = steps.iter().filter_map(|line| line.split_once(" -> "));
        Case {
            title,
            config,
            steps: steps.collect(),
        }
    });
    cases.collect()
}

impl Case<'_> {
    /// What came out otherwise, as it should read.
    pub fn run(&self, mut answer: impl FnMut(&str) -> String) -> String {
        let mut wrong = String::new();
        for (step, expected) in &self.steps {
            let got = answer(step);
            if !is_like(&got, expected) && !is_like(&got, &format!("{expected} | …")) {
                writeln!(wrong, "{step} -> {got}\n   instead of {expected}").expect("room");
            }
        }
        match wrong.is_empty() {
            true => wrong,
            false => format!("--- {}\n{wrong}\n", self.title),
        }
    }
}

/// Sends requests without a body together on one connection: the answers until it ends.
pub fn pipelined(port: u16, method: &str, targets: &[String]) -> Vec<Answer> {
    let mut connection = Connection::tcp(&format!("127.0.0.1:{port}"));
    let requests = targets.iter();
    let requests = requests.flat_map(|target| request(method, target, &[], &[]));
    connection.send(&requests.collect::<Vec<u8>>());
    let answers = targets.iter().map_while(|_| connection.receive(method));
    answers.collect()
}

/// Sends the requests of a step, and returns what comes back.
fn ask(port: u16, step: &str) -> String {
    let mut words = step.split(' ').peekable();
    let times = words.next_if(|word| word.starts_with(|first: char| first.is_ascii_digit()));
    let (times, way) = times
        .unwrap_or("1x")
        .split_at(times.map_or(1, |it| it.len() - 1));
    let times = times.parse().expect(step);
    let method = words.next().expect(step);
    let target = controls(words.next().expect(step)).replace("LONG", &"a".repeat(4_000));
    let (bodies, headers): (Vec<_>, Vec<_>) = words.partition(|word| word.starts_with("body="));
    let body = bodies.first().map(|word| word["body=".len()..].parse());
    let body = body.map_or(Vec::new(), |length| body_of(length.expect(step)));
    let headers = headers.iter().map(|word| word.split_once(':').expect(step));
    let headers: Vec<(&str, String)> = headers.map(|(name, it)| (name, controls(it))).collect();
    let mut headers: Vec<_> = headers.iter().map(|(name, it)| (*name, &**it)).collect();
    headers.push(("Connection", "close"));
    let answers = match way {
        "+" => pipelined(port, method, &vec![target; times]),
        _ => (0..times)
            .map(|_| {
                Connection::tcp(&format!("127.0.0.1:{port}")).ask(method, &target, &headers, &body)
            })
            .collect(),
    };
    shown(&answers)
}

/// A body of this length.
pub fn body_of(length: usize) -> Vec<u8> {
    (b'a'..=b'z').cycle().take(length).collect()
}

/// Header fields that no case is about.
const COMMON: [&str; 8] = [
    "accept-ranges",
    "connection",
    "content-length",
    "date",
    "etag",
    "last-modified",
    "server",
    "transfer-encoding",
];

/// All statuses, and the rest of the last answer.
fn shown(answers: &[Answer]) -> String {
    let statuses = answers.iter().map(|answer| answer.status.to_string());
    let last = answers.last().expect("an answer");
    let fields = last
        .headers
        .iter()
        .filter(|(name, value)| !COMMON.contains(&name.as_str()) && !value.starts_with("text/"));
    let mut fields: Vec<String> = fields.map(|(name, it)| format!("{name}: {it}")).collect();
    fields.sort_unstable();
    let mut parts = vec![statuses.collect::<Vec<_>>().join(" ")];
    parts.append(&mut fields);
    parts.push(pictures(last.text().trim_end()));
    parts.retain(|part| !part.is_empty());
    in_days(&parts.join(" | "))
}

/// Numbers of seconds that are some days, or up to ten minutes less, as those days.
fn in_days(text: &str) -> String {
    let parts = text.split_inclusive(|letter: char| !letter.is_ascii_digit());
    let parts = parts.map(|part| {
        let digits = part.trim_end_matches(|letter: char| !letter.is_ascii_digit());
        match digits.parse::<u64>() {
            Ok(number) if number > 80_000 && number.div_ceil(86_400) * 86_400 - number < 600 => {
                format!("{}d{}", number.div_ceil(86_400), &part[digits.len()..])
            }
            _ => part.to_owned(),
        }
    });
    parts.collect()
}
