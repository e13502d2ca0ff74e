//! A network that delays, loses and cuts what the server says.

use std::time::Duration;

use tidegate::Source;
use tidegate_redis::{ErrorKind, RedisOptions};
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::load::Load;
use super::under_load::Fault;
use super::{Rig, until};
use crate::proxy::{Proxy, Replies};
use crate::server::Server;
use crate::support::patient;

const MS: Duration = Duration::from_millis(1);

/// A server behind a proxy, and a store that has connections through it.
async fn behind_a_proxy() -> (Server, Proxy, Rig) {
    let server = Server::start();
    let proxy = Proxy::start(server.port()).await;
    let rig = Rig::new(&proxy.url());
    rig.until_answered().await;
    (server, proxy, rig)
}

/// No batch waits until the one before it has been answered.
#[tokio::test]
async fn late_replies_hold_up_no_batch() {
    let server = Server::start();
    let proxy = Proxy::start(server.port()).await;
    let rig = Rig::with(&proxy.url(), patient().connections(1));
    rig.until_answered().await;
    proxy.set(Replies::Delay(4_000 * MS));
    let mut checks = Vec::new();
    for number in 0..3 {
        let before = rig.store.stats().batches;
        let rig_of_check = rig.clone();
        checks.push(tokio::spawn(async move {
            let decision = rig_of_check.check("deny", &number.to_string()).await;
            decision.source()
        }));
        until("it is on its way", || rig.store.stats().batches > before).await;
    }
    assert!(
        checks.iter().all(|check| !check.is_finished()),
        "all of them wait for the first reply"
    );
    for check in checks {
        assert_eq!(check.await.unwrap(), Source::Store);
    }
    assert_eq!(rig.errors(), 0);
}

/// A deadline longer than a connection may be silent otherwise is waited for all the same.
#[tokio::test]
async fn replies_that_are_very_late_but_not_for_a_patient_store() {
    let server = Server::start();
    let proxy = Proxy::start(server.port()).await;
    let rig = Rig::with(&proxy.url(), patient());
    rig.until_answered().await;
    proxy.set(Replies::Delay(1_500 * MS));
    assert_eq!(rig.check("deny", "late").await.source(), Source::Store);
    assert_eq!(rig.errors(), 0);
}

/// U12: checks that take longer than the deadline are decided by `on_error`.
#[tokio::test]
async fn u12_store_that_is_too_far_away_is_warned_about() {
    let server = Server::start();
    let proxy = Proxy::start(server.port()).await;
    let rig = Rig::with(&proxy.url(), RedisOptions::default().timeout(3_000 * MS));
    rig.until_answered().await;
    assert_eq!(rig.limiter.warnings().await, [""; 0]);
    proxy.set(Replies::Delay(1_600 * MS));
    let warnings = rig.limiter.warnings().await;
    let round_trip = rig.store.stats().round_trip.unwrap();
    assert!(round_trip >= 1_600 * MS, "{round_trip:?}");
    let start = "store \"default\": a round trip takes ";
    let end = "over half of the timeout of 3000 ms: on_error decides the checks that take longer; expected a nearer server or a longer timeout";
    let is_it = |it: &String| it.starts_with(start) && it.ends_with(end);
    assert!(
        warnings.len() == 1 && warnings.iter().all(is_it),
        "{warnings:?}"
    );
}

