//! A real `redis-server` of the test's own: on a free port, in a folder of its own,
//! stopped when it is dropped.

use std::ffi::{OsStr, OsString};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use crate::process::{Folder, command, free_port, signal};

/// A running server.
pub struct Server {
    program: OsString,
    process: Child,
    port: u16,
    /// More ports of its own, for what needs them.
    others: [u16; 2],
    folder: Folder,
    arguments: Vec<String>,
}

impl Server {
    /// A server without anything special.
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// A server with more arguments, such as `--requirepass`. They may name its port
    /// as `{port}`, and more of them as `{other}` and `{third}`.
    pub fn start_with(arguments: &[&str]) -> Self {
        Self::start_program("redis-server".as_ref(), arguments)
    }

    /// A sentinel with this config, which may name its port as `{port}`.
    pub fn start_sentinel(config: &str) -> Self {
        Self::start_program("redis-server".as_ref(), &[SENTINEL, config])
    }

    /// One of each kind at hand: Redis, and whatever `cargo xtask test` could get
    /// besides, such as Valkey.
    pub fn start_each() -> Vec<Self> {
        let others = std::env::var_os("TIDEGATE_SERVERS").unwrap_or_default();
        let programs = std::env::split_paths(&others).map(PathBuf::into_os_string);
        let programs = programs.filter(|program| !program.is_empty());
        let others = programs.map(|program| Self::start_program(&program, &[]));
        std::iter::once(Self::start()).chain(others).collect()
    }

    /// Somebody else may take one of its ports before it does: then it gets others.
    fn start_program(program: &OsStr, arguments: &[&str]) -> Self {
        let mut tries = (0..5).map(|_| Self::try_start(program, arguments));
        let started = tries.find_map(|it| it);
        started.unwrap_or_else(|| panic!("{} {arguments:?} has ended", program.display()))
    }

    /// `None` when it has ended.
    fn try_start(program: &OsStr, arguments: &[&str]) -> Option<Self> {
        let (port, others) = (free_port(), [free_port(), free_port()]);
        let folder = Folder::new();
        let arguments = arguments.iter();
        let arguments: Vec<String> = arguments
            .map(|argument| argument.replace("{port}", &port.to_string()))
            .map(|argument| argument.replace("{other}", &others[0].to_string()))
            .map(|argument| argument.replace("{third}", &others[1].to_string()))
            .collect();
        let process = spawn(program, port, folder.root(), &arguments);
        let mut server = Self {
            program: program.to_owned(),
            process,
            port,
            others,
            folder,
            arguments,
        };
        server.listens().then_some(server)
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// Its ports `{other}` and `{third}`.
    pub fn others(&self) -> [u16; 2] {
        self.others
    }

    pub fn folder(&self) -> &Path {
        self.folder.root()
    }

    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    /// A connection of the test's own, to look at what is there.
    pub fn connect(&self) -> redis::Connection {
        let client = redis::Client::open(self.url()).expect("a right url");
        client.get_connection().expect("a server that answers")
    }

    /// As if the power went.
    pub fn kill(&mut self) {
        self.process.kill().expect("a running server");
        self.process.wait().expect("a killed server");
    }

    /// The same server again, at the same port, without what it had in memory.
    pub fn restart(&mut self) {
        self.process = spawn(
            &self.program,
            self.port,
            self.folder.root(),
            &self.arguments,
        );
        assert!(self.listens(), "{} has ended", self.program.display());
    }

    /// [`restart`](Self::restart) with other arguments than before.
    pub fn restart_with(&mut self, arguments: &[&str]) {
        self.arguments = arguments.iter().map(|&it| it.to_owned()).collect();
        self.restart();
    }

    /// Stops (`STOP`) or continues (`CONT`) the process.
    pub fn signal(&self, name: &str) {
        signal(self.pid(), name);
    }

    /// Waits until it answers somebody. Whether it does: it may end instead, even after it
    /// has begun to listen.
    fn listens(&mut self) -> bool {
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            let answered = self.answers();
            let ended = self.process.try_wait().expect("a child of ours");
            match (ended, answered) {
                (Some(_), _) => return false,
                (None, Some(())) => return true,
                (None, None) => {}
            }
            assert!(Instant::now() < deadline, "redis-server does not listen");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Whether it says anything, be it that one may not ask.
    fn answers(&self) -> Option<()> {
        let mut connection = TcpStream::connect(("127.0.0.1", self.port)).ok()?;
        // Over TLS, it has nothing to say to strangers.
        if self.arguments.iter().any(|it| it.contains("tls-port")) {
            return Some(());
        }
        let patience = Duration::from_secs(1);
        connection.set_read_timeout(Some(patience)).ok()?;
        connection.write_all(b"PING\r\n").ok()?;
        let heard = connection.read(&mut [0; 64]).ok()?;
        (heard > 0).then_some(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // One that is stopped would not die of a polite signal.
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

/// What comes first in the arguments of a sentinel; its config comes next.
const SENTINEL: &str = "--sentinel";

fn spawn(program: &OsStr, port: u16, folder: &Path, arguments: &[String]) -> Child {
    if let [SENTINEL, config] = arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        // It writes into that file what it has found out, and wants one to write to.
        let file = folder.join("sentinel.conf");
        let folder = folder.display();
        std::fs::write(&file, format!("{config}\ndir {folder}\n")).expect("a file");
        let mut sentinel = command(program, "KILL");
        sentinel.arg(file).arg(SENTINEL).stdout(Stdio::null());
        return crate::process::spawn(sentinel);
    }
    let mut server = command(program, "KILL");
    server
        .args(["--port", &port.to_string(), "--bind", "127.0.0.1"])
        .args(["--save", "", "--appendonly", "no"])
        .args(["--maxmemory-policy", "noeviction"])
        .arg("--dir")
        .arg(folder)
        .args(arguments)
        .stdout(Stdio::null());
    crate::process::spawn(server)
}
