//! Policies over the in-memory store: examples as data, then what holds for any.

mod suite;

mod changes;
mod keys;

use tidegate::{Attributes, Cost, ManualClock, MemoryStore, Policies, Policy, PolicyBuilder};
use tidegate_config::Config;

use crate::support::START;

/// A limiter over policies, and the clock it decides by.
pub(crate) struct Timed {
    pub(crate) clock: ManualClock,
    pub(crate) limiter: Policies,
}

fn config(text: &str) -> Config {
    Config::parse(text, "test.toml").unwrap_or_else(|errors| panic!("{errors}\n{text}"))
}

fn built(policies: impl IntoIterator<Item = PolicyBuilder>) -> Vec<Policy> {
    let built = |one: PolicyBuilder| one.build().unwrap_or_else(|error| panic!("{error}"));
    policies.into_iter().map(built).collect()
}

impl Timed {
    pub(crate) fn of(policies: impl IntoIterator<Item = PolicyBuilder>) -> Self {
        Self::with(built(policies))
    }

    fn with(policies: Vec<Policy>) -> Self {
        let clock = ManualClock::at_us(START);
        let store = MemoryStore::builder().clock(clock.clone()).build();
        let limiter = Policies::with_stores([("default", store)], policies);
        Self {
            clock,
            limiter: limiter.expect("policies of one store"),
        }
    }

    /// What a request leaves of the limit, and of which; `None` if it is refused.
    fn left(&self, policy: &str, attributes: &impl Attributes, cost: u32) -> Option<(u32, u32)> {
        let decision = self.limiter.check(policy, attributes, Cost::of(cost));
        let decision = decision.expect("good input");
        decision
            .allowed()
            .then(|| (decision.remaining(), decision.limit()))
    }

    /// How many keys the store holds.
    fn keys(&self) -> usize {
        let stores = self.limiter.stores();
        stores.map(|(_, store)| store.stats().keys).sum()
    }
}
