//! Masters that sentinels replace: one that dies, one that is away, and one that does not
//! hear of it.

use std::thread::sleep;
use std::time::{Duration, Instant};

use tidegate::Limit;
use tidegate_redis::RedisStore;

use super::failovers::{now_us, one_failover};
use crate::cluster::fleet::{Fleet, KEYS};
use crate::server::Server;
use crate::support::{YEAR, check, limiter_over, patient, policy};
use tidegate_testkit::cluster::{is_master, run, until};
use tidegate_testkit::sentinels::Trio;

/// Waits for another master than this one: its place, and when it was there.
fn successor(trio: &Trio, place: usize, what: &str) -> (usize, u64) {
    let others: Vec<usize> = (0..3).filter(|other| *other != place).collect();
    let mut new = place;
    let took = until("a new master", || {
        let leads = others
            .iter()
            .find(|other| is_master(&trio.servers[**other]));
        new = *leads.unwrap_or(&place);
        new != place
    });
    println!("{what}: a new master after {took:?}");
    (new, now_us())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_is_killed_and_one_that_is_stopped_and_continues() {
    let mut trio = Trio::start();
    let url = trio.url();
    let all: Vec<usize> = (0..KEYS).collect();

    let what = "killed";
    let (place, before) = (trio.master(), trio.epoch());
    let fleet = Fleet::start(&url, what);
    sleep(Duration::from_secs(1));
    trio.servers[place].kill();
    let (new, since_us) = successor(&trio, place, what);
    sleep(Duration::from_secs(1));
    let (report, failovers) = (fleet.stop(), trio.epoch() - before);
    one_failover(what, &report, &url, &all, since_us, failovers).await;
    let port = trio.servers[new].port().to_string();
    trio.servers[place].restart_with(&["--replicaof", "127.0.0.1", &port]);
    trio.settle();

    let what = "stopped";
    let (place, before) = (trio.master(), trio.epoch());
    let fleet = Fleet::start(&url, what);
    sleep(Duration::from_secs(1));
    trio.servers[place].signal("STOP");
    let (_, since_us) = successor(&trio, place, what);
    sleep(Duration::from_millis(2_000));
    trio.servers[place].signal("CONT");
    sleep(Duration::from_millis(1_500));
    let (report, failovers) = (fleet.stop(), trio.epoch() - before);
    one_failover(what, &report, &url, &all, since_us, failovers).await;
    trio.settle();
}

/// A master that was cut off from the sentinels has nothing wrong with it, nor has the
/// connection to it: only they know better.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_does_not_know_that_it_is_none_any_more() {
    let trio = Trio::start();
    // One connection, or another one would be made, and lead to the right server.
    let store = RedisStore::new(&trio.url(), patient().connections(1)).unwrap();
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
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let took = start.elapsed();
    println!("another master was found after {took:?}, {astray} checks");
}
