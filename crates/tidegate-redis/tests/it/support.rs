//! What the tests share: limiters that wait for a slow machine and do not swallow a
//! store's errors, and the algorithms as a table.

use std::time::Duration;

use tidegate::{Align, Attributes, Cost, Limit, Policy, PolicyDecision};
use tidegate_redis::{AnyStore, Policies, PolicyLimiter, RedisOptions, RedisStats, RedisStore};

use crate::server::Server;

/// Long enough that nothing comes back, and no window ends, while a test runs.
pub(crate) const YEAR: Duration = Duration::from_secs(365 * 86_400);

/// Options with a deadline that says nothing about the machine.
pub(crate) fn patient() -> RedisOptions {
    RedisOptions::default().timeout(Duration::from_secs(20))
}

pub(crate) fn store(server: &Server) -> RedisStore {
    RedisStore::new(&server.url(), patient()).expect("a right url")
}

pub(crate) fn limiter(server: &Server, policies: impl IntoIterator<Item = Policy>) -> Policies {
    limiter_over(store(server), policies)
}

pub(crate) fn limiter_over(
    store: RedisStore,
    policies: impl IntoIterator<Item = Policy>,
) -> Policies {
    Policies::new([("default", store)], policies).expect("policies of one store")
}

/// One of several policies, by its name.
pub(crate) trait Named {
    fn of(&self, policy: &str) -> &PolicyLimiter;
}

impl Named for Policies {
    fn of(&self, policy: &str) -> &PolicyLimiter {
        self.handle(policy).expect("a policy of this name")
    }
}

/// What the store of a limiter has seen.
pub(crate) fn stats(limiter: &Policies) -> RedisStats {
    match limiter.stores().next() {
        Some((_, AnyStore::Redis(store))) => store.stats(),
        _ => panic!("a Redis store"),
    }
}

/// A policy of one level, by `key`, that asks the store each time.
pub(crate) fn policy(name: &str, limit: Limit) -> Policy {
    let policy = Policy::builder(name).key("{key}").limit(limit);
    let policy = policy.refusal_memory(Duration::ZERO);
    policy.build().expect("a policy")
}

/// A policy of a level for each limit, all by `key`, that asks the store each time.
pub(crate) fn levels(name: &str, limits: &[Limit]) -> Policy {
    let mut policy = Policy::builder(name).refusal_memory(Duration::ZERO);
    for (number, limit) in limits.iter().enumerate() {
        policy = policy.level(format!("l{number}"), "{key}", *limit);
    }
    policy.build().expect("a policy")
}

/// So many per window, counted by each algorithm.
pub(crate) fn every_algorithm(requests: u32, window: Duration) -> [(&'static str, Limit); 5] {
    let limit = Limit::per(requests, window);
    [
        ("bucket", limit),
        ("fixed", limit.fixed_window()),
        ("epoch", limit.fixed_window().align(Align::Epoch)),
        ("sliding", limit.sliding_window()),
        ("log", limit.sliding_log()),
    ]
}

/// What follows the level in keys that this limit counts.
pub(crate) fn suffix(limit: &Limit) -> &'static str {
    limit.algorithm().profile().suffix
}

/// A policy for each algorithm, named after it.
pub(crate) fn every_policy(requests: u32, window: Duration) -> Vec<Policy> {
    let limits = every_algorithm(requests, window);
    limits.map(|(name, limit)| policy(name, limit)).into()
}

pub(crate) async fn check<'l>(
    limiter: &'l Policies,
    policy: &str,
    attributes: &(impl Attributes + ?Sized),
) -> PolicyDecision<'l> {
    check_cost(limiter, policy, attributes, 1).await
}

pub(crate) async fn check_cost<'l>(
    limiter: &'l Policies,
    policy: &str,
    attributes: &(impl Attributes + ?Sized),
    cost: u32,
) -> PolicyDecision<'l> {
    let asked = limiter
        .of(policy)
        .try_check(attributes, Cost::of(cost))
        .await;
    asked.unwrap_or_else(|error| panic!("{policy}: {error}"))
}

pub(crate) async fn look<'l>(
    limiter: &'l Policies,
    policy: &str,
    attributes: &(impl Attributes + ?Sized),
) -> PolicyDecision<'l> {
    let asked = limiter.of(policy).peek(attributes, Cost::ONE).await;
    asked.unwrap_or_else(|error| panic!("{policy}: {error}"))
}

/// All keys of the server's first database.
pub(crate) fn all_keys(redis: &mut redis::Connection) -> Vec<String> {
    tidegate_testkit::cluster::run(redis, "KEYS *")
}
