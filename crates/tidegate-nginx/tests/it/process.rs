//! Programs that the tests start: each with a folder of its own, and gone when dropped.

use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicU16, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// How long a program may take for anything.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A folder that goes with its owner.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU16 = AtomicU16::new(0);
        let number = NEXT.fetch_add(1, Relaxed);
        let name = format!("tidegate-module-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).unwrap();
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
pub(crate) struct Process(Child);

impl Process {
    pub(crate) fn start(command: &mut Command) -> Self {
        let child = command.spawn();
        Self(child.unwrap_or_else(|error| {
            panic!("{command:?}: {error}: `cargo xtask test` installs what is missing")
        }))
    }

    pub(crate) fn id(&self) -> u32 {
        self.0.id()
    }

    pub(crate) fn signal(&self, signal: &str) {
        send_signal(self.id(), signal);
    }

    /// As if the power went.
    pub(crate) fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }

    /// Waits until it ends by itself, and says whether all went well.
    pub(crate) fn ends(&mut self) -> bool {
        wait_for(|| self.0.try_wait().unwrap()).success()
    }

    pub(crate) fn wait_for_port(&mut self, port: u16) {
        wait_for(|| {
            assert_eq!(self.0.try_wait().unwrap(), None, "it has ended");
            TcpStream::connect(("127.0.0.1", port)).ok()
        });
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if matches!(self.0.try_wait(), Ok(None)) {
            // One that stands still hears a polite signal only when it goes on, and nginx
            // needs one to take its workers along.
            for signal in ["TERM", "CONT"] {
                self.signal(signal);
            }
            drop(self.0.wait());
        }
    }
}

pub(crate) fn send_signal(id: u32, signal: &str) {
    let (signal, id) = (format!("-{signal}"), id.to_string());
    let status = Command::new("kill").args([&signal, &id]).status();
    assert!(status.unwrap().success(), "{id} is gone");
    // A signal is on its way for a moment, in which the process still answers.
    let state = || std::fs::read_to_string(format!("/proc/{id}/stat"));
    while signal == "-STOP" && !state().unwrap().contains(") T ") {
        std::thread::yield_now();
    }
}

/// Waits until something is there.
pub(crate) fn wait_for<T>(mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "nothing has come");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A port that nobody listens on, below those that the system hands out to clients.
pub(crate) fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let start = std::process::id() % 9_000;
    let mut ports = std::iter::repeat_with(|| {
        let next = u32::from(NEXT.fetch_add(1, Relaxed));
        u16::try_from(20_000 + (start + next) % 9_000).unwrap()
    });
    let free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok();
    ports.find(free).unwrap()
}
