//! Clients that mean harm, or are broken in the same way: what they cost, in bounds that
//! docs/http.md states.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};

use crate::client::Connection;
use crate::observed::metrics;
use crate::process::{Start, Tidegate, until};

/// As many as the server takes at once.
const ALL: usize = 10_000;

/// Held by tests that open as many: two at once would run out of file descriptors.
static MANY: Mutex<()> = Mutex::new(());

/// The head of a request that never ends.
const HALF: &[u8] = b"GET /v1/gate/default?key=k HTTP/1.1\r\nHost:";

fn connect(server: &Tidegate) -> TcpStream {
    TcpStream::connect(server.address()).expect("a place in the backlog")
}

/// Asks for health until it is answered, and says how long that took.
fn healthy(server: &Tidegate) -> Duration {
    let start = Instant::now();
    let mut connection = Connection::tcp(server.address());
    let answer = connection.ask("GET", "/healthz", &[], b"");
    assert_eq!(answer.status, 200);
    start.elapsed()
}

fn open(server: &Tidegate) -> f64 {
    metrics(server)["tidegate_connections"]
}

#[test]
fn health_is_answered_beside_ten_thousand_half_sent_heads() {
    let _one_at_a_time = MANY.lock().unwrap_or_else(PoisonError::into_inner);
    let server = Tidegate::start("");
    let begun = Instant::now();
    let mut half: Vec<TcpStream> = Vec::new();
    for _ in 0..ALL {
        let mut stream = connect(&server);
        stream.write_all(HALF).expect("a server that reads");
        half.push(stream);
    }
    until("all of them are open", || {
        (open(&server) > ALL as f64 - 1.0).then_some(())
    });
    let took = healthy(&server);
    assert!(took < Duration::from_secs(2), "{took:?}");
    // What is no health check is told to come back.
    let mut late = server.connect();
    let answer = late.ask("GET", "/v1/gate/default?key=k", &[], b"");
    // On a slow machine the first heads have met their deadline by now.
    if begun.elapsed() < Duration::from_secs(10) {
        assert_eq!(answer.status, 503);
        assert_eq!(answer.detail(), "all connections are taken");
        assert_eq!(answer.header("retry-after"), Some("1"));
        assert!(late.has_ended());
    }
    // And the heads have a deadline of ten seconds, whoever sends them.
    let waited = Instant::now();
    until("they are gone", || (open(&server) < 10.0).then_some(()));
    let waited = waited.elapsed();
    assert!(waited < Duration::from_secs(15), "{waited:?}");
    assert_eq!(server.get("/v1/gate/default?key=k").status, 200);
}

#[test]
fn head_sent_byte_by_byte_has_the_same_deadline() {
    let server = Tidegate::start("");
    let mut stream = connect(&server);
    let start = Instant::now();
    stream.write_all(HALF).expect("a server that reads");
    let ended = loop {
        std::thread::sleep(Duration::from_millis(200));
        if stream.write_all(b"x").is_err() || start.elapsed() > Duration::from_secs(60) {
            break start.elapsed();
        }
    };
    assert!(ended > Duration::from_secs(10), "{ended:?}");
    assert!(ended < Duration::from_secs(15), "{ended:?}");
}

#[test]
fn health_is_answered_beside_ten_thousand_slow_bodies() {
    let _one_at_a_time = MANY.lock().unwrap_or_else(PoisonError::into_inner);
    let server = Tidegate::start("");
    let head = b"POST /v1/check HTTP/1.1\r\nHost: x\r\nContent-Length: 50\r\n\r\n{\"policy\"";
    let mut slow: Vec<TcpStream> = Vec::new();
    for _ in 0..ALL {
        let mut stream = connect(&server);
        stream.write_all(head).expect("a server that reads");
        slow.push(stream);
    }
    let took = healthy(&server);
    assert!(took < Duration::from_secs(2), "{took:?}");
    let waited = Instant::now();
    until("they are sent away", || {
        (open(&server) < 10.0).then_some(())
    });
    let waited = waited.elapsed();
    assert!(waited < Duration::from_secs(15), "{waited:?}");
    let mut answer = String::new();
    let first = &mut slow[0];
    first.read_to_string(&mut answer).expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
}

