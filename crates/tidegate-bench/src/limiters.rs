//! The limiters, behind one trait.

use std::time::Duration;

use governor::clock::{Clock, FakeRelativeClock};
use governor::middleware::NoOpMiddleware;
use governor::state::keyed::DefaultKeyedStateStore;
use tidegate::{
    Charge, Check, Cost, Level, Limit, Limiter, MemoryStore, Override, Policy, PolicyBuilder,
    PolicyLimiter,
};

/// What the limit does to the keys. Either way each key stays in use for the
/// whole measurement: no limiter may take a key for new, or forget it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Load {
    /// Every check is admitted, and leaves a debt of half a minute.
    Admitted,
    /// A key's first check is admitted, and every later one refused.
    Refused,
}

impl Load {
    /// In how much time one request's worth flows back.
    pub(crate) const fn period(self) -> Duration {
        match self {
            Self::Admitted => Duration::from_secs(30),
            Self::Refused => Duration::from_secs(3_600),
        }
    }

    /// How many may pass at once.
    pub(crate) const fn burst(self) -> u32 {
        match self {
            Self::Admitted => 100_000_000,
            Self::Refused => 1,
        }
    }

    /// How the tables call it.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Admitted => "admitted",
            Self::Refused => "refused",
        }
    }
}

/// A limiter that can be measured.
pub(crate) trait Keyed: Sync {
    /// A limiter for so many keys.
    fn new(load: Load, keys: usize) -> Self;

    /// Whether one more request of this key may go on.
    #[expect(clippy::ptr_arg, reason = "governor wants its own key type")]
    fn check(&self, key: &String) -> bool;
}

/// The limit of a load.
fn limit(load: Load) -> Limit {
    Limit::per(1, load.period()).burst(load.burst())
}

/// This workspace's limiter.
pub(crate) struct Tidegate(Limiter);

impl Keyed for Tidegate {
    fn new(load: Load, keys: usize) -> Self {
        // A million unless more are needed: what a user gets by default.
        let store = MemoryStore::builder().max_keys(keys.max(1_000_000)).build();
        Self(Limiter::over(&store, limit(load)).expect("one limit"))
    }

    fn check(&self, key: &String) -> bool {
        self.0.check(key).allowed()
    }
}

impl Tidegate {
    /// How many of these keys are admitted, asked for together.
    pub(crate) fn check_many(&self, keys: &[String]) -> usize {
        let decisions = self.0.check_many(keys);
        decisions.iter().filter(|it| it.allowed()).count()
    }
}

/// The same limiter, handed the time by its caller.
pub(crate) struct TidegateAt {
    limiter: Limiter,
    now_us: u64,
}

impl Keyed for TidegateAt {
    fn new(load: Load, keys: usize) -> Self {
        let Tidegate(limiter) = Tidegate::new(load, keys);
        let now_us = limiter.now_us();
        Self { limiter, now_us }
    }

    fn check(&self, key: &String) -> bool {
        self.limiter.check_at(key, Cost::ONE, self.now_us).allowed()
    }
}

/// So many levels of one store, without a policy: the last is the key's own, the others
/// are shared by all keys.
pub(crate) struct StoreLevels<const LEVELS: usize> {
    store: MemoryStore,
    levels: [Level; LEVELS],
}

impl<const LEVELS: usize> Keyed for StoreLevels<LEVELS> {
    fn new(load: Load, keys: usize) -> Self {
        let store = MemoryStore::builder().max_keys(keys.max(1_000_000)).build();
        let levels = std::array::from_fn(|number| {
            let limit = match number + 1 == LEVELS {
                true => limit(load),
                false => Limit::per_second(u32::MAX),
            };
            let level = store.level(&number.to_string(), limit);
            level.expect("a handful of limits")
        });
        Self { store, levels }
    }

    fn check(&self, key: &String) -> bool {
        let checks: [Check<'_>; LEVELS] = std::array::from_fn(|number| {
            let own = number + 1 == LEVELS;
            self.levels[number].check(if own { key.as_str() } else { "search" })
        });
        self.store.decide(&checks, Charge::Admitted).allowed()
    }
}

/// The same limit as a policy of one level: a name, attributes, a template.
pub(crate) struct OneLevel(PolicyLimiter);

