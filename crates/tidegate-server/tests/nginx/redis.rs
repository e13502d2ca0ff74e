//! A Redis of the test's own.

use std::process::{Command, Stdio};

use crate::process::{Folder, Process, free_port};

pub(crate) struct Redis {
    _process: Process,
    _folder: Folder,
    port: u16,
}

impl Redis {
    pub(crate) fn start() -> Self {
        let (folder, port) = (Folder::new(), free_port());
        let mut process = Process::start(
            Command::new("redis-server")
                .args(["--port", &port.to_string(), "--bind", "127.0.0.1"])
                .args(["--save", "", "--dir"])
                .arg(folder.path())
                .stdout(Stdio::null()),
        );
        process.wait_for_port(port);
        Self {
            _process: process,
            _folder: folder,
            port,
        }
    }

    /// The part of a config that names it, with time enough for a machine that does other
    /// things.
    pub(crate) fn config(&self) -> String {
        let port = self.port;
        format!("[stores.default]\nurl = \"redis://127.0.0.1:{port}/0\"\ntimeout = \"10s\"\n")
    }
}
