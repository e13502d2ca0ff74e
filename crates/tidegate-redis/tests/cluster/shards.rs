//! The outage of one shard is that of its own keys: the others are as quick as before.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tidegate::{Cost, Limit, Source};
use tidegate_redis::{ErrorKind, RedisOptions, RedisStore, SharedLimiter};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};

use crate::support::{YEAR, in_one_of_three, limiter_over, policy};
use crate::test_cluster::Cluster;

/// Checks a second, over so many keys.
const RATE: u32 = 400;
const KEYS: usize = 60;

const LASTS: Duration = Duration::from_millis(1_000);
const ROUNDS: usize = 3;

/// How long checks of these keys took, the longest last, and how many had no answer.
struct Seen {
    took: Vec<Duration>,
    without_store: usize,
}

impl Seen {
    fn p99(&self) -> Duration {
        self.took[(self.took.len() * 99).div_ceil(100) - 1]
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
async fn the_others_are_as_quick_as_before() {
    let cluster = Cluster::start_with(3, 0, &[]);
    let store = RedisStore::new(&cluster.url(), RedisOptions::default()).unwrap();
    let limit = Limit::per(1_000_000, YEAR).fixed_window();
    let limiter = Arc::new(limiter_over(store.clone(), [policy("p", limit)]));
    let ill: Vec<bool> = (0..KEYS)
        .map(|key| cluster.owner(cluster.slot(&format!("tg:{{{key}}}:p:p"))) == 1)
        .collect();
    in_one_of_three(async |_| rounds(&cluster, &limiter, &ill).await).await;
    let errors = store.stats().errors;
    let count = |kind| errors.iter().find(|(it, _)| *it == kind).unwrap().1;
    // Its breaker, and nobody else's.
    assert!(count(ErrorKind::BreakerOpen) > 100, "{errors:?}");
}

/// Stops the shard and continues it, so many times. What is wrong with how the others did.
async fn rounds(
    cluster: &Cluster,
    limiter: &Arc<SharedLimiter>,
    ill: &[bool],
) -> Result<(), String> {
    // In turns, since a machine may be busy at one time and not at another.
    let (mut before, mut during) = (Vec::new(), Vec::new());
    let mut answers = [[0; 2]; 2];
    for _ in 0..ROUNDS {
        until_answered(limiter).await;
        let [well, _] = load(limiter, ill).await;
        before.push(well.p99());
        cluster.nodes[1].signal("STOP");
        let seen = load(limiter, ill).await;
        during.push(seen[0].p99());
        cluster.nodes[1].signal("CONT");
        for (all, seen) in answers.iter_mut().zip(&seen) {
            all[0] += seen.took.len();
            all[1] += seen.without_store;
        }
    }
    before.sort_unstable();
    during.sort_unstable();
    let (before, during) = (before[ROUNDS / 2], during[ROUNDS / 2]);
    let [[here, here_lost], [there, there_lost]] = answers;
    let what = format!(
        "one shard of three stopped: p99 of the others {during:?}, without it {before:?} (each \
         the median of {ROUNDS}); no answer to {there_lost} of {there} checks there, and to \
         {here_lost} of {here} of the others"
    );
    println!("{what}");
    assert!(there_lost * 10 > there * 9);
    // Twice as long, and what a busy machine may add.
    let most = 2 * before + Duration::from_millis(10);
    let well = during <= most && here_lost * 50 <= here;
    well.then_some(()).ok_or(what)
}
