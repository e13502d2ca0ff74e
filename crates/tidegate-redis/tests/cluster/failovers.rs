//! A master that dies, and one that is away for longer than the others wait for it.

use std::thread::sleep;
use std::time::{Duration, SystemTime};

use crate::fleet::{Fleet, KEYS, stored};
use crate::report::Report;
use crate::test_cluster::{Cluster, is_master, until};

pub(crate) fn now_us() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    u64::try_from(now.expect("after 1970").as_micros()).expect("a time")
}

/// The errors that a failover may be the reason of. Nothing else may be told.
pub(crate) const KINDS: [&str; 8] = [
    "connect",
    "timeout",
    "outcome_unknown",
    "breaker_open",
    "cluster_down",
    "loading",
    "read_only",
    "master_down",
];

/// What holds after one failover that took these keys along.
pub(crate) async fn one_failover(
    what: &str,
    report: &Report,
    url: &str,
    struck: &[usize],
    since_us: u64,
) {
    let back_ms = report.back_ms(struck, since_us);
    let mut forgotten = 0;
    for key in 0..KEYS {
        let beyond = report.charged_beyond(url, what, key).await;
        forgotten -= beyond.min(0);
        let is_struck = struck.contains(&key);
        assert!(is_struck || beyond >= 0, "key {key}: {beyond} of another");
    }
    report.print(what);
    println!(
        "{what}: {} keys of {KEYS} struck, answers {back_ms} ms after the new master at the \
         latest, {forgotten} charges forgotten",
        struck.len()
    );
    assert!(back_ms < 3_000, "{what}: {back_ms} ms");
    assert!(report.excess() <= 1.0, "{what}: {}", report.excess());
    let kinds = report.errors();
    assert!(kinds.keys().all(|kind| KINDS.contains(kind)), "{kinds:?}");
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
    let url = cluster.url();

    let what = "killed";
    let place = cluster.owner(cluster.slot(&stored(what, "count", 0)));
    let struck = keys_of(&cluster, what, place);
    let fleet = Fleet::start(&url, what);
    sleep(Duration::from_secs(1));
    cluster.nodes[place].kill();
    let partner = cluster.partner(place);
    let took = until("a new master", || is_master(&cluster.nodes[partner]));
    let since_us = now_us();
    println!("{what}: a new master after {took:?}");
    sleep(Duration::from_millis(2_500));
    let report = fleet.stop();
    one_failover(what, &report, &url, &struck, since_us).await;
    cluster.nodes[place].restart();
    cluster.settle();

    let what = "stopped";
    let place = cluster.owner(cluster.slot(&stored(what, "count", 0)));
    let struck = keys_of(&cluster, what, place);
    let fleet = Fleet::start(&url, what);
    sleep(Duration::from_secs(1));
    cluster.nodes[place].signal("STOP");
    let partner = cluster.partner(place);
    let took = until("a new master", || is_master(&cluster.nodes[partner]));
    let since_us = now_us();
    println!("{what}: a new master after {took:?}");
    sleep(Duration::from_millis(1_500));
    cluster.nodes[place].signal("CONT");
    sleep(Duration::from_millis(1_500));
    let report = fleet.stop();
    cluster.settle();
    one_failover(what, &report, &url, &struck, since_us).await;
}
