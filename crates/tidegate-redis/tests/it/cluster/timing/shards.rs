//! The outage of one shard is that of its own keys: the others go on as before.

use std::time::Duration;

use tidegate_redis::{ErrorKind, RedisOptions};
use tidegate_testkit::cluster::Cluster;

use crate::timing::load;
use crate::timing::rig::{MS, Rig, until};

const KEYS: usize = 60;

/// Longer than a machine stalls, so that only the shard that is away misses it.
const DEADLINE: Duration = Duration::from_secs(2);

/// R7: a silent server must not use up the deadline of the servers that are probed with it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r7_silent_shard_delays_neither_probes_nor_checks_of_the_others() {
    let cluster = Cluster::start_with(3, 0, &[]);
    let options = || RedisOptions::default().timeout(DEADLINE);
    let silent = 1;
    let owner = |key: usize| cluster.owner(cluster.slot(&format!("{{{key}}}")));
    let (ill, well): (Vec<usize>, Vec<usize>) = (0..KEYS).partition(|key| owner(*key) == silent);

    let rig = Rig::with(&cluster.url(), options());
    rig.store.probe().await;
    assert_eq!(rig.errors(), 0);
    cluster.nodes[silent].signal("STOP");
    // Two open the breaker of a silent server.
    for _ in 0..2 {
        rig.store.probe().await;
    }
    assert_eq!(rig.errors(), 2, "{:?}", rig.store.stats().errors);
    for key in &well {
        let error = rig.error(key).await;
        assert_eq!(error, None, "the breaker of a healthy server is open");
    }
    cluster.nodes[silent].signal("CONT");

    let rig = Rig::with(&cluster.url(), options());
    until("all shards answer", async || {
        for key in 0..KEYS {
            if rig.error(key).await.is_some() {
                return false;
            }
        }
        true
    })
    .await;
    cluster.nodes[silent].signal("STOP");
    let load = load::start(&rig, 400, KEYS).stop_after(4_000 * MS).await;
    cluster.nodes[silent].signal("CONT");
    for key in ill {
        assert!(!load.answered(key).contains(&true), "{key} is of the shard");
    }
    for key in &well {
        let answered = load.answered(*key);
        assert!(!answered.contains(&false), "{key} is of another one");
    }
    // Nobody waits for the shard that is away: half of them would wait for most of a deadline.
    let took = load.0.iter().filter(|it| well.contains(&it.key));
    let took: Vec<Duration> = took.map(|it| it.took).collect();
    let median = took[took.len() / 2];
    println!("one shard of three stopped: p50 of the others {median:?}");
    assert!(median < DEADLINE / 4);
    // Its breaker is open, and nobody else's.
    let refused = rig.count(ErrorKind::BreakerOpen);
    assert!(refused > 100, "{:?}", rig.store.stats().errors);
}
