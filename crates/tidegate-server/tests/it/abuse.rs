//! Clients that mean harm, or are broken in the same way: what they cost, in bounds that
//! docs/http.md states. How long each of them lasts is in `src/serve/in_memory`.

use std::net::{SocketAddr, TcpStream};

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::task::JoinHandle;

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

/// A client of HTTP/2 that lets the server send nothing, and the task of its connection.
async fn without_a_window(server: &Tidegate) -> (SendRequest<Full<Bytes>>, JoinHandle<()>) {
    let stream = tokio::net::TcpStream::connect(server.address()).await;
    let stream = TokioIo::new(stream.expect("a server"));
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder.initial_stream_window_size(0);
    let (sender, connection) = builder.handshake(stream).await.expect("HTTP/2");
    let task = tokio::spawn(async move { drop(connection.await) });
    (sender, task)
}

fn post(body: &Bytes) -> Request<Full<Bytes>> {
    let request = Request::post("http://localhost/v1/check");
    request.body(Full::new(body.clone())).expect("a request")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g5_batches_that_nobody_reads_hold_a_bounded_amount() {
    // G5: four clients with 100 batches each held 175 MiB.
    let server = Tidegate::start("[[policies]]\nname = \"default\"\nlimit = \"1000000/1h\"\n");
    let check = "{\"policy\":\"default\",\"key\":\"k\"}";
    let batch = Bytes::from(format!("[{}]", vec![check; 1_000].join(",")));
    assert_eq!(
        server.check(std::str::from_utf8(&batch).unwrap()).status,
        200
    );
    let before = server.resident_kb();
    let (mut answered, mut clients) = (Vec::new(), Vec::new());
    for _ in 0..4 {
        let (sender, client) = without_a_window(&server).await;
        clients.push(client);
        for _ in 0..100 {
            let (mut sender, request) = (sender.clone(), post(&batch));
            answered.push(tokio::spawn(
                async move { sender.send_request(request).await },
            ));
        }
    }
    let (mut taken, mut refused, mut kept) = (0, 0, Vec::new());
    for answer in answered {
        let answer = answer.await.expect("no panic").expect("a head");
        match answer.status().as_u16() {
            200 => taken += 1,
            503 => refused += 1,
            status => panic!("{status}"),
        }
        kept.push(answer);
    }
    let held = server.resident_kb().saturating_sub(before);
    assert!(taken > 0 && refused > 0, "{taken} taken, {refused} refused");
    assert!(held < 80 << 10, "{held} kB for {taken} responses");
    // Short answers need no room, and others are served in the meantime.
    assert_eq!(server.check(check).status, 200);
    // When the clients are gone, the room is free again.
    drop(kept);
    for client in clients {
        client.abort();
    }
    until("the clients are gone", || {
        (open(&server) <= 1.0).then_some(())
    });
    assert_eq!(
        server.check(std::str::from_utf8(&batch).unwrap()).status,
        200
    );
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
