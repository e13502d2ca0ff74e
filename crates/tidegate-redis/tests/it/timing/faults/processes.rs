//! Servers that are stopped, killed, and not there yet.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use tidegate::Source;
use tidegate_redis::ErrorKind;
use tokio::time::sleep;

use super::under_load::Fault;
use super::{DEADLINE, Rig, load};
use crate::server::Server;
use crate::support::patient;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_stopped_for_five_seconds() {
    let server = Server::start();
    let rig = Rig::new(&server.url());
    // A connection that nobody answers while it is made is none.
    let kinds = [ErrorKind::Timeout, ErrorKind::Connect];
    let stopped = Fault {
        lasts: Duration::from_secs(5),
        ..Fault::new("stopped", &kinds)
    };
    let load = stopped
        .strikes(&rig, || server.signal("STOP"), || server.signal("CONT"))
        .await;
    assert!(load.store > 50 && load.without_store > 2_000);
    // A deadline now and then, and not on every check: those that are under way when it
    // is noticed, and the probes.
    let timeouts = rig.count(ErrorKind::Timeout);
    let some = 3..load.without_store as u64 / 4;
    assert!(some.contains(&timeouts), "{timeouts} of {some:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_killed_and_started_again() {
    let server = RefCell::new(Server::start());
    let rig = Rig::new(&server.borrow().url());
    let kinds = [ErrorKind::Connect, ErrorKind::OutcomeUnknown];
    let load = Fault::new("killed", &kinds)
        .strikes(
            &rig,
            || server.borrow_mut().kill(),
            || server.borrow_mut().restart(),
        )
        .await;
    assert!(load.store > 50);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_down_when_the_load_begins() {
    let mut server = Server::start();
    server.kill();
    let rig = Rig::new(&server.url());
    let load = load::start(&rig, 500);
    let load = Fault::new("down at the start", &[ErrorKind::Connect])
        .passes(&rig, load, || server.restart())
        .await;
    assert!(load.store > 50);
}

/// Servers close connections that nobody uses, and are restarted at night: the next
/// check makes another one, and nobody notices.
#[tokio::test]
async fn a_connection_that_was_closed_while_idle() {
    let mut server = Server::start();
    let rig = Rig::with(&server.url(), patient());
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
async fn start_with_the_server_down_works() {
    let mut server = Server::start();
    server.kill();
    let rig = Rig::new(&server.url());
    let mut late = Vec::new();
    while !rig.store.stats().breaker_open {
        let start = Instant::now();
        let (kind, slept) = tokio::join!(rig.error("any"), async {
            sleep(DEADLINE).await;
            start.elapsed()
        });
        // On a busy machine, the deadline may come while it is still trying.
        assert!(matches!(
            kind,
            Some(ErrorKind::Connect | ErrorKind::Timeout)
        ));
        late.push(start.elapsed().saturating_sub(slept));
    }
    // They come one after the other: two deadlines are enough to know.
    assert_eq!(late.len(), 2);
    // One deadline each, by the timers of this machine, unless it does other things.
    late.sort_unstable();
    assert!(late[0] <= Duration::from_millis(10), "{late:?}");
    assert!(rig.store.stats().retries > 0);
    rig.is_obeyed().await;
    server.restart();
    let back = rig.until_answered().await;
    println!("down at start: answers {back:?} after it was up");
    assert!(back.is_within(Duration::from_millis(1_500)), "{back:?}");
}
