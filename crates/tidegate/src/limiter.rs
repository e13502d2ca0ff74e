//! One limit, many keys: the limiter most programs need.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::time::Duration;

use arc_swap::ArcSwap;

use crate::clock::Clock;
use crate::cost::Cost;
use crate::decision::{Decision, Receipt};
use crate::key::Key;
use crate::limit::Limit;
use crate::memory::{
    Charge, Check, Level, MemoryStore, MemoryStoreBuilder, Stats, TooManyLimits, WhenFull,
};
use crate::wait::{Wait, WaitError, Waiting};

/// A limit applied to each of many keys, in memory.
///
/// ```
/// use tidegate::{Limit, Limiter};
///
/// let limiter = Limiter::in_memory(Limit::per_second(50).burst(100));
/// let decision = limiter.check("user:42"); // no await, no allocation, bounded memory
/// if !decision.allowed() {
///     println!("try again in {:?}", decision.retry_after());
/// }
/// ```
///
/// Keys are text, bytes, numbers, addresses or tuples of these ([`Key`]). Clones are
/// handles to the same keys and the same limit, so every thread or connection can have
/// one. For a limit that has no keys, see [`Limiter::single`].
#[derive(Clone, Debug)]
pub struct Limiter {
    store: MemoryStore,
    charge: Charge,
    /// The limit at the time this handle was made, and its version.
    level: Level,
    turn: usize,
    current: Arc<Current>,
}

/// The current limit, for all clones of a limiter.
#[derive(Debug)]
struct Current {
    /// How often the limit has changed.
    turn: AtomicUsize,
    level: ArcSwap<Level>,
}

/// Builds a [`Limiter`] with other settings than the default.
#[derive(Clone)]
#[must_use = "a builder does nothing until `build`"]
pub struct LimiterBuilder {
    limit: Limit,
    charge: Charge,
    store: MemoryStoreBuilder,
}

impl Limiter {
    /// A limiter in memory, for at most one million keys.
    #[must_use]
    pub fn in_memory(limit: Limit) -> Self {
        Self::builder(limit).build()
    }

    /// One limit for everything, without keys.
    ///
    /// ```
    /// use tidegate::{Limit, Limiter};
    ///
    /// let outgoing = Limiter::single(Limit::per_second(10).burst(1));
    /// assert!(outgoing.check().allowed());
    /// assert!(!outgoing.check().allowed());
    /// ```
    #[must_use]
    pub fn single(limit: Limit) -> SingleLimiter {
        Self::builder(limit).build_single()
    }

    /// Builds a limiter with other bounds, or another clock.
    ///
    /// ```
    /// use tidegate::{Limit, Limiter, WhenFull};
    ///
    /// let limiter = Limiter::builder(Limit::per_second(5))
    ///     .max_keys(100_000)
    ///     .when_full(WhenFull::Deny)
    ///     .build();
    /// assert!(limiter.check("a").allowed());
    /// assert_eq!(limiter.stats().keys, 1);
    /// ```
    pub fn builder(limit: Limit) -> LimiterBuilder {
        LimiterBuilder {
            limit,
            charge: Charge::Admitted,
            store: MemoryStore::builder(),
        }
    }

    /// Decides whether one request of this key may proceed, and charges it if so.
    #[inline]
    pub fn check(&self, key: impl Key) -> Decision {
        self.check_cost(key, Cost::ONE)
    }

    /// Decides whether a request of this cost may proceed, and charges all of it or nothing.
    ///
    /// ```
    /// use tidegate::{Cost, Limit, Limiter};
    ///
    /// let limiter = Limiter::in_memory(Limit::per_hour(10));
    /// assert!(limiter.check_cost("a", Cost::of(7)).allowed());
    /// assert!(!limiter.check_cost("a", Cost::of(7)).allowed());
    /// // More than the limit can ever admit: waiting does not help.
    /// assert_eq!(limiter.check_cost("a", Cost::of(11)).retry_after(), None);
    /// ```
    #[inline]
    pub fn check_cost(&self, key: impl Key, cost: Cost) -> Decision {
        self.decide(&key, cost, self.charge, None)
    }

