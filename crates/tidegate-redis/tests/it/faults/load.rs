//! A load that does not wait for its answers: checks start when their time has come,
//! as requests do.

use std::time::{Duration, Instant};

use tidegate::Source;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

use super::{DEADLINE, POLICIES, Rig, obeys};

/// What a load has met.
pub(super) struct Load {
    /// How long checks took, the longest last.
    latencies: Vec<Duration>,
    /// How long sleeps of one deadline took, which were started with them.
    sleeps: Vec<Duration>,
    pub(super) store: usize,
    pub(super) without_store: usize,
}

/// Starts so many checks a second, for so long, of all policies and many keys.
pub(super) fn start(rig: &Rig, rate: u32, time: Duration) -> JoinHandle<Load> {
    tokio::spawn(run(rig.clone(), rate, time))
}

async fn run(rig: Rig, rate: u32, time: Duration) -> Load {
    let (mut checks, mut sleeps) = (JoinSet::new(), JoinSet::new());
    let mut ticks = interval(Duration::from_secs(1) / rate);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let start = Instant::now();
    let mut number = 0_usize;
    while start.elapsed() < time {
        ticks.tick().await;
        let rig = rig.clone();
        let (policy, id) = (POLICIES[number % 3].0, (number % 64).to_string());
        checks.spawn(async move {
            let start = Instant::now();
            let decision = rig.check(policy, &id).await;
            obeys(policy, &decision);
            (start.elapsed(), decision.source())
        });
        sleeps.spawn(async {
            let start = Instant::now();
            sleep(DEADLINE).await;
            start.elapsed()
        });
        number += 1;
    }
    let all = timeout(Duration::from_secs(5), checks.join_all());
    let checks = all.await.expect("no caller is stuck");
    let mut load = Load {
        latencies: checks.iter().map(|(latency, _)| *latency).collect(),
        sleeps: sleeps.join_all().await,
        store: checks.iter().filter(|it| it.1 == Source::Store).count(),
        without_store: checks.iter().filter(|it| it.1 != Source::Store).count(),
    };
    load.latencies.sort_unstable();
    load.sleeps.sort_unstable();
    load
}

impl Load {
    pub(super) fn median(&self) -> Duration {
        self.latencies[self.latencies.len() / 2]
    }

    /// Of a thousand checks, 999 take at most a deadline and 10 ms. On a machine that
    /// has other things to do, timers are late: what a plain sleep of one deadline takes
    /// there stands in for the deadline.
    pub(super) fn keeps_the_deadline(&self, what: &str) {
        let (latency, sleep) = (rare(&self.latencies), rare(&self.sleeps));
        println!(
            "{what}: {} from the store, {} not; p50 {:?}, p99.9 {latency:?} (a sleep of \
             {DEADLINE:?}: {sleep:?})",
            self.store,
            self.without_store,
            self.median(),
        );
        let bound = DEADLINE.max(sleep) + Duration::from_millis(10);
        assert!(latency <= bound, "{what}: {latency:?} is above {bound:?}");
    }
}

/// The time that one of a thousand exceeds.
fn rare(sorted: &[Duration]) -> Duration {
    sorted[(sorted.len() * 999).div_ceil(1_000) - 1]
}
