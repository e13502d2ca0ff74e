//! One limit, many keys: the limiter most programs need.

use std::fmt;
use std::time::Duration;

use crate::clock::Clock;
use crate::cost::Cost;
use crate::decision::{Decision, Receipt};
use crate::limit::Limit;
use crate::memory::{
    Charge, Level, MemoryStore, MemoryStoreBuilder, Stats, TooManyLimits, WhenFull,
};

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
/// Keys are any bytes. Clones are handles to the same keys, so one can go to every
/// thread or connection.
#[derive(Clone, Debug)]
pub struct Limiter {
    store: MemoryStore,
    level: Level,
    charge: Charge,
}

/// Makes a [`Limiter`] that is not the default one.
#[derive(Clone)]
#[must_use = "a builder does nothing until `build`"]
pub struct LimiterBuilder {
    limit: Limit,
    charge: Charge,
    store: MemoryStoreBuilder,
}

/// Why [`Limiter::until_ready`] did not wait. The refusal is inside.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum WaitError {
    /// The cost is above what the limit ever admits.
    #[error("waiting will never help")]
    Never(Box<Decision>),
    /// The request could be admitted only after the deadline.
    #[error("it would take {:?}, longer than the deadline", .0.retry_after().unwrap_or_default())]
    Deadline(Box<Decision>),
}

impl Limiter {
    /// A limiter of at most one million keys, in memory.
    #[must_use]
    pub fn in_memory(limit: Limit) -> Self {
        Self::builder(limit).build()
    }

    /// A limiter with other bounds, or another clock.
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

    /// May one request of this key go on? Charges it if so.
    pub fn check(&self, key: impl AsRef<[u8]>) -> Decision {
        self.check_cost(key, Cost::ONE)
    }

    /// May a request of this cost go on? Charges all of it, or nothing.
    ///
    /// ```
    /// use tidegate::{Cost, Limit, Limiter};
    ///
    /// let limiter = Limiter::in_memory(Limit::per_hour(10));
    /// assert!(limiter.check_cost("a", Cost::of(7)).allowed());
    /// assert!(!limiter.check_cost("a", Cost::of(7)).allowed());
    /// // More than the limit ever admits: waiting will not help.
    /// assert_eq!(limiter.check_cost("a", Cost::of(11)).retry_after(), None);
    /// ```
    pub fn check_cost(&self, key: impl AsRef<[u8]>, cost: Cost) -> Decision {
        self.decide(key.as_ref(), cost, self.charge)
    }

    /// The numbers [`check_cost`](Self::check_cost) would decide by, charging
    /// nothing.
    #[must_use]
    pub fn peek(&self, key: impl AsRef<[u8]>, cost: Cost) -> Decision {
        self.decide(key.as_ref(), cost, Charge::Nothing)
    }

    /// Gives back what a check of this key charged, as far as it still counts:
    /// never more than if the request had not been made. A receipt is refunded once;
    /// [`MemoryStore::refund`] says when it is refused.
    ///
    /// ```
    /// use tidegate::{Limit, Limiter};
    ///
    /// let limiter = Limiter::in_memory(Limit::per_hour(1));
    /// let decision = limiter.check("a");
    /// // The request turned out not to count.
    /// if let Some(receipt) = decision.receipt() {
    ///     limiter.refund("a", &receipt);
    /// }
    /// assert!(limiter.check("a").allowed());
    /// ```
    pub fn refund(&self, key: impl AsRef<[u8]>, receipt: &Receipt) -> bool {
        self.store
            .refund(&[self.level.check(key.as_ref())], receipt)
    }

    /// Forgets a key. Says whether there was one.
    pub fn reset(&self, key: impl AsRef<[u8]>) -> bool {
        self.store.reset(&self.level, key)
    }

    /// Changes the limit of this handle and of clones made later. Keys in use keep
    /// what they have used: lowering 5 to 3 with 5 used refuses until 3 are free.
    ///
    /// Fails after 32,767 different limits; a limit that was in force before is not
    /// a different one.
    pub fn set_limit(&mut self, limit: Limit) -> Result<(), TooManyLimits> {
        self.level = self.store.level(NAME, limit)?;
        Ok(())
    }

    /// The limit.
    #[must_use]
    pub fn limit(&self) -> &Limit {
        self.level.limit()
    }

