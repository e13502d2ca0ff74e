//! One limit, many keys: the limiter most programs need.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::time::Duration;

use arc_swap::ArcSwap;

use crate::cost::Cost;
use crate::decision::{Decision, Receipt};
use crate::key::Key;
use crate::limit::Limit;
use crate::memory::{Charge, Check, Level, MemoryStore, Stats, TooManyLimits};
use crate::wait::{Turn, Wait, WaitError, Waiting};

/// One limit for each of many keys, in memory.
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
/// Keys are text, bytes, numbers, addresses or tuples of these ([`Key`]); a limit for
/// everything has the key `()`. Clones are handles to the same keys and the same limit, so
/// every thread or connection can have one.
///
/// `check` decides and charges, `peek` only looks, `refund` gives a charge back, and `reset`
/// forgets a key: the same verbs as those of [`PolicyLimiter`](crate::PolicyLimiter), which has
/// a policy instead of a limit, and of [`Policies`](crate::Policies).
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

impl Limiter {
    /// A limiter in memory, for at most one million keys.
    pub fn in_memory(limit: Limit) -> Self {
        Self::over(&MemoryStore::new(), limit).expect("the first limit of a store")
    }

    /// A limiter over this store, which may have other bounds or another clock. Limiters over
    /// one store have the same keys, so one that is to count by itself needs a store of its own.
    ///
    /// Fails if 32,767 different limits are in use in the store.
    ///
    /// ```
    /// use tidegate::{Limit, Limiter, MemoryStore, WhenFull};
    ///
    /// let store = MemoryStore::builder().max_keys(100_000).when_full(WhenFull::Deny).build();
    /// let limiter = Limiter::over(&store, Limit::per_second(5))?;
    /// assert!(limiter.check("a").allowed());
    /// assert_eq!(limiter.stats().keys, 1);
    /// # Ok::<(), tidegate::TooManyLimits>(())
    /// ```
    pub fn over(store: &MemoryStore, limit: Limit) -> Result<Self, TooManyLimits> {
        let level = store.level(NAME, limit)?;
        let current = Current {
            turn: AtomicUsize::new(0),
            level: ArcSwap::from_pointee(level.clone()),
        };
        Ok(Self {
            store: store.clone(),
            charge: Charge::Admitted,
            turn: 0,
            level,
            current: Arc::new(current),
        })
    }

    /// The same limiter, which counts refused requests too, so that a client that keeps
    /// retrying stays out.
    #[must_use]
    pub fn count_denied(self, count_denied: bool) -> Self {
        Self {
            charge: Charge::counting_denied(count_denied),
            ..self
        }
    }

    /// Decides whether a request of this key may proceed, and charges it if so.
    #[inline]
    pub fn check(&self, key: impl Key) -> Decision {
        self.check_cost(key, Cost::ONE)
    }

    /// Decides whether a request of this key at this cost may proceed, and charges it if so:
    /// all of the cost, or nothing.
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
    pub fn limit(&self) -> Limit {
        self.with_level(|level| *level.limit())
    }

    /// How many keys the limiter holds, and how many it has evicted or refused so far.
    pub fn stats(&self) -> Stats {
        self.store.stats()
    }

    /// The time on the limiter's clock, in microseconds since the Unix epoch.
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
                Turn::Go(decision) => return Ok(decision),
                Turn::Pause(pause) => self.store.clock().sleep(pause),
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
                Turn::Go(decision) => return Ok(decision),
                Turn::Pause(pause) => sleep(pause).await,
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
        self.with_check(key, move |check| {
            self.store.decide_one(check.cost(cost), charge, at_us)
        })
    }

    #[inline(always)]
    fn with_check<T>(&self, key: &impl Key, ask: impl FnOnce(Check<'_>) -> T) -> T {
        key.with_values(move |values| self.with_level(move |level| ask(level.check_values(values))))
    }

    /// Most limits never change. Then the handle's own copy is current, and threads share
    /// only a number that is never written.
    #[inline(always)]
    fn with_level<T>(&self, ask: impl FnOnce(&Level) -> T) -> T {
        if self.current.turn.load(Acquire) == self.turn {
            ask(&self.level)
        } else {
            self.with_changed(ask)
        }
    }

    #[cold]
    fn with_changed<T>(&self, ask: impl FnOnce(&Level) -> T) -> T {
        ask(&self.current.level.load())
    }
}

/// The level of a limiter needs no name.
const NAME: &str = "";
