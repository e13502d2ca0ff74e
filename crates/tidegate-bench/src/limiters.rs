//! The limiters, behind one trait.

use std::time::Duration;

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
    const fn period(self) -> Duration {
        match self {
            Self::Admitted => Duration::from_secs(30),
            Self::Refused => Duration::from_secs(3_600),
        }
    }

    /// How many may pass at once.
    const fn burst(self) -> u32 {
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

/// This workspace's limiter.
pub(crate) struct Tidegate(tidegate::Limiter);

impl Keyed for Tidegate {
    fn new(load: Load, keys: usize) -> Self {
        let limit = tidegate::Limit::per(1, load.period()).burst(load.burst());
        let builder = tidegate::Limiter::builder(limit);
        // A million unless more are needed: what a user gets by default.
        Self(builder.max_keys(keys.max(1_000_000)).build())
    }

    fn check(&self, key: &String) -> bool {
        self.0.check(key).allowed()
    }
}

/// governor's keyed limiter, as its documentation makes it.
pub(crate) struct Governor(governor::DefaultKeyedRateLimiter<String>);

impl Keyed for Governor {
    fn new(load: Load, _keys: usize) -> Self {
        let quota = governor::Quota::with_period(load.period()).expect("a period above zero");
        let burst = load.burst().try_into().expect("a burst above zero");
        Self(governor::RateLimiter::keyed(quota.allow_burst(burst)))
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
