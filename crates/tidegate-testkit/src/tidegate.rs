//! The real binary, started by a test: in a folder of its own, on a free port, killed
//! when it is dropped.

use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use crate::http::{Answer, Connection};
use crate::process::{Folder, PATIENCE, command, ended, signal, spawn, until, without_environment};

/// What a process has written to standard error so far.
#[derive(Default)]
struct Lines {
    lines: Mutex<Vec<String>>,
    more: Condvar,
}

/// What to start.
pub struct Start {
    folder: Folder,
    /// The name that the binary is called by, in that folder, where it is not its own.
    name: Option<&'static str>,
    arguments: Vec<String>,
    environment: Vec<(String, String)>,
}

/// A server that runs.
pub struct Tidegate {
    process: Child,
    folder: Folder,
    lines: Arc<Lines>,
    /// As the log says it: `http://host:port`, `https://host:port` or `unix:PATH`.
    url: String,
}

/// The program, without anything of the environment that the tests run in.
pub fn tidegate(folder: &Path) -> Command {
    program(&binary(), folder)
}

/// The binary that `TIDEGATE` names, or that of the package whose integration tests run: cargo
/// puts it beside their folder.
pub fn binary() -> PathBuf {
    if let Some(binary) = std::env::var_os("TIDEGATE") {
        return binary.into();
    }
    let test = std::env::current_exe().expect("a path");
    let folder = test
        .ancestors()
        .nth(2)
        .expect("a test in a folder of its own");
    folder.join("tidegate")
}

fn program(path: &Path, folder: &Path) -> Command {
    let mut command = command(path, "KILL");
    without_environment(&mut command)
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .current_dir(folder)
        .stdin(Stdio::null());
    command
}

/// A command that ends by itself: its exit code, and what it has said.
pub fn run(folder: &Folder, arguments: &[&str]) -> (i32, String, String) {
    let output = tidegate(folder.root()).args(arguments).output();
    ended(output.expect("the binary"))
}

impl Start {
    /// With this config, on a free port.
    pub fn new(config: &str) -> Self {
        let start = Self::configured(config);
        start.argument("--http").argument("127.0.0.1:0")
    }

    /// With this config, at its own addresses.
    pub fn configured(config: &str) -> Self {
        let start = Self::bare();
        start.folder.write("tidegate.toml", config);
        start.argument("--config").argument("tidegate.toml")
    }

    /// Without a config, on a free port.
    pub fn without_config() -> Self {
        let start = Self::bare();
        start.argument("--http").argument("127.0.0.1:0")
    }

    /// With nothing said.
    pub fn bare() -> Self {
        Self {
            folder: Folder::new(),
            name: None,
            arguments: vec!["serve".into()],
            environment: Vec::new(),
        }
    }

    /// As a replacement for envoyproxy/ratelimit.
    pub fn ratelimit() -> Self {
        Self {
            arguments: vec!["ratelimit".into()],
            ..Self::bare()
        }
    }

    /// By a link of this name, without arguments.
    pub fn called(self, name: &'static str) -> Self {
        let link = std::os::unix::fs::symlink(binary(), self.folder.path(name));
        link.expect("a link in a folder of our own");
        Self {
            name: Some(name),
            arguments: Vec::new(),
            ..self
        }
    }

    pub fn argument(mut self, argument: &str) -> Self {
        self.arguments.push(argument.into());
        self
    }

    pub fn variable(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.into(), value.into()));
        self
    }

    /// Variables in words of `NAME=value`.
    pub fn variables(self, words: &str) -> Self {
        words.split_whitespace().fold(self, |start, word| {
            let (name, value) = word.split_once('=').expect("NAME=value");
            start.variable(name, value)
        })
    }

    pub fn folder(&self) -> &Folder {
        &self.folder
    }

    /// Starts it, and waits until it listens.
    pub fn start(self) -> Tidegate {
        let mut process = spawn(self.command());
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
    pub fn fail(self) -> (i32, String, String) {
        ended(self.command().output().expect("the binary"))
    }

    fn command(&self) -> Command {
        let mut command = match self.name {
            Some(name) => program(&self.folder.path(name), self.folder.root()),
            None => tidegate(self.folder.root()),
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
    pub fn start(config: &str) -> Self {
        Start::new(config).start()
    }

    pub fn url(&self) -> &str {
        &self.url
    }

    /// Host and port.
    pub fn address(&self) -> &str {
        let (_, address) = self.url.split_once("://").expect("a TCP address");
        address
    }

    pub fn folder(&self) -> &Folder {
        &self.folder
    }

    pub fn connect(&self) -> Connection {
        match self.url.strip_prefix("unix:") {
            Some(path) => Connection::unix(path),
            None => Connection::tcp(self.address()),
        }
    }

    /// One request on a connection of its own.
    pub fn ask(&self, method: &str, path: &str, body: &str) -> Answer {
        self.ask_with(method, path, &[], body)
    }

    pub fn ask_with(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Answer {
        self.connect().ask(method, path, headers, body.as_bytes())
    }

    pub fn get(&self, path: &str) -> Answer {
        self.ask("GET", path, "")
    }

    pub fn check(&self, body: &str) -> Answer {
        self.ask("POST", "/v1/check", body)
    }

    /// The first line of the log that has this in it, when there is one.
    pub fn line(&self, text: &str) -> String {
        self.nth_line(text, 0)
    }

    /// The line of the log that is the nth, from 0, with this in it.
    pub fn nth_line(&self, text: &str, index: usize) -> String {
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
    pub fn log(&self) -> Vec<String> {
        self.lines.lines.lock().expect("no panic").clone()
    }

    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Memory that it holds, in kilobytes.
    pub fn resident_kb(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid()));
        let status = status.expect("a process that runs");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let number = line.expect("a size").trim().trim_end_matches(" kB");
        number.parse().expect("a number")
    }

    pub fn signal(&self, name: &str) {
        signal(self.pid(), name);
    }

    pub fn is_running(&mut self) -> bool {
        self.process.try_wait().expect("a child of ours").is_none()
    }

    /// How it ended, and after how long.
    pub fn end(&mut self) -> (ExitStatus, Duration) {
        let start = Instant::now();
        let status = until("the server ends", || {
            self.process.try_wait().expect("a child of ours")
        });
        assert_eq!(status.signal(), None, "{:#?}", self.log());
        (status, start.elapsed())
    }
}

impl Drop for Tidegate {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
    }
}
