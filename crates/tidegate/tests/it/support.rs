//! What the tests share: limiters on a clock of their own, and the algorithms as
//! a table.

use std::time::Duration;

use tidegate::{
    Align, Cost, Decision, Limit, Limiter, ManualClock, MemoryStore, MemoryStoreBuilder,
};

pub(crate) const SECOND: u64 = 1_000_000;
pub(crate) const MINUTE: u64 = 60 * SECOND;
pub(crate) const HOUR: u64 = 60 * MINUTE;
pub(crate) const DAY: u64 = 24 * HOUR;

/// A whole minute in 2023: windows that are aligned to the epoch begin here.
pub(crate) const START: u64 = 1_700_000_040 * SECOND;

/// The key of tests that need only one.
pub(crate) const KEY: &str = "user:42";

/// The full size in an optimised build, a tenth of it otherwise: what takes a second
/// there takes half a minute here.
pub(crate) const fn scaled(size: u32) -> u32 {
    if cfg!(debug_assertions) {
        size / 10
    } else {
        size
    }
}

/// One limiter and the clock it decides by.
pub(crate) struct Timed {
    pub(crate) clock: ManualClock,
    pub(crate) limiter: Limiter,
}

impl Timed {
    pub(crate) fn new(limit: Limit) -> Self {
        Self::with(limit, |builder| builder)
    }

    pub(crate) fn with(
        limit: Limit,
        configure: impl FnOnce(MemoryStoreBuilder) -> MemoryStoreBuilder,
    ) -> Self {
        // A small store: thousands of cases make one each.
        let (clock, store) = small_store(configure);
        let limiter = Limiter::over(&store, limit).expect("one limit");
        Self { clock, limiter }
    }

    pub(crate) fn count_denied(self, count_denied: bool) -> Self {
        Self {
            limiter: self.limiter.count_denied(count_denied),
            ..self
        }
    }

    /// Moves the clock to so long after the start.
    pub(crate) fn at(&self, since_start_us: u64) -> &Self {
        self.clock.set_us(START + since_start_us);
        self
    }

    pub(crate) fn check(&self) -> Decision {
        self.limiter.check(KEY)
    }

    pub(crate) fn check_cost(&self, cost: u32) -> Decision {
        self.limiter.check_cost(KEY, Cost::of(cost))
    }

    pub(crate) fn peek(&self, cost: u32) -> Decision {
        self.limiter.peek(KEY, Cost::of(cost))
    }

    /// How many requests of this many are admitted at this instant.
    pub(crate) fn admitted_of(&self, offered: usize) -> usize {
        (0..offered).filter(|_| self.check().allowed()).count()
    }
}

/// A store with room for few keys, and the clock it decides by.
pub(crate) fn small_store(
    configure: impl FnOnce(MemoryStoreBuilder) -> MemoryStoreBuilder,
) -> (ManualClock, MemoryStore) {
    let clock = ManualClock::at_us(START);
    let builder = MemoryStore::builder().max_keys(64).clock(clock.clone());
    (clock, configure(builder).build())
}

/// `requests` per `window_us`, counted by each algorithm; the bucket starts with
/// as many.
pub(crate) fn every_algorithm(requests: u32, window_us: u64) -> [Limit; 5] {
    let limit = Limit::per(requests, Duration::from_micros(window_us));
    [
        limit,
        limit.fixed_window(),
        limit.fixed_window().align(Align::Epoch),
        limit.sliding_window(),
        limit.sliding_log(),
    ]
}

pub(crate) fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).expect("tests wait for less than 500,000 years")
}
