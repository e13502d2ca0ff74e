//! The in-memory store: keys in a bounded table, decided under short locks.

mod batch;
mod bounds;
mod bucket;
mod fingerprint;
mod home;
mod levels;
mod limits;
mod lock;
mod logs;
mod notes;
mod one;
mod refused;
mod shard;
mod table;
pub mod zone;

use std::fmt;
use std::sync::Arc;

pub use bounds::{Stats, WhenFull};
pub use fingerprint::KeyHasher;
pub use limits::TooManyLimits;

use bounds::Bounds;
use bucket::LimitId;
use fingerprint::{Fingerprint, KeyRef, Scope};
use home::HeapHome;
use limits::Handle;
use table::{MAX_KEYS, Table};

use crate::algorithm::Outcome;
use crate::clock::{Clock, TimeSource};
use crate::cost::Cost;
use crate::decision::{Charged, Decision, LevelDecision, OnLease, Receipt};
use crate::limit::Limit;

/// Keys and their counters, in bounded memory.
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
/// // The refusal did not charge the total.
/// assert_eq!(decision.levels()[0].remaining(), 95);
/// # Ok::<(), tidegate::TooManyLimits>(())
/// ```
///
/// Checks of known keys do not allocate, except with more than two levels, and when a log
/// grows beyond its previous length.
#[derive(Clone)]
pub struct MemoryStore {
    table: Arc<Table<HeapHome>>,
}

/// A named limit of a store. Levels with different names have separate keys. A level with
/// the name of an earlier one continues with its keys if the algorithm is the same: this is
/// how a limit changes while it is in use. Each algorithm has its own counters.
#[derive(Debug, Clone)]
pub struct Level {
    limit: Limit,
    id: LimitId,
    /// The limit's number for good, which `id` may not be.
    stamp: u32,
    /// The keys under this limit's algorithm, and under all of them.
    scope: Scope,
    name: Scope,
    /// Keeps the number from being given to another limit.
    _handle: Handle,
}

/// "May this happen now, at this cost?" for one level and one key.
#[derive(Debug, Clone, Copy)]
pub struct Check<'a> {
    level: &'a Level,
    key: KeyRef<'a>,
    cost: Cost,
}

/// A check whose key is already hashed: all that is needed to decide it.
#[derive(Debug, Clone, Copy)]
struct Ask<'l> {
    level: &'l Level,
    print: Fingerprint,
    cost: Cost,
}

impl Ask<'_> {
    /// What the level says. `mark_us` and `era` are for the receipt of a charge.
    #[inline]
    fn level_decision(&self, outcome: Outcome, mark_us: u64, era: u32) -> LevelDecision {
        LevelDecision {
            outcome,
            charge: Charged {
                cost: self.cost,
                limit: self.level.stamp,
                print: self.print.part(),
                era,
                mark_us,
            },
            on_lease: OnLease::NONE,
        }
    }
}

/// What a decision charges.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Charge {
    /// Nothing: a peek at the numbers.
    Nothing,
    /// All levels if all admit, none otherwise.
    Admitted,
    /// The same, but if a level refuses, the refusing levels are charged up to full, so that
    /// a client that keeps retrying stays out (`count_denied`).
    Always,
    /// Every level by itself, up to full: another store has admitted it. For authors of
    /// limiters.
    Told,
}

impl Charge {
    /// What a check charges, by whether refused requests are counted, too.
    pub const fn counting_denied(count_denied: bool) -> Self {
        match count_denied {
            true => Self::Always,
            false => Self::Admitted,
        }
    }
}

/// Builds a [`MemoryStore`] with other settings than the default.
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

impl MemoryStoreBuilder {
    /// The maximum number of keys; one million by default. Each takes about 35 bytes.
    ///
    /// # Panics
    /// When `max_keys` is 0 or above 1,000,000,000.
    pub fn max_keys(mut self, max_keys: usize) -> Self {
        assert_keys(max_keys);
        self.max_keys = max_keys;
        self
    }

    /// The maximum number of bytes for the events of sliding logs; 64 MiB by default.
    /// A log takes about 120 bytes and 12 bytes per event, with room for up to 255
    /// events more than it holds.
    pub fn max_log_bytes(mut self, max_log_bytes: usize) -> Self {
        self.max_log_bytes = max_log_bytes;
        self
    }

    /// What to do with a new key when every slot holds a key in use.
    pub fn when_full(mut self, when_full: WhenFull) -> Self {
        self.when_full = when_full;
        self
    }

    /// Uses this clock instead of the system's.
    pub fn clock(mut self, clock: impl Clock + 'static) -> Self {
        self.clock = Some(Arc::new(clock));
        self
    }

    /// Builds the store.
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
    /// A store for at most one million keys.
    pub fn new() -> Self {
        Self::builder().build()
    }

    /// Builds a store with other bounds, or another clock.
    pub fn builder() -> MemoryStoreBuilder {
        MemoryStoreBuilder {
            max_keys: 1_000_000,
            max_log_bytes: 64 << 20,
            when_full: WhenFull::default(),
            clock: None,
        }
    }