    /// What is held, and what the bounds have cost so far.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.store.stats()
    }

    /// Waits until the key may go on, and charges it then: once. Fails at once,
    /// charging nothing, when that would take longer than `deadline`, or for ever.
    ///
    /// Blocks the thread; [`until_ready_with`](Self::until_ready_with) does not.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tidegate::{Limit, Limiter, WaitError};
    ///
    /// let limiter = Limiter::in_memory(Limit::per_second(100).burst(1));
    /// let deadline = Duration::from_secs(1);
    /// limiter.until_ready("a", deadline)?; // at once
    /// limiter.until_ready("a", deadline)?; // 10 ms later
    /// let error = limiter.until_ready("a", Duration::from_millis(1)).unwrap_err();
    /// assert!(matches!(error, WaitError::Deadline(_)));
    /// # Ok::<(), WaitError>(())
    /// ```
    pub fn until_ready(
        &self,
        key: impl AsRef<[u8]>,
        deadline: Duration,
    ) -> Result<Decision, WaitError> {
        let waiting = Waiting::new(self, deadline);
        loop {
            match waiting.ask(key.as_ref())? {
                Ask::Ready(decision) => return Ok(decision),
                Ask::Wait(duration) => self.store.clock().sleep(duration),
            }
        }
    }

    /// [`until_ready`](Self::until_ready) for async code, on any runtime: `sleep`
    /// is its timer, such as `tokio::time::sleep`.
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
        key: impl AsRef<[u8]>,
        deadline: Duration,
        sleep: impl Fn(Duration) -> F,
    ) -> Result<Decision, WaitError> {
        let waiting = Waiting::new(self, deadline);
        loop {
            match waiting.ask(key.as_ref())? {
                Ask::Ready(decision) => return Ok(decision),
                Ask::Wait(duration) => sleep(duration).await,
            };
        }
    }

    fn decide(&self, key: &[u8], cost: Cost, charge: Charge) -> Decision {
        self.store
            .decide(&[self.level.check(key).cost(cost)], charge)
    }
}

/// A single limiter has a store to itself: its level needs no name.
const NAME: &str = "";

impl LimiterBuilder {
    /// Counts refused requests, too: who keeps on asking stays out.
    pub fn count_denied(mut self, count_denied: bool) -> Self {
        self.charge = if count_denied {
            Charge::Always
        } else {
            Charge::Admitted
        };
        self
    }

    /// The most keys held at once; one million unless said otherwise.
    ///
    /// # Panics
    /// When `max_keys` is 0.
    pub fn max_keys(mut self, max_keys: usize) -> Self {
        self.store = self.store.max_keys(max_keys);
        self
    }

    /// The most bytes held at once for the events of sliding logs; 64 MiB unless
    /// said otherwise.
    pub fn max_log_bytes(mut self, max_log_bytes: usize) -> Self {
        self.store = self.store.max_log_bytes(max_log_bytes);
        self
    }

    /// What to do with a new key when all keys held are in use.
    pub fn when_full(mut self, when_full: WhenFull) -> Self {
        self.store = self.store.when_full(when_full);
        self
    }

    /// Decides by this clock instead of the system's.
    pub fn clock(mut self, clock: impl Clock + 'static) -> Self {
        self.store = self.store.clock(clock);
        self
    }

    /// The limiter.
    #[must_use]
    pub fn build(self) -> Limiter {
        let store = self.store.build();
        let level = store
            .level(NAME, self.limit)
            .expect("the first limit of a store");
        Limiter {
            store,
            level,
            charge: self.charge,
        }
    }
}

impl fmt::Debug for LimiterBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LimiterBuilder")
            .field("limit", &self.limit)
            .finish_non_exhaustive()
    }
}

/// A wait: asks, and says how long to sleep before asking again.
struct Waiting<'l> {
    limiter: &'l Limiter,
    deadline_us: u64,
}

#[expect(clippy::large_enum_variant, reason = "it lives for a moment")]
enum Ask {
    Ready(Decision),
    Wait(Duration),
}

impl<'l> Waiting<'l> {
    fn new(limiter: &'l Limiter, deadline: Duration) -> Self {
        let deadline_us = u64::try_from(deadline.as_micros()).unwrap_or(u64::MAX);
        let now_us = limiter.store.clock().now_us();
        Self {
            limiter,
            deadline_us: now_us.saturating_add(deadline_us),
        }
    }

    fn ask(&self, key: &[u8]) -> Result<Ask, WaitError> {
        // Refusals are not counted while waiting, whatever the limiter does.
        let decision = self.limiter.decide(key, Cost::ONE, Charge::Admitted);
        if decision.allowed() {
            return Ok(Ask::Ready(decision));
        }
        let Some(wait) = decision.retry_after() else {
            return Err(WaitError::Never(Box::new(decision)));
        };
        let wait_us = u64::try_from(wait.as_micros()).unwrap_or(u64::MAX);
        if decision.decided_at_us().saturating_add(wait_us) > self.deadline_us {
            return Err(WaitError::Deadline(Box::new(decision)));
        }
        Ok(Ask::Wait(wait))
    }
}
