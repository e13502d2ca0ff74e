//! One limit for many keys, in memory that several processes map: the workers of a server
//! that forks.
//!
//! The memory is a [`Head`] and any number of [`ZoneShard`]s, neither with a pointer in it.
//! Who maps it writes both there once, and every process opens a [`Zone`] over them. How it
//! is mapped is not the business of this crate.

use std::array;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::time::Duration;

use super::bounds::{Bounds, Stats, WhenFull};
use super::bucket::LimitId;
use super::fingerprint::Seeds;
pub use super::home::ZoneLock;
use super::home::{Fixed, Home};
use super::limits::{Handle, UsedLimits};
use super::table::{LockedShard, Table};
use super::{Charge, Level};
use crate::clock::{Clock, TimeSource};
use crate::cost::Cost;
use crate::decision::Decision;
use crate::limit::{Algorithm, Align, Limit, LimitSpec};
use crate::rate::Rate;

/// Buckets of a shard: room for 512 keys, in 16 KiB.
const BUCKETS: usize = 128;
const SLOTS: usize = BUCKETS * super::bucket::SLOTS;

/// Different limits that the keys of a zone can have been written under.
const LIMITS: usize = 255;

/// What the processes that share a zone have to agree on.
#[repr(C)]
pub struct Head {
    seeds: Seeds,
    bounds: Bounds,
    limits: [StoredLimit; LIMITS],
}

/// A part of a zone's keys, behind a lock.
#[repr(transparent)]
pub struct ZoneShard<R>(LockedShard<R, Fixed<BUCKETS>>);

impl<R: ZoneLock> Default for ZoneShard<R> {
    fn default() -> Self {
        Self(LockedShard::default())
    }
}

/// Why a zone cannot be opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ZoneError {
    /// The algorithm takes more memory than the fixed size of an entry.
    #[error("a zone cannot count with {0}: expected token_bucket, fixed_window or sliding_window")]
    Algorithm(Algorithm),
    /// Too many limits.
    #[error("the keys of the zone were written under {LIMITS} different limits: expected fewer")]
    TooManyLimits,
}

/// One limit for many keys, in memory that several processes share.
pub struct Zone<'m, R: ZoneLock> {
    table: Table<ZoneHome<'m, R>>,
    level: Level,
}

/// Somebody else's memory.
struct ZoneHome<'m, R> {
    head: &'m Head,
    shards: &'m [ZoneShard<R>],
}

impl Head {
    /// A head for so many shards. Its keys are hashed with random numbers of its own.
    pub fn new(shards: usize) -> Self {
        // Beyond that, shards are full here and there before the zone is.
        let max_keys = (shards * SLOTS / 8 * 7).max(1);
        Self {
            seeds: Seeds::random(),
            bounds: Bounds::new(max_keys, 0, WhenFull::Evict),
            limits: array::from_fn(|_| StoredLimit::default()),
        }
    }
}

impl<'m, R: ZoneLock> Zone<'m, R> {
    /// The zone in this memory, under this limit. Keys that were counted under another one
    /// keep what they have used. All processes that use the zone give it the same name, and
    /// clocks that agree.
    ///
    /// Only one process at a time may open a zone: that which forks the others.
    pub fn open(
        head: &'m Head,
        shards: &'m [ZoneShard<R>],
        name: &str,
        limit: Limit,
        clock: impl Clock + 'static,
    ) -> Result<Self, ZoneError> {
        if limit.pack(&limit.new_state(0)).is_none() {
            return Err(ZoneError::Algorithm(limit.algorithm()));
        }
        let clock = TimeSource::Injected(Arc::new(clock));
        let table = Table::over(ZoneHome { head, shards }, head.seeds, clock);
        let handle = number(&table, &limit).ok_or(ZoneError::TooManyLimits)?;
        let name = table.seeds.scope(name);
        let level = Level::new(limit, name, handle);
        Ok(Self { table, level })
    }

