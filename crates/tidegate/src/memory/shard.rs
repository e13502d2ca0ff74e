//! One shard: buckets of entries. The logs that some of them own are in `logs.rs`.
//!
//! A key has two candidate buckets. It goes to the first with a free slot; when
//! both are full, entries move to their own other bucket to make room (a cuckoo
//! hash), and when that fails the shard is rebuilt a little larger, leaving out
//! the keys whose quota is full again. So entries lie packed to nine tenths or more,
//! and since a shard holds a few hundred keys, a rebuild takes microseconds.
//!
//! A key whose quota is full again is *dead*: dropping it changes nothing. When the
//! store's bound on keys is reached, a new key first sweeps its shard for dead keys,
//! unless it is known that there are none yet, and then takes the place of a live one
//! whose quota is full again soon, or is refused. Nothing ever looks at all keys.

use std::sync::atomic::Ordering::Relaxed;

use smallvec::SmallVec;

use super::bounds::{Bounds, Full, WhenFull};
use super::bucket::{Bucket, Entry, LimitId, SLOTS, relocate};
use super::fingerprint::Fingerprint;
use super::home::Region;
use super::notes::Notes;
use crate::algorithm::Packed;

/// Buckets among which an insertion at the bound looks for a live key to evict.
const SAMPLE: usize = 16;

/// Entries that may move to make room for one. With three, buckets fill to 96 %
/// on average before a shard must be rebuilt; with two, to 92 %.
const MOVES: usize = 3;

/// Where an entry lies: bucket and slot.
pub(super) type SlotIndex = (usize, usize);

/// What dropping keys depends on.
#[derive(Clone, Copy)]
pub(super) struct Upkeep<'a> {
    pub(super) now_us: u64,
    pub(super) bounds: &'a Bounds,
    /// Keys that stay.
    pub(super) pinned: &'a [Fingerprint],
}

impl Upkeep<'_> {
    pub(super) fn keeps(&self, print: Fingerprint) -> bool {
        self.pinned.contains(&print)
    }
}

/// A part of the table, behind one lock.
#[derive(Default)]
pub(crate) struct Shard<M> {
    pub(super) region: M,
    /// The latest time the shard was read at, on a clock that never goes back.
    pub(super) latest_us: u64,
    /// No entry is dead before this instant.
    pub(super) earliest_us: u64,
    /// Entries held.
    len: u32,
    /// A part of the hash of the key that was refused last.
    suspect: u16,
}

impl<M: Region> Shard<M> {
    #[inline(always)]
    pub(super) fn find(&self, print: Fingerprint) -> Option<SlotIndex> {
        let buckets = self.region.buckets();
        let first = pick(print.low & 0xffff_ffff, buckets.len());
        if let Some(slot) = buckets.get(first)?.find(print) {
            return Some((first, slot));
        }
        let second = pick(print.low >> 32, buckets.len());
        Some((second, buckets[second].find(print)?))
    }

    /// The buckets that a key may lie in.
    #[inline]
    pub(super) fn candidates(&self, print: Fingerprint) -> impl Iterator<Item = &Bucket> {
        let buckets = self.region.buckets();
        let both = candidates(print, buckets.len()).into_iter();
        both.filter_map(|bucket| buckets.get(bucket))
    }

    /// Notes a refusal, and says whether the last one was of the same key, too.
    #[inline]
    pub(super) fn refused_again(&mut self, print: Fingerprint) -> bool {
        #[expect(clippy::cast_possible_truncation, reason = "a part is enough")]
        let part = print.low as u16;
        std::mem::replace(&mut self.suspect, part) == part
    }

    /// Makes the receipts of a key void that were given out so far.
    pub(super) fn void_receipts(&mut self, print: Fingerprint, stored: Packed, now_us: u64) {
        // A charge counts for no longer than the key's whole state.
        if let Some(side) = self.region.side_mut() {
            side.notes.void(print.low, stored.fresh_at_us, now_us);
        }
    }

    #[inline]
    pub(super) fn notes(&self) -> Option<&Notes> {
        self.region.side().map(|side| &side.notes)
    }

    /// What receipts given out now have to know, to be void when they should.
    #[inline]
    pub(super) fn era(&self) -> u32 {
        self.notes().map_or(0, Notes::era)
    }

    #[inline]
    pub(super) fn read(&self, (bucket, slot): SlotIndex) -> (LimitId, Packed) {
        let bucket = &self.region.buckets()[bucket];
        (bucket.limit(slot), bucket.read(slot))
    }

