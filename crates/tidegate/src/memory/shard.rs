//! One shard: buckets of entries. The logs that some of them own are in `logs.rs`.
//!
//! A key has two candidate buckets. It goes to the first with a free slot; when
//! both are full, entries move to their own other bucket to make room (a cuckoo
//! hash), and when that fails the shard is rebuilt a little larger, leaving out
//! the keys that are as good as new. So entries lie packed to nine tenths or more,
//! and since a shard holds about a thousand keys, a rebuild takes microseconds.
//!
//! When the store's bound on keys is reached, a new key first sweeps a few buckets
//! for keys as good as new, and then takes the place of the one nearest to that,
//! or is refused. Nothing ever looks at all keys.

use std::sync::atomic::Ordering::Relaxed;

use smallvec::SmallVec;

use super::bounds::{Bounds, Full, WhenFull};
use super::bucket::{Bucket, Entry, LimitId, Packed, SLOTS, relocate};
use super::fingerprint::Fingerprint;
use super::logs::owned_log;
use super::region::Region;

/// Buckets that an insertion at the bound sweeps for keys as good as new.
const SWEEP: u32 = 16;

/// Entries that may move to make room for one. With three, buckets fill to 96 %
/// on average before a shard must be rebuilt; with two, to 92 %.
const MOVES: usize = 3;

/// Where an entry lies: bucket and slot.
pub(super) type Place = (usize, usize);

/// A part of the table, behind one lock.
#[derive(Default)]
pub(crate) struct Shard<M> {
    pub(super) region: M,
    /// The latest time the shard was read at, on a clock that never goes back.
    pub(super) latest_us: u64,
    /// Entries held.
    len: u32,
    /// Logs held.
    pub(super) logs: u32,
    /// The next bucket to sweep.
    hand: u32,
    /// A part of the hash of the key that was refused last.
    suspect: u16,
    /// How often receipts for keys of this shard have become void: with a step of the
    /// clock, a change of a limit, or a reset, nobody can say what an earlier charge
    /// still counts for.
    pub(super) voided: u16,
}

impl<M: Region> Shard<M> {
    #[inline]
    pub(super) fn find(&self, print: Fingerprint) -> Option<Place> {
        let buckets = self.region.buckets();
        let [first, second] = candidates(print, buckets.len());
        let slot = buckets.get(first)?.find(print);
        slot.map(|slot| (first, slot))
            .or_else(|| Some((second, buckets[second].find(print)?)))
    }

    /// Notes a refusal, and says whether the last one was of the same key, too.
    #[inline]
    pub(super) fn refused_again(&mut self, print: Fingerprint) -> bool {
        #[expect(clippy::cast_possible_truncation, reason = "a part is enough")]
        let part = print.low as u16;
        std::mem::replace(&mut self.suspect, part) == part
    }

    /// Makes receipts for keys of this shard worth nothing.
    pub(super) fn void_receipts(&mut self) {
        self.voided = self.voided.wrapping_add(1);
    }

    #[inline]
    pub(super) fn read(&self, (bucket, slot): Place) -> (LimitId, Packed) {
        let bucket = &self.region.buckets()[bucket];
        (bucket.limit(slot), bucket.read(slot))
    }

    /// Overwrites an entry. A log the new state does not own is closed by the
    /// caller.
    #[inline]
    pub(super) fn write(
        &mut self,
        (bucket, slot): Place,
        print: Fingerprint,
        limit: LimitId,
        state: Packed,
    ) {
        self.region.buckets_mut()[bucket].write(slot, print, limit, state);
    }

    /// Adds a key that is not there. Keys in `pinned` are not evicted for it.
    pub(super) fn insert(
        &mut self,
        print: Fingerprint,
        limit: LimitId,
        state: Packed,
        now_us: u64,
        bounds: &Bounds,
        pinned: &[Fingerprint],
    ) -> Result<(), Full> {
        if !bounds.take_key() {
            self.make_room(print, now_us, bounds, pinned)?;
        }
        while !place(self.region.buckets_mut(), print, limit, state) {
            // Dead wood first: entries in the way that are as good as new.
            let held = self.len;
            for bucket in candidates(print, self.region.buckets().len()) {
                self.sweep(bucket, now_us, bounds, pinned);
            }
            if self.len < held {
                continue;
            }
            if M::GROWS {
                self.rebuild((print, limit, state), now_us, bounds, pinned);
                break;
            }
            // The evicted key's quota, or the new one's: either way one too many.
            let own = candidates(print, self.region.buckets().len());
            let made = self.evict(self.nearest(own, pinned), now_us, bounds);
            bounds.keys.give_back(1);
            made?;
        }
        self.len += 1;
        Ok(())
    }

