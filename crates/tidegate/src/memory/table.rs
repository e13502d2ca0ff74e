//! The table: shards behind their locks, and what is done to one key at a time.
//!
//! Decisions are in `one.rs` (the everyday case), `few.rs` (two to four levels),
//! `many.rs` (everything else) and `batch.rs` (many checks, one after the other).

use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use lock_api::{Mutex, MutexGuard, RawMutex};
use smallvec::SmallVec;

use super::bounds::Bounds;
use super::bucket::LimitId;
use super::fingerprint::{Fingerprint, HIGH_BITS, Seeds};
use super::home::{Heaped, Home, ShardGuard, ZoneLock};
use super::limits::{Handle, Seen as SeenLimits, TooManyLimits};
use super::logs::owned_log;
use super::refused::LastRefused;
use super::region::{LogId, Region};
use super::shard::{Place, Shard};
use super::{Ask, Charge, Check, Level};
use crate::algorithm::{Kind, LogView, MAX_NOW_US, Packed, PastCharge, State, each_compact};
use crate::clock::TimeSource;
use crate::cost::Cost;
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
pub(crate) struct Locked<R, M> {
    pub(super) shard: Mutex<R, Shard<M>>,
    pub(super) refused: LastRefused,
}

impl<R: RawMutex, M: Default> Default for Locked<R, M> {
    fn default() -> Self {
        Self {
            shard: Mutex::new(Shard::default()),
            refused: LastRefused::default(),
        }
    }
}

/// A level's key as found in the table, brought to the instant of a check.
#[derive(Clone, Copy)]
pub(super) struct Seen {
    pub(super) place: Option<Place>,
    /// What the entry holds, and the limit it was written under.
    pub(super) stored: Option<(LimitId, Packed)>,
    pub(super) state: State,
    /// The log of a limit that keeps one, and what of it counts.
    pub(super) log: Option<(LogId, LogView)>,
    /// The entry no longer says what is true: since it was written, the clock has
    /// stepped back, or the limit has changed to one that counts in other units.
    pub(super) outdated: bool,
}

