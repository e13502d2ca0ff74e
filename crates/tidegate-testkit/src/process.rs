//! Programs that tests start. Each dies when its owner is dropped, and with the test
//! process, however that ends.

use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output};
use std::sync::atomic::{AtomicU16, AtomicU32, Ordering::Relaxed};
use std::sync::{LazyLock, mpsc};
use std::time::{Duration, Instant};

/// How long anything may take that is not about time.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A folder that goes with its owner.
pub struct Folder(PathBuf);

impl Folder {
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Relaxed);
        let name = format!("tidegate-test-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).expect("a temporary folder");
        Self(path)
    }

    /// The folder itself.
    pub fn root(&self) -> &Path {
        &self.0
    }

    /// A file in it.
    pub fn path(&self, file: &str) -> PathBuf {
        self.0.join(file)
    }

    pub fn write(&self, file: &str, text: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(file);
        std::fs::write(&path, text).expect("a file in a folder of our own");
        path
    }
}

impl Default for Folder {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}

/// Leaves a command nothing of the environment but where its coverage goes, if it is measured.
pub fn without_environment(command: &mut Command) -> &mut Command {
    let name = "LLVM_PROFILE_FILE";
    let file = std::env::var_os(name).map(|file| (name, file));
    command.env_clear().envs(file)
}

/// A command whose process gets this signal when the test process ends. Start it with
/// [`spawn`].
pub fn command(program: impl AsRef<std::ffi::OsStr>, dies_by: &str) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", dies_by, "--"]).arg(program);
    command
}

/// Starts a process from a thread that lives as long as this process: the kernel sends the
/// signal of [`command`] when the thread ends that started the process.
pub fn spawn(command: Command) -> Child {
    type Order = (Command, mpsc::Sender<std::io::Result<Child>>);
    static SPAWNER: LazyLock<mpsc::Sender<Order>> = LazyLock::new(|| {
        let (orders, received) = mpsc::channel::<Order>();
        std::thread::spawn(move || {
            for (mut command, reply) in received {
                drop(reply.send(command.spawn()));
            }
        });
        orders
    });
    let name = format!("{command:?}");
    let (reply, started) = mpsc::channel();
    SPAWNER
        .send((command, reply))
        .expect("a thread that never ends");
    let started = started.recv().expect("a thread that never ends");
    started.unwrap_or_else(|error| {
        panic!("{name}: {error}: `cargo xtask test` installs what is missing")
    })
}

/// A running program.
pub struct Process {
    child: Child,
    name: String,
}

impl Process {
    /// Starts a command that [`command`] made.
    pub fn start(command: Command) -> Self {
        let name = format!("{command:?}");
        let child = spawn(command);
        Self { child, name }
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends it a signal, such as `TERM`.
    pub fn signal(&self, name: &str) {
        signal(self.child.id(), name);
    }

    /// As if the power went.
    pub fn kill(&mut self) {
        self.child.kill().expect("a running process");
        self.child.wait().expect("a killed process");
    }

    /// Waits until it ends by itself. Whether all went well.
    pub fn ends(&mut self) -> bool {
        until("it ends", || {
            self.child.try_wait().expect("a child of ours")
        })
        .success()
    }

    /// Waits until something is there, unless the program ends.
    pub fn wait_for<T>(&mut self, mut look: impl FnMut() -> Option<T>) -> T {
        until(&self.name, || {
            let ended = self.child.try_wait().expect("a child of ours");
            look().or_else(|| {
                assert_eq!(ended, None, "{} has ended", self.name);
                None
            })
        })
    }

    /// Waits until it listens on a port.
    pub fn wait_for_port(&mut self, port: u16) {
        self.wait_for(|| TcpStream::connect(("127.0.0.1", port)).ok());
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            // nginx takes its workers along only when it is asked politely, and a stopped
            // process hears that only when it goes on.
            for name in ["TERM", "CONT"] {
                self.signal(name);
            }
            drop(self.child.wait());
        }
    }
}

/// Sends a signal. After `STOP`, waits until the process has stopped: a signal is on its
/// way for a moment, in which the process still answers.
pub fn signal(id: u32, name: &str) {
    let sent = Command::new("kill")
        .args([&format!("-{name}"), &id.to_string()])
        .status();
    assert!(sent.expect("kill").success(), "process {id} is gone");
    let state = || std::fs::read_to_string(format!("/proc/{id}/stat"));
    while name == "STOP" && !state().expect("a running process").contains(") T ") {
        std::thread::yield_now();
    }
}

/// The exit code of a command, and what it has printed.
pub fn ended(output: Output) -> (i32, String, String) {
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
    let code = output.status.code().expect("no signal ended it");
    (code, text(output.stdout), text(output.stderr))
}

/// Looks until something is there.
pub fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "never: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A port that nobody listens on, below those that the system hands out for outgoing
/// connections, so that it stays free.
pub fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let start = std::process::id().wrapping_mul(97);
    let free = (0..22_000).find_map(|_| {
        let next = u32::from(NEXT.fetch_add(1, Relaxed));
        let port = u16::try_from(10_000 + start.wrapping_add(next) % 22_000).ok()?;
        TcpListener::bind(("127.0.0.1", port)).ok().map(|_| port)
    });
    free.expect("a free port")
}
