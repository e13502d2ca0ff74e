//! Clients that mean harm, or are broken in the same way: what they cost, in bounds that
//! docs/http.md states. How long each of them lasts is in `src/serve/in_memory`.

mod timing;

use std::net::{SocketAddr, TcpStream};

use crate::observed::metrics;
use crate::process::{PATIENCE, Start, Tidegate, until};

/// As many as the server takes at once.
const ALL: usize = 10_000;

/// Connects, and waits for a place in the backlog as long as anything may take.
fn connect(server: &Tidegate) -> TcpStream {
    let address: SocketAddr = server.address().parse().expect("an address");
    TcpStream::connect_timeout(&address, PATIENCE).expect("a place in the backlog")
}

fn open(server: &Tidegate) -> f64 {
    metrics(server)["tidegate_connections"]
}

#[test]
fn silent_connections_leave_room_for_health() {
    // They stay as long as this takes, however slow the machine is.
    let server = Start::new("").argument("--idle").argument("600").start();
    let silent: Vec<TcpStream> = (0..ALL + 100).map(|_| connect(&server)).collect();
    until("all places are taken", || {
        (open(&server) > ALL as f64 - 1.0).then_some(())
    });
    assert_eq!(server.get("/healthz").status, 200);
    assert!(open(&server) > ALL as f64 - 1.0, "they are still there");
    drop(silent);
    until("they are gone", || (open(&server) < 10.0).then_some(()));
}

#[test]
fn g6_burst_of_connections_waits_in_the_backlog() {
    // G6: with a backlog of 128 the rest of them would have to wait until the server
    // accepts, which it does not do while it stands still.
    let server = Tidegate::start("");
    server.signal("STOP");
    let burst: Vec<TcpStream> = (0..2_000).map(|_| connect(&server)).collect();
    server.signal("CONT");
    assert_eq!(burst.len(), 2_000);
    assert_eq!(server.get("/healthz").status, 200);
}

#[test]
fn shutdown_does_not_wait_for_tls_handshakes() {
    let certificates = crate::certificates::Certificates::make();
    let start = Start::new("[server]\ntls_cert = \"server.crt\"\ntls_key = \"server.key\"\n");
    for file in ["server.crt", "server.key"] {
        start.folder().write(file, certificates.read(file));
    }
    let mut server = start.argument("--drain").argument("0").start();
    let silent: Vec<TcpStream> = (0..50).map(|_| connect(&server)).collect();
    server.signal("TERM");
    assert!(server.end().0.success());
    // It gives up after ten seconds and says so, if it waits for them.
    server.line("stopped");
    let log = server.log();
    assert!(
        !log.iter().any(|line| line.contains("still open")),
        "{log:#?}"
    );
    drop(silent);
}
