//! The open loop: every check has a time at which it should begin, whatever became of
//! those before it. A thread lets callers go when it is time; when all are busy, the
//! next one that is free takes the check that has waited longest.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use tokio::sync::Semaphore;

use super::plan::Plan;

/// How long the thread sleeps at most, so that it hears when it is to stop.
const NAP: Duration = Duration::from_millis(20);

/// The times at which a process should begin its checks.
pub(super) struct Pace {
    /// Of all processes together.
    rate: f64,
    processes: u64,
    number: u64,
    duration: Duration,
    /// Checks that are due and that no caller has taken.
    due: Semaphore,
    taken: AtomicU64,
}

impl Pace {
    pub(super) fn new(plan: &Plan) -> Option<Self> {
        Some(Self {
            rate: plan.rate?,
            processes: plan.processes.into(),
            number: plan.number.into(),
            duration: plan.duration,
            due: Semaphore::new(0),
            taken: AtomicU64::new(0),
        })
    }

    /// When a check of this process should begin, since the start. Those of all
    /// processes together lie at even distances.
    pub(super) fn intended(&self, index: u64) -> Duration {
        let number = index * self.processes + self.number;
        Duration::from_secs_f64(number as f64 / self.rate)
    }

    /// How many checks should have begun so long after the start.
    fn due_after(&self, time: Duration) -> u64 {
        let time = time.min(self.duration).as_secs_f64();
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a rate and a time, neither of which is negative or large"
        )]
        let all = (time * self.rate).ceil() as u64;
        all.saturating_sub(self.number).div_ceil(self.processes)
    }

    /// The time of the next check, when it has come; none when the run is over.
    pub(super) async fn next(&self) -> Option<Duration> {
        self.due.acquire().await.ok()?.forget();
        let index = self.taken.fetch_add(1, Relaxed);
        Some(self.intended(index))
    }

    /// Lets callers go, until the run is over or stopped.
    pub(super) fn run(&self, start: Instant, is_stopped: impl Fn() -> bool) {
        let mut released = 0;
        loop {
            let now = start.elapsed();
            let due = self.due_after(now);
            let more = usize::try_from(due - released).unwrap_or(usize::MAX);
            self.due.add_permits(more.min(Semaphore::MAX_PERMITS / 2));
            released = due;
            if now >= self.duration || is_stopped() {
                break;
            }
            let next = self.intended(released).min(self.duration);
            std::thread::sleep(next.saturating_sub(start.elapsed()).min(NAP));
        }
        self.due.close();
    }

    /// The checks that should have begun by then, and did not.
    pub(super) fn unsent(&self, by: Duration) -> impl Iterator<Item = Duration> {
        let due = self.due_after(by);
        (self.taken.load(Relaxed)..due).map(|index| self.intended(index))
    }
}

#[cfg(test)]
mod tests {
    use super::super::plan::tests::plan;
    use super::*;

    #[test]
    fn processes_share_a_rate_evenly() {
        let paces = [0, 1, 2].map(|number| {
            let plan = Plan {
                rate: Some(1_000.0),
                processes: 3,
                number,
                ..plan()
            };
            Pace::new(&plan).unwrap()
        });
        let time = Duration::from_millis;
        let mut begun: Vec<Duration> = Vec::new();
        for pace in &paces {
            let all: Vec<Duration> = pace.unsent(time(10)).collect();
            assert_eq!(all.len() as u64, pace.due_after(time(10)));
            begun.extend(all);
        }
        begun.sort_unstable();
        let expected: Vec<Duration> = (0..10).map(time).collect();
        assert_eq!(begun, expected);
        // Nothing begins after the end.
        let all = paces.iter().map(|pace| pace.due_after(time(5_000)));
        assert_eq!(all.sum::<u64>(), 1_000);
    }
}
