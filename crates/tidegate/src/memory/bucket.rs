//! Four entries side by side, as plain integers.
//!
//! An entry is 32 bytes: 83 bits of fingerprint, 16 of limit id, 157 of state. A
//! bucket keeps the four fingerprints and ids in its first cache line and the four
//! states in its second, so looking for a key in the wrong bucket costs one line.
//!
//! | word | bits |
//! | --- | --- |
//! | `low` | fingerprint, low 64 |
//! | `high` | fingerprint, high 19; limit id, 16; `extra`, low 29 |
//! | `time` | `extra`, high 11; `fresh_at_us`, 53 |
//! | `data` | `data`, 64 |

use std::hint;

use super::fingerprint::{Fingerprint, HIGH_BITS};
use crate::algorithm::Packed;

/// Entries in a bucket.
pub(super) const SLOTS: usize = 4;

const ID_BITS: u32 = 16;
const EXTRA_LOW_BITS: u32 = u64::BITS - HIGH_BITS - ID_BITS;
const TIME_BITS: u32 = 53;

/// The limit a state was written under. 0 marks an empty slot; ids with the top
/// bit set are of limits whose state owns a log.
pub(super) type LimitId = u16;

/// The bit of ids whose states own a log.
pub(super) const LOG_BIT: LimitId = 1 << 15;

/// A key with its state and the limit that was written under.
pub(super) type Entry = (Fingerprint, LimitId, Packed);

/// Four entries.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(128))]
pub(crate) struct Bucket {
    low: [u64; SLOTS],
    high: [u64; SLOTS],
    time: [u64; SLOTS],
    data: [u64; SLOTS],
}

impl Bucket {
    pub(super) const EMPTY: Self = Self {
        low: [0; SLOTS],
        high: [0; SLOTS],
        time: [0; SLOTS],
        data: [0; SLOTS],
    };

    /// A word of each of its cache lines.
    #[inline]
    pub(super) fn lines(&self) -> [&u64; 2] {
        [&self.low[0], &self.time[0]]
    }

    /// Compares all four without a branch: which of them matches is anybody's
    /// guess, and a wrong guess costs the processor more than three comparisons.
    #[inline]
    pub(super) fn find(&self, print: Fingerprint) -> Option<usize> {
        // Has the second line fetched while the first is looked at.
        hint::black_box(self.time[0]);
        let mut matches = (0..SLOTS).fold(0_u32, |matches, slot| {
            matches | u32::from(self.low[slot] == print.low) << slot
        });
        // One round, unless two keys meet in 64 bits.
        while matches != 0 {
            let slot = matches.trailing_zeros() as usize;
            if self.fingerprint(slot) == print {
                return Some(slot);
            }
            matches &= matches - 1;
        }
        None
    }

    pub(super) fn find_empty(&self) -> Option<usize> {
        self.low.iter().position(|&low| low == 0)
    }

    pub(super) fn is_empty(&self, slot: usize) -> bool {
        self.low[slot % SLOTS] == 0
    }

    pub(super) fn fingerprint(&self, slot: usize) -> Fingerprint {
        let high = self.high[slot % SLOTS] >> (ID_BITS + EXTRA_LOW_BITS);
        Fingerprint {
            low: self.low[slot % SLOTS],
            high: high as u32,
        }
    }

    #[expect(clippy::cast_possible_truncation, reason = "masked to 16 bits")]
    pub(super) fn limit(&self, slot: usize) -> LimitId {
        (self.high[slot % SLOTS] >> EXTRA_LOW_BITS) as u16
    }

    pub(super) fn fresh_at_us(&self, slot: usize) -> u64 {
        self.time[slot % SLOTS] & mask(TIME_BITS)
    }

    #[inline]
    pub(super) fn read(&self, slot: usize) -> Packed {
        let extra_low = self.high[slot % SLOTS] & mask(EXTRA_LOW_BITS);
        let extra_high = self.time[slot % SLOTS] >> TIME_BITS;
        Packed {
            fresh_at_us: self.fresh_at_us(slot),
            data: self.data[slot % SLOTS],
            extra: extra_high << EXTRA_LOW_BITS | extra_low,
        }
    }

    pub(super) fn entries(&self) -> impl Iterator<Item = Entry> {
        (0..SLOTS)
            .filter(|&slot| !self.is_empty(slot))
            .map(|slot| (self.fingerprint(slot), self.limit(slot), self.read(slot)))
    }

    /// Writes an entry. Of one that is there already, the first line mostly stays
    /// as it is and is then not written, so that threads which take turns with a
    /// key can keep their copies of it.
    #[inline]
    pub(super) fn write(&mut self, slot: usize, (print, limit, state): Entry) {
        debug_assert!(state.fresh_at_us <= mask(TIME_BITS), "{state:?}");
        debug_assert!(state.extra >> 40 == 0, "{state:?}");
        let slot = slot % SLOTS;
        let high = u64::from(print.high) << (ID_BITS + EXTRA_LOW_BITS)
            | u64::from(limit) << EXTRA_LOW_BITS
            | state.extra & mask(EXTRA_LOW_BITS);
        if (self.low[slot], self.high[slot]) != (print.low, high) {
            self.low[slot] = print.low;
            self.high[slot] = high;
        }
        self.time[slot] = state.extra >> EXTRA_LOW_BITS << TIME_BITS | state.fresh_at_us;
        self.data[slot] = state.data;
    }

    pub(super) fn clear(&mut self, slot: usize) {
        self.low[slot % SLOTS] = 0;
        self.high[slot % SLOTS] = 0;
    }
}

const fn mask(bits: u32) -> u64 {
    (1 << bits) - 1
}

/// Copies the entry in one place to an empty slot of another and clears the first.
pub(super) fn relocate(buckets: &mut [Bucket], from: (usize, usize), to: (usize, usize)) {
    let source = buckets[from.0];
    let target = &mut buckets[to.0];
    target.low[to.1] = source.low[from.1];
    target.high[to.1] = source.high[from.1];
    target.time[to.1] = source.time[from.1];
    target.data[to.1] = source.data[from.1];
    buckets[from.0].clear(from.1);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let mut bucket = Bucket::EMPTY;
        let all_ones = Packed {
            fresh_at_us: mask(53),
            data: u64::MAX,
            extra: mask(40),
        };
        let few = Packed {
            fresh_at_us: 7,
            data: 0,
            extra: 1 << 29,
        };
        let prints = [
            Fingerprint { low: 1, high: 0 },
            Fingerprint {
                low: u64::MAX,
                high: (1 << HIGH_BITS) - 1,
            },
        ];
        let entries = [
            (0, (prints[0], 1, all_ones)),
            (3, (prints[1], u16::MAX, few)),
        ];
        for (slot, entry) in entries {
            bucket.write(slot, entry);
        }
        for (slot, (print, limit, packed)) in entries {
            assert_eq!(bucket.find(print), Some(slot));
            assert_eq!(bucket.fingerprint(slot), print);
            assert_eq!((bucket.limit(slot), bucket.read(slot)), (limit, packed));
        }
        let meeting = Fingerprint { low: 1, high: 1 };
        assert_eq!(bucket.find(meeting), None);
        bucket.write(2, (meeting, 1, few));
        let found = [meeting, prints[0]].map(|print| bucket.find(print));
        assert_eq!(found, [Some(2), Some(0)]);
        bucket.clear(0);
        assert_eq!(bucket.find(prints[0]), None);
        assert_eq!(bucket.find_empty(), Some(0));
    }
}
