//! The in-memory store: keys in a bounded table, decided under short locks.

mod bounds;
mod bucket;
mod counter;
mod fingerprint;
mod limits;
mod lock;
mod logs;
mod many;
mod one;
mod refused;
mod region;
mod shard;
mod table;
mod view;

use std::fmt;
use std::sync::Arc;

pub use bounds::{Stats, WhenFull};
pub use limits::TooManyLimits;

use bounds::Bounds;
use bucket::LimitId;
use fingerprint::Scope;
use lock::ShardLock;
use region::Heap;
use table::Table;

use crate::clock::{Clock, TimeSource};
use crate::cost::Cost;
use crate::decision::{Decision, Receipt};
use crate::limit::Limit;

/// Keys and their counts, in memory and bounded.
///
/// A store can serve many limits, and decide several at once: all are charged, or
/// none is. Clones are handles to the same store.
///
/// ```
/// use tidegate::{Charge, Limit, MemoryStore};
///
/// let store = MemoryStore::new();
/// let total = store.level("total", Limit::per_second(100))?;
/// let each = store.level("address", Limit::per_minute(5))?;
///
/// for _ in 0..5 {
///     let decision = store.decide(&[total.check(""), each.check("203.0.113.7")], Charge::Admitted);
///     assert!(decision.allowed());
/// }
/// let decision = store.decide(&[total.check(""), each.check("203.0.113.7")], Charge::Admitted);
/// assert_eq!(decision.denied_by(), Some(1));
/// // The refusal has cost the total nothing.
/// assert_eq!(decision.levels()[0].remaining(), 95);
/// # Ok::<(), tidegate::TooManyLimits>(())
/// ```
///
/// Checks of known keys do not allocate, but for those of more than two levels, and
/// those that make a log longer than it has ever been.
#[derive(Clone)]
pub struct MemoryStore {
    table: Arc<Table<ShardLock, Heap>>,
}

/// A named limit of a store. Keys of levels with different names never meet, and
/// a level of the same name continues with the keys of an earlier one: that is how
/// a limit is changed while it is in use.
#[derive(Debug, Clone)]
pub struct Level {
    limit: Limit,
    id: LimitId,
    scope: Scope,
}

/// "May this happen now, at this cost?" for one level and one key.
#[derive(Debug, Clone, Copy)]
pub struct Check<'a> {
    level: &'a Level,
    key: &'a [u8],
    cost: Cost,
}

/// What a decision charges.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Charge {
    /// Nothing: a look at the numbers.
    Nothing,
    /// All levels when all admit, none otherwise.
    Admitted,
    /// And when one refuses, the levels that refuse, up to full: who keeps on
    /// asking stays out (`count_denied`).
    Always,
}

/// Makes a [`MemoryStore`] that is not the default one.
///
/// ```
/// use tidegate::{MemoryStore, WhenFull};
///
/// let store = MemoryStore::builder().max_keys(10_000).when_full(WhenFull::Deny).build();
/// assert_eq!(store.stats().keys, 0);
/// ```
#[derive(Clone)]
#[must_use = "a builder does nothing until `build`"]
pub struct MemoryStoreBuilder {
    max_keys: usize,
    max_log_bytes: usize,
    when_full: WhenFull,
    clock: Option<Arc<dyn Clock>>,
}

impl Default for MemoryStoreBuilder {
    fn default() -> Self {
        Self {
            max_keys: 1_000_000,
            max_log_bytes: 64 << 20,
            when_full: WhenFull::default(),
            clock: None,
        }
    }
}

impl MemoryStoreBuilder {
    /// The most keys held at once; one million unless said otherwise. About 35
    /// bytes each.
    ///
    /// # Panics
    /// When `max_keys` is 0.
    pub fn max_keys(mut self, max_keys: usize) -> Self {
        assert!(max_keys > 0, "max_keys = 0: expected at least 1");
        self.max_keys = max_keys;
        self
    }

    /// The most bytes held at once for the events of sliding logs; 64 MiB unless
    /// said otherwise. A log takes 48 bytes and room for as many events of 12 bytes
    /// as it has had at once, up to twice that.
    pub fn max_log_bytes(mut self, max_log_bytes: usize) -> Self {
        self.max_log_bytes = max_log_bytes;
        self
    }

    /// What to do with a new key when all keys held are in use.
    pub fn when_full(mut self, when_full: WhenFull) -> Self {
        self.when_full = when_full;
        self
    }

    /// Decides by this clock instead of the system's.
    pub fn clock(mut self, clock: impl Clock + 'static) -> Self {
        self.clock = Some(Arc::new(clock));
        self
    }

    /// The store.
    #[must_use]
    pub fn build(self) -> MemoryStore {
        let bounds = Bounds::new(self.max_keys, self.max_log_bytes, self.when_full);
        let clock = self
            .clock
            .map_or_else(TimeSource::system, TimeSource::Injected);
        MemoryStore {
            table: Arc::new(Table::new(bounds, clock)),
        }
    }
}

impl MemoryStore {
    /// A store of at most one million keys.
    #[must_use]
    pub fn new() -> Self {
        Self::builder().build()
    }

    /// A store with other bounds, or another clock.
    pub fn builder() -> MemoryStoreBuilder {
        MemoryStoreBuilder::default()
    }

    /// A named limit of this store. Naming it again with another limit changes
    /// the limit: keys in use keep what they have used.
    pub fn level(&self, name: &str, limit: Limit) -> Result<Level, TooManyLimits> {
        Ok(Level {
            limit,
            id: self.table.limits.id(&limit)?,
            scope: self.table.seeds.scope(name),
        })
    }

    /// Decides all these checks as one. A key that occurs twice in a level is
    /// charged for both; levels of one name must be of one limit.
    #[must_use]
    pub fn decide(&self, checks: &[Check<'_>], charge: Charge) -> Decision {
        self.table.decide(checks, charge)
    }

    /// Gives back what a decision of these same checks has charged, as far as it
    /// still counts: never more than if the request had not been made. A receipt is
    /// for one refund, and worth nothing after a reset, a change of a limit or a step
    /// back of the clock.
    pub fn refund(&self, checks: &[Check<'_>], receipt: &Receipt) {
        self.table.refund(checks, receipt);
    }

    /// Forgets a key of a level. Says whether there was one.
    pub fn reset(&self, level: &Level, key: impl AsRef<[u8]>) -> bool {
        self.table.reset(level, key.as_ref())
    }

    /// What the store holds, and what its bounds have cost so far.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.table.bounds.stats()
    }

    /// The most keys held at once, and what is done with a new one then.
    #[must_use]
    pub fn bounds(&self) -> (usize, WhenFull) {
        let bounds = &self.table.bounds;
        (bounds.max_keys, bounds.when_full)
    }

    /// Makes all receipts so far worth nothing.
    pub(crate) fn void_receipts(&self) {
        self.table.void_receipts();
    }

    pub(crate) fn clock(&self) -> &TimeSource {
        &self.table.clock
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStore")
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}

impl Level {
    /// A check of this level: a key, at the cost of one request.
    pub fn check<'a>(&'a self, key: &'a (impl AsRef<[u8]> + ?Sized)) -> Check<'a> {
        Check {
            level: self,
            key: key.as_ref(),
            cost: Cost::ONE,
        }
    }

    /// The limit.
    #[must_use]
    pub fn limit(&self) -> &Limit {
        &self.limit
    }
}

impl Check<'_> {
    /// The same check at another cost.
    #[must_use]
    pub fn cost(self, cost: Cost) -> Self {
        Self { cost, ..self }
    }
}
