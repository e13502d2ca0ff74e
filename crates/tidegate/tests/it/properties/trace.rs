//! Random traces: time passes, somebody asks, and so on.

use proptest::prelude::*;
use tidegate::algorithm::MAX_NOW_US;
use tidegate::{
    Cost, Decision, Kind, Limit, Limiter, ManualClock, MemoryStore, MemoryStoreBuilder,
};

use crate::support::{DAY, KEY, micros};

/// A limit, when the trace begins, and the trace.
#[derive(Debug, Clone)]
pub(crate) struct Case {
    pub(crate) limit: Limit,
    start_us: u64,
    pub(crate) steps: Vec<Step>,
}

/// Time passes, then somebody asks. Both are relative to the limit and to the
/// last answer, so that random traces find its edges.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Step {
    pub(crate) advance: Advance,
    pub(crate) take: Take,
    /// For properties that do something more at some steps.
    pub(crate) extra: u8,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Advance {
    /// A number of microseconds.
    Few(u64),
    /// So many thousandths of the window.
    Share(u64),
    /// The window plus a number of microseconds, less three.
    Window(u64),
    /// The wait of the last answer plus a number of microseconds, less one.
    Retry(u64),
    /// The time until the key is fully refilled plus a number of microseconds, less one.
    Reset(u64),
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Take {
    Few(u32),
    /// So many thousandths of the limit.
    Share(u64),
    /// What remains, and this many more, less one.
    Remaining(u32),
    /// All that the limit ever admits, and this many more.
    All(u32),
}

pub(crate) fn cases(limit: impl Strategy<Value = Limit>) -> impl Strategy<Value = Case> {
    let start_us = prop_oneof![Just(0), 0..10 * DAY, 0..=MAX_NOW_US];
    (limit, start_us, steps(50)).prop_map(|(limit, start_us, steps)| Case {
        limit,
        start_us,
        steps,
    })
}

/// Steps are decoded from plain numbers: a strategy for each would take most of
/// the tests' time.
pub(crate) fn steps(most: usize) -> impl Strategy<Value = Vec<Step>> {
    prop::collection::vec(any::<u64>(), 1..most)
        .prop_map(|words| words.into_iter().map(Step::decode).collect())
}

impl Step {
    fn decode(word: u64) -> Self {
        let [advance, take, size, extra] =
            [word, word >> 8, word >> 16, word >> 32].map(|part| part & 0xff);
        let few = u32::try_from(size).expect("a byte");
        Self {
            advance: match advance % 16 {
                0..=4 => Advance::Few(size % 3),
                5..=9 => Advance::Share(size * 3 / 2),
                10 => Advance::Share(size * 10),
                11 => Advance::Window(size % 7),
                12..=14 => Advance::Retry(size % 3),
                _ => Advance::Reset(size % 3),
            },
            take: match take % 16 {
                0..=6 => Take::Few(1 + few % 3),
                7..=11 => Take::Share(size * 3),
                12..=14 => Take::Remaining(few % 3),
                _ => Take::All(few % 2),
            },
            extra: u8::try_from(extra).expect("a byte"),
        }
    }
}

/// A limiter on its clock, and what it answered last.
pub(crate) struct Run {
    pub(crate) limiter: Limiter,
    pub(crate) clock: ManualClock,
    pub(crate) now_us: u64,
    horizon_us: u64,
    window_us: u64,
    last: Decision,
}

impl Run {
    pub(crate) fn new(case: &Case) -> Self {
        Self::with(case, |builder| builder)
    }

    pub(crate) fn with(
        case: &Case,
        configure: impl FnOnce(MemoryStoreBuilder) -> MemoryStoreBuilder,
    ) -> Self {
        let window_us = window_us(&case.limit);
        // Waiting must always be possible before the end of time.
        let horizon_us = MAX_NOW_US - longest_wait_us(&case.limit);
        let now_us = case.start_us.min(horizon_us);
        let clock = ManualClock::at_us(now_us);
        let builder = MemoryStore::builder().max_keys(16).clock(clock.clone());
        let limiter = Limiter::over(&configure(builder).build(), case.limit);
        let limiter = limiter.expect("one limit");
        let last = limiter.peek(KEY, Cost::ONE);
        Self {
            limiter,
            clock,
            now_us,
            horizon_us,
            window_us,
            last,
        }
    }

    /// Lets the step's time pass.
    pub(crate) fn advance(&mut self, advance: Advance) {
        let by_us = match advance {
            Advance::Few(us) => us,
            Advance::Share(thousandths) => share(self.window_us, thousandths),
            Advance::Window(more) => self.window_us + more - 3,
            Advance::Retry(more) => {
                (micros(self.last.retry_after().unwrap_or_default()) + more).saturating_sub(1)
            }
            Advance::Reset(more) => (micros(self.last.reset_after()) + more).saturating_sub(1),
        };
        if self.now_us + by_us <= self.horizon_us {
            self.set(self.now_us + by_us);
        }
    }

    /// Whether the clock has come so far that some wait might not end.
    pub(crate) fn is_over(&self) -> bool {
        self.now_us > self.horizon_us
    }

    /// Sets the clock back at some steps, by a little or by a lot.
    pub(crate) fn step_back(&mut self, step: &Step) {
        let by_us = match step.extra % 8 {
            0 => u64::from(step.extra / 8),
            1 => self.window_us / 7,
            2 => self.window_us * u64::from(step.extra / 8),
            _ => return,
        };
        self.set(self.now_us.saturating_sub(by_us));
    }

    pub(crate) fn set(&mut self, now_us: u64) {
        self.now_us = now_us;
        self.clock.set_us(now_us);
    }

    pub(crate) fn cost(&self, take: Take) -> Cost {
        let limit = self.last.limit();
        let cost = match take {
            Take::Few(cost) => cost,
            Take::Share(thousandths) => {
                u32::try_from(share(limit.into(), thousandths)).expect("below the limit")
            }
            Take::Remaining(more) => self.last.remaining().saturating_add(more).saturating_sub(1),
            Take::All(more) => limit.saturating_add(more),
        };
        Cost::of(cost.max(1))
    }

    pub(crate) fn check(&mut self, cost: Cost) -> Decision {
        self.last = self.limiter.check_cost(KEY, cost);
        self.last.clone()
    }

    pub(crate) fn peek(&self, cost: u32) -> Decision {
        self.limiter.peek(KEY, Cost::of(cost))
    }

    /// One step: lets time pass, asks, and returns the cost with the answer.
    pub(crate) fn step(&mut self, step: &Step) -> (Cost, Decision) {
        self.advance(step.advance);
        let cost = self.cost(step.take);
        (cost, self.check(cost))
    }
}

pub(crate) fn window_us(limit: &Limit) -> u64 {
    limit.spec().map_or(1_000, |spec| spec.rate.window_us())
}

fn longest_wait_us(limit: &Limit) -> u64 {
    let refill_us = match limit.kind() {
        Kind::TokenBucket(bucket) => bucket.capacity().us + 1,
        _ => 0,
    };
    3 * window_us(limit) + refill_us + 100
}

fn share(of: u64, thousandths: u64) -> u64 {
    u64::try_from(u128::from(of) * u128::from(thousandths) / 1_000).expect("a few times as much")
}
