//! Which keys occur most often in a stream, in bounded memory: the Space-Saving sketch of
//! Metwally, Agrawal and El Abbadi.
//!
//! There are [`COUNTERS`] counters. A key that has one adds to it. A key that has none
//! takes the smallest, and goes on from its value. So for any key, with `min` the smallest
//! counter and `N` everything that was added:
//!
//! - a key with a counter occurred at most as often as that says, and at least `min` less;
//! - a key without one occurred at most `min` times;
//! - `min` is at most `N / COUNTERS`, and 0 until all counters are in use.
//!
//! Example, with two counters: `a b a a c` leaves `a` at 3 and `c` at 2, where 1 is right;
//! `min` is 2.

/// Keys that are counted at once.
pub(crate) const COUNTERS: usize = 256;

/// A sketch. Counters lie in the order in which they came into use.
#[derive(Debug, Default)]
pub(crate) struct Sketch {
    hashes: Vec<u64>,
    counts: Vec<u64>,
    keys: Vec<Box<[u8]>>,
    /// The largest weight of an addition.
    heaviest: u64,
}

impl Sketch {
    /// Adds a weight to a key, which its hash tells from others.
    pub(crate) fn add(&mut self, hash: u64, key: &[u8], weight: u64) {
        self.heaviest = self.heaviest.max(weight);
        // A few hundred numbers in a row are searched faster than a table is kept.
        if let Some(place) = self.hashes.iter().position(|other| *other == hash) {
            self.counts[place] = self.counts[place].saturating_add(weight);
            return;
        }
        if self.hashes.len() < COUNTERS {
            self.hashes.push(hash);
            self.counts.push(weight);
            self.keys.push(key.into());
            return;
        }
        let smallest = self.counts.iter().enumerate().min_by_key(|(_, it)| **it);
        if let Some((place, _)) = smallest {
            self.hashes[place] = hash;
            self.counts[place] = self.counts[place].saturating_add(weight);
            self.keys[place] = key.into();
        }
    }

    /// By how much a count may be too large, and how often a key may have occurred that has
    /// no counter.
    pub(crate) fn error(&self) -> u64 {
        match self.counts.len() < COUNTERS {
            true => 0,
            false => self.counts.iter().copied().min().unwrap_or_default(),
        }
    }

    /// The largest weight of an addition.
    pub(crate) fn heaviest(&self) -> u64 {
        self.heaviest
    }

    /// The keys that have a counter: hash, key, count.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &[u8], u64)> {
        let keys = self.keys.iter().map(|key| &**key);
        let hashed = self.hashes.iter().copied().zip(keys);
        hashed
            .zip(&self.counts)
            .map(|((hash, key), count)| (hash, key, *count))
    }

    /// Forgets everything. The memory goes, too.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
}