    /// Removes an entry and the log it owns.
    pub(super) fn remove(&mut self, place: Place, bounds: &Bounds) {
        self.clear(place, bounds);
        bounds.keys.give_back(1);
    }

    /// Removes an entry, whose quota passes to the caller.
    fn clear(&mut self, (bucket, slot): Place, bounds: &Bounds) {
        let (limit, state) = self.read((bucket, slot));
        if let Some(log) = owned_log(limit, state) {
            self.close_log(log, bounds);
        }
        self.region.buckets_mut()[bucket].clear(slot);
        self.len -= 1;
    }

    /// Comes by the quota for a new key when there is none left: from keys as
    /// good as new, or by [`evict`](Self::evict).
    #[cold]
    fn make_room(
        &mut self,
        print: Fingerprint,
        now_us: u64,
        bounds: &Bounds,
        pinned: &[Fingerprint],
    ) -> Result<(), Full> {
        let nearby = self.nearby(print);
        self.hand = self.hand.wrapping_add(SWEEP);
        for &bucket in &nearby {
            self.sweep(bucket, now_us, bounds, pinned);
        }
        if bounds.take_key() {
            return Ok(());
        }
        // Hardly ever is there nothing close by.
        let everywhere = 0..self.region.buckets().len();
        let nearest = self
            .nearest(nearby, pinned)
            .or_else(|| self.nearest(everywhere, pinned));
        self.evict(nearest, now_us, bounds)
    }

    /// Removes this entry, where that is allowed, for a new key, which gets its
    /// quota.
    fn evict(
        &mut self,
        nearest: Option<(u64, Place)>,
        now_us: u64,
        bounds: &Bounds,
    ) -> Result<(), Full> {
        let Some((fresh_at_us, place)) = nearest else {
            return Err(Full { retry_after_us: 1 });
        };
        if bounds.when_full == WhenFull::Deny {
            return Err(Full {
                retry_after_us: fresh_at_us.saturating_sub(now_us).max(1),
            });
        }
        bounds
            .evicted
            .fetch_add(u64::from(fresh_at_us > now_us), Relaxed);
        self.clear(place, bounds);
        Ok(())
    }

    /// Whether a new key would be refused for want of room.
    pub(super) fn is_full_for(
        &self,
        print: Fingerprint,
        now_us: u64,
        bounds: &Bounds,
    ) -> Option<Full> {
        if bounds.when_full == WhenFull::Evict || bounds.keys.held() < bounds.max_keys {
            return None;
        }
        let nearest = self.nearest(self.nearby(print), &[]);
        let fresh_at_us = nearest.map_or(now_us + 1, |(fresh_at_us, _)| fresh_at_us);
        let retry_after_us = fresh_at_us
            .checked_sub(now_us)
            .filter(|&wait_us| wait_us > 0)?;
        Some(Full { retry_after_us })
    }

    /// The buckets of a key, and a few more that change from call to call.
    fn nearby(&self, print: Fingerprint) -> SmallVec<[usize; 2 + SWEEP as usize]> {
        let (count, hand) = (self.region.buckets().len(), self.hand as usize);
        let more = (0..count.min(SWEEP as usize)).map(|step| (hand + step) % count);
        let own = candidates(print, count)
            .into_iter()
            .filter(|&bucket| bucket < count);
        own.chain(more).collect()
    }

    /// The entry in these buckets that will be as good as new first, and when.
    fn nearest(
        &self,
        buckets: impl IntoIterator<Item = usize>,
        pinned: &[Fingerprint],
    ) -> Option<(u64, Place)> {
        let entries = |bucket: usize| {
            let entry = &self.region.buckets()[bucket];
            (0..SLOTS).filter_map(move |slot| {
                let free = !entry.is_empty(slot) && !pinned.contains(&entry.fingerprint(slot));
                free.then(|| (entry.fresh_at_us(slot), (bucket, slot)))
            })
        };
        buckets.into_iter().flat_map(entries).min()
    }

    /// Drops the keys of a bucket that are as good as new.
    fn sweep(&mut self, bucket: usize, now_us: u64, bounds: &Bounds, pinned: &[Fingerprint]) {
        for slot in 0..SLOTS {
            let Some(entry) = self.region.buckets().get(bucket) else {
                return;
            };
            if !entry.is_empty(slot)
                && entry.fresh_at_us(slot) <= now_us
                && !pinned.contains(&entry.fingerprint(slot))
            {
                self.remove((bucket, slot), bounds);
            }
        }
    }