#[test]
fn silent_connections_leave_room_for_health() {
    let _one_at_a_time = MANY.lock().unwrap_or_else(PoisonError::into_inner);
    let server = Tidegate::start("");
    let silent: Vec<TcpStream> = (0..ALL + 100).map(|_| connect(&server)).collect();
    until("all places are taken", || {
        (open(&server) > ALL as f64 - 1.0).then_some(())
    });
    let took = healthy(&server);
    assert!(took < Duration::from_secs(3), "{took:?}");
    drop(silent);
    until("they are gone", || (open(&server) < 10.0).then_some(()));
}

#[test]
fn burst_of_connections_waits_in_the_backlog() {
    // G6: with a backlog of 128 the rest of them would wait a second, until the system
    // sends their first packet again.
    let server = Tidegate::start("");
    server.signal("STOP");
    let start = Instant::now();
    let burst: Vec<TcpStream> = (0..2_000).map(|_| connect(&server)).collect();
    let took = start.elapsed();
    server.signal("CONT");
    assert_eq!(burst.len(), 2_000);
    assert!(took < Duration::from_secs(1), "{took:?}");
    assert_eq!(server.get("/healthz").status, 200);
}

/// A client of HTTP/2 that lets the server send nothing.
async fn without_a_window(server: &Tidegate) -> SendRequest<Full<Bytes>> {
    let stream = tokio::net::TcpStream::connect(server.address()).await;
    let stream = TokioIo::new(stream.expect("a server"));
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder.initial_stream_window_size(0);
    let (sender, connection) = builder.handshake(stream).await.expect("HTTP/2");
    tokio::spawn(connection);
    sender
}

fn post(body: &Bytes) -> Request<Full<Bytes>> {
    let request = Request::post("http://localhost/v1/check");
    request.body(Full::new(body.clone())).expect("a request")
}

#[tokio::test]
async fn batches_that_nobody_reads_hold_a_bounded_amount() {
    // G5: four clients with 100 batches each held 175 MiB.
    let server = Tidegate::start("[[policies]]\nname = \"default\"\nlimit = \"1000000/1h\"\n");
    let check = "{\"policy\":\"default\",\"key\":\"k\"}";
    let batch = Bytes::from(format!("[{}]", vec![check; 1_000].join(",")));
    assert_eq!(
        server.check(std::str::from_utf8(&batch).unwrap()).status,
        200
    );
    let before = server.resident_kb();
    let mut answered = Vec::new();
    for _ in 0..4 {
        let sender = without_a_window(&server).await;
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
    // Who does not read loses the connection, and the room is free again.
    let start = Instant::now();
    until("the clients are gone", || {
        (open(&server) <= 1.0).then_some(())
    });
    let took = start.elapsed();
    assert!(took < Duration::from_secs(45), "{took:?}");
    assert_eq!(
        server.check(std::str::from_utf8(&batch).unwrap()).status,
        200
    );
}

#[tokio::test]
async fn stalled_http1_reader_loses_the_connection() {
    let server = Tidegate::start("[[policies]]\nname = \"default\"\nlimit = \"1000000/1h\"\n");
    let check = "{\"policy\":\"default\",\"key\":\"k\"}";
    let batch = format!("[{}]", vec![check; 1_000].join(","));
    let request = crate::client::request("POST", "/v1/check", &[], batch.as_bytes());
    let mut stalled = server.connect();
    let start = Instant::now();
    // More than the buffers of both ends take; sending may wait for the end, too.
    stalled.send(&request.repeat(40));
    until("it is counted", || (open(&server) > 1.0).then_some(()));
    until("it is gone", || (open(&server) <= 1.0).then_some(()));
    let took = start.elapsed();
    assert!(took > Duration::from_secs(29), "{took:?}");
    assert!(took < Duration::from_secs(60), "{took:?}");
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
    std::thread::sleep(Duration::from_millis(200));
    let begun = Instant::now();
    server.signal("TERM");
    assert!(server.end().0.success());
    server.line("stopped");
    let took = begun.elapsed();
    assert!(took < Duration::from_secs(5), "{took:?}");
    drop(silent);
}
