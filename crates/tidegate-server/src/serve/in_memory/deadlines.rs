//! How long a client may take for each thing it does.

use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::AsyncWriteExt;
use tokio::time::{Instant, sleep};

use super::super::clock::TICK;
use super::super::connection::{GENERATION, HEAD, TAKE};
use super::{HALF_HEAD, Server, assert_about};

#[tokio::test(start_paused = true)]
async fn idle_connections_are_closed_after_the_idle_time_which_each_request_starts_again() {
    let idle = Duration::from_secs(3);
    let server = Server::with(Duration::ZERO, idle);
    let (mut silent, mut used) = (server.connect(), server.connect());
    let (mut half_head, mut half_preface) = (server.connect(), server.connect());
    let start = Instant::now();
    assert_eq!(used.get("/healthz").await.status, 200);
    half_head.send(HALF_HEAD).await;
    half_preface.send(b"PRI * HTTP/2.0\r\n").await;
    for client in [&mut silent, &mut used, &mut half_head, &mut half_preface] {
        client.ended().await;
        assert_about(start, idle);
    }
    server.until_open(0).await;
    let mut client = server.connect();
    for _ in 0..10 {
        sleep(Duration::from_secs(2)).await;
        assert_eq!(client.get("/healthz").await.status, 200);
    }
    let last = Instant::now();
    client.ended().await;
    assert_about(last, idle);
}

#[tokio::test(start_paused = true)]
async fn head_sent_byte_by_byte_has_the_same_deadline() {
    let server = Server::start();
    let mut client = server.connect();
    // The deadline starts with the first byte, not with the connection.
    sleep(Duration::from_secs(30)).await;
    let start = Instant::now();
    client.send(HALF_HEAD).await;
    while client.stream.write_all(b"x").await.is_ok() {
        sleep(Duration::from_millis(50)).await;
    }
    assert_about(start, HEAD);
}

#[tokio::test(start_paused = true)]
async fn stalled_http1_reader_loses_the_connection() {
    let server = Server::start();
    let client = &mut server.connect();
    // The answers are longer than the requests, and more than the stream holds.
    let request = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n";
    client.send(&request.repeat(100)).await;
    // A reader that takes a little now and then keeps its connection.
    for _ in 0..3 {
        sleep(TAKE - Duration::from_secs(1)).await;
        client.rest.clear();
        assert!(client.read().await);
    }
    assert_eq!(server.open(), 1);
    let start = Instant::now();
    server.until_open(0).await;
    assert_about(start, TAKE);
}

#[tokio::test(start_paused = true)]
async fn http2_client_without_a_window_loses_the_connection() {
    let server = Server::start();
    let stream = TokioIo::new(server.connect().stream);
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder.initial_stream_window_size(0);
    let (mut sender, connection) = builder.handshake(stream).await.expect("HTTP/2");
    tokio::spawn(connection);
    let check = "{\"policy\":\"default\",\"key\":\"k\"}";
    let batch = Bytes::from(format!("[{}]", vec![check; 1_000].join(",")));
    let start = Instant::now();
    let request = Request::post("http://localhost/v1/check").body(Full::new(batch));
    let answer = sender.send_request(request.expect("a request")).await;
    let answer = answer.expect("a head");
    assert_eq!(answer.status(), 200);
    server.until_open(0).await;
    let passed = start.elapsed();
    let late = TAKE + GENERATION + TICK * 2;
    assert!((TAKE..late).contains(&passed), "{passed:?}");
}
