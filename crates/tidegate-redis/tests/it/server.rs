//! A real `redis-server` of the test's own: on a free port, in a folder of its own,
//! stopped when it is dropped.

use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A running server.
pub(crate) struct Server {
    process: Child,
    port: u16,
    folder: PathBuf,
    arguments: Vec<String>,
}

impl Server {
    /// A server without anything special.
    pub(crate) fn start() -> Self {
        Self::start_with(&[])
    }

    /// A server with more arguments, such as `--requirepass`.
    pub(crate) fn start_with(arguments: &[&str]) -> Self {
        let port = free_port();
        let folder =
            std::env::temp_dir().join(format!("tidegate-redis-{}-{port}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder for the server");
        let arguments: Vec<String> = arguments.iter().map(|&it| it.to_owned()).collect();
        let process = spawn(port, &folder, &arguments);
        let server = Self {
            process,
            port,
            folder,
            arguments,
        };
        server.wait();
        server
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    /// A connection of the test's own, to look at what is there.
    pub(crate) fn connect(&self) -> redis::Connection {
        let client = redis::Client::open(self.url()).expect("a right url");
        client.get_connection().expect("a server that answers")
    }

    /// As if the power went.
    pub(crate) fn kill(&mut self) {
        self.process.kill().expect("a running server");
        self.process.wait().expect("a killed server");
    }

    /// The same server again, at the same port, without what it had in memory.
    pub(crate) fn restart(&mut self) {
        self.process = spawn(self.port, &self.folder, &self.arguments);
        self.wait();
    }

    /// Stops (`STOP`) or continues (`CONT`) the process.
    pub(crate) fn signal(&self, signal: &str) {
        let status = Command::new("kill")
            .args([&format!("-{signal}"), &self.pid().to_string()])
            .status();
        assert!(status.expect("kill").success());
    }

    fn wait(&self) {
        let deadline = Instant::now() + Duration::from_secs(10);
        while TcpStream::connect(("127.0.0.1", self.port)).is_err() {
            assert!(Instant::now() < deadline, "redis-server does not listen");
            std::thread::yield_now();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // One that is stopped would not die of a polite signal.
        drop(self.process.kill());
        drop(self.process.wait());
        drop(std::fs::remove_dir_all(&self.folder));
    }
}

fn spawn(port: u16, folder: &Path, arguments: &[String]) -> Child {
    Command::new("redis-server")
        .args(["--port", &port.to_string(), "--bind", "127.0.0.1"])
        .args([
            "--save",
            "",
            "--appendonly",
            "no",
            "--maxmemory-policy",
            "noeviction",
        ])
        .arg("--dir")
        .arg(folder)
        .args(arguments)
        .stdout(Stdio::null())
        .spawn()
        .expect("redis-server is installed by `cargo xtask test`")
}

fn free_port() -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
    listener.local_addr().expect("an address").port()
}
