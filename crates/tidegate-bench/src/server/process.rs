//! The servers that are compared, each a process of its own on a free port, killed when
//! it is dropped.

use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tidegate_testkit::process::free_port;

/// Admits everything, and leaves a debt that keeps a key in use to the end; and, in
/// `once`, admits the first request of a key and refuses every later one.
const CONFIG: &str = r#"
[stores.default]
url = "memory:"
max_keys = 2000000

[[policies]]
name = "api"
limit = "1/600s"
burst = 1000000

[[policies]]
name = "once"
limit = "1/1h"
burst = 1
"#;

/// How long a server may take to listen.
const START: Duration = Duration::from_secs(60);

/// A running server.
pub(crate) struct Process {
    process: Child,
    port: u16,
    config: Option<PathBuf>,
}

impl Process {
    /// `tidegate serve`, in memory.
    pub(crate) fn tidegate() -> Self {
        Self::tidegate_by(Command::new(sibling("tidegate")))
    }

    /// The same, run by another program.
    pub(super) fn tidegate_under(mut other: Command) -> Self {
        other.arg(sibling("tidegate"));
        Self::tidegate_by(other)
    }

    fn tidegate_by(mut command: Command) -> Self {
        let port = free_port();
        let config = config_file(CONFIG, port);
        command.args(["serve", "--log", "warn", "--http"]);
        command.arg(format!("127.0.0.1:{port}"));
        command.arg("--config").arg(&config);
        Self::start(command, port, Some(config))
    }

    /// The ceiling.
    pub(super) fn hello() -> Self {
        Self::hello_by(Command::new(sibling("server-hello")))
    }

    /// The same, run by another program.
    pub(super) fn hello_under(mut other: Command) -> Self {
        other.arg(sibling("server-hello"));
        Self::hello_by(other)
    }

    fn hello_by(mut command: Command) -> Self {
        let port = free_port();
        command.arg(port.to_string());
        Self::start(command, port, None)
    }

    /// throttlecrab-server as fast as its options make it: it does not list refused
    /// keys, has room for all keys from the start, and does not look for expired ones
    /// in the meantime.
    pub(super) fn throttlecrab(program: &Path) -> Self {
        let port = free_port();
        let mut command = Command::new(program);
        command.args(["--http", "--http-host", "127.0.0.1", "--http-port"]);
        command.arg(port.to_string());
        command.args(["--log-level", "error", "--max-denied-keys", "0"]);
        command.args(["--store", "periodic", "--store-cleanup-interval", "86400"]);
        command.args(["--store-capacity", "2000000"]);
        Self::start(command, port, None)
    }

    /// `tidegate serve` with this config, over gRPC.
    pub(crate) fn tidegate_grpc(config: &str) -> Self {
        Self::tidegate_grpc_by(Command::new(sibling("tidegate")), config)
    }

    /// The same, run by another program.
    pub(crate) fn tidegate_grpc_under(mut other: Command, config: &str) -> Self {
        other.arg(sibling("tidegate"));
        Self::tidegate_grpc_by(other, config)
    }

    fn tidegate_grpc_by(mut command: Command, text: &str) -> Self {
        let (port, http) = (free_port(), free_port());
        let config = config_file(text, port);
        command.args(["serve", "--log", "warn", "--http"]);
        command.arg(format!("127.0.0.1:{http}")).arg("--grpc");
        command.arg(format!("127.0.0.1:{port}"));
        command.arg("--config").arg(&config);
        Self::start(command, port, Some(config))
    }

    /// A bare handler of tonic.
    pub(crate) fn tonic() -> Self {
        Self::tonic_by(Command::new(sibling("grpc-hello")))
    }

    /// The same, run by another program.
    pub(crate) fn tonic_under(mut other: Command) -> Self {
        other.arg(sibling("grpc-hello"));
        Self::tonic_by(other)
    }

    fn tonic_by(mut command: Command) -> Self {
        let port = free_port();
        command.arg(port.to_string());
        Self::start(command, port, None)
    }

    /// `tidegate serve`, in memory, over the Redis protocol.
    pub(crate) fn tidegate_resp() -> Self {
        let (port, http) = (free_port(), free_port());
        let mut command = Command::new(sibling("tidegate"));
        command.args(["serve", "--log", "warn", "--http"]);
        command.arg(format!("127.0.0.1:{http}")).arg("--resp");
        command.arg(format!("127.0.0.1:{port}"));
        Self::start(command, port, None)
    }

    /// throttlecrab-server over the Redis protocol, as fast as its options make it.
    pub(crate) fn throttlecrab_resp(program: &Path) -> Self {
        let port = free_port();
        let mut command = Command::new(program);
        command.args(["--redis", "--redis-host", "127.0.0.1", "--redis-port"]);
        command.arg(port.to_string());
        command.args(["--log-level", "error", "--max-denied-keys", "0"]);
        command.args(["--store", "periodic", "--store-cleanup-interval", "86400"]);
        command.args(["--store-capacity", "2000000"]);
        Self::start(command, port, None)
    }

    fn start(mut command: Command, port: u16, config: Option<PathBuf>) -> Self {
        let name = command.get_program().to_owned();
        let name = name.display();
        let process = command.stdout(Stdio::null()).spawn();
        let process = process.unwrap_or_else(|error| panic!("cannot start {name}: {error}"));
        let mut started = Self {
            process,
            port,
            config,
        };
        let deadline = Instant::now() + START;
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            if let Ok(Some(status)) = started.process.try_wait() {
                panic!("{name} has ended with {status}");
            }
            assert!(Instant::now() < deadline, "{name} does not listen");
            std::thread::yield_now();
        }
        started
    }

    /// Tells it to stop, and waits until it has.
    pub(crate) fn terminate(mut self) {
        let id = self.id().to_string();
        let told = Command::new("kill").args(["-INT", &id]).status();
        told.expect("kill");
        drop(self.process.wait());
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn id(&self) -> u32 {
        self.process.id()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
        if let Some(config) = &self.config {
            drop(std::fs::remove_file(config));
        }
    }
}

/// A config for the server at this port.
fn config_file(text: &str, port: u16) -> PathBuf {
    let name = format!("tidegate-bench-{}-{port}.toml", std::process::id());
    let config = std::env::temp_dir().join(name);
    std::fs::write(&config, text).expect("a place for a config");
    config
}

/// A program that cargo has put next to this one.
pub(crate) fn sibling(name: &str) -> PathBuf {
    let own = std::env::current_exe().expect("a program that lies somewhere");
    own.with_file_name(name)
}