    /// Overwrites an entry. A log the new state does not own is closed by the
    /// caller.
    #[inline]
    pub(super) fn write(&mut self, (bucket, slot): SlotIndex, entry: Entry) {
        self.region.buckets_mut()[bucket].write(slot, entry);
    }

    /// [`write`](Self::write), for a state whose quota may be full earlier than before.
    pub(super) fn rewrite(&mut self, place: SlotIndex, entry: Entry) {
        self.earliest_us = self.earliest_us.min(entry.2.fresh_at_us);
        self.write(place, entry);
    }

    /// Adds a key that is not there.
    pub(super) fn insert(&mut self, entry: Entry, upkeep: &Upkeep<'_>) -> Result<(), Full> {
        let (print, _, state) = entry;
        if !upkeep.bounds.take_key() {
            self.make_room(print, upkeep)?;
        }
        if self.len == 0 {
            self.earliest_us = u64::MAX;
        }
        self.earliest_us = self.earliest_us.min(state.fresh_at_us);
        while !place(self.region.buckets_mut(), entry) {
            // Dead entries in the way go first.
            let held = self.len;
            for bucket in candidates(print, self.region.buckets().len()) {
                self.sweep(bucket, upkeep);
            }
            if self.len < held {
                continue;
            }
            if self.region.growing().is_some() {
                self.rebuild(entry, upkeep);
                break;
            }
            // The evicted key's quota, or the new one's: either way one too many.
            let own = candidates(print, self.region.buckets().len());
            let made = self.evict(self.nearest(own, upkeep), upkeep);
            upkeep.bounds.keys.give_back(1);
            made?;
        }
        self.len += 1;
        Ok(())
    }

    /// Removes an entry and the log it owns.
    pub(super) fn remove(&mut self, place: SlotIndex, bounds: &Bounds) {
        self.clear(place, bounds);
        bounds.keys.give_back(1);
    }

    /// Removes an entry, whose quota passes to the caller.
    fn clear(&mut self, (bucket, slot): SlotIndex, bounds: &Bounds) {
        let (limit, state) = self.read((bucket, slot));
        self.close_log(limit, state, bounds);
        self.region.buckets_mut()[bucket].clear(slot);
        self.len -= 1;
    }

    /// Comes by the quota for a new key when there is none left: from dead keys, or by
    /// [`evict`](Self::evict).
    #[cold]
    fn make_room(&mut self, print: Fingerprint, upkeep: &Upkeep<'_>) -> Result<(), Full> {
        if self.earliest_us <= upkeep.now_us {
            self.sweep_all(upkeep);
            if upkeep.bounds.take_key() {
                return Ok(());
            }
        }
        // Hardly ever is there nothing close by.
        let everywhere = 0..self.region.buckets().len();
        let nearest = self
            .nearest(self.sample(print), upkeep)
            .or_else(|| self.nearest(everywhere, upkeep));
        self.evict(nearest, upkeep)
    }

    /// Drops all dead keys, and finds out when the next one dies.
    pub(super) fn sweep_all(&mut self, upkeep: &Upkeep<'_>) {
        let mut earliest_us = u64::MAX;
        for bucket in 0..self.region.buckets().len() {
            self.sweep(bucket, upkeep);
            let entry = &self.region.buckets()[bucket];
            for slot in 0..SLOTS {
                if !entry.is_empty(slot) {
                    earliest_us = earliest_us.min(entry.fresh_at_us(slot));
                }
            }
        }
        self.earliest_us = earliest_us;
    }

    /// The limits that its entries were written under.
    pub(super) fn limits(&self) -> impl Iterator<Item = LimitId> {
        let buckets = self.region.buckets().iter();
        buckets.flat_map(Bucket::entries).map(|(_, limit, _)| limit)
    }

    /// Forgets all keys, whatever state they are in. A key that was on its way in or out may
    /// stay counted in the bounds.
    #[cold]
    pub(super) fn wipe(&mut self, bounds: &Bounds) {
        let held = self.region.buckets().iter().flat_map(Bucket::entries);
        let held = held.count().max(self.len as usize);
        self.region.buckets_mut().fill(Bucket::EMPTY);
        self.len = 0;
        bounds.keys.give_back(held);
    }

