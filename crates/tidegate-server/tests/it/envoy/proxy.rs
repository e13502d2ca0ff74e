//! A real Envoy, started by a test on free ports and stopped when it is dropped.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::client::Connection;
use crate::process::{Folder, PATIENCE, Process, command, until};
use crate::resp::peer;

/// An Envoy that runs.
pub(crate) struct Proxy {
    _process: Process,
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
        let mut envoy = command(program, "KILL");
        envoy
            .arg("--config-path")
            .arg(config)
            .arg("--admin-address-path")
            .arg(folder.path("admin"))
            .args([
                "--use-dynamic-base-id",
                "--concurrency",
                "2",
                "--log-level",
                "error",
            ])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::inherit());
        let mut process = Process::start(envoy);
        let admin = process.wait_for(|| {
            let admin = std::fs::read_to_string(folder.path("admin")).ok()?;
            (!admin.is_empty()).then_some(admin)
        });
        until("Envoy is ready", || {
            get(&admin, "/ready").contains("LIVE").then_some(())
        });
        let address = until("Envoy's listener", || {
            let listeners = get(&admin, "/listeners");
            let mut lines = listeners.lines();
            let address = lines.find_map(|line| line.strip_prefix("ingress::"));
            address.map(str::to_owned)
        });
        Self {
            _process: process,
            address,
        }
    }

    /// Host and port.
    pub(crate) fn address(&self) -> &str {
        &self.address
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

/// An example of Envoy's config, for a Tidegate at this address: on a free port, with the
/// application behind a socket of its own, and with more patience than a user has.
pub(crate) fn example(text: &str, tidegate: &str) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let app = format!("@tidegate-app-{}-{number}", std::process::id());
    let (_, port) = tidegate.rsplit_once(':').expect("a port");
    let address =
        |port: &str| format!("socket_address: {{ address: 127.0.0.1, port_value: {port} }}");
    let count = |port: &str| text.matches(&address(port)).count();
    assert_eq!((count("10000"), count("8080") + count("8081")), (1, 1));
    text.replace(&address("10000"), &address("0"))
        .replace(&address("10001"), &format!("pipe: {{ path: {app:?} }}"))
        .replace(&address("8080"), &address(port))
        .replace(&address("8081"), &address(port))
        .replace(
            "timeout: 0.25s",
            &format!("timeout: {}s", PATIENCE.as_secs()),
        )
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
