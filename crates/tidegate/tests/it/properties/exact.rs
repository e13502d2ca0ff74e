//! Every decision agrees with a model that is too simple to be wrong: rational
//! arithmetic for the bucket, recounting all events for the rest.

use proptest::prelude::*;
use tidegate::algorithm::{State, TokenBucket};
use tidegate::{Align, Cost, Kind, Limit};

use super::{Case, Run, for_each_algorithm};
use crate::support::micros;

for_each_algorithm!(a_recount_of_all_events_agrees);

fn a_recount_of_all_events_agrees(case: &Case) -> Result<(), TestCaseError> {
    let mut run = Run::new(case);
    let mut model = Model::new(case.limit);
    for step in &case.steps {
        let (cost, decision) = run.step(step);
        let remaining = model.remaining(run.now_us);
        let admitted = cost.get() <= remaining;
        prop_assert_eq!(decision.allowed(), admitted);
        if admitted {
            model.charge(run.now_us, cost.get());
        }
        prop_assert_eq!(decision.remaining(), model.remaining(run.now_us));
        if let Some(bucket) = &model.bucket {
            let waits = [decision.retry_after(), Some(decision.reset_after())];
            let expected = bucket.waits(run.now_us, cost.get(), admitted);
            prop_assert_eq!(waits.map(|wait| wait.map(micros)), expected);
        }
    }
    Ok(())
}

/// All that was ever admitted under a limit.
pub(crate) struct Model {
    limit: Limit,
    events: Vec<(u64, u32)>,
    /// Where the last window began, for one that opens with a request.
    opened_us: Option<u64>,
    bucket: Option<ExactBucket>,
    /// By the arithmetic of the algorithm.
    state: State,
}

impl Model {
    pub(crate) fn new(limit: Limit) -> Self {
        let bucket = match limit.kind() {
            Kind::TokenBucket(bucket) => Some(ExactBucket::new(bucket)),
            _ => None,
        };
        Self {
            limit,
            events: Vec::new(),
            opened_us: None,
            bucket,
            state: limit.new_state(0),
        }
    }

    /// What the largest admitted cost would be.
    pub(crate) fn remaining(&self, now_us: u64) -> u32 {
        if let Some(bucket) = &self.bucket {
            return bucket.remaining(now_us);
        }
        let rate = self.limit.spec().expect("not blocked").rate;
        let (requests, window_us) = (rate.requests(), rate.window_us());
        let sum = |counts: &dyn Fn(u64) -> bool| -> u32 {
            let costs = self.events.iter().filter(|(at, _)| counts(*at));
            costs.map(|(_, cost)| cost).sum()
        };
        match self.limit.kind() {
            Kind::FixedWindow(window) if window.align() == Align::Epoch => {
                requests - sum(&|at| at / window_us == now_us / window_us)
            }
            Kind::FixedWindow(_) => match self.opened_us {
                Some(opened_us) if now_us - opened_us < window_us => {
                    requests - sum(&|at| at >= opened_us)
                }
                _ => requests,
            },
            Kind::SlidingLog(_) => requests - sum(&|at| now_us - at < window_us),
            Kind::SlidingWindow(_) => {
                let window = now_us / window_us;
                let prev = u128::from(sum(&|at| at / window_us + 1 == window));
                let cur = u128::from(sum(&|at| at / window_us == window));
                let left = u128::from(window_us - now_us % window_us);
                let whole = u128::from(window_us);
                // N - cur - prev*(W - e)/W, rounded down, in units of 1/W.
                let free = (u128::from(requests) * whole).saturating_sub(cur * whole + prev * left);
                u32::try_from(free / whole).expect("at most the limit")
            }
            // An algorithm without a model here: a store comes to the same as its arithmetic.
            _ => {
                let state = self.limit.at(self.state, now_us);
                let outcome = self.limit.outcome(&state, Cost::ONE, true);
                outcome.remaining()
            }
        }
    }

    pub(crate) fn charge(&mut self, now_us: u64, cost: u32) {
        if let Some(bucket) = &mut self.bucket {
            bucket.charge(now_us, cost);
        }
        let state = self.limit.at(self.state, now_us);
        self.state = self.limit.charge(state, Cost::of(cost));
        let window_us = super::window_us(&self.limit);
        if self
            .opened_us
            .is_none_or(|opened_us| now_us - opened_us >= window_us)
        {
            self.opened_us = Some(now_us);
        }
        self.events.push((now_us, cost));
    }
}

/// A token bucket in rational arithmetic, scaled to integers: one microsecond drains
/// `refill` units, a token is `window` units. Nothing is reduced and nothing is rounded.
struct ExactBucket {
    refill: u128,
    window: u128,
    capacity: u128,
    debt: u128,
    last_us: u64,
}

impl ExactBucket {
    fn new(bucket: &TokenBucket) -> Self {
        let (requests, burst) = (bucket.rate().requests(), bucket.burst());
        let refill = match bucket.is_strict() {
            true => requests - burst,
            false => requests,
        };
        let window = u128::from(bucket.rate().window_us());
        Self {
            refill: refill.into(),
            window,
            capacity: u128::from(burst) * window,
            debt: 0,
            last_us: 0,
        }
    }

    fn debt(&self, now_us: u64) -> u128 {
        let elapsed = u128::from(now_us.saturating_sub(self.last_us));
        self.debt.saturating_sub(elapsed * self.refill)
    }

    fn remaining(&self, now_us: u64) -> u32 {
        let free = (self.capacity - self.debt(now_us)) / self.window;
        u32::try_from(free).expect("at most the burst")
    }

    fn charge(&mut self, now_us: u64, cost: u32) {
        self.debt = self.debt(now_us) + u128::from(cost) * self.window;
        self.last_us = now_us;
    }

    /// How long until this cost fits, if ever, and until the bucket is full.
    fn waits(&self, now_us: u64, cost: u32, admitted: bool) -> [Option<u64>; 2] {
        let drained_after = |units: u128| {
            let us = units.div_ceil(self.refill);
            u64::try_from(us).expect("at most a hundred years")
        };
        let (debt, price) = (self.debt(now_us), u128::from(cost) * self.window);
        let retry = match price > self.capacity {
            true => None,
            false if admitted => Some(0),
            false => Some(drained_after(debt + price - self.capacity)),
        };
        [retry, Some(drained_after(debt))]
    }
}