    /// May this key go on, at this cost?
    #[must_use = "the decision says whether the request may go on"]
    pub fn decide(&self, key: &[u8], cost: Cost, charge: Charge) -> Decision {
        // Clocks that agree are as good before the lock as under it.
        let now_us = self.table.clock.now_us();
        let check = self.level.check(key).cost(cost);
        self.table
            .decide_single(self.table.ask(&check), charge, Some(now_us))
    }

    /// Gives back what this decision charged to this key, as far as it still counts. It takes
    /// the decision, so that happens once.
    pub fn take_back(&self, key: &[u8], decision: Decision) {
        let Some(receipt) = decision.receipt() else {
            return;
        };
        let check = self.level.check(key);
        let ask = self.table.ask(&check);
        for charged in receipt
            .levels
            .iter()
            .filter(|it| it.print == ask.print.part())
        {
            self.table.refund_one(&ask, &receipt, charged);
        }
    }

    /// The limit.
    pub fn limit(&self) -> &Limit {
        &self.level.limit
    }

    /// What the zone holds, and what its bounds have cost so far.
    pub fn stats(&self) -> Stats {
        self.table.bounds().stats()
    }
}

impl<R: ZoneLock> Home for ZoneHome<'_, R> {
    type Lock = R;
    type Region = Fixed<BUCKETS>;

    #[inline]
    fn shards(&self) -> usize {
        self.shards.len()
    }

    #[inline]
    fn shard(&self, number: usize) -> &LockedShard<R, Fixed<BUCKETS>> {
        &self.shards[number].0
    }

    #[inline]
    fn bounds(&self) -> &Bounds {
        &self.head.bounds
    }

    fn limit(&self, id: LimitId) -> Option<Limit> {
        let cell = self.head.limits.get(usize::from(id).checked_sub(1)?)?;
        cell.read()
    }
}

/// The number of a limit in its zone: the one it has, a new one, or one that no key was
/// written under any more. A process of a former config that still runs may write under such
/// a number: its keys are then read as the new limit's.
fn number<R: ZoneLock>(table: &Table<ZoneHome<'_, R>>, limit: &Limit) -> Option<Handle> {
    let limits = &table.home.head.limits;
    let has = |wanted: Option<&Limit>| limits.iter().position(|it| it.read().as_ref() == wanted);
    let index = match has(Some(limit)).or_else(|| has(None)) {
        Some(index) => index,
        None => {
            let mut seen = UsedLimits::none();
            table.search_limits(&mut seen);
            let is_free = |index: &usize| id(*index).is_some_and(|id| !seen.has(id));
            (0..LIMITS).find(is_free)?
        }
    };
    if limits[index].read().as_ref() != Some(limit) {
        limits[index].write(limit);
    }
    let turn = limits[index].turn.load(Relaxed);
    #[expect(clippy::cast_possible_truncation, reason = "a part is enough")]
    Some(Handle::numbered(id(index)?, turn as u16))
}

fn id(index: usize) -> Option<LimitId> {
    LimitId::try_from(index + 1).ok()
}

/// A limit in numbers, which any process can read.
#[derive(Default)]
#[repr(C)]
struct StoredLimit {
    /// How often it was written; 0 when it is free.
    turn: AtomicU64,
    /// Requests, and in the high half the algorithm and what goes with it.
    requests: AtomicU64,
    window_us: AtomicU64,
    /// 0 when absent.
    burst: AtomicU64,
}

/// What stands above the requests: the place of the algorithm in [`Algorithm::ALL`], and flags.
const ALGORITHM_AT: u32 = 32;
const STRICT: u64 = 1 << 40;
const EPOCH: u64 = 1 << 41;