impl Keyed for OneLevel {
    fn new(load: Load, keys: usize) -> Self {
        let policy = Policy::builder("api").key("{user}").limit(limit(load));
        Self(policy_limiter(policy, keys))
    }

    fn check(&self, key: &String) -> bool {
        check_policy(&self.0, key)
    }
}

/// One level with a thousand overrides for keys that do not come.
pub(crate) struct Overridden(PolicyLimiter);

impl Keyed for Overridden {
    fn new(load: Load, keys: usize) -> Self {
        let policy = Policy::builder("api").key("{user}").limit(limit(load));
        let overrides = (0..1_000).map(|number| Override::of("user", format!("vip-{number}")));
        let policy = overrides.fold(policy, |policy, change| {
            policy.overrides(change.limit(Limit::per_second(1_000)))
        });
        Self(policy_limiter(policy, keys))
    }

    fn check(&self, key: &String) -> bool {
        check_policy(&self.0, key)
    }
}

/// Two levels: one counter for each of two services, one for each user of it.
pub(crate) struct TwoLevels(PolicyLimiter);

impl Keyed for TwoLevels {
    fn new(load: Load, keys: usize) -> Self {
        let policy = Policy::builder("api")
            .level("service", "{service}", Limit::per_second(u32::MAX))
            .level("user", "{service}:{user}", limit(load));
        Self(policy_limiter(policy, keys))
    }

    fn check(&self, key: &String) -> bool {
        check_policy(&self.0, key)
    }
}

/// Three levels: by service, by user, and by both.
pub(crate) struct ThreeLevels(PolicyLimiter);

impl Keyed for ThreeLevels {
    fn new(load: Load, keys: usize) -> Self {
        let policy = Policy::builder("api")
            .level("service", "{service}", Limit::per_second(u32::MAX))
            .level("user", "{user}", Limit::per_second(u32::MAX))
            .level("both", "{service}:{user}", limit(load));
        Self(policy_limiter(policy, 2 * keys))
    }

    fn check(&self, key: &String) -> bool {
        check_policy(&self.0, key)
    }
}

fn policy_limiter(policy: PolicyBuilder, keys: usize) -> PolicyLimiter {
    let policy = policy.build().expect("a policy that is right");
    let store = MemoryStore::builder().max_keys(keys.max(1_000_000)).build();
    PolicyLimiter::over(&store, policy).expect("few limits")
}

fn check_policy(limiter: &PolicyLimiter, key: &str) -> bool {
    let attributes = [("service", "search"), ("user", key)];
    let decision = limiter.check(&attributes, Cost::ONE);
    decision.expect("all attributes are there").allowed()
}

/// governor's keyed limiter, as its documentation makes it.
pub(crate) struct Governor(governor::DefaultKeyedRateLimiter<String>);

impl Keyed for Governor {
    fn new(load: Load, _keys: usize) -> Self {
        Self(governor::RateLimiter::keyed(quota(load)))
    }

    fn check(&self, key: &String) -> bool {
        self.0.check_key(key).is_ok()
    }
}

/// The quota of a load.
fn quota(load: Load) -> governor::Quota {
    let quota = governor::Quota::with_period(load.period()).expect("a period above zero");
    quota.allow_burst(load.burst().try_into().expect("a burst above zero"))
}

/// The same with a clock that is one number in memory.
pub(crate) struct GovernorAt(
    governor::RateLimiter<
        String,
        DefaultKeyedStateStore<String>,
        FakeRelativeClock,
        NoOpMiddleware<<FakeRelativeClock as Clock>::Instant>,
    >,
);

impl Keyed for GovernorAt {
    fn new(load: Load, _keys: usize) -> Self {
        let clock = FakeRelativeClock::default();
        let limiter = governor::RateLimiter::dashmap_with_clock(quota(load), clock);
        Self(limiter)
    }

    fn check(&self, key: &String) -> bool {
        self.0.check_key(key).is_ok()
    }
}

/// aerorate's keyed limiter: the fastest other one that is exact.
pub(crate) struct Aerorate(aerorate::KeyedRateLimiter<String>);

impl Keyed for Aerorate {
    fn new(load: Load, _keys: usize) -> Self {
        let quota = aerorate::Quota::with_period(1, load.period()).allow_burst(load.burst());
        Self(aerorate::KeyedRateLimiter::new(quota))
    }

    fn check(&self, key: &String) -> bool {
        self.0.check(key.as_str()).is_allowed()
    }
}
