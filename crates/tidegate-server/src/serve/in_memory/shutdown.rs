//! How it ends: readiness first, then the last requests, then the process.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::super::clock::TICK;
use super::super::worker::FIRST_REQUEST;
use super::super::{LAST_REQUESTS, Told};
use super::{Client, HALF_BODY, Server, assert_about};
use crate::settings::Settings;

/// A moment in which no deadline passes.
const MOMENT: Duration = Duration::from_millis(10);

fn draining(seconds: u64) -> Server {
    Server::with(Duration::from_secs(seconds), Duration::from_secs(75))
}

#[tokio::test(start_paused = true)]
async fn sigterm_drains_before_it_closes() {
    let server = draining(4);
    let (mut kept, mut silent) = (server.connect(), server.connect());
    server.engine.probe().await;
    assert_eq!(server.get("/readyz").await.status, 200);
    assert_eq!(kept.get("/healthz").await.status, 200);
    let start = Instant::now();
    server.signal(Told::Terminate);
    sleep(MOMENT).await;
    assert_eq!(server.get("/readyz").await.status, 503);
    // It still answers, and says that the connection ends.
    sleep(Duration::from_millis(3_900)).await;
    for path in ["/healthz", "/v1/gate/default?key=k"] {
        let answer = server.get(path).await;
        assert_eq!(answer.status, 200, "{path}");
        assert!(answer.head.contains("connection: close\r\n"), "{path}");
    }
    kept.ended().await;
    let passed = start.elapsed();
    assert_eq!(passed.as_secs(), 4, "{passed:?}");
    silent.ended().await;
    assert_about(start, Duration::from_secs(4) + FIRST_REQUEST);
    server.stopped().await;
    assert_about(start, Duration::from_secs(4) + FIRST_REQUEST);
}

#[tokio::test(start_paused = true)]
async fn reload_changes_drain_and_the_idle_time_of_new_connections() {
    let server = draining(4);
    let mut before = server.connect();
    server.until_open(1).await;
    let mut loaded = Settings::default().load().unwrap();
    let idle = Duration::from_secs(3);
    (loaded.server.drain, loaded.server.idle) = (Duration::from_secs(9), idle);
    server.engine.change(loaded).await.unwrap();
    let (start, mut after) = (Instant::now(), server.connect());
    after.ended().await;
    assert_about(start, idle);
    assert_eq!(before.get("/healthz").await.status, 200);
    let start = Instant::now();
    server.signal(Told::Terminate);
    server.stopped().await;
    assert_about(start, Duration::from_secs(9));
}

#[tokio::test(start_paused = true)]
async fn clients_that_connect_at_the_last_moment_are_answered() {
    let server = draining(0);
    let mut clients: Vec<Client> = (0..20).map(|_| server.connect()).collect();
    let mut late = server.connect();
    server.until_open(21).await;
    server.signal(Told::Terminate);
    let start = Instant::now();
    sleep(FIRST_REQUEST - MOMENT).await;
    for client in &mut clients {
        let answer = client.get("/v1/gate/default?key=k").await;
        assert!([200, 429].contains(&answer.status));
        client.ended().await;
    }
    late.ended().await;
    assert_about(start, FIRST_REQUEST);
    server.stopped().await;
    assert_about(start, FIRST_REQUEST);
}

#[tokio::test(start_paused = true)]
async fn sigint_skips_the_drain_and_lets_requests_finish() {
    let server = draining(600);
    let mut kept = server.connect();
    assert_eq!(kept.get("/healthz").await.status, 200);
    let mut busy = server.connect();
    busy.send(HALF_BODY).await;
    sleep(MOMENT).await;
    let start = Instant::now();
    server.signal(Told::Interrupt);
    kept.ended().await;
    assert!(start.elapsed() < MOMENT, "{:?}", start.elapsed());
    sleep(Duration::from_secs(5)).await;
    let rest = b":\"default\",\"key\":\"k\"}";
    busy.send(rest).await;
    busy.send(&b" ".repeat(50 - rest.len() - b"{\"policy\"".len()))
        .await;
    let answer = busy.answer().await.expect("an answer");
    assert_eq!(answer.status, 200, "{}", answer.body);
    busy.ended().await;
    server.stopped().await;
    assert_about(start, Duration::from_secs(5));
}

#[tokio::test(start_paused = true)]
async fn client_that_reads_nothing_holds_up_the_end_for_ten_seconds() {
    let server = draining(0);
    let mut stalled = server.connect_with(1 << 10);
    let request = b"GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n";
    stalled.send(request).await;
    sleep(MOMENT).await;
    let start = Instant::now();
    server.signal(Told::Terminate);
    server.stopped().await;
    assert_about(start, LAST_REQUESTS);
}

#[tokio::test(start_paused = true)]
async fn second_signal_ends_it_at_once() {
    for (first, second) in [
        (Told::Terminate, Told::Terminate),
        (Told::Terminate, Told::Interrupt),
        (Told::Interrupt, Told::Interrupt),
    ] {
        let server = draining(600);
        let mut busy = server.connect();
        busy.send(HALF_BODY).await;
        sleep(TICK).await;
        server.signal(first);
        sleep(Duration::from_secs(3)).await;
        assert!(!server.running.is_finished());
        let start = Instant::now();
        server.signal(second);
        server.stopped().await;
        assert_eq!(start.elapsed(), Duration::ZERO, "{first:?} {second:?}");
    }
}
