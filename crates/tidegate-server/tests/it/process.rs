//! The real binary, started by a test: in a folder of its own, on a free port, killed
//! when it is dropped.

use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use crate::client::{Answer, Connection};

/// How long anything may take that is not about time.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A folder that goes when the test is over.
pub(crate) struct Folder(PathBuf);

/// What a process has written to standard error so far.
#[derive(Default)]
struct Lines {
    lines: Mutex<Vec<String>>,
    more: Condvar,
}

/// What to start.
pub(crate) struct Start {
    folder: Folder,
    /// The name that the binary is called by, in that folder, where it is not its own.
    name: Option<&'static str>,
    arguments: Vec<String>,
    environment: Vec<(String, String)>,
}

/// A server that runs.
pub(crate) struct Tidegate {
    process: Child,
    folder: Folder,
    lines: Arc<Lines>,
    /// As the log says it: `http://host:port`, `https://host:port` or `unix:PATH`.
    url: String,
}

impl Folder {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("tidegate-server-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).expect("a folder");
        Self(path)
    }

    pub(crate) fn path(&self, file: &str) -> PathBuf {
        self.0.join(file)
    }

    pub(crate) fn write(&self, file: &str, text: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(file);
        std::fs::write(&path, text).expect("a file in a folder of our own");
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}

/// The program, without anything of the environment that the tests run in.
pub(crate) fn tidegate(folder: &Path) -> Command {
    program(Path::new(BINARY), folder)
}

const BINARY: &str = env!("CARGO_BIN_EXE_tidegate");

fn program(path: &Path, folder: &Path) -> Command {
    let mut command = Command::new(path);
    command
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .current_dir(folder)
        .stdin(Stdio::null());
    command
}

/// A command that ends by itself: its exit code, and what it has said.
pub(crate) fn run(folder: &Folder, arguments: &[&str]) -> (i32, String, String) {
    let output = tidegate(&folder.0).args(arguments).output();
    ended(output.expect("the binary"))
}

pub(crate) fn ended(output: Output) -> (i32, String, String) {
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
    let code = output.status.code().expect("no signal ended it");
    (code, text(output.stdout), text(output.stderr))
}

impl Start {
    /// With this config, on a free port.
    pub(crate) fn new(config: &str) -> Self {
        let start = Self::configured(config);
        start.argument("--http").argument("127.0.0.1:0")
    }

    /// With this config, at its own addresses.
    pub(crate) fn configured(config: &str) -> Self {
        let start = Self::bare();
        start.folder.write("tidegate.toml", config);
        start.argument("--config").argument("tidegate.toml")
    }

    /// Without a config, on a free port.
    pub(crate) fn without_config() -> Self {
        let start = Self::bare();
        start.argument("--http").argument("127.0.0.1:0")
    }

    /// With nothing said.
    pub(crate) fn bare() -> Self {
        Self {
            folder: Folder::new(),
            name: None,
            arguments: vec!["serve".into()],
            environment: Vec::new(),
        }
    }

    /// As a replacement for envoyproxy/ratelimit.
    pub(crate) fn ratelimit() -> Self {
        Self {
            arguments: vec!["ratelimit".into()],
            ..Self::bare()
        }
    }

    /// By a link of this name, without arguments.
    pub(crate) fn called(self, name: &'static str) -> Self {
        let link = std::os::unix::fs::symlink(BINARY, self.folder.path(name));
        link.expect("a link in a folder of our own");
        Self {
            name: Some(name),
            arguments: Vec::new(),
            ..self
        }
    }

    pub(crate) fn argument(mut self, argument: &str) -> Self {
        self.arguments.push(argument.into());
        self
    }

