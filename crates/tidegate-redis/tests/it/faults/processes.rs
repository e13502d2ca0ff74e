//! Servers that are stopped, killed, and not there yet.

use std::time::{Duration, Instant};

use tidegate::Source;
use tidegate_redis::ErrorKind;
use tokio::time::{sleep, sleep_until};

use super::{DEADLINE, Rig, load, until};
use crate::server::Server;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_stopped_for_five_seconds() {
    let server = Server::start();
    let rig = Rig::new(&server.url());
    rig.until_answered().await;
    let load = load::start(&rig, 500, Duration::from_secs(8));
    sleep(Duration::from_millis(500)).await;

    server.signal("STOP");
    let stopped = tokio::time::Instant::now();
    let opened = until("open", || rig.store.stats().breaker_open).await;
    rig.is_obeyed().await;
    sleep_until(stopped + Duration::from_secs(5)).await;
    assert!(rig.store.stats().breaker_open);
    assert!(rig.count(ErrorKind::Timeout) >= 5);

    server.signal("CONT");
    let closed = until("closed", || !rig.store.stats().breaker_open).await;
    println!("stopped: opened after {opened:?}, closed {closed:?} after it went on");
    // The longest pause between probes, and the one that succeeds.
    assert!(closed < Duration::from_millis(1_500), "{closed:?}");
    let load = load.await.unwrap();
    rig.until_answered().await;
    load.keeps_the_deadline("stopped");
    assert!(load.store > 800 && load.without_store > 2_000);
    // A deadline now and then, and not on every check.
    assert!(rig.count(ErrorKind::Timeout) < 250);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_killed_and_started_again() {
    let mut server = Server::start();
    let rig = Rig::new(&server.url());
    rig.until_answered().await;
    let load = load::start(&rig, 500, Duration::from_secs(4));
    sleep(Duration::from_millis(500)).await;

    server.kill();
    until("open", || rig.store.stats().breaker_open).await;
    rig.is_obeyed().await;
    sleep(Duration::from_secs(1)).await;
    assert!(rig.store.stats().breaker_open);

    server.restart();
    let closed = until("closed", || !rig.store.stats().breaker_open).await;
    println!("killed: closed {closed:?} after it was back");
    assert!(closed < Duration::from_millis(1_500), "{closed:?}");
    let load = load.await.unwrap();
    rig.until_answered().await;
    load.keeps_the_deadline("killed");
    assert!(load.store > 500);
    // On a busy machine, the deadline may come while it is still trying.
    assert!(rig.count(ErrorKind::Connect) + rig.count(ErrorKind::Timeout) >= 4);
}

/// Servers close connections that nobody uses, and are restarted at night: the next
/// check makes another one, and nobody notices.
#[tokio::test]
async fn a_connection_that_was_closed_while_idle() {
    let mut server = Server::start();
    let rig = Rig::new(&server.url());
    rig.until_answered().await;
    let kill = |server: &Server| {
        let killed = redis::cmd("CLIENT")
            .arg(&["KILL", "TYPE", "normal"][..])
            .query::<u32>(&mut server.connect());
        assert_eq!(killed, Ok(2));
    };
    kill(&server);
    sleep(Duration::from_millis(50)).await;
    for id in 0..16 {
        let decision = rig.check("deny", &id.to_string()).await;
        assert_eq!(decision.source(), Source::Store);
    }
    server.kill();
    server.restart();
    sleep(Duration::from_millis(50)).await;
    for id in 0..16 {
        let decision = rig.check("deny", &id.to_string()).await;
        assert_eq!(decision.source(), Source::Store);
    }
    assert_eq!(rig.errors(), 0);
}

#[tokio::test]
async fn f2_a_start_with_the_server_down_works() {
    let mut server = Server::start();
    server.kill();
    let rig = Rig::new(&server.url());
    let mut slow = 0;
    while !rig.store.stats().breaker_open {
        let start = Instant::now();
        let (kind, slept) = tokio::join!(rig.error("any"), async {
            sleep(DEADLINE).await;
            start.elapsed()
        });
        // As above.
        assert!(matches!(
            kind,
            Some(ErrorKind::Connect | ErrorKind::Timeout)
        ));
        let took = start.elapsed();
        // One deadline each, by the timers of this machine.
        assert!(
            took <= slept + Duration::from_millis(10),
            "{took:?} {slept:?}"
        );
        slow += 1;
    }
    // They come one after the other: three deadlines are enough to know.
    assert_eq!(slow, 3);
    assert!(rig.store.stats().retries > 0);
    rig.is_obeyed().await;
    server.restart();
    let back = rig.until_answered().await;
    println!("down at start: answers {back:?} after it was up");
    assert!(back < Duration::from_millis(1_500), "{back:?}");
}
