//! Policies over the in-memory store.

mod pitfalls;
mod pitfalls_numbers;

mod examples;

mod keys;
mod slots;

mod calls;
mod changes;
mod modes;
mod overrides;
mod several;
mod traces;

use tidegate::{
    Attributes, Cost, ManualClock, MemoryStore, Policy, PolicyBuilder, PolicyDecision,
    PolicyLimiter,
};
use tidegate_config::Config;

use crate::support::START;

/// A limiter over policies, and the clock it decides by.
struct Timed {
    clock: ManualClock,
    limiter: PolicyLimiter,
}

fn config(text: &str) -> Config {
    Config::parse(text, "test.toml").unwrap_or_else(|errors| panic!("{errors}"))
}

fn built(policies: impl IntoIterator<Item = PolicyBuilder>) -> Vec<Policy> {
    let built = |one: PolicyBuilder| one.build().unwrap_or_else(|error| panic!("{error}"));
    policies.into_iter().map(built).collect()
}

impl Timed {
    /// The policies of a file, on a clock that stands still.
    fn read(text: &str) -> Self {
        Self::with(config(text).policies)
    }

    fn of(policies: impl IntoIterator<Item = PolicyBuilder>) -> Self {
        Self::with(built(policies))
    }

    fn with(policies: Vec<Policy>) -> Self {
        let clock = ManualClock::at_us(START);
        // The bounds of a config that does not say otherwise.
        let store = MemoryStore::builder().clock(clock.clone()).build();
        let limiter = PolicyLimiter::with_stores([("default", store)], policies);
        Self {
            clock,
            limiter: limiter.expect("policies of one store"),
        }
    }

    /// The same counts under other policies.
    fn changed(&self, policies: impl IntoIterator<Item = PolicyBuilder>) -> Self {
        Self {
            clock: self.clock.clone(),
            limiter: self.limiter.changed(built(policies)).expect("few limits"),
        }
    }

    /// Moves the clock to so long after the start.
    fn at(&self, since_start_us: u64) -> &Self {
        self.clock.set_us(START + since_start_us);
        self
    }

    fn check(&self, policy: &str, attributes: &(impl Attributes + ?Sized)) -> PolicyDecision<'_> {
        self.check_cost(policy, attributes, 1)
    }

    fn check_cost(
        &self,
        policy: &str,
        attributes: &(impl Attributes + ?Sized),
        cost: u32,
    ) -> PolicyDecision<'_> {
        self.limiter
            .check(policy, attributes, Cost::of(cost))
            .expect("good input")
    }

    fn peek(&self, policy: &str, attributes: &(impl Attributes + ?Sized)) -> PolicyDecision<'_> {
        self.limiter
            .peek(policy, attributes, Cost::ONE)
            .expect("good input")
    }

    /// What remains of each level.
    fn remaining(&self, policy: &str, attributes: &(impl Attributes + ?Sized)) -> Vec<u32> {
        remaining(&self.peek(policy, attributes))
    }

    /// How many of so many requests are admitted at this instant.
    fn admitted_of(
        &self,
        offered: usize,
        policy: &str,
        attributes: &(impl Attributes + ?Sized),
    ) -> usize {
        let allowed = |_: &usize| self.check(policy, attributes).allowed();
        (0..offered).filter(allowed).count()
    }

    /// How many keys the store holds.
    fn keys(&self) -> usize {
        self.limiter
            .stores()
            .map(|(_, store)| store.stats().keys)
            .sum()
    }
}

fn remaining(decision: &PolicyDecision<'_>) -> Vec<u32> {
    let levels = decision.levels();
    levels.map(|level| level.numbers().remaining()).collect()
}
