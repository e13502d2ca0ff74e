//! A real Envoy, started by a test on free ports and stopped when it is dropped.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::client::Connection;
use crate::process::{Folder, PATIENCE, until};
use crate::resp::peer;

/// An Envoy that runs.
pub(crate) struct Proxy {
    process: Child,
    folder: Folder,
    /// Host and port of its first listener.
    address: String,
}

impl Proxy {
    /// Starts it with this config, whose first listener is named `ingress` and has port 0.
    pub(crate) fn start(config: &str) -> Self {
        let program = peer("envoy/envoy/_bin/envoy");
        // A wheel does not always keep permissions.
        let executable = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(&program, executable).expect("a file of ours");
        let folder = Folder::new();
        let admin = "admin: { address: { socket_address: { address: 127.0.0.1, port_value: 0 } } }";
        let config = folder.write("envoy.yaml", format!("{admin}\n{config}"));
        let log = std::fs::File::create(folder.path("envoy.log")).expect("a file");
        let process = Command::new(program)
            .arg("--config-path")
            .arg(config)
            .arg("--admin-address-path")
            .arg(folder.path("admin"))
            .args(["--use-dynamic-base-id", "--concurrency", "2"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn();
        let mut started = Self {
            process: process.expect("installed by `cargo xtask test`"),
            folder,
            address: String::new(),
        };
        let admin = until("Envoy's admin address", || {
            started.assert_runs();
            let admin = std::fs::read_to_string(started.folder.path("admin")).ok()?;
            (!admin.is_empty()).then_some(admin)
        });
        until("Envoy is ready", || {
            get(&admin, "/ready").contains("LIVE").then_some(())
        });
        started.address = until("Envoy's listener", || {
            let listeners = get(&admin, "/listeners");
            let mut lines = listeners.lines();
            let address = lines.find_map(|line| line.strip_prefix("ingress::"));
            address.map(str::to_owned)
        });
        started
    }

    fn assert_runs(&mut self) {
        let ended = self.process.try_wait().expect("a child of ours");
        let log = || std::fs::read_to_string(self.folder.path("envoy.log"));
        assert!(ended.is_none(), "Envoy has ended: {:?}", log());
    }

    pub(crate) fn connect(&self) -> Connection {
        Connection::tcp(&self.address)
    }

    /// Sends requests at this rate, and says when those came back that were admitted.
    pub(crate) fn offer(
        &self,
        per_second: u32,
        headers: &[(&str, &str)],
        until: Instant,
    ) -> Vec<Instant> {
        let mut connection = self.connect();
        let mut admitted = Vec::new();
        let period = Duration::from_secs(1) / per_second;
        let mut next = Instant::now();
        while Instant::now() < until {
            let answer = connection.ask("GET", "/", headers, b"");
            match answer.status {
                200 => admitted.push(Instant::now()),
                429 => {}
                status => panic!("{status}: {answer:?}"),
            }
            next += period;
            // A machine that stalls has less load, and no burst of it.
            let now = Instant::now();
            next = next.max(now - period);
            std::thread::sleep(next.saturating_duration_since(now));
        }
        admitted
    }
}

/// What Envoy's admin interface answers, whatever the encoding: it sends in chunks.
fn get(admin: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(admin).expect("Envoy listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    let request = format!("GET {path} HTTP/1.1\r\nhost: envoy\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("Envoy reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("text");
    answer
}

impl Drop for Proxy {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
    }
}
