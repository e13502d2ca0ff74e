//! A key's stand-in in the table: 83 bits of a hash that is seeded anew for every
//! store.
//!
//! Keys themselves are not kept, so an entry has one size and a lookup touches no
//! other memory. Two keys that meet in all 83 bits would share a counter: with ten
//! million keys held and a million new ones a minute, that is expected once in
//! nearly two million years. The seeds are random, so nobody can look for such a
//! pair in advance.

use std::hash::{BuildHasher, Hasher, RandomState};

use foldhash::SharedSeed;
use foldhash::quality::FoldHasher;

use crate::algorithm::Algorithm;

/// Bits of [`Fingerprint::high`].
pub(super) const HIGH_BITS: u32 = 19;

/// What the table knows of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Fingerprint {
    /// Never 0. Chooses the buckets.
    pub(super) low: u64,
    /// Chooses the shard.
    pub(super) high: u32,
}

/// The random numbers of one store.
pub(super) struct Seeds([Seed; 2]);

struct Seed {
    shared: SharedSeed,
    random: RandomState,
}

/// The seeds of one level, which keep its keys apart from other levels'.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Scope([u64; 2]);

impl Seeds {
    pub(super) fn random() -> Self {
        Self([Seed::random(), Seed::random()])
    }

    pub(super) fn scope(&self, level: &str) -> Scope {
        let [first, second] = &self.0;
        Scope([first.random.hash_one(level), second.random.hash_one(level)])
    }

    #[inline]
    pub(super) fn fingerprint(&self, scope: Scope, key: &[u8]) -> Fingerprint {
        let [first, second] = &self.0;
        let low = first.hash(scope.0[0], key);
        let high = second.hash(scope.0[1], key) >> (u64::BITS - HIGH_BITS);
        Fingerprint {
            low: low.max(1),
            high: high as u32,
        }
    }
}

impl Scope {
    /// The keys of a level under this algorithm: each has its own counters.
    pub(super) fn of(self, algorithm: Algorithm) -> Self {
        self.varied(algorithm as u64)
    }

    /// The keys that are tuples of this length.
    #[inline]
    #[expect(dead_code, reason = "tuples are keys in the next step")]
    pub(super) fn of_tuples(self, length: usize) -> Self {
        self.varied((length as u64) << 32)
    }

    /// Other seeds, which are as random.
    #[inline]
    fn varied(self, by: u64) -> Self {
        let [first, second] = self.0;
        Self([first ^ by, second ^ by])
    }
}

impl Fingerprint {
    /// Some bits of it that neither its bucket nor its shard gives away.
    #[inline]
    pub(super) fn part(self) -> u32 {
        #[expect(clippy::cast_possible_truncation, reason = "a part is enough")]
        let part = (self.low ^ self.low >> 32) as u32;
        part
    }
}

impl Seed {
    fn random() -> Self {
        // The standard library's random state is seeded by the system.
        let random = RandomState::new();
        Self {
            shared: SharedSeed::from_u64(random.hash_one(0)),
            random,
        }
    }

    #[inline]
    fn hash(&self, seed: u64, key: &[u8]) -> u64 {
        let mut hasher = FoldHasher::with_seed(seed, &self.shared);
        hasher.write(key);
        hasher.finish()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn near_keys_and_other_levels_do_not_meet() {
        let seeds = Seeds::random();
        let mut seen = HashSet::new();
        for level in ["", "a", "b"] {
            let scope = seeds.scope(level);
            for length in 0..130 {
                for byte in [0, 1, b'a', b':', 0xff] {
                    let print = seeds.fingerprint(scope, &vec![byte; length]);
                    assert!(seen.insert((print.low, print.high)) || length == 0);
                }
            }
            for number in 0..100_000_u32 {
                let print = seeds.fingerprint(scope, number.to_string().as_bytes());
                assert!(seen.insert((print.low, print.high)));
            }
        }
    }
}
