//! A load that does not wait for its answers: checks start when their time has come, as
//! requests do.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use tidegate::Source;
use tokio::runtime::Handle;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

use super::rig::{DEADLINE, MS, Rig, obeys};

/// Fewer checks would say nothing about one in a thousand.
const ENOUGH: usize = 1_000;

/// A load that goes on until it is stopped.
pub(crate) struct Running {
    /// Tasks of the runtime before it began.
    pub(crate) tasks: usize,
    stop: Arc<AtomicBool>,
    task: JoinHandle<Load>,
}

/// What came of the checks of a load, the longest last.
pub(crate) struct Load(pub(crate) Vec<Check>);

pub(crate) struct Check {
    pub(crate) start: Instant,
    pub(crate) key: usize,
    pub(crate) took: Duration,
    /// How much longer than a deadline a sleep took that began with the check: the machine did
    /// nothing else for so long.
    pub(crate) late: Duration,
    pub(crate) is_allowed: bool,
    pub(crate) source: Source,
}

impl Check {
    /// How long it took on a machine that does not stall.
    pub(crate) fn took_here(&self) -> Duration {
        self.took.saturating_sub(self.late)
    }
}

/// Starts that many checks per second, of all policies and this many keys: `0`, `1` and so on.
pub(crate) fn start(rig: &Rig, rate: u32, keys: usize) -> Running {
    let tasks = Handle::current().metrics().num_alive_tasks();
    let stop = Arc::new(AtomicBool::new(false));
    let task = tokio::spawn(run(rig.clone(), rate, keys, Arc::clone(&stop)));
    Running { tasks, stop, task }
}

impl Running {
    /// Ends it after so long and when there were enough checks, and waits for the answers.
    pub(crate) async fn stop_after(self, time: Duration) -> Load {
        sleep(time).await;
        self.stop.store(true, Relaxed);
        self.task.await.unwrap()
    }
}

async fn run(rig: Rig, rate: u32, keys: usize, stop: Arc<AtomicBool>) -> Load {
    let mut checks = JoinSet::new();
    let mut ticks = interval(Duration::from_secs(1) / rate);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let mut number = 0_usize;
    while !stop.load(Relaxed) || number < ENOUGH {
        ticks.tick().await;
        let (rig, key) = (rig.clone(), number % keys);
        let policy = number % rig.policies.len();
        checks.spawn(async move {
            let start = Instant::now();
            let check = async {
                let (policy, on_error) = &rig.policies[policy];
                let decision = rig.check(policy, key).await;
                obeys(*on_error, &decision);
                (start.elapsed(), decision.allowed(), decision.source())
            };
            let late = async {
                sleep(DEADLINE).await;
                start.elapsed() - DEADLINE
            };
            let ((took, is_allowed, source), late) = tokio::join!(check, late);
            Check {
                start,
                key,
                took,
                late,
                is_allowed,
                source,
            }
        });
        number += 1;
    }
    let all = timeout(Duration::from_secs(30), checks.join_all());
    let mut checks = all.await.expect("no caller is stuck");
    checks.sort_unstable_by_key(|check| check.took);
    Load(checks)
}

impl Load {
    pub(crate) fn without_store(&self) -> usize {
        let without = self.0.iter().filter(|it| it.source != Source::Store);
        without.count()
    }

    /// Of each check of a key, whether the store has answered it.
    pub(crate) fn answered(&self, key: usize) -> Vec<bool> {
        let checks = self.0.iter().filter(|it| it.key == key);
        checks.map(|it| it.source == Source::Store).collect()
    }

    /// How often the machine may have stalled for as long as this: at most as often as a sleep
    /// was so late.
    pub(crate) fn stalls(&self, time: Duration) -> u64 {
        self.0.iter().filter(|it| it.late >= time).count() as u64
    }

    /// How many checks at most were under way while the machine stalled for a deadline.
    pub(crate) fn late_checks(&self) -> u64 {
        // A check lasts twice as long as a sleep at most.
        2 * self.stalls(DEADLINE / 2)
    }

    /// Of a thousand checks, 999 take at most a deadline and 10 ms. On a machine that has other
    /// things to do, timers are late, and by as much a check may be: when it begins and when it
    /// ends. Nobody is refused but by `on_error = "deny"`: the limits are ones that nobody
    /// reaches.
    pub(crate) fn keeps_the_deadline(&self, what: &str) {
        let is_right = |it: &Check| it.is_allowed || it.source == Source::ErrorPolicy;
        assert!(self.0.iter().all(is_right), "{what}: refused");
        let rare = self.0[(self.0.len() * 999).div_ceil(1_000) - 1].took;
        let late = self.0.iter().map(|it| it.late).max().unwrap_or_default();
        println!(
            "{what}: {} checks, {} without the store; p99.9 {rare:?} (a sleep is up to {late:?} \
             late)",
            self.0.len(),
            self.without_store(),
        );
        let bound = DEADLINE + 10 * MS + 2 * late;
        assert!(rare <= bound, "{what}: {rare:?} is above {bound:?}");
    }
}