/// Puts a fault on the network for a while under load, and takes it away again. Says how
/// many connections were made in the meantime, and what the load has met.
async fn fault(what: &str, replies: Replies, kinds: &[ErrorKind]) -> (usize, Load) {
    let (_server, proxy, rig) = behind_a_proxy().await;
    let (mut before, mut after) = (0, 0);
    let fault = Fault {
        // A connection that was lost may have to be given up first.
        closes_within: 2_500 * MS,
        ..Fault::new(what, kinds)
    };
    let begins = || {
        before = proxy.accepted();
        proxy.set(replies);
    };
    let ends = || {
        after = proxy.accepted();
        proxy.set(Replies::Pass);
    };
    let load = fault.strikes(&rig, begins, ends).await;
    println!("{what}: {} connections made", after - before);
    (after - before, load)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replies_that_are_half_a_second_late() {
    let (made, load) = fault(
        "500 ms late",
        Replies::Delay(500 * MS),
        &[ErrorKind::Timeout],
    )
    .await;
    // A connection that is silent for a second is given up: each of the two, when the
    // machine stalls for as long as it takes.
    let most = 2 * load.stalls(400 * MS);
    assert!(
        made <= most,
        "slow is no reason to connect anew: {made} times"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_black_hole() {
    // A connection that nobody answers while it is made is none.
    let kinds = [ErrorKind::Timeout, ErrorKind::Connect];
    let (made, _) = fault("black hole", Replies::BlackHole, &kinds).await;
    assert!(made <= 10, "{made}");
}

/// Callers who come one after the other pay for two deadlines.
#[tokio::test]
async fn f2_a_black_hole_costs_lone_callers_two_deadlines() {
    let (_server, proxy, rig) = behind_a_proxy().await;
    for _ in 0..4 {
        proxy.set(Replies::BlackHole);
        let kinds = rig.until_open().await;
        rig.is_obeyed().await;
        proxy.set(Replies::Pass);
        rig.until_answered().await;
        println!("black hole: {kinds:?}");
        // A machine that stalls for a second gives up a connection meanwhile, and who
        // finds none waits for one as long as a deadline.
        let deadlines = [ErrorKind::Timeout, ErrorKind::Connect];
        let waited = kinds.iter().filter(|kind| deadlines.contains(kind)).count();
        assert!(waited <= 2, "{kinds:?}");
        let lost = kinds.iter().filter(|kind| !deadlines.contains(kind));
        assert!(
            lost.clone().all(|kind| *kind == ErrorKind::OutcomeUnknown),
            "{kinds:?}"
        );
        assert!(waited + lost.count() >= 2, "{kinds:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_a_reply_and_then_nothing() {
    let kinds = [ErrorKind::Timeout, ErrorKind::Connect];
    fault("half a reply", Replies::Half, &kinds).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_cut_in_the_middle_of_a_reply() {
    let kinds = [
        ErrorKind::OutcomeUnknown,
        ErrorKind::Connect,
        ErrorKind::Timeout,
    ];
    let (made, _) = fault("cut", Replies::Cut { after: 5 }, &kinds).await;
    // Until it is open, each attempt makes one; after that, the probes do.
    assert!(made < 300, "{made}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replies_that_are_none() {
    let kinds = [
        ErrorKind::OutcomeUnknown,
        ErrorKind::Connect,
        ErrorKind::Timeout,
    ];
    fault("junk", Replies::Junk, &kinds).await;
}

/// Many checks are lost with one connection; but that is one connection, and the next
/// one works.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_lost_connection_is_not_a_store_that_keeps_failing() {
    let server = Server::start();
    let proxy = Proxy::start(server.port()).await;
    let rig = Rig::with(&proxy.url(), patient());
    rig.until_answered().await;
    // Longer than it takes to cut them.
    proxy.set(Replies::Delay(10_000 * MS));
    let before = rig.store.stats().batches;
    let mut checks = JoinSet::new();
    for number in 0..100 {
        let rig = rig.clone();
        checks.spawn(async move { rig.error(&number.to_string()).await });
    }
    until("some are on their way", || {
        rig.store.stats().batches >= before + 2
    })
    .await;
    sleep(20 * MS).await;
    proxy.set(Replies::Pass);
    proxy.cut_all();
    let kinds = checks.join_all().await;
    assert!(kinds.contains(&Some(ErrorKind::OutcomeUnknown)));
    assert!(!rig.store.stats().breaker_open);
    for id in 0..16 {
        let decision = rig.check("deny", &id.to_string()).await;
        assert_eq!(decision.source(), Source::Store);
    }
}

/// Who has given up while the connection was being made is not charged once it is.
#[tokio::test]
async fn caller_that_gives_up_before_the_send_is_not_charged() {
    let server = Server::start();
    let proxy = Proxy::start(server.port()).await;
    proxy.set(Replies::Delay(200 * MS));
    let options = RedisOptions::default().connections(1);
    let rig = Rig::with(&proxy.url(), options);
    let error = rig.error("early").await;
    // A machine that stops for a second gives up the connection first.
    assert!(matches!(
        error,
        Some(ErrorKind::Timeout | ErrorKind::Connect)
    ));
    // By now it is connected, and has had the time to send what nobody waits for.
    sleep(500 * MS).await;
    proxy.set(Replies::Pass);
    rig.until_answered().await;
    assert_eq!(rig.used("early").await, 0, "bound broken");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_charged_twice_when_connections_are_cut_at_random() {
    let (server, proxy, rig) = behind_a_proxy().await;
    proxy.set(Replies::CutSome { one_in: 15 });
    let mut callers = JoinSet::new();
    for caller in 0..20 {
        let rig = rig.clone();
        callers.spawn(async move {
            let id = format!("key{}", caller % 4);
            let (mut asked, mut admitted) = (0, 0);
            while asked < 100 {
                match rig.error(&id).await {
                    None => admitted += 1,
                    // Nothing was asked.
                    Some(ErrorKind::BreakerOpen) => {
                        sleep(5 * MS).await;
                        continue;
                    }
                    Some(_) => {}
                }
                asked += 1;
            }
            (caller % 4, admitted)
        });
    }
    let results = callers.join_all().await;
    let lost = rig.count(ErrorKind::OutcomeUnknown);
    println!(
        "cut at random: {lost} of 2000 lost, {} connections",
        proxy.accepted()
    );
    assert!(lost > 5, "{lost}");
    // Looked at past the proxy.
    let direct = Rig::new(&server.url());
    for key in 0..4 {
        let mine = results.iter().filter(|(it, _)| *it == key);
        let admitted: u32 = mine.map(|(_, admitted)| admitted).sum();
        let used = direct.used(&format!("key{key}")).await;
        assert!(
            used >= admitted,
            "bound broken: {admitted} told, {used} used"
        );
        assert!(used <= 500, "charged twice: {used} of 500 asked");
    }
}