    /// A named limit of this store. Calling this again with the same name and another limit
    /// changes the limit; keys in use keep their usage.
    ///
    /// Fails if 32,767 different limits are in use: those of existing levels, and those
    /// that keys were last charged under.
    pub fn level(&self, name: &str, limit: Limit) -> Result<Level, TooManyLimits> {
        let handle = self.table.limit_handle(&limit)?;
        let name = self.table.seeds.scope(name);
        Ok(Level::new(limit, name, handle))
    }

    /// Decides all these checks as one. A key that occurs twice in a level is charged
    /// twice. Levels with the same name must have the same limit.
    #[must_use = "the decision says whether the request may proceed"]
    pub fn decide(&self, checks: &[Check<'_>], charge: Charge) -> Decision {
        self.table.decide(checks, charge)
    }

    /// Decides one check; `at_us` is the time, if the caller knows it.
    #[inline(always)]
    pub(crate) fn decide_one(
        &self,
        check: Check<'_>,
        charge: Charge,
        at_us: Option<u64>,
    ) -> Decision {
        self.table
            .decide_single(self.table.ask(&check), charge, at_us)
    }

    /// Decides each of these checks separately, in order, all at the same instant, and
    /// passes the decisions to `each`. All entries are prefetched before the first
    /// decision, so with many keys this is much faster than one by one.
    pub fn decide_each<'c>(
        &self,
        checks: impl IntoIterator<Item = Check<'c>>,
        charge: Charge,
        each: impl FnMut(Decision),
    ) {
        self.table.decide_each(checks.into_iter(), charge, each);
    }

    /// The time on this store's clock, in microseconds since the Unix epoch.
    pub fn now_us(&self) -> u64 {
        self.table.clock.now_us()
    }

    /// Gives back what a decision on these same checks charged, as far as it still counts,
    /// and never more than if the request had not been made. (The exception is a [fixed
    /// window](crate::algorithm::FixedWindow) that opens with the first request.)
    ///
    /// A receipt can be refunded once. `false` means that nothing was given back, because
    /// the receipt was refunded before, it belongs to other checks, or the store has no
    /// room to remember another refund. A receipt is worth nothing after a reset of its
    /// key, a change of its limit or a backward step of the clock.
    pub fn refund(&self, checks: &[Check<'_>], receipt: &Receipt) -> bool {
        self.table.refund(checks, receipt)
    }

    /// Takes the cost of a check off the count of its window, no matter who charged it, down
    /// to zero: for protocols without receipts. Only a [fixed
    /// window](crate::algorithm::FixedWindow) is a count; any other limit stays as it is.
    pub fn give_back(&self, check: &Check<'_>) {
        self.table.give_back(&self.table.ask(check));
    }

    /// Forgets a key of a level, under every algorithm. Returns whether it existed.
    pub fn reset(&self, level: &Level, key: impl AsRef<[u8]>) -> bool {
        self.reset_check(&level.check(key.as_ref()))
    }

    pub(crate) fn reset_check(&self, check: &Check<'_>) -> bool {
        self.table.reset(check)
    }

    /// How many keys the store holds, and how many it has evicted or refused so far.
    pub fn stats(&self) -> Stats {
        self.table.bounds().stats()
    }

    /// The maximum number of keys, and what happens to a new key beyond it.
    pub fn bounds(&self) -> (usize, WhenFull) {
        let bounds = self.table.bounds();
        (bounds.max_keys(), bounds.when_full())
    }

    /// Changes the bounds while the store is in use: all keys stay. A lower `max_keys`
    /// takes effect as keys expire. The number of shards does not change, so with a much
    /// larger `max_keys` than at the start, insertions hold their lock for longer.
    ///
    /// # Panics
    /// When `max_keys` is 0 or above 1,000,000,000.
    pub fn set_bounds(&self, max_keys: usize, when_full: WhenFull) {
        assert_keys(max_keys);
        self.table.bounds().change(max_keys, when_full);
    }

    pub(crate) fn clock(&self) -> &TimeSource {
        &self.table.clock
    }
}

fn assert_keys(max_keys: usize) {
    assert!(
        (1..=MAX_KEYS).contains(&max_keys),
        "max_keys = {max_keys}: expected 1 to {MAX_KEYS}"
    );
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
    fn new(limit: Limit, name: Scope, handle: Handle) -> Self {
        Self {
            limit,
            id: handle.id(),
            stamp: handle.stamp(),
            scope: name.of(limit.algorithm()),
            name,
            _handle: handle,
        }
    }

    /// A check of this level: a key, at the cost of one request.
    pub fn check<'a>(&'a self, key: &'a (impl AsRef<[u8]> + ?Sized)) -> Check<'a> {
        Check {
            level: self,
            key: KeyRef::One(key.as_ref()),
            cost: Cost::ONE,
        }
    }

    /// A check of this level for a key with these values: a tuple, unless there is only one.
    #[inline]
    pub fn check_values<'a>(&'a self, values: &'a [&'a [u8]]) -> Check<'a> {
        Check {
            level: self,
            key: match values {
                [value] => KeyRef::One(value),
                values => KeyRef::Tuple(values),
            },
            cost: Cost::ONE,
        }
    }

    /// The limit.
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
