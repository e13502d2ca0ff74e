//! The first map: from a cluster that is down, and from nodes that have names.

use std::time::{Duration, Instant};

use tidegate::{Cost, Limit};
use tidegate_redis::{ErrorKind, RedisOptions, RedisStore};

use crate::support::{YEAR, check, limiter_over, patient, policy};
use crate::user::kind;
use tidegate_testkit::cluster::Cluster;

const DEADLINE: Duration = Duration::from_millis(100);

#[tokio::test]
async fn a_start_with_the_cluster_down_works() {
    let mut cluster = Cluster::start_with(1, 0, &[]);
    let url = cluster.url();
    cluster.nodes[0].kill();
    let store = RedisStore::new(&url, RedisOptions::default().timeout(DEADLINE)).unwrap();
    let limiter = limiter_over(store.clone(), [policy("p", Limit::per(1_000, YEAR))]);
    let ask = || limiter.try_check("p", &[("key", "k")], Cost::ONE);
    let mut waited = Vec::new();
    while !store.stats().breaker_open {
        let start = Instant::now();
        let asked = ask().await.map_err(|error| kind(&error));
        // What the trouble is, and not only that nobody is known; on a busy machine, the
        // deadline may come first.
        let told = asked.expect_err("nobody to answer");
        assert!(
            matches!(told, ErrorKind::Connect | ErrorKind::Timeout),
            "{told}"
        );
        waited.push(start.elapsed());
    }
    // They come one after the other: two deadlines are enough to know. A machine that
    // does other things, too, is not late each time.
    assert_eq!(waited.len(), 2);
    waited.sort_unstable();
    assert!(waited[0] < 3 * DEADLINE, "{waited:?}");
    // After that nobody waits.
    let mut at_once = Vec::new();
    while at_once.len() < 20 {
        let start = Instant::now();
        match ask().await.map_err(|error| kind(&error)) {
            Err(ErrorKind::BreakerOpen) => at_once.push(start.elapsed()),
            told => panic!("{:?}", told.map(|_| ())),
        }
    }
    at_once.sort_unstable();
    assert!(at_once[10] < DEADLINE / 2, "{at_once:?}");

    cluster.nodes[0].restart();
    let start = Instant::now();
    while ask().await.is_err() {
        assert!(
            start.elapsed() < Duration::from_secs(60),
            "it never came back"
        );
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    // Of these, the node itself takes two before it answers.
    println!(
        "down at start: answers {:?} after it was up",
        start.elapsed()
    );
    assert!(!store.stats().breaker_open);
}

#[tokio::test]
async fn nodes_that_are_called_by_their_names() {
    let named = [
        "--cluster-announce-hostname",
        "localhost",
        "--cluster-preferred-endpoint-type",
        "hostname",
    ];
    let cluster = Cluster::start_with(2, 0, &named);
    // One of them is enough to know the other, whose name it says.
    let url = format!("redis-cluster://localhost:{}", cluster.nodes[0].port());
    let store = RedisStore::new(&url, patient()).unwrap();
    let limiter = limiter_over(store, [policy("p", Limit::per(5, YEAR))]);
    for key in 0..20 {
        let attributes = [("key", key.to_string())];
        assert_eq!(check(&limiter, "p", &attributes).await.remaining(), 4);
    }
}
