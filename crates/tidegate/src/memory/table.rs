//! The table: shards behind their locks, and what is done to one key at a time.
//!
//! Decisions are in `one.rs` (the everyday case) and `many.rs` (all the others).

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU32, AtomicUsize};

use lock_api::{Mutex, RawMutex};
use smallvec::SmallVec;

use super::bounds::Bounds;
use super::fingerprint::{Fingerprint, HIGH_BITS, Seeds};
use super::limits::Limits;
use super::logs::ring_bytes;
use super::refused::LastRefused;
use super::region::Region;
use super::shard::Shard;
use super::view::{Seen, View};
use super::{Charge, Check, Level};
use crate::clock::TimeSource;
use crate::decision::{Charged, Decision, Receipt};
use crate::limit::Kind;

/// Keys a shard holds on average when the store is full.
const KEYS_PER_SHARD: usize = 1024;

/// The most shards of a store, and the most of them that are searched for log
/// bytes on one caller's time.
const MAX_SHARDS: usize = 1 << 14;
const RECLAIM_SHARDS: usize = 8;

/// The table of keys, generic over its locks and its memory.
pub(crate) struct Table<R, M> {
    pub(super) shards: Box<[Locked<R, M>]>,
    pub(super) bounds: Bounds,
    pub(super) limits: Limits,
    pub(super) seeds: Seeds,
    pub(super) clock: TimeSource,
    /// How often all receipts have become void.
    pub(super) voided: AtomicU32,
    /// The next shard to search for log bytes.
    hand: AtomicUsize,
}

/// A shard, and the key it refused last. The shard and the first word of that key
/// share a cache line: one line tells most checks all they need to find their key.
#[repr(C, align(128))]
pub(super) struct Locked<R, M> {
    pub(super) shard: Mutex<R, Shard<M>>,
    pub(super) refused: LastRefused,
}

impl<R: RawMutex, M: Region + Default> Table<R, M> {
    pub(super) fn new(bounds: Bounds, clock: TimeSource) -> Self {
        let shards = (bounds.max_keys / KEYS_PER_SHARD)
            .next_power_of_two()
            .min(MAX_SHARDS);
        let locked = || Locked {
            shard: Mutex::new(Shard::default()),
            refused: LastRefused::default(),
        };
        Self {
            shards: (0..shards).map(|_| locked()).collect(),
            bounds,
            limits: Limits::default(),
            seeds: Seeds::random(),
            clock,
            voided: AtomicU32::new(0),
            hand: AtomicUsize::new(0),
        }
    }
}

