//! Programs that the tests start: each with a folder of its own, and gone when dropped.

use std::ffi::OsString;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicU16, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// How long a program may take for anything.
const PATIENCE: Duration = Duration::from_secs(60);

/// A folder that goes with its owner.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU16 = AtomicU16::new(0);
        let name = format!(
            "tidegate-nginx-{}-{}",
            std::process::id(),
            NEXT.fetch_add(1, Relaxed)
        );
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).expect("a folder in the temporary one");
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}

/// A program that runs.
pub(crate) struct Process {
    child: Child,
    name: String,
}

impl Process {
    pub(crate) fn start(command: &mut Command) -> Self {
        let name = command.get_program().to_string_lossy().into_owned();
        let child = command.spawn();
        let child = child.unwrap_or_else(|error| {
            panic!("{name}: {error}: `cargo xtask test` installs what is missing")
        });
        Self { child, name }
    }

    /// Sends it a signal, such as `TERM`.
    pub(crate) fn signal(&self, signal: &str) {
        let id = self.child.id().to_string();
        let signal = format!("-{signal}");
        let status = Command::new("kill").args([&signal, &id]).status();
        assert!(status.expect("`kill`").success(), "{} is gone", self.name);
        // A signal is on its way for a moment, in which the process still answers.
        let state = || std::fs::read_to_string(format!("/proc/{id}/stat"));
        while signal == "-STOP" && !state().expect("a process that runs").contains(") T ") {
            std::thread::yield_now();
        }
    }

    /// As if the power went.
    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("a process that runs");
        self.child.wait().expect("a process that was killed");
    }

    /// Waits until something is there.
    pub(crate) fn wait_for<T>(&mut self, mut look: impl FnMut() -> Option<T>) -> T {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(found) = look() {
                return found;
            }
            let ended = self.child.try_wait().expect("a child of ours");
            assert_eq!(ended, None, "{} has ended", self.name);
            assert!(Instant::now() < deadline, "{} does not start", self.name);
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Waits until somebody listens on a port.
    pub(crate) fn wait_for_port(&mut self, port: u16) {
        self.wait_for(|| TcpStream::connect(("127.0.0.1", port)).ok());
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            // One that stands still hears a polite signal only when it goes on, and nginx
            // needs one to take its workers along.
            for signal in ["TERM", "CONT"] {
                self.signal(signal);
            }
            drop(self.child.wait());
        }
    }
}

/// Where programs are: the one that is tested first, and servers where only root looks.
pub(crate) fn path() -> OsString {
    let binary = Path::new(env!("CARGO_BIN_EXE_tidegate"));
    let path = std::env::var_os("PATH").expect("a PATH");
    let folders = std::iter::once(binary.parent().expect("a binary in a folder").to_owned())
        .chain(std::env::split_paths(&path))
        .chain(["/usr/sbin".into()]);
    std::env::join_paths(folders).expect("folders without a colon")
}

/// A port that nobody listens on, below those that the system hands out for
/// outgoing connections, so that it stays free.
pub(crate) fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let start = std::process::id() % 10_000;
    let mut ports = std::iter::repeat_with(|| {
        let next = u32::from(NEXT.fetch_add(1, Relaxed));
        u16::try_from(10_000 + (start + next) % 10_000).expect("below 20,000")
    });
    let free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok();
    ports.find(free).expect("a free port")
}