    /// [`check_cost`](Self::check_cost) for a caller that already knows the time, such as
    /// an event loop. The time is in microseconds since the Unix epoch, on the clock that
    /// [`now_us`](Self::now_us) reads. A time before the key's last decision counts as the
    /// time of that decision.
    #[inline]
    pub fn check_at(&self, key: impl Key, cost: Cost, now_us: u64) -> Decision {
        self.decide(&key, cost, self.charge, Some(now_us))
    }

    /// Checks each of these keys separately, at the same instant and at a cost of 1. All
    /// entries are prefetched before the first decision, so with many keys this is much
    /// faster than checking them one by one.
    ///
    /// ```
    /// use tidegate::{Limit, Limiter};
    ///
    /// let limiter = Limiter::in_memory(Limit::per_second(1));
    /// let decisions = limiter.check_many(&["a", "b", "a"]);
    /// let allowed: Vec<bool> = decisions.iter().map(|it| it.allowed()).collect();
    /// assert_eq!(allowed, [true, true, false]);
    /// ```
    #[must_use = "the decisions say which requests may proceed"]
    pub fn check_many(&self, keys: &[impl AsRef<[u8]>]) -> Vec<Decision> {
        let mut decisions = Vec::with_capacity(keys.len());
        self.with_level(|level| {
            let checks = keys.iter().map(|key| level.check(key.as_ref()));
            self.store
                .decide_each(checks, self.charge, |decision| decisions.push(decision));
        });
        decisions
    }

    /// Returns the decision that [`check_cost`](Self::check_cost) would make, and charges
    /// nothing.
    #[inline]
    pub fn peek(&self, key: impl Key, cost: Cost) -> Decision {
        self.decide(&key, cost, Charge::Nothing, None)
    }

    /// Gives back what a check of this key charged, as far as it still counts, and never
    /// more than if the request had not been made. A receipt can be refunded once; see
    /// [`MemoryStore::refund`] for when a refund is refused.
    ///
    /// ```
    /// use tidegate::{Limit, Limiter};
    ///
    /// let limiter = Limiter::in_memory(Limit::per_hour(1));
    /// let decision = limiter.check("a");
    /// // The request should not count.
    /// if let Some(receipt) = decision.receipt() {
    ///     assert!(limiter.refund("a", &receipt));
    ///     assert!(!limiter.refund("a", &receipt), "once");
    /// }
    /// assert!(limiter.check("a").allowed());
    /// ```
    pub fn refund(&self, key: impl Key, receipt: &Receipt) -> bool {
        self.with_check(&key, |check| self.store.refund(&[check], receipt))
    }

    /// Forgets a key. Returns whether it existed.
    pub fn reset(&self, key: impl Key) -> bool {
        self.with_check(&key, |check| self.store.reset_check(&check))
    }

    /// Changes the limit of this handle and all its clones. Keys in use keep their usage:
    /// after lowering 5 to 3 with 5 used, requests are refused until usage drops below 3.
    /// With another algorithm, counting starts from zero.
    ///
    /// Fails if 32,767 different limits are in use. A single limiter never reaches that,
    /// because limits that no key was last charged under are dropped.
    ///
    /// ```
    /// use tidegate::{Limit, Limiter};
    ///
    /// let limiter = Limiter::in_memory(Limit::per_hour(1));
    /// let clone = limiter.clone();
    /// limiter.set_limit(Limit::per_hour(2))?;
    /// assert_eq!(clone.check("a").remaining(), 1);
    /// # Ok::<(), tidegate::TooManyLimits>(())
    /// ```
    pub fn set_limit(&self, limit: Limit) -> Result<(), TooManyLimits> {
        let level = self.store.level(NAME, limit)?;
        self.current.level.store(Arc::new(level));
        self.current.turn.fetch_add(1, Release);
        Ok(())
    }

    /// The current limit.
    #[must_use]
    pub fn limit(&self) -> Limit {
        self.with_level(|level| *level.limit())
    }

