//! A master that dies, and one that is away for longer than the others wait for it.

use std::thread::sleep;
use std::time::{Duration, SystemTime};

use crate::cluster::fleet::{Fleet, KEYS, stored};
use crate::cluster::report::Report;
use tidegate_testkit::cluster::{Cluster, is_master, until};

pub(crate) fn now_us() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    u64::try_from(now.expect("after 1970").as_micros()).expect("a time")
}

/// The errors that a failover may be the reason of. Nothing else may be told.
pub(crate) const KINDS: [&str; 9] = [
    "connect",
    "timeout",
    "outcome_unknown",
    "breaker_open",
    "queue_full",
    "cluster_down",
    "loading",
    "read_only",
    "master_down",
];

/// How soon all processes have answers again after there is a new master.
const BACK_MS: u64 = 3_000;

/// The same on a machine that stalls for so many milliseconds at a time: while a map is
/// asked for, while a connection is made, and while the first check is answered.
fn back_within_ms(stalled_ms: u64) -> u64 {
    BACK_MS + 3 * stalled_ms
}

/// What holds after a failover that took these keys along: between one election and
/// another, of which there may be several on a machine that stalls.
pub(crate) async fn one_failover(
    what: &str,
    report: &Report,
    url: &str,
    struck: &[usize],
    since_us: u64,
    elections: u64,
) {
    let back_ms = report.back_ms(struck, since_us);
    let mut forgotten = 0;
    for key in 0..KEYS {
        let beyond = report.charged_beyond(url, what, key).await;
        forgotten -= beyond.min(0);
        let is_struck = struck.contains(&key) || elections > 1;
        assert!(
            is_struck || beyond >= 0,
            "bound broken: key {key}: {beyond} of another"
        );
    }
    report.print(what);
    println!(
        "{what}: {} keys of {KEYS} struck, answers {back_ms} ms after the new master at the \
         latest, {forgotten} charges forgotten",
        struck.len()
    );
    // Each of them may forget a burst.
    let (excess, most) = (
        report.excess(),
        f64::from(u32::try_from(elections).expect("few")),
    );
    assert!(excess <= most, "bound broken: {what}: {excess} of {most}");
    let kinds = report.errors();
    assert!(kinds.keys().all(|kind| KINDS.contains(kind)), "{kinds:?}");
    let soon_ms = back_within_ms(report.stalled_ms());
    assert!(back_ms < soon_ms, "{what}: {back_ms} of {soon_ms} ms");
}

/// The keys that a node has, by the name they have under a prefix.
fn keys_of(cluster: &Cluster, prefix: &str, place: usize) -> Vec<usize> {
    let here = |key: &usize| {
        let slot = cluster.slot(&stored(prefix, "count", *key));
        cluster.owner(slot) == place
    };
    (0..KEYS).filter(here).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_is_killed_and_one_that_is_stopped_and_continues() {
    let mut cluster = Cluster::start();
    strike(&mut cluster, "killed", Strike::Kill).await;
    strike(&mut cluster, "stopped", Strike::Stop).await;
}

/// What happens to a master.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Strike {
    Kill,
    /// It goes on when it was replaced, and meets its callers.
    Stop,
}

/// Strikes the master of a key under load, until another one has taken over and the first
/// is back.
async fn strike(cluster: &mut Cluster, what: &str, strike: Strike) {
    let (url, before) = (cluster.url(), cluster.epoch());
    let place = cluster.owner(cluster.slot(&stored(what, "count", 0)));
    let struck = keys_of(cluster, what, place);
    let fleet = Fleet::start(&url, what);
    sleep(Duration::from_secs(1));
    match strike {
        Strike::Kill => cluster.nodes[place].kill(),
        Strike::Stop => cluster.nodes[place].signal("STOP"),
    }
    let partner = cluster.partner(place);
    let took = until("a new master", || is_master(&cluster.nodes[partner]));
    let since_us = now_us();
    println!("{what}: a new master after {took:?}");
    sleep(Duration::from_millis(1_500));
    if strike == Strike::Stop {
        cluster.nodes[place].signal("CONT");
        sleep(Duration::from_millis(1_500));
    }
    let report = fleet.stop();
    if strike == Strike::Kill {
        cluster.nodes[place].restart();
    }
    cluster.settle();
    let elections = cluster.epoch() - before;
    one_failover(what, &report, &url, &struck, since_us, elections).await;
}
