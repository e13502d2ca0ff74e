//! The table: shards behind their locks, and what is done to one key at a time.
//!
//! Decisions are in `one.rs` (the everyday case), `levels.rs` (everything else) and
//! `batch.rs` (many checks, one after the other).

use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use lock_api::{Mutex, MutexGuard, RawMutex};
use smallvec::SmallVec;

use super::bounds::{Bounds, Full};
use super::bucket::{Entry, LimitId};
use super::fingerprint::{Fingerprint, HIGH_BITS, Seeds};
use super::home::{HeapHome, Home, Region, ShardGuard, ZoneLock};
use super::limits::{Handle, TooManyLimits, UsedLimits};
use super::logs::{LogFinding, pack};
use super::refused::LastRefusal;
use super::shard::{Shard, SlotIndex, Upkeep};
use super::{Ask, Charge, Check};
use crate::algorithm::{Kind, MAX_NOW_US, Packed, PastCharge, State, each_compact};
use crate::clock::TimeSource;
use crate::decision::{Charged, Decision, Receipt};
use crate::limit::{Algorithm, Limit};

/// Keys a shard holds on average when the store is full.
const KEYS_PER_SHARD: usize = 512;

/// The most shards of a store, and the most of them that are searched for dead keys, or
/// for log bytes, on one caller's time.
const MAX_SHARDS: usize = 1 << HIGH_BITS;
const SEARCHED_SHARDS: usize = 8;
const RECLAIM_SHARDS: usize = 4;

/// The most keys of a store. Shards of that one hold twice as many as usual.
pub(super) const MAX_KEYS: usize = 1_000_000_000;

/// The table of keys, generic over its home: where its shards live, and how they are
/// locked.
pub(crate) struct Table<H> {
    pub(super) home: H,
    pub(super) seeds: Seeds,
    pub(super) clock: TimeSource,
    /// The next shard to search.
    hand: AtomicUsize,
}

/// A shard, and the key it refused last. The shard and the first word of that key
/// share a cache line: one line tells most checks all they need to find their key.
#[repr(C, align(128))]
pub(crate) struct LockedShard<R, M> {
    pub(super) shard: Mutex<R, Shard<M>>,
    pub(super) refused: LastRefusal,
}

impl<R: RawMutex, M: Default> Default for LockedShard<R, M> {
    fn default() -> Self {
        Self {
            shard: Mutex::new(Shard::default()),
            refused: LastRefusal::default(),
        }
    }
}

/// A level's key as found in the table, brought to the instant of a check.
#[derive(Clone, Copy)]
pub(super) struct Finding {
    pub(super) place: Option<SlotIndex>,
    /// What the entry holds, and the limit it was written under.
    pub(super) stored: Option<(LimitId, Packed)>,
    pub(super) state: State,
    /// The log of a limit that keeps one.
    pub(super) log: Option<LogFinding>,
    /// The entry no longer says what is true: since it was written, the clock has
    /// stepped back, or the limit has changed to one that counts in other units.
    pub(super) outdated: bool,
}

impl Table<HeapHome> {
    pub(super) fn new(bounds: Bounds, clock: TimeSource) -> Self {
        let shards = (bounds.max_keys() / KEYS_PER_SHARD)
            .next_power_of_two()
            .min(MAX_SHARDS);
        Self::over(HeapHome::new(shards, bounds), Seeds::random(), clock)
    }

    /// The number of a limit.
    pub(super) fn limit_handle(&self, limit: &Limit) -> Result<Handle, TooManyLimits> {
        let limits = &self.home.limits;
        limits.handle(&limit.numbered(), |seen| self.search_limits(seen))
    }
}

impl<H: Home> Table<H> {
    pub(super) fn over(home: H, seeds: Seeds, clock: TimeSource) -> Self {
        Self {
            home,
            seeds,
            clock,
            hand: AtomicUsize::new(0),
        }
    }

    #[inline]
    pub(super) fn bounds(&self) -> &Bounds {
        self.home.bounds()
    }

