//! An nginx with the files in `examples/nginx/`: other ports, other places to find
//! tidegate, and what a test changes or adds.

use std::path::Path;

use super::tidegate::{Tidegate, example};
use tidegate_testkit::nginx;
use tidegate_testkit::process::{Folder, free_port};

/// What the files of the example are named.
const FILES: [&str; 5] = [
    "nginx.conf",
    "tidegate.toml",
    "tidegate/http.conf",
    "tidegate/server.conf",
    "tidegate/limit.conf",
];

/// Where the example has tidegate, and where it has more locations of a test.
const UPSTREAM: &str = "    server 127.0.0.1:8080;\n";
const LOCATIONS: &str = "        location /health {";

/// So that a machine that does other things is not taken for one without a tidegate.
const PATIENT: [Change<'static>; 2] = [(" 100ms;", " 10s;"), (" 200ms;", " 10s;")];

/// What a test changes: a text of the example, and what stands there instead.
pub(crate) type Change<'a> = (&'a str, &'a str);

pub(crate) struct Nginx(pub(crate) nginx::Nginx);

impl Nginx {
    /// In front of a tidegate.
    pub(crate) fn start(tidegate: &Tidegate) -> Self {
        Self::start_with(&[tidegate.0.address()], &[])
    }

    /// With more locations in front of a tidegate.
    pub(crate) fn start_location(tidegate: &Tidegate, locations: &str) -> Self {
        let locations = format!("{locations}\n{LOCATIONS}");
        Self::start_with(&[tidegate.0.address()], &[(LOCATIONS, &locations)])
    }

    /// In front of several, or of something else.
    pub(crate) fn start_with(upstream: &[&str], changes: &[Change<'_>]) -> Self {
        Self::start_hasty(upstream, &[changes, &PATIENT].concat())
    }

    /// [`start_with`](Self::start_with), waiting for tidegate as long as the example does.
    pub(crate) fn start_hasty(upstream: &[&str], changes: &[Change<'_>]) -> Self {
        let (folder, port) = (Folder::new(), free_port());
        let servers = upstream.iter();
        let servers: String = servers
            .map(|server| format!("    server {server};\n"))
            .collect();
        // The workers keep connections of their own, so a test that counts them has to know
        // how many there are.
        let workers = ("worker_processes auto;", "worker_processes 2;");
        let changes = [changes, &[(UPSTREAM, &servers), workers]].concat();
        copy(folder.root(), port, &changes);
        Self(nginx::Nginx::start(folder, port))
    }

    pub(crate) fn port(&self) -> u16 {
        self.0.port()
    }
}

/// Copies the example, with other ports and whatever else changes. Each change has to
/// find its place.
fn copy(folder: &Path, port: u16, changes: &[Change<'_>]) {
    let [port, application] = [port, free_port()].map(|port| format!("127.0.0.1:{port}"));
    let ports = [("127.0.0.1:8000", &*port), ("127.0.0.1:8001", &application)];
    std::fs::create_dir_all(folder.join("tidegate")).expect("a folder to write to");
    let mut unused: Vec<&str> = changes.iter().map(|(from, _)| *from).collect();
    for name in FILES {
        let mut text = std::fs::read_to_string(example(name)).expect("a file of the example");
        for (from, to) in changes.iter().chain(&ports) {
            if text.contains(from) {
                unused.retain(|other| other != from);
                text = text.replace(from, to);
            }
        }
        std::fs::write(folder.join(name), text).expect("a folder to write to");
    }
    assert!(unused.is_empty(), "not in the example: {unused:?}");
}