    /// Moves the keys still in use, and a new one, to new buckets with a little
    /// room to spare.
    #[cold]
    fn rebuild(&mut self, new: Entry, now_us: u64, bounds: &Bounds, pinned: &[Fingerprint]) {
        for bucket in 0..self.region.buckets().len() {
            self.sweep(bucket, now_us, bounds, pinned);
        }
        // Far from the bound speed matters more than space.
        let spare = if bounds.keys.held() < bounds.max_keys / 2 {
            3
        } else {
            8
        };
        let mut slots = self.len as usize + 1;
        loop {
            slots += slots.div_ceil(spare);
            let mut buckets = vec![Bucket::EMPTY; slots.div_ceil(SLOTS)].into_boxed_slice();
            let old = self.region.buckets().iter().flat_map(Bucket::entries);
            if old
                .chain([new])
                .all(|(print, limit, state)| place(&mut buckets, print, limit, state))
            {
                self.region.replace(buckets);
                return;
            }
        }
    }
}

/// The two buckets a key may lie in.
#[inline]
fn candidates(print: Fingerprint, buckets: usize) -> [usize; 2] {
    let pick = |hash: u64| ((hash * buckets as u64) >> 32) as usize;
    [pick(print.low & 0xffff_ffff), pick(print.low >> 32)]
}

/// Writes an entry into one of its buckets, moving others aside where needed.
fn place(buckets: &mut [Bucket], print: Fingerprint, limit: LimitId, state: Packed) -> bool {
    if buckets.is_empty() {
        return false;
    }
    let both = candidates(print, buckets.len());
    let free = both
        .into_iter()
        .find_map(|bucket| Some((bucket, buckets[bucket].find_empty()?)))
        .or_else(|| {
            (1..=MOVES).find_map(|moves| {
                both.into_iter()
                    .find_map(|bucket| Some((bucket, move_aside(buckets, bucket, moves)?)))
            })
        });
    let Some((bucket, slot)) = free else {
        return false;
    };
    buckets[bucket].write(slot, print, limit, state);
    true
}

/// Frees a slot of a full bucket with at most so many moves.
fn move_aside(buckets: &mut [Bucket], bucket: usize, moves: usize) -> Option<usize> {
    (0..SLOTS).find(|&slot| {
        let [first, second] = candidates(buckets[bucket].fingerprint(slot), buckets.len());
        let other = if first == bucket { second } else { first };
        let free = match buckets[other].find_empty() {
            None if moves > 1 && other != bucket => move_aside(buckets, other, moves - 1),
            free => free,
        };
        free.inspect(|&free| relocate(buckets, (bucket, slot), (other, free)))
            .is_some()
    })
}

#[cfg(test)]
mod tests {
    use super::super::fingerprint::Seeds;
    use super::super::region::{Heap, LogId};
    use super::*;
    use crate::algorithm::{LogHeader, LogRecord};

    /// Memory of a fixed size, as several processes could share it: an array of
    /// buckets and an array of rings, without a pointer in either.
    struct Fixed {
        buckets: [Bucket; 8],
        /// The length of each ring in use, or 0.
        rings: [(usize, LogHeader, [LogRecord; 16]); 2],
    }

    impl Default for Fixed {
        fn default() -> Self {
            let ring = (0, LogHeader::default(), [LogRecord::default(); 16]);
            Self {
                buckets: [Bucket::EMPTY; 8],
                rings: [ring; 2],
            }
        }
    }

    impl Region for Fixed {
        const GROWS: bool = false;

        fn buckets(&self) -> &[Bucket] {
            &self.buckets
        }

        fn buckets_mut(&mut self) -> &mut [Bucket] {
            &mut self.buckets
        }

        fn replace(&mut self, _: Box<[Bucket]>) {
            unreachable!("this region does not grow");
        }

        fn log(&self, id: LogId) -> (&LogHeader, &[LogRecord]) {
            let (len, header, records) = &self.rings[id as usize];
            (header, &records[..*len])
        }

        fn log_mut(&mut self, id: LogId) -> (&mut LogHeader, &mut [LogRecord]) {
            let (len, header, records) = &mut self.rings[id as usize];
            (header, &mut records[..*len])
        }