impl<R: RawMutex, M: Region> Table<R, M> {
    #[inline]
    pub(super) fn decide(&self, checks: &[Check<'_>], charge: Charge) -> Decision {
        if let [check] = checks {
            match check.level.limit.kind() {
                Kind::TokenBucket(limit) => return self.decide_one(limit, check, charge),
                Kind::FixedWindow(limit) => return self.decide_one(limit, check, charge),
                Kind::SlidingWindow(limit) => return self.decide_one(limit, check, charge),
                Kind::SlidingLog(_) | Kind::Block => {}
            }
        }
        self.decide_many(checks, charge)
    }

    pub(super) fn void_receipts(&self) {
        self.voided.fetch_add(1, Relaxed);
    }

    /// Forgets a key.
    pub(super) fn reset(&self, level: &Level, key: &[u8]) -> bool {
        let print = self.seeds.fingerprint(level.scope, key);
        let Locked { shard, refused } = self.locked(print);
        let mut shard = shard.lock();
        refused.forget(print);
        let place = shard.find(print);
        if let Some(place) = place {
            shard.void_receipts();
            shard.remove(place, &self.bounds);
        }
        place.is_some()
    }

    /// Gives back what a check of these levels charged, key by key.
    pub(super) fn refund(&self, checks: &[Check<'_>], receipt: &Receipt) {
        if receipt.voided != self.voided.load(Relaxed) {
            return;
        }
        for (index, (check, charged)) in checks.iter().zip(&receipt.levels).enumerate() {
            // A key that occurred twice was charged, as one, for both.
            let twin = |other: &Check<'_>| {
                other.key == check.key && other.level.scope == check.level.scope
            };
            if !checks[..index].iter().any(twin) {
                self.refund_one(check.level, check.key, receipt.decided_at_us, charged);
            }
        }
    }

    fn refund_one(&self, level: &Level, key: &[u8], decided_at_us: u64, charged: &Charged) {
        let print = self.seeds.fingerprint(level.scope, key);
        let before_us = self.clock_before_locks();
        let Locked { shard, refused } = self.locked(print);
        let mut shard = shard.lock();
        refused.forget(print);
        let now_us = self.clock_under_locks(before_us, [&mut *shard]);
        let Seen {
            place: Some(place),
            stored: Some((limit, _)),
            view,
            outdated: false,
        } = self.see(&shard, print, level, now_us)
        else {
            return;
        };
        // Better too little than too much.
        if [charged.limit, limit] != [level.id; 2]
            || charged.voided != shard.voided
            || now_us < decided_at_us
        {
            return;
        }
        let (cost, mark_us) = (charged.cost, charged.mark_us);
        // Where nothing is given back, nothing is written.
        let view = match view {
            View::TokenBucket(limit, state) => {
                let after = limit.refund(state, cost, decided_at_us);
                (after != state).then_some(View::TokenBucket(limit, after))
            }
            View::FixedWindow(limit, state) => {
                let after = limit.refund(state, cost, mark_us);
                (after != state).then_some(View::FixedWindow(limit, after))
            }
            View::SlidingWindow(limit, state) => {
                let after = limit.refund(state, cost, mark_us);
                (after != state).then_some(View::SlidingWindow(limit, after))
            }
            View::SlidingLog(limit, view, Some(log)) => {
                let (header, records) = shard.log_mut(log);
                let after = limit.refund(header, records, view, cost, mark_us);
                (after != view).then_some(View::SlidingLog(limit, after, Some(log)))
            }
            View::SlidingLog(_, _, None) | View::Block => None,
        };
        if let Some(state) = view.and_then(|view| view.pack()) {
            shard.write(place, print, level.id, state);
        }
    }

    /// Finds a level's key and brings its state to this instant.
    pub(super) fn see<'l>(
        &self,
        shard: &Shard<M>,
        print: Fingerprint,
        level: &'l Level,
        now_us: u64,
    ) -> Seen<'l> {
        let place = shard.find(print);
        let stored = place.map(|place| shard.read(place));
        let log = stored.and_then(|(limit, state)| shard.owned_log(limit, state));
        match stored {
            Some((limit, state)) if state.fresh_at_us > now_us => {
                let old = if limit == level.id {
                    Some(level.limit)
                } else {
                    self.limits.get(limit)
                };
                let (view, outdated) = View::load(&level.limit, old.as_ref(), state, log, now_us);
                Seen {
                    place,
                    stored,
                    view,
                    outdated,
                }
            }
            _ => Seen {
                place,
                stored,
                view: View::new(&level.limit, log, now_us),
                outdated: false,
            },
        }
    }

    /// Frees log bytes in this shard, then in others that nobody holds.
    #[cold]
    pub(super) fn reclaim_logs(
        &self,
        shard: &mut Shard<M>,
        needed: u32,
        now_us: u64,
        pinned: &[Fingerprint],
    ) {
        // A ring that grows is there twice for a moment.
        let bytes = ring_bytes(needed).saturating_mul(2);
        if bytes > self.bounds.max_log_bytes {
            return;
        }
        let mut freed = shard.reclaim_logs(bytes, now_us, &self.bounds, pinned);
        for _ in 0..RECLAIM_SHARDS.min(self.shards.len()) {
            if freed >= bytes {
                return;
            }
            let next = self.hand.fetch_add(1, Relaxed) % self.shards.len();
            // Only tries: this thread holds locks, and waiting for one of a lower
            // number could be for ever.
            if let Some(mut other) = self.shards[next].shard.try_lock() {
                freed += other.reclaim_logs(bytes - freed, now_us, &self.bounds, &[]);
            }
        }
    }

    #[inline]
    pub(super) fn shard_number(&self, print: Fingerprint) -> usize {
        (print.high as usize * self.shards.len()) >> HIGH_BITS
    }

    #[inline]
    pub(super) fn locked(&self, print: Fingerprint) -> &Locked<R, M> {
        &self.shards[self.shard_number(print)]
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
        shards: impl IntoIterator<Item = &'s mut Shard<M>>,
    ) -> u64
    where
        M: 's,
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
