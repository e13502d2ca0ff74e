//! How it ends: readiness first, then the last requests, then the process. How long each
//! of these takes is in `src/serve/in_memory/shutdown.rs`.

use std::io::ErrorKind;
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use crate::client::{Connection, request};
use crate::process::{Start, Tidegate, until};

fn start(drain: &str) -> Tidegate {
    let config = "[[policies]]\nname = \"default\"\nlimit = \"1000000/1h\"\n";
    Start::new(config)
        .argument("--drain")
        .argument(drain)
        .start()
}

#[test]
fn sigint_is_quick_and_lets_requests_under_way_finish() {
    let mut server = start("600");
    let idle = server.connect();
    let mut kept = server.connect();
    assert_eq!(kept.ask("GET", "/healthz", &[], b"").status, 200);
    let mut busy = server.connect();
    let whole = request(
        "POST",
        "/v1/check",
        &[("Expect", "100-continue")],
        b"{\"policy\":\"default\",\"key\":\"k\"}",
    );
    let end = whole.len() - 30;
    busy.send(&whole[..end]);
    assert_eq!(busy.receive("POST").expect("go ahead").status, 100);
    server.signal("INT");
    assert!(kept.has_ended(), "a connection without a request");
    until("nobody listens", || {
        match TcpStream::connect(server.address()) {
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => Some(()),
            _ => None,
        }
    });
    busy.send(&whole[end..]);
    let answer = busy.receive("POST").expect("an answer");
    assert_eq!(answer.status, 200);
    drop(idle);
    assert!(server.end().0.success());
    server.line("stopped");
    let log = server.log();
    assert!(
        !log.iter().any(|line| line.contains("still open")),
        "{log:#?}"
    );
}

#[test]
fn a_second_signal_ends_it_at_once() {
    for (first, second) in [("TERM", "TERM"), ("TERM", "INT"), ("INT", "INT")] {
        let mut server = start("600");
        let mut busy = server.connect();
        let whole = request("POST", "/v1/check", &[("Expect", "100-continue")], b"{}");
        busy.send(&whole[..whole.len() - 2]);
        assert_eq!(busy.receive("POST").expect("go ahead").status, 100);
        server.signal(first);
        server.line("shutting down");
        assert!(server.is_running());
        server.signal(second);
        assert!(server.end().0.success());
        server.line("stopped, with connections still open");
    }
}

/// Clients have to hear of the drain before it is over.
mod timing {
    use super::*;

    /// A client that keeps its connection as long as it may, and goes to the other server
    /// once this one is not ready. Returns how many requests were answered.
    fn client(servers: [&Tidegate; 2], ready: &AtomicBool, done: &AtomicBool) -> u64 {
        let mut answered = 0;
        let mut open: Option<(bool, Connection)> = None;
        while !done.load(Relaxed) {
            let first = ready.load(Relaxed);
            let kept = open.take().filter(|(other, _)| *other == first);
            let (_, mut connection) = kept.unwrap_or_else(|| {
                let server = servers[usize::from(!first)];
                (first, Connection::tcp(server.address()))
            });
            let question = b"{\"policy\":\"default\",\"key\":\"k\"}";
            let answer = connection.ask("POST", "/v1/check", &[], question);
            assert_eq!(answer.json()["allowed"], true);
            answered += 1;
            if answer.header("connection") != Some("close") {
                open = Some((first, connection));
            }
        }
        answered
    }

    #[test]
    fn sigterm_under_load_fails_no_request() {
        // Longer than a machine that does other things, too, keeps the clients waiting.
        let (mut first, second) = (start("4"), start("4"));
        let (ready, done, unready) = (
            AtomicBool::new(true),
            AtomicBool::new(false),
            AtomicU64::new(0),
        );
        let answered = std::thread::scope(|scope| {
            let clients: Vec<_> = (0..8)
                .map(|_| scope.spawn(|| client([&first, &second], &ready, &done)))
                .collect();
            std::thread::sleep(Duration::from_millis(300));
            first.signal("TERM");
            // A load balancer that asks now and then.
            until("it is not ready", || {
                let answer = first.get("/readyz");
                (answer.status == 503).then(|| unready.fetch_add(1, Relaxed))
            });
            assert_eq!(first.get("/healthz").status, 200, "it still lives");
            let gate = first.get("/v1/gate/default?key=k");
            assert_eq!(gate.status, 200, "it still answers");
            assert_eq!(gate.header("connection"), Some("close"));
            std::thread::sleep(Duration::from_millis(200));
            ready.store(false, Relaxed);
            until("the first is gone", || {
                TcpStream::connect(first.address()).err()
            });
            std::thread::sleep(Duration::from_millis(200));
            done.store(true, Relaxed);
            let clients = clients.into_iter().map(|client| client.join());
            clients
                .map(|answered| answered.expect("no request failed"))
                .sum::<u64>()
        });
        assert!(answered > 100, "{answered} requests are no load");
        assert!(first.end().0.success());
        first.line("shutting down");
        first.line("stopped");
    }
}
