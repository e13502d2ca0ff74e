//! What is lost, late or closed between a store and its server, and what is charged then.

use tidegate::Source;
use tidegate_redis::{ErrorKind, RedisOptions};
use tidegate_testkit::cluster::run;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::rig::{MS, Rig, until};
use crate::proxy::{Proxy, Replies};
use crate::server::Server;
use crate::support::patient;

/// No batch waits until the one before it has been answered, and a deadline longer than a
/// connection may be silent otherwise is waited for all the same.
#[tokio::test]
async fn late_replies_hold_up_no_batch() {
    let (_server, proxy, rig) = Rig::behind_a_proxy(patient().connections(1)).await;
    proxy.set(Replies::Delay(2_500 * MS));
    let mut checks = Vec::new();
    for number in 0..3 {
        let before = rig.store.stats().batches;
        let rig_of_check = rig.clone();
        let check = async move { rig_of_check.source("deny", number).await };
        checks.push(tokio::spawn(check));
        let is_sent = async || rig.store.stats().batches > before;
        until("it is on its way", is_sent).await;
    }
    let is_answered = checks.iter().any(|check| check.is_finished());
    assert!(!is_answered, "all of them wait for the first reply");
    for check in checks {
        assert_eq!(check.await.unwrap(), Source::Store);
    }
    assert_eq!(rig.errors(), 0);
}

/// U12: checks that take longer than the deadline are decided by `on_error`.
#[tokio::test]
async fn u12_store_that_is_too_far_away_is_warned_about() {
    let options = RedisOptions::default().timeout(3_000 * MS);
    let (_server, proxy, rig) = Rig::behind_a_proxy(options).await;
    assert_eq!(rig.limiter.warnings().await, [""; 0]);
    proxy.set(Replies::Delay(1_600 * MS));
    let warnings = rig.limiter.warnings().await;
    let round_trip = rig.store.stats().round_trip.unwrap();
    assert!(round_trip >= 1_600 * MS, "{round_trip:?}");
    let start = "store \"default\": a round trip takes ";
    let end = "over half of the timeout of 3000 ms: on_error decides the checks that take longer; expected a nearer server or a longer timeout";
    let [warning] = &warnings[..] else {
        panic!("{warnings:?}");
    };
    assert!(
        warning.starts_with(start) && warning.ends_with(end),
        "{warning}"
    );
}

/// Many checks are lost with one connection; but that is one connection, and the next one
/// works.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_lost_connection_is_not_a_store_that_keeps_failing() {
    let (_server, proxy, rig) = Rig::behind_a_proxy(patient()).await;
    // Longer than it takes to cut them.
    proxy.set(Replies::Delay(10_000 * MS));
    let before = rig.store.stats().batches;
    let mut checks = JoinSet::new();
    for number in 0..100 {
        let rig = rig.clone();
        checks.spawn(async move { rig.error(number).await });
    }
    let are_sent = async || rig.store.stats().batches >= before + 2;
    until("some are on their way", are_sent).await;
    sleep(20 * MS).await;
    proxy.set(Replies::Pass);
    proxy.cut_all();
    let kinds = checks.join_all().await;
    assert!(kinds.contains(&Some(ErrorKind::OutcomeUnknown)));
    assert!(!rig.is_open());
    assert!(rig.is_answered().await);
}

/// A caller that has given up while the connection was being made is not charged once it is.
#[tokio::test]
async fn caller_that_gives_up_before_the_send_is_not_charged() {
    let server = Server::start();
    let proxy = Proxy::start(server.port()).await;
    proxy.set(Replies::Delay(200 * MS));
    let rig = Rig::with(&proxy.url(), RedisOptions::default().connections(1));
    let error = rig.error("early").await;
    // A machine that stops for a second gives up the connection first.
    let kinds = [Some(ErrorKind::Timeout), Some(ErrorKind::Connect)];
    assert!(kinds.contains(&error), "{error:?}");
    // By now it is connected, and has had the time to send what nobody waits for.
    sleep(500 * MS).await;
    proxy.set(Replies::Pass);
    rig.until_answered().await;
    assert_eq!(rig.used("allow", "early").await, 0, "bound broken");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_charged_twice_when_connections_are_cut_at_random() {
    let (server, proxy, rig) = Rig::behind_a_proxy(RedisOptions::default()).await;
    proxy.set(Replies::CutSome { one_in: 15 });
    let mut callers = JoinSet::new();
    for caller in 0..20 {
        let rig = rig.clone();
        callers.spawn(async move {
            let key = caller % 4;
            let (mut sent, mut admitted) = (0, 0);
            while sent < 100 {
                match rig.error(format!("key{key}")).await {
                    Some(ErrorKind::BreakerOpen) => {
                        sleep(5 * MS).await;
                        continue;
                    }
                    error => admitted += u32::from(error.is_none()),
                }
                sent += 1;
            }
            (key, admitted)
        });
    }
    let results = callers.join_all().await;
    let lost = rig.count(ErrorKind::OutcomeUnknown);
    assert!(lost > 5, "{lost} of 2000 lost");
    // Looked at past the proxy.
    let direct = Rig::new(&server.url());
    for key in 0..4 {
        let admitted = results.iter().filter(|(of, _)| *of == key);
        let admitted: u32 = admitted.map(|(_, admitted)| admitted).sum();
        let used = direct.used("allow", &format!("key{key}")).await;
        assert!(
            (admitted..=500).contains(&used),
            "bound broken, or charged twice: {admitted} of 500 admitted, {used} used"
        );
    }
}

/// Servers close connections that nobody uses, and are restarted at night: the next check makes
/// another one, and nobody notices.
#[tokio::test]
async fn a_connection_that_was_closed_while_idle() {
    let mut server = Server::start();
    let rig = Rig::with(&server.url(), patient());
    rig.until_answered().await;
    let killed: u32 = run(&mut server.connect(), "CLIENT KILL TYPE normal");
    assert_eq!(killed, 2);
    sleep(50 * MS).await;
    assert!(rig.is_answered().await);
    server.kill();
    server.restart();
    sleep(50 * MS).await;
    assert!(rig.is_answered().await);
    assert_eq!(rig.errors(), 0);
}

/// A name that leads elsewhere after a failover: the old connections still lead to the old
/// master, which has become a replica and says so.
#[tokio::test]
async fn a_master_that_becomes_a_replica_while_another_one_takes_over() {
    let (old, proxy, rig) = Rig::behind_a_proxy(patient()).await;
    let new = Server::start();
    let follow = format!("REPLICAOF 127.0.0.1 {}", new.port());
    run::<()>(&mut old.connect(), &follow);
    proxy.lead_to(new.port());
    let answered = timeout(10_000 * MS, rig.is_answered()).await;
    assert_eq!(answered, Ok(true));
    assert_eq!(rig.errors(), 0);
}