        fn open_log(&mut self, records: u32) -> Option<LogId> {
            let free = self.rings.iter().position(|(len, ..)| *len == 0);
            let free = free.filter(|_| records <= 16)?;
            self.rings[free] = (records as usize, LogHeader::default(), Default::default());
            LogId::try_from(free).ok()
        }

        fn close_log(&mut self, id: LogId) {
            self.rings[id as usize].0 = 0;
        }
    }

    struct Test<M> {
        shard: Shard<M>,
        bounds: Bounds,
        seeds: Seeds,
    }

    impl<M: Region + Default> Test<M> {
        fn new(max_keys: usize, when_full: WhenFull) -> Self {
            Self {
                shard: Shard::default(),
                bounds: Bounds::new(max_keys, 1 << 20, when_full),
                seeds: Seeds::random(),
            }
        }

        fn print(&self, key: u32) -> Fingerprint {
            self.seeds
                .fingerprint(self.seeds.scope("test"), &key.to_le_bytes())
        }

        fn insert(&mut self, key: u32, fresh_at_us: u64, now_us: u64) -> Result<(), Full> {
            let print = self.print(key);
            let state = Packed {
                fresh_at_us,
                data: u64::from(key),
                extra: 0,
            };
            self.shard
                .insert(print, 1, state, now_us, &self.bounds, &[print])
        }

        fn holds(&self, key: u32) -> bool {
            let place = self.shard.find(self.print(key));
            place.is_some_and(|place| self.shard.read(place).1.data == u64::from(key))
        }

        fn evicted(&self) -> u64 {
            self.bounds.stats().evicted
        }
    }

    #[test]
    fn a_shard_packs_its_keys_tightly_and_loses_none() {
        let mut test = Test::<Heap>::new(1_000, WhenFull::Deny);
        for key in 0..1_000 {
            test.insert(key, 10, 0).unwrap();
        }
        assert!((0..1_000).all(|key| test.holds(key)));
        let slots = test.shard.region.buckets().len() * SLOTS;
        assert!(slots <= 1_000 * 100 / 88, "{slots} slots for 1,000 keys");
        assert!(test.insert(1_000, 10, 0).is_err());
        assert_eq!(test.bounds.stats().keys, 1_000);
    }

    #[test]
    fn memory_of_a_fixed_size_holds_what_it_can() {
        for when_full in [WhenFull::Evict, WhenFull::Deny] {
            let mut test = Test::<Fixed>::new(1_000, when_full);
            let inserted: Vec<bool> = (0..100)
                .map(|key| test.insert(key, 10, 0).is_ok())
                .collect();
            let held = (0..100).filter(|&key| test.holds(key)).count();
            assert!((24..=32).contains(&held), "{held} of 32");
            assert_eq!(test.bounds.stats().keys, held);
            let refused = inserted.iter().filter(|inserted| !**inserted).count();
            match when_full {
                WhenFull::Evict => assert_eq!((refused, test.evicted()), (0, 100 - held as u64)),
                WhenFull::Deny => assert_eq!((refused, test.evicted()), (100 - held, 0)),
            }
        }
    }

    #[test]
    fn rings_in_memory_of_a_fixed_size_are_given_out_and_taken_back() {
        let mut test = Test::<Fixed>::new(10, WhenFull::Deny);
        let mut fit = |log, needed| test.shard.fit_log(log, needed, 16, &test.bounds);
        let (first, second) = (fit(None, 1).unwrap(), fit(None, 16).unwrap());
        assert_eq!((first, second), (0, 1));
        assert_eq!(fit(None, 1), None);
        assert_eq!(fit(Some(first), 17), None);
        test.shard.close_log(second, &test.bounds);
        assert_eq!(test.shard.fit_log(None, 3, 16, &test.bounds), Some(second));
    }

    #[test]
    fn keys_as_good_as_new_make_room_before_keys_in_use() {
        let mut test = Test::<Heap>::new(64, WhenFull::Evict);
        for key in 0..64 {
            // Every other key is as good as new at 10.
            test.insert(key, if key % 2 == 0 { 10 } else { 1_000 }, 0)
                .unwrap();
        }
        for key in 64..96 {
            test.insert(key, 1_000, 10).unwrap();
        }
        assert_eq!(test.evicted(), 0);
        assert!((0..64).all(|key| test.holds(key) == (key % 2 == 1)));
        // Now all are in use, and the one nearest to being as good as new goes.
        test.insert(96, 2_000, 10).unwrap();
        assert_eq!((test.evicted(), test.bounds.stats().keys), (1, 64));
    }
}
