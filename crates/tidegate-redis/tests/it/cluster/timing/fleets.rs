//! Load from three processes while slots move to other nodes and back, nodes join and leave,
//! scripts are forgotten, and masters die or are away for longer than the others wait for them.

use std::collections::BTreeSet;
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime};

use tidegate::Limit;
use tidegate_redis::RedisStore;
use tidegate_testkit::cluster::{Cluster, is_master, run, until};
use tidegate_testkit::sentinels::Trio;

use crate::cluster::fleet::{DEADLINE, Fleet, KEYS, Load, stored};
use crate::cluster::report::Report;
use crate::server::Server;
use crate::support::{YEAR, check, limiter_over, patient, policy};

const MS: Duration = Duration::from_millis(1);

/// The errors that a failover may be the reason of.
const FAILOVER: [&str; 9] = [
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

/// A master that was replaced.
#[derive(Default)]
struct Failover {
    /// Its keys.
    struck: Vec<usize>,
    /// When there was a new master.
    since_us: u64,
    /// Elections since the fault, of which there may be several on a machine that stalls.
    elections: u64,
}

/// Every limit keeps its bound, but for a burst per election. Every charge that was told is
/// counted, except of keys whose master was replaced. Callers see no other kinds of errors, and
/// have answers soon after there is a new master.
async fn judge(what: &str, url: &str, report: &Report, kinds: &[&str], failover: &Failover) {
    report.print(what);
    let Failover {
        struck,
        since_us,
        elections,
    } = failover;
    for key in 0..KEYS {
        let beyond = report.charged_beyond(url, what, key).await;
        let may_forget = struck.contains(&key) || *elections > 1;
        assert!(
            beyond >= 0 || may_forget,
            "bound broken: {what}: key {key}: {beyond}"
        );
    }
    let losses = u32::try_from(*elections).expect("few");
    assert_eq!(report.broken(losses), None, "bound broken: {what}");
    // On a busy machine, the deadline may come first; on one that stops, nodes seem dead.
    let (stalled_ms, deadline_ms) = (report.stalled_ms(), DEADLINE.as_millis());
    let has_stopped = u128::from(stalled_ms) > 3 * deadline_ms;
    let is_expected = |kind: &&str| {
        let is_always = ["timeout", "queue_full", "breaker_open"].contains(kind);
        kinds.contains(kind) || is_always || has_stopped && FAILOVER.contains(kind)
    };
    let errors = report.errors();
    assert!(errors.keys().all(is_expected), "{what}: {errors:?}");
    // A machine may stall while a map is asked for, while a connection is made, and while the
    // first check is answered.
    let soon_ms = 3_000 + 3 * stalled_ms;
    let back_ms = report.back_ms(struck, *since_us);
    assert!(back_ms < soon_ms, "{what}: {back_ms} of {soon_ms} ms");
}

/// The slots of some keys.
fn slots(cluster: &Cluster, what: &str) -> BTreeSet<u16> {
    let keys = [
        ("one", 0),
        ("two", 0),
        ("two", 1),
        ("count", 0),
        ("count", 1),
    ];
    let keys = keys.map(|(policy, key)| stored(what, policy, key));
    keys.iter().map(|key| cluster.slot(key)).collect()
}

fn move_slots_away_and_back(cluster: &mut Cluster, what: &str) {
    for slot in slots(cluster, what) {
        let home = cluster.owner(slot);
        let away = (home + 1) % 3;
        // Long enough that a check of two keys, one of which is gone, gives up.
        cluster.move_slot(slot, away, || sleep(120 * MS));
        cluster.move_slot(slot, home, || sleep(20 * MS));
    }
}

fn flush_scripts(cluster: &mut Cluster, _: &str) {
    for _ in 0..20 {
        sleep(50 * MS);
        for node in &cluster.nodes {
            run::<()>(&mut node.connect(), "SCRIPT FLUSH");
        }
    }
}

fn join_and_leave(cluster: &mut Cluster, what: &str) {
    cluster.join();
    let new = cluster.nodes.len() - 1;
    let moving = slots(cluster, what).into_iter();
    let moving: Vec<(u16, usize)> = moving.map(|slot| (slot, cluster.owner(slot))).collect();
    for (slot, _) in &moving {
        cluster.move_slot(*slot, new, || {});
    }
    sleep(500 * MS);
    for (slot, home) in &moving {
        cluster.move_slot(*slot, *home, || {});
    }
    sleep(500 * MS);
    cluster.leave();
    sleep(500 * MS);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_keeps_bounds_while_slots_move_nodes_come_and_go_and_masters_die() {
    let mut cluster = Cluster::start();
    // What happens, the errors that callers may see, and one that they must.
    type Act = fn(&mut Cluster, &str);
    let faults: [(&str, Act, &[&str], &str); 3] = [
        (
            "moved",
            move_slots_away_and_back,
            &["try_again"],
            "try_again",
        ),
        ("flushed", flush_scripts, &[], ""),
        ("joined", join_and_leave, &["try_again"], ""),
    ];
    for (what, act, kinds, must) in faults {
        let fleet = Fleet::start(&cluster.url(), what, Load::Mixed);
        act(&mut cluster, what);
        let report = fleet.stop();
        judge(what, &cluster.url(), &report, kinds, &Failover::default()).await;
        let met = must.is_empty() || report.errors().contains_key(must);
        assert!(met, "{what}: {must} is missing: {:?}", report.errors());
        let masters = cluster.masters();
        assert_eq!(masters, [0, 1, 2], "a stall: a replica took over");
    }

    for what in ["killed", "stopped"] {
        let (url, before) = (cluster.url(), cluster.epoch());
        let owner = |key: &usize| cluster.owner(cluster.slot(&stored(what, "count", *key)));
        let place = owner(&0);
        let struck = (0..KEYS).filter(|key| owner(key) == place).collect();
        let partner = cluster.partner(place);
        let (report, since_us) = strike(what, &url, &mut cluster.nodes, place, |nodes| {
            is_master(&nodes[partner])
        });
        if what == "killed" {
            cluster.nodes[place].restart();
        }
        cluster.settle();
        let failover = Failover {
            struck,
            since_us,
            elections: cluster.epoch() - before,
        };
        judge(what, &url, &report, &FAILOVER, &failover).await;
    }
}

/// Kills a master, or stops it until it was replaced and lets it meet its callers then. Returns
/// what a fleet meets meanwhile, and when there was a new master.
fn strike(
    what: &str,
    url: &str,
    servers: &mut [Server],
    place: usize,
    is_replaced: impl Fn(&[Server]) -> bool,
) -> (Report, u64) {
    let fleet = Fleet::start(url, what, Load::Mixed);
    sleep(1_000 * MS);
    match what {
        "killed" => servers[place].kill(),
        _ => servers[place].signal("STOP"),
    }
    until("a new master", || is_replaced(servers));
    let since_us = now_us();
    sleep(2_000 * MS);
    if what == "stopped" {
        servers[place].signal("CONT");
        sleep(1_500 * MS);
    }
    (fleet.stop(), since_us)
}

fn now_us() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    u64::try_from(now.expect("after 1970").as_micros()).expect("a time")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sentinels_replace_a_master_that_dies_one_that_is_away_and_one_that_is_not_told() {
    let mut trio = Trio::start();
    let url = trio.url();
    for what in ["killed", "stopped"] {
        let (place, before) = (trio.master(), trio.epoch());
        let new = |servers: &[Server]| {
            let leads = |other: &usize| *other != place && is_master(&servers[*other]);
            (0..3).find(leads)
        };
        let is_replaced = |servers: &[Server]| new(servers).is_some();
        let (report, since_us) = strike(what, &url, &mut trio.servers, place, is_replaced);
        let failover = Failover {
            struck: (0..KEYS).collect(),
            since_us,
            elections: trio.epoch() - before,
        };
        judge(what, &url, &report, &FAILOVER, &failover).await;
        if what == "killed" {
            let new = new(&trio.servers).expect("a new master");
            let port = trio.servers[new].port().to_string();
            trio.servers[place].restart_with(&["--replicaof", "127.0.0.1", &port]);
        }
        trio.settle();
    }

    // A master that the sentinels have replaced without a word to it has nothing wrong with it,
    // nor has the connection to it. One connection, or another one would be made, and lead to
    // the right server.
    let store = RedisStore::new(&url, patient().connections(1)).unwrap();
    let limiter = limiter_over(store, [policy("p", Limit::per(1_000, YEAR))]);
    let _ = check(&limiter, "p", &[("key", "before")]).await;
    let other = Server::start();
    for sentinel in &trio.sentinels {
        let redis = &mut sentinel.connect();
        let port = other.port();
        run::<()>(redis, "SENTINEL REMOVE main");
        run::<()>(redis, &format!("SENTINEL MONITOR main 127.0.0.1 {port} 2"));
    }
    let start = Instant::now();
    let mut astray = 0;
    while run::<usize>(&mut other.connect(), "EXISTS tg:{after}:p:p") == 0 {
        let _ = check(&limiter, "p", &[("key", "after")]).await;
        astray += 1;
        let took = start.elapsed();
        assert!(took < Duration::from_secs(12), "{astray} checks astray");
        tokio::time::sleep(10 * MS).await;
    }
    println!("another master was found after {:?}", start.elapsed());
}