impl Table<Heaped> {
    pub(super) fn new(bounds: Bounds, clock: TimeSource) -> Self {
        let shards = (bounds.max_keys() / KEYS_PER_SHARD)
            .next_power_of_two()
            .min(MAX_SHARDS);
        Self::over(Heaped::new(shards, bounds), Seeds::random(), clock)
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
    pub(super) fn guard<'s>(&'s self, locked: &'s Locked<H::Lock, H::Region>) -> ShardGuard<'s, H> {
        let mut shard = locked.shard.lock();
        if H::Lock::take_abandoned(&locked.shard) {
            shard.wipe(self.bounds());
            locked.refused.wipe();
        }
        shard
    }

    /// Decides at `at_us`, or now.
    #[inline]
    pub(super) fn decide(
        &self,
        checks: &[Check<'_>],
        charge: Charge,
        at_us: Option<u64>,
    ) -> Decision {
        match checks {
            [check] => self.decide_single(self.ask(check), charge, at_us),
            [a, b] => self.decide_few([a, b].map(|it| self.ask(it)), charge, at_us),
            [a, b, c] => self.decide_few([a, b, c].map(|it| self.ask(it)), charge, at_us),
            [a, b, c, d] => self.decide_few([a, b, c, d].map(|it| self.ask(it)), charge, at_us),
            _ => {
                let asks: SmallVec<[Ask<'_>; 4]> = checks.iter().map(|it| self.ask(it)).collect();
                self.decide_many(&asks, charge, self.time_before_locks(at_us))
            }
        }
    }

    /// Not generic over keys, so that it is compiled once.
    pub(super) fn decide_single(
        &self,
        ask: Ask<'_>,
        charge: Charge,
        at_us: Option<u64>,
    ) -> Decision {
        let before_us = self.time_before_locks(at_us);
        each_compact!(
            ask.level.limit.kind(),
            limit => self.decide_one(limit, ask, charge, before_us),
            _ => self.decide_many(&[ask], charge, before_us)
        )
    }

    /// Looks through all entries for the limits they were written under, and drops those
    /// that are dead.
    pub(super) fn search_limits(&self, seen: &mut SeenLimits) {
        for number in 0..self.home.shards() {
            let before_us = self.clock_before_locks();
            let mut shard = self.lock(number);
            let now_us = self.clock_under_locks(before_us, [&mut *shard]);
            shard.sweep_all(now_us, self.bounds(), &[]);
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
        let before_us = self.clock_before_locks();
        let locked = self.locked(print);
        let mut shard = self.guard(locked);
        let now_us = self.clock_under_locks(before_us, [&mut *shard]);
        locked.refused.forget(print);
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
        let prints: SmallVec<[Fingerprint; 2]> =
            checks.iter().map(|check| self.ask(check).print).collect();
        let is_of = |(print, charged): (&Fingerprint, &Charged)| print.part() == charged.print;
        if checks.len() != receipt.levels.len()
            || !prints.iter().zip(&receipt.levels).all(is_of)
            || !self.spend(checks, &prints, receipt)
        {
            return false;
        }
        for (index, (check, charged)) in checks.iter().zip(&receipt.levels).enumerate() {
            // A key that occurred twice was charged, as one, for both.
            if !prints[..index].contains(&prints[index]) {
                self.refund_one(check.level, prints[index], receipt, charged);
            }
        }
        true
    }

    /// Notes that a receipt is refunded: once.
    fn spend(&self, checks: &[Check<'_>], prints: &[Fingerprint], receipt: &Receipt) -> bool {
        let Some(first) = prints.first() else {
            return false;
        };
        let counts_for_us = checks.iter().zip(&receipt.levels);
        let counts_for_us = counts_for_us
            .map(|(check, charged)| check.level.limit.counts_for_us(charged.cost))
            .max()
            .unwrap_or(0);
        let forget_at_us = receipt.decided_at_us.saturating_add(counts_for_us);
        let before_us = self.clock_before_locks();
        let mut shard = self.guard(self.locked(*first));
        let now_us = self.clock_under_locks(before_us, [&mut *shard]);
        shard.region.notes_mut().is_some_and(|notes| {
            let bound = (&self.bounds().refunds, self.bounds().max_refunds());
            notes.spend(receipt.id.get(), forget_at_us, now_us, bound)
        })
    }

    /// Takes a cost off the count of a window, down to zero.
    pub(super) fn give_back(&self, ask: &Ask<'_>) {
        let (level, print) = (ask.level, ask.print);
        if level.limit.algorithm() != Algorithm::FixedWindow {
            return;
        }
        let before_us = self.clock_before_locks();
        let locked = self.locked(print);
        let mut shard = self.guard(locked);
        locked.refused.forget(print);
        let now_us = self.clock_under_locks(before_us, [&mut *shard]);
        let seen = self.see(&shard, print, level, Cost::ONE, now_us);
        let (Some(place), state) = (seen.place, seen.state) else {
            return;
        };
        let charge = PastCharge {
            cost: ask.cost,
            at_us: now_us,
            mark_us: level.limit.mark_us(&state),
        };
        let after = level.limit.refund(state, charge);
        if after != state
            && let Some(packed) = pack(&level.limit, &after, None)
        {
            shard.rewrite(place, print, level.id, packed);
        }
    }

    pub(super) fn refund_one(
        &self,
        level: &Level,
        print: Fingerprint,
        receipt: &Receipt,
        charged: &Charged,
    ) {
        let before_us = self.clock_before_locks();
        let locked = self.locked(print);
        let mut shard = self.guard(locked);
        locked.refused.forget(print);
        let now_us = self.clock_under_locks(before_us, [&mut *shard]);
        let Seen {
            place: Some(place),
            stored: Some((id, _)),
            state,
            log,
            outdated: false,
        } = self.see(&shard, print, level, Cost::ONE, now_us)
        else {
            return;
        };
        let notes = shard.region.notes();
        let is_void = notes.is_some_and(|notes| notes.is_void(print.low, charged.era));
        // Better too little than too much.
        if charged.limit != level.stamp
            || id != level.id
            || is_void
            || now_us < receipt.decided_at_us
        {
            return;
        }
        let charge = PastCharge {
            cost: charged.cost,
            at_us: receipt.decided_at_us,
            mark_us: charged.mark_us,
        };
        // Where nothing is given back, nothing is written.
        let packed = match (log, level.limit.kind()) {
            (Some((log, view)), Kind::SlidingLog(limit)) => {
                let ring = shard.log_mut(log);
                let bytes = ring.bytes();
                if !ring.refund(&view, charge.cost, charge.mark_us) {
                    return;
                }
                let view = limit.view(ring, now_us);
                let state = State::SlidingLog(limit.read(ring, &view, Cost::ONE));
                let freed = bytes - ring.bytes();
                self.bounds().log_bytes.give_back(freed);
                pack(&level.limit, &state, Some(log))
            }
            _ => {
                let after = level.limit.refund(state, charge);
                (after != state)
                    .then(|| pack(&level.limit, &after, None))
                    .flatten()
            }
        };
        if let Some(packed) = packed {
            shard.rewrite(place, print, level.id, packed);
        }
        release(shard);
    }

    /// Finds a level's key and brings its state to this instant.
    pub(super) fn see(
        &self,
        shard: &Shard<H::Region>,
        print: Fingerprint,
        level: &Level,
        cost: Cost,
        now_us: u64,
    ) -> Seen {
        let place = shard.find(print);
        let stored = place.map(|place| shard.read(place));
        let mut seen = Seen {
            place,
            stored,
            state: level.limit.new_state(now_us),
            log: None,
            outdated: false,
        };
        let Some((id, packed)) = stored else {
            return seen;
        };
        let is_live = packed.fresh_at_us > now_us;
        if let (Some(id), Kind::SlidingLog(limit)) = (owned_log(id, packed), level.limit.kind()) {
            let log = shard.log(id);
            let view = match is_live {
                true => limit.view(log, now_us),
                false => log.ended(now_us),
            };
            seen.log = Some((id, view));
            seen.state = State::SlidingLog(limit.read(log, &view, cost));
        }
        if !is_live {
            return seen;
        }
        let old = match id == level.id {
            true => Some(level.limit),
            false => self.home.limit(id),
        };
        let Some(old) = old else {
            return seen;
        };
        let last_us = match (seen.log, old.unpack(packed)) {
            (Some((log, _)), _) => shard.log(log).last_us(),
            (None, Some(state)) => {
                let adopted = level.limit.adopt(&old, state, now_us);
                seen.state = level.limit.at(adopted, now_us);
                state.last_us()
            }
            (None, None) => return seen,
        };
        seen.outdated = now_us < last_us || !level.limit.counts_like(&old);
        seen
    }

    /// At the bound on keys, makes room for a new one: drops the dead keys of this shard,
    /// or of another one that nobody holds.
    #[inline]
    pub(super) fn find_room(
        &self,
        shard: &mut Shard<H::Region>,
        now_us: u64,
        pinned: &[Fingerprint],
    ) {
        if self.bounds().is_full() {
            self.sweep(shard, now_us, pinned);
        }
    }

    #[cold]
    fn sweep(&self, shard: &mut Shard<H::Region>, now_us: u64, pinned: &[Fingerprint]) {
        if shard.earliest_us <= now_us {
            shard.sweep_all(now_us, self.bounds(), pinned);
        }
        for _ in 0..SEARCHED_SHARDS.min(self.home.shards()) {
            if !self.bounds().is_full() {
                return;
            }
            let next = self.hand.fetch_add(1, Relaxed) % self.home.shards();
            if let Some(mut other) = self.home.shard(next).shard.try_lock()
                && other.earliest_us <= now_us
            {
                other.sweep_all(now_us, self.bounds(), &[]);
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
        now_us: u64,
        pinned: &[Fingerprint],
    ) {
        if bytes > self.bounds().max_log_bytes() {
            return;
        }
        let mut freed = shard.reclaim_logs(bytes, now_us, self.bounds(), pinned);
        for _ in 0..RECLAIM_SHARDS.min(self.home.shards()) {
            if freed >= bytes {
                return;
            }
            let next = self.hand.fetch_add(1, Relaxed) % self.home.shards();
            // Only tries: this thread holds locks, and waiting for one of a lower
            // number could last for ever.
            if let Some(mut other) = self.home.shard(next).shard.try_lock() {
                freed += other.reclaim_logs(bytes - freed, now_us, self.bounds(), &[]);
                release(other);
            }
        }
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
    pub(super) fn locked(&self, print: Fingerprint) -> &Locked<H::Lock, H::Region> {
        self.home.shard(self.shard_number(print))
    }

    /// The time that the caller knows, or that of the clock.
    #[inline]
    pub(super) fn time_before_locks(&self, at_us: Option<u64>) -> Option<u64> {
        match at_us {
            Some(at_us) => Some(at_us.min(MAX_NOW_US)),
            None => self.clock_before_locks(),
        }
    }

    /// The time, from a clock that is as good before waiting for a lock as after.
    #[inline]
    pub(super) fn clock_before_locks(&self) -> Option<u64> {
        self.clock.is_monotonic().then(|| self.clock.now_us())
    }

    /// The time of the decision. Threads that read the clock in one order may get
    /// the lock in another: for a key, time must not seem to go back by that.
    #[inline]
    pub(super) fn clock_under_locks<'s>(
        &self,
        before_us: Option<u64>,
        shards: impl IntoIterator<Item = &'s mut Shard<H::Region>>,
    ) -> u64
    where
        H::Region: 's,
    {
        let Some(before_us) = before_us else {
            return self.clock.now_us();
        };
        let mut latest: SmallVec<[&mut u64; 4]> = shards
            .into_iter()
            .map(|shard| &mut shard.latest_us)
            .collect();
        let now_us = latest
            .iter()
            .fold(before_us, |now_us, latest_us| now_us.max(**latest_us));
        for latest_us in &mut latest {
            **latest_us = now_us;
        }
        now_us
    }
}

/// A state as the table keeps it; `None` for a level that keeps none.
pub(super) fn pack(limit: &Limit, state: &State, log: Option<LogId>) -> Option<Packed> {
    match (state, log) {
        (State::SlidingLog(state), Some(log)) => Some(Packed {
            fresh_at_us: state.last_us + state.reset_after_us,
            data: 0,
            extra: u64::from(log),
        }),
        _ => limit.pack(state),
    }
}

/// Unlocks a shard, and only then frees what was dropped from it.
pub(super) fn release<R: RawMutex, M: Region>(mut shard: MutexGuard<'_, R, Shard<M>>) {
    let discarded = shard.region.take_discarded();
    drop(shard);
    drop(discarded);
}

#[cfg(test)]
mod tests {
    use std::mem::{offset_of, size_of};

    use super::super::lock::ShardLock;
    use super::super::region::Heap;
    use super::*;

    #[test]
    fn a_shard_and_the_first_word_of_its_last_refusal_share_a_line() {
        assert_eq!(size_of::<Locked<ShardLock, Heap>>(), 128);
        assert!(offset_of!(Locked<ShardLock, Heap>, refused) <= 56);
    }
}
