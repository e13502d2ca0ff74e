//! The outage of one shard is that of its own keys: the others go on as before.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tidegate::{Cost, Limit, Source};
use tidegate_redis::{ErrorKind, RedisOptions, RedisStore, SharedLimiter};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};

use crate::support::{YEAR, limiter_over, policy};
use tidegate_testkit::cluster::Cluster;

/// Checks per second, over so many keys.
const RATE: u32 = 400;
const KEYS: usize = 60;

/// Longer than a machine stalls, so that only the shard that is away misses it.
const DEADLINE: Duration = Duration::from_secs(2);

/// Long enough for its breaker to open, and to stay open for a while.
const LASTS: Duration = Duration::from_secs(5);

/// How long checks of these keys took, the longest last, and how many had no answer.
struct Seen {
    took: Vec<Duration>,
    without_store: usize,
}

impl Seen {
    fn percentile(&self, percent: usize) -> Duration {
        self.took[(self.took.len() * percent).div_ceil(100) - 1]
    }
}

/// Asks about all keys at an even pace; what those of the healthy shards have met, and
/// those of the other.
async fn load(limiter: &Arc<SharedLimiter>, ill: &[bool]) -> [Seen; 2] {
    let mut checks = JoinSet::new();
    let mut ticks = interval(Duration::from_secs(1) / RATE);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let start = Instant::now();
    let mut key = 0;
    while start.elapsed() < LASTS {
        ticks.tick().await;
        key = (key + 1) % KEYS;
        let limiter = Arc::clone(limiter);
        checks.spawn(async move {
            let start = Instant::now();
            let attributes = [("key", key.to_string())];
            let decision = limiter.check("p", &attributes, Cost::ONE).await;
            let source = decision.expect("a policy").source();
            (key, start.elapsed(), source == Source::Store)
        });
    }
    let checks = checks.join_all().await;
    [false, true].map(|of| {
        let of = checks.iter().filter(|(key, _, _)| ill[*key] == of);
        let (mut took, mut without_store) = (Vec::new(), 0);
        for (_, latency, answered) in of {
            took.push(*latency);
            without_store += usize::from(!answered);
        }
        took.sort_unstable();
        Seen {
            took,
            without_store,
        }
    })
}

/// Waits until all keys have an answer.
async fn until_answered(limiter: &SharedLimiter) {
    let mut answered = 0;
    while answered < KEYS {
        let attributes = [("key", answered.to_string())];
        let check = limiter.try_check("p", &attributes, Cost::ONE).await;
        answered = if check.is_ok() { answered + 1 } else { 0 };
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_others_go_on_as_before() {
    let cluster = Cluster::start_with(3, 0, &[]);
    let options = RedisOptions::default().timeout(DEADLINE);
    let store = RedisStore::new(&cluster.url(), options).unwrap();
    let limit = Limit::per(1_000_000, YEAR).fixed_window();
    let limiter = Arc::new(limiter_over(store.clone(), [policy("p", limit)]));
    let ill: Vec<bool> = (0..KEYS)
        .map(|key| cluster.owner(cluster.slot(&format!("tg:{{{key}}}:p:p"))) == 1)
        .collect();
    until_answered(&limiter).await;
    let [before, _] = load(&limiter, &ill).await;
    cluster.nodes[1].signal("STOP");
    let [well, there] = load(&limiter, &ill).await;
    cluster.nodes[1].signal("CONT");
    println!(
        "one shard of three stopped: p50 of the others {:?}, without it {:?}; p99 {:?} and \
         {:?}; no answer to {} of {} checks there, and to {} of {} of the others",
        well.percentile(50),
        before.percentile(50),
        well.percentile(99),
        before.percentile(99),
        there.without_store,
        there.took.len(),
        well.without_store,
        well.took.len(),
    );
    assert_eq!(there.without_store, there.took.len(), "of the shard itself");
    assert_eq!(well.without_store, 0, "of the others");
    // Nobody waits for the shard that is away: half of them would wait for most of a
    // deadline.
    assert!(well.percentile(50) < DEADLINE / 4);
    // Its breaker is open, and nobody else's.
    let errors = store.stats().errors;
    let count = |kind| errors.iter().find(|(it, _)| *it == kind).unwrap().1;
    assert!(count(ErrorKind::BreakerOpen) > 100, "{errors:?}");
}

/// R7: a silent server must not use up the deadline of the servers that are probed with it.
#[tokio::test]
async fn r7_probe_gives_each_server_its_own_deadline() {
    let cluster = Cluster::start_with(3, 0, &[]);
    // Longer than the machine stalls.
    let options = RedisOptions::default().timeout(Duration::from_secs(3));
    let store = RedisStore::new(&cluster.url(), options).unwrap();
    let limiter = limiter_over(store.clone(), [policy("p", Limit::per(1_000, YEAR))]);
    let silent = cluster.owner(0);
    let key_of = |place| {
        let mut keys = (0..).map(|number: u32| number.to_string());
        keys.find(|key| cluster.owner(cluster.slot(&format!("{{{key}}}"))) == place)
    };
    let healthy = (0..3).filter(|place| *place != silent);
    let healthy: Vec<String> = healthy.filter_map(key_of).collect();
    let failures = || -> u64 { store.stats().errors.iter().map(|(_, count)| count).sum() };
    store.probe().await;
    assert_eq!(failures(), 0);
    cluster.nodes[silent].signal("STOP");
    // Two open the breaker of a silent server.
    for _ in 0..2 {
        store.probe().await;
    }
    assert_eq!(failures(), 2, "{:?}", store.stats().errors);
    for key in &healthy {
        let asked = limiter.try_check("p", &[("key", key)], Cost::ONE).await;
        assert!(asked.is_ok(), "the breaker of a healthy server is open");
    }
}
