//! The callers of a process: each asks, waits for the answer, and asks again.
//!
//! What a check costs besides the question itself is two looks at the clock and a note
//! in a list of the caller's own, which is counted when it is full.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tidegate::Cost;
use tokio::task::{JoinSet, yield_now};

use super::asker::Asker;
use super::keys::Keys;
use super::pace::Pace;
use super::plan::Plan;
use super::tally::{Outcome, Tally};

/// A caller's list is counted when it has so many entries, or is so old.
const LIST: usize = 128;
const AGE: Duration = Duration::from_millis(100);

/// So many checks of a caller before others have their turn.
const TURN: u32 = 16;

/// A run in progress.
pub(super) struct Run {
    pub(super) plan: Plan,
    pub(super) start: Instant,
    pace: Option<Pace>,
    stopped: AtomicBool,
    tally: Mutex<Tally>,
}

impl Run {
    pub(super) fn new(plan: Plan, start: Instant) -> Self {
        Self {
            pace: Pace::new(&plan),
            tally: Mutex::new(Tally::new(&plan)),
            stopped: AtomicBool::new(false),
            plan,
            start,
        }
    }

    /// Nobody begins another check.
    pub(super) fn stop(&self) {
        self.stopped.store(true, Relaxed);
    }

    pub(super) fn tally(&self) -> MutexGuard<'_, Tally> {
        self.tally.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs all callers to the end, and waits for their last answers.
    pub(super) async fn run(self: &Arc<Self>, askers: Vec<Asker>) {
        tokio::time::sleep_until(self.start.into()).await;
        let pacer = self.pace.is_some().then(|| {
            let run = Arc::clone(self);
            std::thread::spawn(move || {
                if let Some(pace) = &run.pace {
                    pace.run(run.start, || run.stopped.load(Relaxed));
                }
            })
        });
        let mut callers = JoinSet::new();
        for (number, asker) in (0..).zip(askers) {
            callers.spawn(Arc::clone(self).call(asker, number));
        }
        while callers.join_next().await.is_some() {}
        if let (Some(pace), Some(pacer)) = (&self.pace, pacer) {
            drop(tokio::task::spawn_blocking(|| pacer.join()).await);
            let now = self.start.elapsed().min(self.plan.duration);
            self.tally().unsent(pace.unsent(now), now);
        }
        self.tally().close();
    }

    async fn call(self: Arc<Self>, mut asker: Asker, number: u32) {
        let mut keys = Keys::new(&self.plan, number);
        let cost = Cost::new(self.plan.cost.into()).unwrap_or(Cost::ONE);
        let mut outcomes = Vec::with_capacity(LIST);
        let mut counted = self.start.elapsed();
        let (mut now, mut turn) = (counted, 0_u32);
        while let Some(intended) = self.next(now).await {
            let key = keys.draw();
            let sent = self.start.elapsed();
            let answer = asker.ask(&keys, cost).await;
            let answered = self.start.elapsed();
            now = answered;
            outcomes.push(Outcome {
                key,
                intended: intended.unwrap_or(sent).min(sent),
                sent,
                answered,
                answer,
            });
            if outcomes.len() == LIST || answered - counted > AGE {
                self.tally().add(&mut outcomes);
                counted = answered;
            }
            // What is decided here never makes a caller wait: others, and who tells the
            // store, have their turn, too.
            turn = turn.wrapping_add(1);
            if turn.is_multiple_of(TURN) {
                yield_now().await;
            }
        }
        self.tally().add(&mut outcomes);
    }

    /// When the next check should begin: now, if there is no pace. `None` at the end.
    async fn next(&self, now: Duration) -> Option<Option<Duration>> {
        if let Some(pace) = &self.pace {
            return pace.next().await.map(Some);
        }
        let is_over = self.stopped.load(Relaxed) || now >= self.plan.duration;
        (!is_over).then_some(None)
    }
}