    /// Removes this entry, where that is allowed, for a new key, which gets its
    /// quota.
    fn evict(
        &mut self,
        nearest: Option<(u64, SlotIndex)>,
        upkeep: &Upkeep<'_>,
    ) -> Result<(), Full> {
        let &Upkeep { now_us, bounds, .. } = upkeep;
        let Some((fresh_at_us, place)) = nearest else {
            return Err(Full { retry_after_us: 1 });
        };
        if bounds.when_full() == WhenFull::Deny {
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
    pub(super) fn is_full_for(&self, now_us: u64, bounds: &Bounds) -> Option<Full> {
        if bounds.when_full() == WhenFull::Evict || bounds.keys.held() < bounds.max_keys() {
            return None;
        }
        let everywhere = 0..self.region.buckets().len();
        let upkeep = Upkeep {
            now_us,
            bounds,
            pinned: &[],
        };
        let nearest = self.nearest(everywhere, &upkeep);
        let fresh_at_us = nearest.map_or(now_us + 1, |(fresh_at_us, _)| fresh_at_us);
        let retry_after_us = fresh_at_us
            .checked_sub(now_us)
            .filter(|&wait_us| wait_us > 0)?;
        Some(Full { retry_after_us })
    }

    /// The buckets of a key, and a few more that depend on the key.
    fn sample(&self, print: Fingerprint) -> SmallVec<[usize; 2 + SAMPLE]> {
        let count = self.region.buckets().len();
        let [first, second] = candidates(print, count);
        let more = (1..=SAMPLE).map(|step| (first + step) % count.max(1));
        [first, second]
            .into_iter()
            .chain(more)
            .filter(|&bucket| bucket < count)
            .collect()
    }

    /// The entry in these buckets that dies first, and when.
    fn nearest(
        &self,
        buckets: impl IntoIterator<Item = usize>,
        upkeep: &Upkeep<'_>,
    ) -> Option<(u64, SlotIndex)> {
        let entries = |bucket: usize| {
            let entry = &self.region.buckets()[bucket];
            (0..SLOTS).filter_map(move |slot| {
                let free = !entry.is_empty(slot) && !upkeep.keeps(entry.fingerprint(slot));
                free.then(|| (entry.fresh_at_us(slot), (bucket, slot)))
            })
        };
        buckets.into_iter().flat_map(entries).min()
    }

    /// Drops the dead keys of a bucket.
    fn sweep(&mut self, bucket: usize, upkeep: &Upkeep<'_>) {
        for slot in 0..SLOTS {
            let Some(entry) = self.region.buckets().get(bucket) else {
                return;
            };
            if !entry.is_empty(slot)
                && entry.fresh_at_us(slot) <= upkeep.now_us
                && !upkeep.keeps(entry.fingerprint(slot))
            {
                self.remove((bucket, slot), upkeep.bounds);
            }
        }
    }

    /// Moves the keys still in use, and a new one, to new buckets with a little
    /// room to spare.
    #[cold]
    fn rebuild(&mut self, new: Entry, upkeep: &Upkeep<'_>) {
        self.sweep_all(upkeep);
        self.earliest_us = self.earliest_us.min(new.2.fresh_at_us);
        // Far from the bound speed matters more than space.
        let spare = if upkeep.bounds.keys.held() < upkeep.bounds.max_keys() / 2 {
            3
        } else {
            8
        };
        let mut slots = self.len as usize + 1;
        loop {
            slots += slots.div_ceil(spare);
            let mut buckets = vec![Bucket::EMPTY; slots.div_ceil(SLOTS)].into_boxed_slice();
            let entries = self.region.buckets().iter().flat_map(Bucket::entries);
            if entries.chain([new]).all(|it| place(&mut buckets, it)) {
                if let Some(grown) = self.region.growing() {
                    *grown = buckets;
                }
                return;
            }
        }
    }
}

/// The two buckets a key may lie in.
#[inline]
fn candidates(print: Fingerprint, buckets: usize) -> [usize; 2] {
    [print.low & 0xffff_ffff, print.low >> 32].map(|hash| pick(hash, buckets))
}

/// One of the buckets, by 32 bits of a hash.
#[inline]
fn pick(hash: u64, buckets: usize) -> usize {
    ((hash * buckets as u64) >> 32) as usize
}

/// Writes an entry into one of its buckets, moving others aside where needed.
fn place(buckets: &mut [Bucket], entry: Entry) -> bool {
    if buckets.is_empty() {
        return false;
    }
    let both = candidates(entry.0, buckets.len());
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
    buckets[bucket].write(slot, entry);
    true
}

/// Frees a slot of a full bucket with at most `moves` moves.
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
