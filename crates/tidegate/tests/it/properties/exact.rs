//! Every decision agrees with a model that is too simple to be wrong: rational
//! arithmetic for the bucket, recounting all events for the rest.

use std::time::Duration;

use proptest::prelude::*;
use tidegate::{Align, Cost, Kind, Limit, LimitSpec, Limiter, ManualClock, Rate};

use super::{Case, Run, for_each_algorithm};
use crate::support::{DAY, Exact, ExactBucket, KEY, micros};

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
}

impl Model {
    pub(crate) fn new(limit: Limit) -> Self {
        let bucket = match limit.kind() {
            Kind::TokenBucket(bucket) => Some(exact(bucket)),
            _ => None,
        };
        Self {
            limit,
            events: Vec::new(),
            opened_us: None,
            bucket,
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
            Kind::TokenBucket(_) | Kind::Block(_) => 0,
        }
    }

    pub(crate) fn charge(&mut self, now_us: u64, cost: u32) {
        if let Some(bucket) = &mut self.bucket {
            assert!(bucket.step(now_us, cost).admitted);
        }
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

fn exact(bucket: &tidegate::algorithm::TokenBucket) -> ExactBucket {
    let (requests, burst) = (bucket.rate().requests(), bucket.burst());
    let refill = if bucket.is_strict() {
        requests - burst
    } else {
        requests
    };
    ExactBucket::new(refill, bucket.rate().window_us(), burst)
}

/// Numbers from a seed, the same on every run (splitmix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// 1 to `most`, each order of magnitude as likely as another.
    fn any_size(&mut self, most: u64) -> u64 {
        let bits = 64 - most.leading_zeros();
        let mask = u64::MAX >> (64 - 1 - self.below(bits.into()));
        1 + (self.next() & mask).min(most - 1)
    }

    fn any_size_u32(&mut self, most: u32) -> u32 {
        u32::try_from(self.any_size(most.into())).expect("within `most`")
    }

    /// From one a year to 2^32 - 1 a millisecond.
    fn bucket(&mut self) -> Limit {
        loop {
            let requests = self.any_size(u32::MAX.into());
            let window_us = (999 + self.any_size(366 * DAY - 999)).max(1_000);
            let rate = Rate::new(requests, Duration::from_micros(window_us)).expect("in range");
            let spec = LimitSpec {
                burst: (self.below(3) > 0).then(|| self.any_size(u32::MAX.into())),
                strict: self.below(4) == 0,
                ..LimitSpec::new(rate)
            };
            if let Ok(limit) = spec.build() {
                return limit;
            }
        }
    }
}

#[test]
fn a_million_steps_agree_with_rational_arithmetic() {
    const BUCKETS: u64 = 5_000;
    const STEPS: u64 = 200;
    for seed in 0..BUCKETS {
        let mut random = Random(seed);
        let limit = random.bucket();
        let Kind::TokenBucket(bucket) = limit.kind() else {
            unreachable!("only buckets are made here");
        };
        let mut model = exact(bucket);
        let clock = ManualClock::at_us(0);
        let limiter = Limiter::builder(limit)
            .max_keys(4)
            .clock(clock.clone())
            .build();
        let token_us = bucket.capacity().us / u64::from(bucket.burst());
        let mut wait_us = 0;
        for step in 0..STEPS {
            // Around what was said to wait, around a token, or anything at all,
            // as long as the end of time is not near.
            let by_us = match random.below(8) {
                0 | 1 => wait_us,
                2 => (wait_us + random.below(3)).saturating_sub(1),
                3 => token_us + random.below(3),
                4 | 5 => random.below(4),
                _ => random.any_size(bucket.capacity().us + 2),
            };
            let now_us = model.now_us() + by_us;
            let now_us = if now_us < 40 * 366 * DAY {
                now_us
            } else {
                model.now_us()
            };
            clock.set_us(now_us);
            let cost = match random.below(8) {
                0 => bucket.burst().saturating_add(random.any_size_u32(2) - 1),
                1 | 2 => random.any_size_u32(bucket.burst()),
                3 => model.remaining(now_us).max(1),
                4 => model.remaining(now_us).saturating_add(1),
                _ => random.any_size_u32(4),
            };
            let decision = limiter.check_cost(KEY, Cost::of(cost));
            let got = Exact {
                admitted: decision.allowed(),
                remaining: decision.remaining(),
                retry_after_us: decision.retry_after().map(micros),
                reset_after_us: micros(decision.reset_after()),
            };
            let wanted = model.step(now_us, cost);
            assert_eq!(
                got, wanted,
                "seed {seed} step {step} of {limit}, cost {cost} at {now_us}"
            );
            wait_us = wanted.retry_after_us.unwrap_or(0);
        }
    }
}