    /// Locks a shard.
    #[inline]
    pub(super) fn lock(&self, number: usize) -> ShardGuard<'_, H> {
        self.guard(self.home.shard(number))
    }

    /// Locks a shard of this table. One whose last owner died while it held the lock may be
    /// half written: it begins anew.
    #[inline]
    pub(super) fn guard<'s>(
        &'s self,
        locked: &'s LockedShard<H::Lock, H::Region>,
    ) -> ShardGuard<'s, H> {
        let mut shard = locked.shard.lock();
        if H::Lock::take_abandoned(&locked.shard) {
            shard.wipe(self.bounds());
            locked.refused.wipe();
        }
        shard
    }

    #[inline]
    pub(super) fn decide(&self, checks: &[Check<'_>], charge: Charge) -> Decision {
        let before_us = || self.clock_before_locks();
        match checks {
            [check] => self.decide_single(self.ask(check), charge, None),
            [a, b] => self.decide_few([a, b].map(|it| self.ask(it)), charge, before_us()),
            [a, b, c] => self.decide_few([a, b, c].map(|it| self.ask(it)), charge, before_us()),
            _ => {
                let parts = checks.iter().map(|check| self.part(self.ask(check)));
                let mut parts: SmallVec<[_; 4]> = parts.collect();
                self.decide_levels(&mut parts, charge, before_us())
            }
        }
    }

    pub(super) fn decide_few<const LEVELS: usize>(
        &self,
        asks: [Ask<'_>; LEVELS],
        charge: Charge,
        before_us: Option<u64>,
    ) -> Decision {
        self.decide_levels(&mut asks.map(|ask| self.part(ask)), charge, before_us)
    }

    /// Decides at `at_us`, or now. Not generic over keys, so that it is compiled once.
    pub(super) fn decide_single(
        &self,
        ask: Ask<'_>,
        charge: Charge,
        at_us: Option<u64>,
    ) -> Decision {
        let before_us = match at_us {
            Some(at_us) => Some(at_us.min(MAX_NOW_US)),
            None => self.clock_before_locks(),
        };
        each_compact!(
            ask.level.limit.kind(),
            limit => self.decide_one(limit, ask, charge, before_us),
            _ => self.decide_few([ask], charge, before_us)
        )
    }

    /// Looks through all entries for the limits they were written under, and drops those
    /// that are dead.
    pub(super) fn search_limits(&self, seen: &mut UsedLimits) {
        for number in 0..self.home.shards() {
            let (mut shard, now_us) = self.enter(number);
            shard.sweep_all(&self.upkeep(now_us, &[]));
            shard.limits().for_each(|limit| seen.add(limit));
            release(shard);
        }
    }

    /// Forgets a key under every algorithm.
    pub(super) fn reset(&self, check: &Check<'_>) -> bool {
        let mut found = false;
        for algorithm in Algorithm::ALL {
            let scope = check.level.name.of(*algorithm);
            found |= self.reset_one(self.seeds.fingerprint(scope, check.key));
        }
        found
    }

    fn reset_one(&self, print: Fingerprint) -> bool {
        let (mut shard, now_us) = self.enter(self.shard_number(print));
        self.locked(print).refused.forget(print);
        let place = shard.find(print);
        if let Some(place) = place {
            let (_, stored) = shard.read(place);
            shard.void_receipts(print, stored, now_us);
            shard.remove(place, self.bounds());
        }
        release(shard);
        place.is_some()
    }

    /// Gives back what a check of these levels charged, key by key. Says no when the
    /// receipt is of other checks, or was refunded before, or the refund could not be
    /// remembered.
    pub(super) fn refund(&self, checks: &[Check<'_>], receipt: &Receipt) -> bool {
        let asks: SmallVec<[Ask<'_>; 2]> = checks.iter().map(|check| self.ask(check)).collect();
        let is_of = |(ask, charged): (&Ask<'_>, &Charged)| ask.print.part() == charged.print;
        if asks.len() != receipt.levels.len()
            || !asks.iter().zip(&receipt.levels).all(is_of)
            || !self.spend(&asks, receipt)
        {
            return false;
        }
        for (index, (ask, charged)) in asks.iter().zip(&receipt.levels).enumerate() {
            // A key that occurred twice was charged, as one, for both.
            if asks[..index].iter().all(|other| other.print != ask.print) {
                self.refund_one(ask, receipt, charged);
            }
        }
        true
    }

    /// Notes that a receipt is refunded: once.
    fn spend(&self, asks: &[Ask<'_>], receipt: &Receipt) -> bool {
        let Some(first) = asks.first() else {
            return false;
        };
        let counts_for_us = asks.iter().zip(&receipt.levels);
        let counts_for_us = counts_for_us
            .map(|(ask, charged)| ask.level.limit.counts_for_us(charged.cost))
            .max()
            .unwrap_or(0);
        let forget_at_us = receipt.decided_at_us.saturating_add(counts_for_us);
        let (mut shard, now_us) = self.enter(self.shard_number(first.print));
        shard.region.side_mut().is_some_and(|side| {
            let bound = (&self.bounds().refunds, self.bounds().max_refunds());
            side.notes
                .spend(receipt.id.get(), forget_at_us, now_us, bound)
        })
    }

    /// Takes a cost off the count of a window, down to zero.
    pub(super) fn give_back(&self, ask: &Ask<'_>) {
        let limit = &ask.level.limit;
        if limit.algorithm() != Algorithm::FixedWindow {
            return;
        }
        self.take_off(ask, |_, seen, now_us| {
            Some(PastCharge {
                cost: ask.cost,
                at_us: now_us,
                mark_us: limit.mark_us(&seen.state),
            })
        });
    }

    pub(super) fn refund_one(&self, ask: &Ask<'_>, receipt: &Receipt, charged: &Charged) {
        let &Ask { level, print, .. } = ask;
        self.take_off(ask, |shard, seen, now_us| {
            let is_same =
                seen.stored.is_some_and(|(id, _)| id == level.id) && charged.limit == level.stamp;
            let notes = shard.notes();
            let is_void = notes.is_some_and(|notes| notes.is_void(print.low, charged.era));
            // Better too little than too much.
            let counts = is_same && !is_void && !seen.outdated && now_us >= receipt.decided_at_us;
            counts.then_some(PastCharge {
                cost: charged.cost,
                at_us: receipt.decided_at_us,
                mark_us: charged.mark_us,
            })
        });
    }

    /// Takes a charge off a key. Where nothing is given back, nothing is written.
    fn take_off(
        &self,
        ask: &Ask<'_>,
        charge: impl FnOnce(&Shard<H::Region>, &Finding, u64) -> Option<PastCharge>,
    ) {
        let (limit, print) = (&ask.level.limit, ask.print);
        let (mut shard, now_us) = self.enter(self.shard_number(print));
        self.locked(print).refused.forget(print);
        let seen = self.see(&shard, ask, now_us);
        if let Some(charge) = charge(&shard, &seen, now_us)
            && let Some(place) = seen.place
            && let Some(after) = self.refunded(&mut shard, limit, &seen, charge)
            && let Some(packed) = pack(limit, &after, seen.log)
        {
            shard.rewrite(place, (print, ask.level.id, packed));
        }
        release(shard);
    }

    /// Finds a level's key and brings its state to this instant.
    pub(super) fn see(&self, shard: &Shard<H::Region>, ask: &Ask<'_>, now_us: u64) -> Finding {
        let limit = &ask.level.limit;
        let place = shard.find(ask.print);
        let stored = place.map(|place| shard.read(place));
        let (log, state) = match limit.kind() {
            Kind::SlidingLog(limit) => {
                let (log, state) = shard.see_log(limit, stored, ask.cost, now_us);
                (Some(log), state)
            }
            _ => (None, limit.new_state(now_us)),
        };
        let mut seen = Finding {
            place,
            stored,
            state,
            log,
            outdated: false,
        };
        let Some((id, packed)) = stored.filter(|(_, packed)| packed.fresh_at_us > now_us) else {
            return seen;
        };
        let old = match id == ask.level.id {
            true => Some(*limit),
            false => self.home.limit(id),
        };
        let Some(old) = old else {
            return seen;
        };
        let last_us = match (log, old.unpack(packed)) {
            (Some(log), _) => log.last_us,
            (None, Some(state)) => {
                seen.state = limit.at(limit.adopt(&old, state, now_us), now_us);
                state.last_us()
            }
            (None, None) => return seen,
        };
        seen.outdated = now_us < last_us || !limit.counts_like(&old);
        seen
    }

    #[inline]
    pub(super) fn upkeep<'a>(&'a self, now_us: u64, pinned: &'a [Fingerprint]) -> Upkeep<'a> {
        Upkeep {
            now_us,
            bounds: self.bounds(),
            pinned,
        }
    }

    /// Adds a key that is not there. At the bound on keys, drops the dead ones of its shard
    /// first, or of another one that nobody holds.
    #[inline]
    pub(super) fn insert(
        &self,
        shard: &mut Shard<H::Region>,
        entry: Entry,
        upkeep: &Upkeep<'_>,
    ) -> Result<(), Full> {
        if self.bounds().is_full() {
            self.sweep(shard, upkeep);
        }
        shard.insert(entry, upkeep)
    }

    #[cold]
    fn sweep(&self, shard: &mut Shard<H::Region>, upkeep: &Upkeep<'_>) {
        let now_us = upkeep.now_us;
        if shard.earliest_us <= now_us {
            shard.sweep_all(upkeep);
        }
        for _ in 0..SEARCHED_SHARDS.min(self.home.shards()) {
            if !self.bounds().is_full() {
                return;
            }
            if let Some(mut other) = self.next_free()
                && other.earliest_us <= now_us
            {
                other.sweep_all(&self.upkeep(now_us, &[]));
                release(other);
            }
        }
    }

    /// Frees log bytes in this shard, then in others that nobody holds.
    #[cold]
    pub(super) fn reclaim_logs(
        &self,
        shard: &mut Shard<H::Region>,
        bytes: usize,
        upkeep: &Upkeep<'_>,
    ) {
        if bytes > self.bounds().max_log_bytes {
            return;
        }
        let mut freed = shard.reclaim_logs(bytes, upkeep);
        for _ in 0..RECLAIM_SHARDS.min(self.home.shards()) {
            if freed >= bytes {
                return;
            }
            if let Some(mut other) = self.next_free() {
                freed += other.reclaim_logs(bytes - freed, &self.upkeep(upkeep.now_us, &[]));
                release(other);
            }
        }
    }

    /// The next shard to search, if nobody holds it. Only tries: this thread holds locks, and
    /// waiting for one of a lower number could last for ever.
    fn next_free(&self) -> Option<ShardGuard<'_, H>> {
        let next = self.hand.fetch_add(1, Relaxed) % self.home.shards();
        self.home.shard(next).shard.try_lock()
    }

    #[inline(always)]
    pub(super) fn ask<'l>(&self, check: &Check<'l>) -> Ask<'l> {
        Ask {
            level: check.level,
            print: self.seeds.fingerprint(check.level.scope, check.key),
            cost: check.cost,
        }
    }

    #[inline]
    pub(super) fn shard_number(&self, print: Fingerprint) -> usize {
        (print.high as usize * self.home.shards()) >> HIGH_BITS
    }

    #[inline]
    pub(super) fn locked(&self, print: Fingerprint) -> &LockedShard<H::Lock, H::Region> {
        self.home.shard(self.shard_number(print))
    }

    /// The time, from a clock that is as good before waiting for a lock as after.
    #[inline]
    pub(super) fn clock_before_locks(&self) -> Option<u64> {
        self.clock.is_monotonic().then(|| self.clock.now_us())
    }

    /// Locks a shard, and reads the time. Threads that read the clock in one order may get
    /// the lock in another: for a key, time must not seem to go back by that.
    fn enter(&self, number: usize) -> (ShardGuard<'_, H>, u64) {
        let before_us = self.clock_before_locks();
        let mut shard = self.lock(number);
        let now_us = match before_us {
            Some(before_us) => {
                shard.latest_us = shard.latest_us.max(before_us);
                shard.latest_us
            }
            None => self.clock.now_us(),
        };
        (shard, now_us)
    }
}

/// Unlocks a shard, and only then frees what was dropped from it.
pub(super) fn release<R: RawMutex, M: Region>(mut shard: MutexGuard<'_, R, Shard<M>>) {
    let discarded = shard.take_discarded();
    drop(shard);
    drop(discarded);
}

#[cfg(test)]
mod tests {
    use std::mem::{offset_of, size_of};

    use super::super::home::Heap;
    use super::super::lock::ShardLock;
    use super::*;

    #[test]
    fn a_shard_and_the_first_word_of_its_last_refusal_share_a_line() {
        assert_eq!(size_of::<LockedShard<ShardLock, Heap>>(), 128);
        assert!(offset_of!(LockedShard<ShardLock, Heap>, refused) <= 56);
    }
}
