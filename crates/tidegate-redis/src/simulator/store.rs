//! The store: the core's algorithms on a clock that may step, in a server that may be
//! replaced by one that knows nothing.

use std::time::Duration;

use tidegate::{Charge, Cost, Decision, ManualClock, MemoryStore, Policy, PolicyLimiter, Receipt};

/// Where the clock begins.
const START_US: u64 = 1_700_000_000_000_000;

pub(super) struct Store {
    policy: Policy,
    limiter: PolicyLimiter,
    clock: ManualClock,
    /// How far the clock is off.
    offset_us: i64,
    /// What the clock last read, and the time that has passed for the limits: a step
    /// back is none.
    read_us: u64,
    passed_us: u64,
    /// Times everything was forgotten.
    pub(super) losses: u32,
}

impl Store {
    pub(super) fn new(policy: Policy) -> Self {
        let clock = ManualClock::at_us(START_US);
        Self {
            limiter: limiter(&policy, &clock),
            policy,
            clock,
            offset_us: 0,
            read_us: START_US,
            passed_us: START_US,
            losses: 0,
        }
    }

    /// Moves the clock to where it stands at this moment of the world.
    fn tick(&mut self, now: Duration) {
        let true_us = START_US + u64::try_from(now.as_micros()).unwrap_or(0);
        let reads_us = true_us.saturating_add_signed(self.offset_us);
        self.passed_us += reads_us.saturating_sub(self.read_us);
        self.read_us = reads_us;
        self.clock.set_us(reads_us);
    }

    /// Decides, and says when, in time that never steps back.
    pub(super) fn decide(&mut self, now: Duration, key: &str, cost: Cost) -> (Decision, u64) {
        self.tick(now);
        let attributes = [("key", key)];
        let keys = self.policy.keys(&attributes).expect("the one attribute");
        let decision = self.limiter.decide_keys(&keys, cost, Charge::Admitted);
        (decision, self.passed_us)
    }

    /// Whether it would admit this now.
    pub(super) fn would_admit(&mut self, now: Duration, key: &str, cost: Cost) -> bool {
        self.tick(now);
        let look = self.limiter.peek("p", &[("key", key)], cost);
        look.expect("the one policy").allowed()
    }

    pub(super) fn refund(&mut self, now: Duration, key: &str, receipt: &Receipt) {
        self.tick(now);
        let refunded = self.limiter.refund("p", &[("key", key)], receipt);
        refunded.expect("the one policy");
    }

    /// The clock is set, forwards or back.
    pub(super) fn step(&mut self, by_us: i64) {
        self.offset_us += by_us;
    }

    /// Another server takes over, and knows nothing.
    pub(super) fn fail_over(&mut self) {
        self.limiter = limiter(&self.policy, &self.clock);
        self.losses += 1;
    }
}

fn limiter(policy: &Policy, clock: &ManualClock) -> PolicyLimiter {
    let store = MemoryStore::builder().max_keys(64).clock(clock.clone());
    let limiter = PolicyLimiter::with_stores([("default", store.build())], [policy.clone()]);
    limiter.expect("one policy")
}