impl StoredLimit {
    fn write(&self, limit: &Limit) {
        let Some(spec) = limit.spec() else {
            return;
        };
        let algorithm = (spec.algorithm as u64) << ALGORITHM_AT;
        let strict = if spec.strict { STRICT } else { 0 };
        let epoch = match spec.align {
            Align::Epoch => EPOCH,
            Align::First => 0,
        };
        let requests = u64::from(spec.rate.requests()) | algorithm | strict | epoch;
        self.requests.store(requests, Relaxed);
        self.window_us.store(spec.rate.window_us(), Relaxed);
        self.burst.store(spec.burst.unwrap_or(0), Relaxed);
        self.turn.fetch_add(1, Release);
    }

    fn read(&self) -> Option<Limit> {
        if self.turn.load(Acquire) == 0 {
            return None;
        }
        let requests = self.requests.load(Relaxed);
        let has = |flag: u64| requests & flag != 0;
        let algorithm = requests.to_le_bytes()[4];
        let window = Duration::from_micros(self.window_us.load(Relaxed));
        let rate = Rate::new(requests & u64::from(u32::MAX), window).ok()?;
        let spec = LimitSpec {
            algorithm: *Algorithm::ALL.get(usize::from(algorithm))?,
            burst: Some(self.burst.load(Relaxed)).filter(|burst| *burst > 0),
            strict: has(STRICT),
            align: match has(EPOCH) {
                true => Align::Epoch,
                false => Align::First,
            },
            ..LimitSpec::new(rate)
        };
        spec.build().ok()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use lock_api::Mutex;
    use spin::mutex::SpinMutex;
    use spin::relax::RelaxStrategy;

    use super::super::lock::ShardLock;
    use super::*;
    use crate::clock::ManualClock;

    fn memory<R: ZoneLock>(shards: usize) -> (Head, Vec<ZoneShard<R>>) {
        let memory = (0..shards).map(|_| ZoneShard::default()).collect();
        (Head::new(shards), memory)
    }

    fn admits<R: ZoneLock>(zone: &Zone<'_, R>, key: &str) -> bool {
        zone.decide(key.as_bytes(), Cost::ONE, Charge::Admitted)
            .allowed()
    }

    #[test]
    fn zones_over_the_same_memory_count_together() {
        let (head, shards) = memory::<ShardLock>(2);
        let clock = ManualClock::at_us(1_000_000);
        let limit = Limit::per_minute(4);
        let [first, second] =
            [(); 2].map(|()| Zone::open(&head, &shards, "login", limit, clock.clone()).unwrap());
        for _ in 0..2 {
            assert!(admits(&first, "a") && admits(&second, "a"));
        }
        assert!(!admits(&first, "a") && !admits(&second, "a"));
        assert!(admits(&second, "b"));
        clock.advance(Duration::from_secs(15));
        assert!(admits(&first, "a") && !admits(&second, "a"));
        assert_eq!(second.stats().keys, 2);
    }

    #[test]
    fn changed_limit_keeps_what_was_used() {
        for limit in [
            Limit::per_minute(5),
            Limit::per_minute(5).burst(3),
            Limit::per_minute(5).burst(3).strict(),
            Limit::per_minute(5).fixed_window(),
            Limit::per_minute(5).fixed_window().align(Align::Epoch),
            Limit::per_minute(5).sliding_window(),
        ] {
            let (head, shards) = memory::<ShardLock>(1);
            let clock = ManualClock::at_us(60_000_000);
            let old = Zone::open(&head, &shards, "z", limit, clock.clone()).unwrap();
            let used = (0..9).filter(|_| admits(&old, "a")).count();
            let wide = Limit::per_minute(100);
            let new = match limit.algorithm() {
                Algorithm::TokenBucket => wide,
                Algorithm::FixedWindow => wide.fixed_window(),
                _ => wide.sliding_window(),
            };
            let new = Zone::open(&head, &shards, "z", new, clock.clone()).unwrap();
            assert_eq!(head.limits[0].read(), Some(limit), "{limit}");
            let more = (0..200).filter(|_| admits(&new, "a")).count();
            assert_eq!(used + more, 100, "{limit}");
            assert!(!admits(&old, "a"), "{limit}");
        }
    }

    #[test]
    fn limits_that_no_key_has_are_numbered_again() {
        let (head, shards) = memory::<ShardLock>(1);
        let clock = ManualClock::at_us(1_000_000);
        let open = |requests| {
            let limit = Limit::per_minute(requests);
            Zone::open(&head, &shards, "z", limit, clock.clone())
        };
        assert!(admits(&open(1).unwrap(), "a"));
        for requests in 2..1_000 {
            open(requests).unwrap();
        }
        assert_eq!(head.limits[0].read(), Some(Limit::per_minute(1)));
        let look = open(2_000).unwrap();
        let look = look.decide(b"a", Cost::ONE, Charge::Nothing);
        assert_eq!(look.remaining(), 1_999);
    }

    #[test]
    fn a_charge_is_taken_back() {
        let (head, shards) = memory::<ShardLock>(1);
        for limit in [
            Limit::per_minute(2),
            Limit::per_minute(2).fixed_window(),
            Limit::per_minute(2).sliding_window(),
        ] {
            let clock = ManualClock::at_us(61_000_000);
            let zone = Zone::open(&head, &shards, "z", limit, clock).unwrap();
            assert!(admits(&zone, "a"));
            let decision = zone.decide(b"a", Cost::ONE, Charge::Admitted);
            assert!(decision.allowed() && !admits(&zone, "a"));
            zone.take_back(b"a", decision);
            assert!(admits(&zone, "a") && !admits(&zone, "a"), "{limit}");
        }
    }

    #[test]
    fn memory_is_bounded_and_soon_full_keys_go_first() {
        let (head, shards) = memory::<ShardLock>(4);
        let clock = ManualClock::at_us(1_000_000);
        let zone = Zone::open(&head, &shards, "z", Limit::per_minute(2), clock).unwrap();
        for key in 0..10_000 {
            assert!(admits(&zone, &key.to_string()));
        }
        let stats = zone.stats();
        assert!(stats.keys <= 4 * SLOTS * 7 / 8, "{stats:?}");
        assert!(stats.keys >= 4 * SLOTS * 6 / 8, "{stats:?}");
        assert_eq!(stats.evicted, 10_000 - stats.keys as u64);
    }

    #[test]
    fn logs_and_blocks_are_refused() {
        let (head, shards) = memory::<ShardLock>(1);
        for limit in [Limit::per_minute(2).sliding_log(), Limit::block()] {
            let clock = ManualClock::at_us(0);
            assert!(Zone::open(&head, &shards, "z", limit, clock).is_err());
        }
    }

    thread_local! {
        static ABANDONED: Cell<bool> = const { Cell::new(false) };
    }

    /// A lock whose owner is said to have died whenever the test says so.
    type Abandoned = SpinMutex<(), Told>;

    struct Told;

    impl RelaxStrategy for Told {
        fn relax() {
            unreachable!("there is one thread");
        }
    }

    impl ZoneLock for Abandoned {
        fn take_abandoned<T>(_: &Mutex<Self, T>) -> bool {
            ABANDONED.take()
        }
    }

    #[test]
    fn shard_of_a_dead_owner_begins_anew() {
        let (head, shards) = memory::<Abandoned>(1);
        let clock = ManualClock::at_us(1_000_000);
        let zone = Zone::open(&head, &shards, "z", Limit::per_minute(1), clock).unwrap();
        for key in 0..100 {
            assert!(admits(&zone, &key.to_string()));
        }
        assert!((0..3).all(|_| !admits(&zone, "7")));
        ABANDONED.set(true);
        // The refusal that is known without the lock holds until the lock is taken.
        assert!(admits(&zone, "101"));
        assert_eq!(zone.stats().keys, 1);
        assert!(admits(&zone, "7") && !admits(&zone, "7"));
    }
}