    /// How many keys the limiter holds, and how many it has evicted or refused so far.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.store.stats()
    }

    /// The time on the limiter's clock, in microseconds since the Unix epoch.
    #[must_use]
    pub fn now_us(&self) -> u64 {
        self.store.now_us()
    }

    /// Waits until a request of this key may proceed, and charges it once. Fails
    /// immediately, and charges nothing, if that would take longer than the deadline or
    /// never happen.
    ///
    /// This blocks the thread; [`until_ready_with`](Self::until_ready_with) does not.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tidegate::{Cost, Limit, Limiter, Wait, WaitError};
    ///
    /// let limiter = Limiter::in_memory(Limit::per_second(100).burst(2));
    /// let deadline = Duration::from_secs(1);
    /// limiter.until_ready("a", deadline)?; // at once
    /// limiter.until_ready("a", Wait::within(deadline).cost(Cost::of(2)))?; // 10 ms later
    /// let error = limiter.until_ready("a", Duration::from_millis(1)).unwrap_err();
    /// assert!(matches!(error, WaitError::Deadline(_)));
    /// # Ok::<(), WaitError>(())
    /// ```
    pub fn until_ready(&self, key: impl Key, wait: impl Into<Wait>) -> Result<Decision, WaitError> {
        let waiting = Waiting::new(wait.into(), self.now_us());
        loop {
            match waiting.next(self.ask(&key, waiting.cost()))? {
                Ok(decision) => return Ok(decision),
                Err(pause) => self.store.clock().sleep(pause),
            }
        }
    }

    /// [`until_ready`](Self::until_ready) for async code, on any runtime: `sleep`
    /// is the runtime's timer, such as `tokio::time::sleep`.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tidegate::{Limit, Limiter, WaitError};
    /// # mod tokio { pub mod time { pub async fn sleep(_: std::time::Duration) {} } }
    /// async fn send(limiter: &Limiter) -> Result<(), WaitError> {
    ///     limiter.until_ready_with("a", Duration::from_secs(1), tokio::time::sleep).await?;
    ///     // ...
    ///     Ok(())
    /// }
    /// ```
    pub async fn until_ready_with<F: Future>(
        &self,
        key: impl Key,
        wait: impl Into<Wait>,
        sleep: impl Fn(Duration) -> F,
    ) -> Result<Decision, WaitError> {
        let waiting = Waiting::new(wait.into(), self.now_us());
        loop {
            match waiting.next(self.ask(&key, waiting.cost()))? {
                Ok(decision) => return Ok(decision),
                Err(pause) => sleep(pause).await,
            };
        }
    }

    /// A check by a caller that waits: refusals never count here, even with
    /// `count_denied`.
    fn ask(&self, key: &impl Key, cost: Cost) -> Decision {
        self.decide(key, cost, Charge::Admitted, None)
    }

    #[inline(always)]
    fn decide(&self, key: &impl Key, cost: Cost, charge: Charge, at_us: Option<u64>) -> Decision {
        self.with_check(key, |check| {
            self.store.decide_one(check.cost(cost), charge, at_us)
        })
    }

    #[inline(always)]
    fn with_check<T>(&self, key: &impl Key, ask: impl FnOnce(Check<'_>) -> T) -> T {
        key.with_values(|values| self.with_level(|level| ask(level.check_values(values))))
    }

    /// Most limits never change. Then the handle's own copy is current, and threads share
    /// only a number that is never written.
    #[inline(always)]
    fn with_level<T>(&self, ask: impl FnOnce(&Level) -> T) -> T {
        let changed;
        let level = if self.current.turn.load(Acquire) == self.turn {
            &self.level
        } else {
            changed = self.current.level.load();
            &changed
        };
        ask(level)
    }
}

/// A single limiter has its own store, so its level needs no name.
const NAME: &str = "";

impl LimiterBuilder {
    /// Counts refused requests too, so that a client that keeps retrying stays out.
    pub fn count_denied(mut self, count_denied: bool) -> Self {
        self.charge = if count_denied {
            Charge::Always
        } else {
            Charge::Admitted
        };
        self
    }

