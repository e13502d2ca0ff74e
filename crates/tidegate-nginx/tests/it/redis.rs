//! A Redis of the test's own.

use std::process::{Command, Stdio};

use crate::process::{Folder, Process, free_port};

pub(crate) struct Redis {
    pub(crate) process: Process,
    _folder: Folder,
    pub(crate) port: u16,
}

impl Redis {
    pub(crate) fn start() -> Self {
        Self::start_at(free_port())
    }

    pub(crate) fn start_at(port: u16) -> Self {
        let folder = Folder::new();
        let mut process = Process::start(
            Command::new("redis-server")
                .args(["--port", &port.to_string(), "--bind", "127.0.0.1"])
                .args(["--save", "", "--dir"])
                .arg(folder.path())
                .stdout(Stdio::null()),
        );
        process.wait_for_port(port);
        Self {
            process,
            _folder: folder,
            port,
        }
    }

    /// The directive that names it, with time enough for a machine that does other things.
    pub(crate) fn store(&self) -> String {
        store(self.port, "10s")
    }

    /// What a command of `redis-cli` prints.
    pub(crate) fn command(&self, words: &[&str]) -> String {
        let port = self.port.to_string();
        let done = Command::new("redis-cli")
            .args(["-p", &port])
            .args(words)
            .output();
        String::from_utf8(done.unwrap().stdout).unwrap()
    }
}

/// The directive that names a store.
pub(crate) fn store(port: u16, timeout: &str) -> String {
    format!("tidegate_store default redis://127.0.0.1:{port}/0 timeout={timeout};")
}
