//! What the tests share: limiters that wait for a slow machine and do not swallow a
//! store's errors, and the algorithms as a table.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tidegate::{Align, Attributes, Cost, Limit, Policy, PolicyDecision};
use tidegate_redis::{AnyStore, Policies, PolicyLimiter, RedisOptions, RedisStats, RedisStore};
use tokio::task::JoinSet;

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

/// So many callers of these nodes ask for one key all the time, for as long as this: the
/// limit of this many per second is used, and no more.
pub(crate) async fn assert_used_by(
    nodes: impl IntoIterator<Item = Policies>,
    callers: usize,
    time: Duration,
    rate: u64,
) {
    let nodes: Vec<_> = nodes.into_iter().map(Arc::new).collect();
    let start = Instant::now();
    let mut tasks = JoinSet::new();
    for node in nodes.iter().cycle().take(callers) {
        let node = Arc::clone(node);
        tasks.spawn(async move {
            let (mut admitted_us, mut is_refused) = (Vec::new(), false);
            // To the end of what has come back while the machine stalled.
            while start.elapsed() < time || !is_refused {
                let decision = check(&node, "p", &[("key", "a")]).await;
                is_refused = !decision.allowed();
                if !is_refused {
                    admitted_us.push(decision.decided_at_us());
                }
                tokio::task::yield_now().await;
            }
            admitted_us
        });
    }
    // By the clock of the store.
    let mut admitted_us = tasks.join_all().await.concat();
    assert_used(&mut admitted_us, rate);
}

/// What a token bucket of this many per second admits while more is asked for all the time,
/// by the instants at which it did: never more than its bound, and nearly all of it.
fn assert_used(admitted_us: &mut [u64], rate: u64) {
    admitted_us.sort_unstable();
    let each_us = 1_000_000 / rate;
    let first = admitted_us[0];
    for (count, at) in (1..).zip(admitted_us.iter()) {
        // The burst, and the rate since.
        let most = rate + (at - first) / each_us;
        assert!(count <= most, "bound broken: {count} of {most} by {at}");
    }
    // When nobody asks for longer than a second, because the machine stalls, there is no
    // more than a burst of it.
    let pauses = admitted_us.windows(2).map(|pair| pair[1] - pair[0]);
    let lost: u64 = pauses.map(|pause| pause.saturating_sub(1_000_000)).sum();
    let whole = admitted_us[admitted_us.len() - 1] - first;
    let most = rate + (whole - lost) / each_us;
    let admitted = admitted_us.len() as u64;
    assert!(admitted >= most * 95 / 100, "{admitted} of {most}");
}

/// How many requests of this many are admitted, one after the other.
pub(crate) async fn admitted_of(
    limiter: &Policies,
    policy: &str,
    key: &str,
    offered: usize,
) -> usize {
    let mut admitted = 0;
    for _ in 0..offered {
        let decision = check(limiter, policy, &[("key", key)]).await;
        admitted += usize::from(decision.allowed());
    }
    admitted
}

/// All keys of the server's first database.
pub(crate) fn all_keys(redis: &mut redis::Connection) -> Vec<String> {
    tidegate_testkit::cluster::run(redis, "KEYS *")
}
