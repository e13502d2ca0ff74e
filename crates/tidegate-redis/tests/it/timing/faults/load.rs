//! A load that does not wait for its answers: checks start when their time has come,
//! as requests do.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use tidegate::Source;
use tokio::runtime::Handle;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

use super::{DEADLINE, POLICIES, Rig, obeys};

/// Keys of each policy that a load asks for: `0`, `1` and so on.
pub(super) const KEYS: usize = 64;

/// Fewer checks would say nothing about one in a thousand.
const ENOUGH: usize = 1_000;

/// A load that goes on until it is stopped.
pub(super) struct Running {
    /// Tasks of the runtime before it began.
    pub(super) tasks: usize,
    stop: Arc<AtomicBool>,
    task: JoinHandle<Load>,
}

/// What a load has met.
pub(super) struct Load {
    checks: Vec<Check>,
    /// How long checks took, the longest last.
    latencies: Vec<Duration>,
    /// How long sleeps of one deadline took, which were started with them.
    sleeps: Vec<Duration>,
    pub(super) store: usize,
    pub(super) without_store: usize,
}

struct Check {
    key: usize,
    took: Duration,
    source: Source,
}

/// Starts that many checks per second, of all policies and many keys.
pub(super) fn start(rig: &Rig, rate: u32) -> Running {
    let tasks = Handle::current().metrics().num_alive_tasks();
    let stop = Arc::new(AtomicBool::new(false));
    let task = tokio::spawn(run(rig.clone(), rate, Arc::clone(&stop)));
    Running { tasks, stop, task }
}

impl Running {
    /// Ends it when there were enough, and waits for the answers in flight.
    pub(super) async fn stop(self) -> Load {
        self.stop.store(true, Relaxed);
        self.task.await.unwrap()
    }

    /// [`stop`](Self::stop), after so long.
    pub(super) async fn stop_after(self, time: Duration) -> Load {
        sleep(time).await;
        self.stop().await
    }
}

async fn run(rig: Rig, rate: u32, stop: Arc<AtomicBool>) -> Load {
    let (mut checks, mut sleeps) = (JoinSet::new(), JoinSet::new());
    let mut ticks = interval(Duration::from_secs(1) / rate);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let mut number = 0_usize;
    while !stop.load(Relaxed) || number < ENOUGH {
        ticks.tick().await;
        let rig = rig.clone();
        let (policy, key) = (POLICIES[number % 3].0, number % KEYS);
        checks.spawn(async move {
            let start = Instant::now();
            let decision = rig.check(policy, &key.to_string()).await;
            obeys(policy, &decision);
            Check {
                key,
                took: start.elapsed(),
                source: decision.source(),
            }
        });
        sleeps.spawn(async {
            let start = Instant::now();
            sleep(DEADLINE).await;
            start.elapsed()
        });
        number += 1;
    }
    let all = timeout(Duration::from_secs(30), checks.join_all());
    let checks = all.await.expect("no caller is stuck");
    let (mut latencies, mut sleeps) = (
        checks.iter().map(|check| check.took).collect::<Vec<_>>(),
        sleeps.join_all().await,
    );
    latencies.sort_unstable();
    sleeps.sort_unstable();
    let by_store = checks.iter().filter(|it| it.source == Source::Store);
    let store = by_store.count();
    Load {
        latencies,
        sleeps,
        store,
        without_store: checks.len() - store,
        checks,
    }
}

impl Load {
    pub(super) fn median(&self) -> Duration {
        self.latencies[self.latencies.len() / 2]
    }

    /// Of each check of a key, whether the store has answered it.
    pub(super) fn answered(&self, key: usize) -> Vec<bool> {
        let checks = self.checks.iter().filter(|it| it.key == key);
        checks.map(|it| it.source == Source::Store).collect()
    }

    /// By how much the latest sleep of one deadline was late: there was always one under
    /// way, so the machine did nothing else for longer than that.
    fn late(&self) -> Duration {
        let latest = self.sleeps.last().copied().unwrap_or_default();
        latest.saturating_sub(DEADLINE)
    }

    /// How often the machine may have stalled for as long as this: at most as often as a
    /// sleep was so late.
    pub(super) fn stalls(&self, time: Duration) -> usize {
        let is_late = |sleep: &&Duration| sleep.saturating_sub(DEADLINE) >= time;
        self.sleeps.iter().filter(is_late).count()
    }

    /// How many checks at most were under way while the machine stalled for a deadline.
    pub(super) fn late_checks(&self) -> u64 {
        // One sleep began with each check, and a check lasts twice as long at most.
        2 * self.stalls(DEADLINE / 2) as u64
    }

    /// Of a thousand checks, 999 take at most a deadline and 10 ms. On a machine that has
    /// other things to do, timers are late, and by as much a check may be: when it begins
    /// and when it ends.
    pub(super) fn keeps_the_deadline(&self, what: &str) {
        let (latency, late) = (rare(&self.latencies), self.late());
        println!(
            "{what}: {} from the store, {} not; p50 {:?}, p99.9 {latency:?} (a sleep is up to \
             {late:?} late)",
            self.store,
            self.without_store,
            self.median(),
        );
        let bound = DEADLINE + Duration::from_millis(10) + 2 * late;
        assert!(latency <= bound, "{what}: {latency:?} is above {bound:?}");
    }
}

/// The time that one of a thousand exceeds.
fn rare(sorted: &[Duration]) -> Duration {
    sorted[(sorted.len() * 999).div_ceil(1_000) - 1]
}