    /// The maximum number of keys; one million by default.
    ///
    /// # Panics
    /// When `max_keys` is 0 or above 1,000,000,000.
    pub fn max_keys(mut self, max_keys: usize) -> Self {
        self.store = self.store.max_keys(max_keys);
        self
    }

    /// The maximum number of bytes for the events of sliding logs; 64 MiB by default.
    pub fn max_log_bytes(mut self, max_log_bytes: usize) -> Self {
        self.store = self.store.max_log_bytes(max_log_bytes);
        self
    }

    /// What to do with a new key when every slot holds a key in use.
    pub fn when_full(mut self, when_full: WhenFull) -> Self {
        self.store = self.store.when_full(when_full);
        self
    }

    /// Uses this clock instead of the system's.
    pub fn clock(mut self, clock: impl Clock + 'static) -> Self {
        self.store = self.store.clock(clock);
        self
    }

    /// Builds the limiter.
    #[must_use]
    pub fn build(self) -> Limiter {
        let store = self.store.build();
        let level = store
            .level(NAME, self.limit)
            .expect("the first limit of a store");
        Limiter {
            store,
            charge: self.charge,
            turn: 0,
            current: Arc::new(Current {
                turn: AtomicUsize::new(0),
                level: ArcSwap::from_pointee(level.clone()),
            }),
            level,
        }
    }

    /// Builds a limiter without keys.
    #[must_use]
    pub fn build_single(self) -> SingleLimiter {
        SingleLimiter(self.max_keys(MAX_SINGLE_KEYS).build())
    }
}

/// One slot per algorithm that the limit may change to, with room to spare.
const MAX_SINGLE_KEYS: usize = 8;

impl fmt::Debug for LimiterBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LimiterBuilder")
            .field("limit", &self.limit)
            .finish_non_exhaustive()
    }
}

/// One limit without keys, from [`Limiter::single`]: for everything a program sends, or
/// everything an endpoint receives. It has the methods of [`Limiter`], without the key.
#[derive(Clone, Debug)]
pub struct SingleLimiter(Limiter);

impl SingleLimiter {
    /// [`Limiter::check`].
    pub fn check(&self) -> Decision {
        self.0.check(NAME)
    }

    /// [`Limiter::check_cost`].
    pub fn check_cost(&self, cost: Cost) -> Decision {
        self.0.check_cost(NAME, cost)
    }

    /// [`Limiter::check_at`].
    pub fn check_at(&self, cost: Cost, now_us: u64) -> Decision {
        self.0.check_at(NAME, cost, now_us)
    }

    /// [`Limiter::peek`].
    pub fn peek(&self, cost: Cost) -> Decision {
        self.0.peek(NAME, cost)
    }

    /// [`Limiter::refund`].
    pub fn refund(&self, receipt: &Receipt) -> bool {
        self.0.refund(NAME, receipt)
    }

    /// [`Limiter::reset`].
    pub fn reset(&self) -> bool {
        self.0.reset(NAME)
    }

    /// [`Limiter::set_limit`].
    pub fn set_limit(&self, limit: Limit) -> Result<(), TooManyLimits> {
        self.0.set_limit(limit)
    }

    /// [`Limiter::limit`].
    #[must_use]
    pub fn limit(&self) -> Limit {
        self.0.limit()
    }

    /// [`Limiter::now_us`].
    #[must_use]
    pub fn now_us(&self) -> u64 {
        self.0.now_us()
    }

    /// [`Limiter::until_ready`].
    pub fn until_ready(&self, wait: impl Into<Wait>) -> Result<Decision, WaitError> {
        self.0.until_ready(NAME, wait)
    }

    /// [`Limiter::until_ready_with`].
    pub async fn until_ready_with<F: Future>(
        &self,
        wait: impl Into<Wait>,
        sleep: impl Fn(Duration) -> F,
    ) -> Result<Decision, WaitError> {
        self.0.until_ready_with(NAME, wait, sleep).await
    }
}
