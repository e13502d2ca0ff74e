//! Many clients at once: as many as there is room for, and more.

use std::time::Duration;

use tokio::time::Instant;

use super::super::clock::TICK;
use super::super::connection::{HEAD, SPARE};
use super::super::{MAX_CONNECTIONS, Room};
use super::{Answer, Client, HALF_BODY, HALF_HEAD, Server, assert_about};

/// As many clients as the server takes, each of which has sent this.
async fn crowd(server: &Server, sent: &[u8]) -> Vec<Client> {
    let mut clients = Vec::new();
    for _ in 0..MAX_CONNECTIONS {
        let mut client = server.connect_with(1 << 10);
        client.send(sent).await;
        clients.push(client);
    }
    let all = i64::try_from(MAX_CONNECTIONS).expect("a number");
    server.until_open(all).await;
    clients
}

fn assert_refused(answer: &Answer, detail: &str) {
    assert_eq!(answer.status, 503);
    assert!(answer.body.contains(detail), "{}", answer.body);
    let retry = "retry-after: 1\r\n";
    assert!(answer.head.contains(retry), "{}", answer.head);
}

/// Any request but a health check gets a 503 with `Retry-After`.
async fn assert_taken(server: &Server) {
    assert_eq!(server.get("/healthz").await.status, 200);
    let mut late = server.connect();
    let answer = late.get("/v1/gate/default?key=k").await;
    assert_refused(&answer, "all connections are in use");
    late.ended().await;
}

#[tokio::test(start_paused = true)]
async fn health_is_answered_beside_ten_thousand_half_sent_heads_and_bodies() {
    let body = Duration::from_secs(10);
    let late = Some((408, true));
    for (sent, deadline, expected) in [(HALF_HEAD, HEAD, None), (HALF_BODY, body, late)] {
        let server = Server::start();
        let start = Instant::now();
        let mut half = crowd(&server, sent).await;
        assert_taken(&server).await;
        // A client that leaves affects no other client.
        half.pop();
        let answer = half[0].answer().await;
        let detail = "the body: not received within 10s";
        let answer = answer.map(|it| (it.status, it.body.contains(detail)));
        assert_eq!(answer, expected);
        half[0].ended().await;
        server.until_open(0).await;
        assert_about(start, deadline);
        assert_eq!(server.get("/v1/gate/default?key=k").await.status, 200);
    }
}

#[tokio::test(start_paused = true)]
async fn connection_above_the_limit_lives_for_a_second() {
    let idle = Duration::from_secs(75);
    let server = Server::with_room(Room::new(2, 2), Duration::ZERO, idle);
    let kept = [server.connect(), server.connect()];
    server.until_open(2).await;
    let start = Instant::now();
    let mut spare = [server.connect(), server.connect()];
    server.until_open(4).await;
    // There is no more room: this one is accepted when another one has gone.
    let mut last = server.connect();
    assert_eq!(last.get("/healthz").await.status, 200);
    assert_about(start, SPARE);
    for client in &mut spare {
        client.ended().await;
    }
    drop(kept);
    server.until_open(0).await;
}

/// The longest check, in one piece.
fn long_check() -> Vec<u8> {
    let (start, end) = ("{\"policy\":\"default\",\"key\":\"", "\"}");
    let key = "k".repeat((1 << 20) - start.len() - end.len());
    let length = 1 << 20;
    let head = format!("POST /v1/check HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n");
    format!("{head}{start}{key}{end}").into_bytes()
}

#[tokio::test(start_paused = true)]
async fn long_bodies_at_once_have_a_bound_and_short_ones_pass_by() {
    let server = Server::start();
    let long = long_check();
    // Nearly all of 256 MiB: what is left, and what the connection has free, is too little
    // for one more.
    let mut slow = Vec::new();
    for _ in 0..260 {
        let mut client = server.connect_with(2 << 20);
        client.send(&long[..(1 << 20) - 1]).await;
        slow.push(client);
    }
    assert_eq!(server.get("/healthz").await.status, 200);
    let start = Instant::now();
    let ask = async || {
        let mut client = server.connect_with(2 << 20);
        client.send(&long).await;
        client.answer().await.expect("an answer")
    };
    let detail = "too many requests and responses are in flight";
    assert_refused(&ask().await, detail);
    assert!(start.elapsed() < TICK, "it waits for no room");
    assert_eq!(server.get("/v1/gate/default?key=short").await.status, 200);
    // Those that leave make room at once.
    slow.truncate(250);
    tokio::time::sleep(TICK).await;
    assert_eq!(ask().await.status, 200);
}