    pub(crate) fn variable(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.into(), value.into()));
        self
    }

    pub(crate) fn folder(&self) -> &Folder {
        &self.folder
    }

    /// Starts it, and waits until it listens.
    pub(crate) fn start(self) -> Tidegate {
        let mut process = self.command().spawn().expect("the binary");
        let lines = Arc::new(Lines::default());
        let stderr = BufReader::new(process.stderr.take().expect("a pipe"));
        let reader = Arc::clone(&lines);
        std::thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                reader.lines.lock().expect("no panic").push(line);
                reader.more.notify_all();
            }
        });
        let mut started = Tidegate {
            process,
            folder: self.folder,
            lines,
            url: String::new(),
        };
        let line = started.line("listening on ");
        let url = line.split("listening on ").nth(1).expect("a url");
        let url = url.split(['"', '\u{1b}']).next().expect("its end");
        started.url = url.trim().to_owned();
        started
    }

    /// Starts what ends by itself.
    pub(crate) fn fail(self) -> (i32, String, String) {
        ended(self.command().output().expect("the binary"))
    }

    fn command(&self) -> Command {
        let mut command = match self.name {
            Some(name) => program(&self.folder.path(name), &self.folder.0),
            None => tidegate(&self.folder.0),
        };
        command
            .args(&self.arguments)
            .envs(self.environment.iter().cloned())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }
}

impl Tidegate {
    /// A server with this config.
    pub(crate) fn start(config: &str) -> Self {
        Start::new(config).start()
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Host and port.
    pub(crate) fn address(&self) -> &str {
        let (_, address) = self.url.split_once("://").expect("a TCP address");
        address
    }

    pub(crate) fn folder(&self) -> &Folder {
        &self.folder
    }

    pub(crate) fn connect(&self) -> Connection {
        match self.url.strip_prefix("unix:") {
            Some(path) => Connection::unix(path),
            None => Connection::tcp(self.address()),
        }
    }

    /// One request on a connection of its own.
    pub(crate) fn ask(&self, method: &str, path: &str, body: &str) -> Answer {
        self.ask_with(method, path, &[], body)
    }

    pub(crate) fn ask_with(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Answer {
        self.connect().ask(method, path, headers, body.as_bytes())
    }

    pub(crate) fn get(&self, path: &str) -> Answer {
        self.ask("GET", path, "")
    }

    pub(crate) fn check(&self, body: &str) -> Answer {
        self.ask("POST", "/v1/check", body)
    }

    /// The first line of the log that has this in it, when there is one.
    pub(crate) fn line(&self, text: &str) -> String {
        self.nth_line(text, 0)
    }

    /// The line of the log that is the nth, from 0, with this in it.
    pub(crate) fn nth_line(&self, text: &str, index: usize) -> String {
        let deadline = Instant::now() + PATIENCE;
        let mut lines = self.lines.lines.lock().expect("no panic");
        loop {
            let mut found = lines.iter().filter(|line| line.contains(text));
            if let Some(line) = found.nth(index) {
                return line.clone();
            }
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "no line has {text:?}: {lines:#?}");
            let waited = self.lines.more.wait_timeout(lines, left);
            (lines, _) = waited.expect("no panic");
        }
    }

    /// All lines so far.
    pub(crate) fn log(&self) -> Vec<String> {
        self.lines.lines.lock().expect("no panic").clone()
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Memory that it holds, in kilobytes.
    pub(crate) fn resident_kb(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid()));
        let status = status.expect("a process that runs");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let number = line.expect("a size").trim().trim_end_matches(" kB");
        number.parse().expect("a number")
    }

    pub(crate) fn signal(&self, signal: &str) {
        let status = Command::new("kill")
            .args([&format!("-{signal}"), &self.pid().to_string()])
            .status();
        assert!(status.expect("kill").success());
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.process.try_wait().expect("a child of ours").is_none()
    }

    /// How it ended, and after how long.
    pub(crate) fn end(&mut self) -> (ExitStatus, Duration) {
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            if let Some(status) = self.process.try_wait().expect("a child of ours") {
                assert_eq!(status.signal(), None, "{:#?}", self.log());
                return (status, start.elapsed());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        panic!("it does not end: {:#?}", self.log());
    }
}

impl Drop for Tidegate {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

/// Asks until the answer is what one waits for.
pub(crate) fn until<T>(what: &str, mut asked: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(answer) = asked() {
            return answer;
        }
        assert!(Instant::now() < deadline, "never: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}
