//! A key's stand-in in the table: 83 bits of a hash that is seeded anew for every
//! store.
//!
//! Keys themselves are not kept, so an entry has one size and a lookup touches no
//! other memory. Two keys that meet in all 83 bits would share a counter: with ten
//! million keys held and a million new ones a minute, that is expected once in
//! nearly two million years. The seeds are random, so nobody can look for such a
//! pair in advance.

use std::fmt;
use std::hash::{BuildHasher, RandomState};

use crate::algorithm::Algorithm;
use crate::policy::LevelKey;

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

/// A key: one value, or a tuple of values.
#[derive(Debug, Clone, Copy)]
pub(super) enum KeyRef<'a> {
    One(&'a [u8]),
    Tuple(&'a [&'a [u8]]),
}

/// The random numbers of one store. All users of a store have the same.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(super) struct Seeds {
    /// Multipliers of the two lanes: for the bytes of a value, and for its length.
    bytes: [u64; 2],
    length: [u64; 2],
    /// What the names of levels are hashed under.
    levels: [u64; 2],
}

/// The seeds of one level, one per lane, which keep its keys apart from other levels'.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Scope([u64; 2]);

/// Turns the keys of a policy into 128 bits, for tables of keys. The hash
/// is seeded anew for every hasher, so no client can choose keys that collide.
pub struct KeyHasher {
    seeds: Seeds,
    scope: Scope,
}

impl KeyHasher {
    /// A hasher with seeds of its own, from the system.
    pub fn new() -> Self {
        let seeds = Seeds::random();
        let scope = seeds.scope("");
        Self { seeds, scope }
    }

    /// The hash of a key: of its level's place in the policy, its algorithm and its values.
    #[inline]
    pub fn hash(&self, key: &LevelKey<'_>) -> [u64; 2] {
        let place = u64::from(key.level) << 48 | key.limit().algorithm() as u64;
        self.seeds
            .hash_tuple(self.scope.varied(place), key.values)
            .0
    }
}

impl Default for KeyHasher {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for KeyHasher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyHasher").finish_non_exhaustive()
    }
}

impl Seeds {
    pub(super) fn random() -> Self {
        // The standard library's random state is seeded by the system.
        let random = RandomState::new();
        let number = |place: u64| random.hash_one(place) | 1;
        Self {
            bytes: [number(0), number(1)],
            length: [number(2), number(3)],
            levels: [number(4), number(5)],
        }
    }

    pub(super) fn scope(&self, level: &str) -> Scope {
        self.hash(Scope(self.levels), level.as_bytes())
    }

    #[inline(always)]
    pub(super) fn fingerprint(&self, scope: Scope, key: KeyRef<'_>) -> Fingerprint {
        let [low, high] = match key {
            KeyRef::One(value) => self.hash(scope, value).0,
            KeyRef::Tuple(values) => self.hash_tuple(scope, values).0,
        };
        Fingerprint {
            low: low.max(1),
            high: (high >> (u64::BITS - HIGH_BITS)) as u32,
        }
    }

    /// Each value is hashed under the hash of those before it, so it matters where one
    /// ends and the next begins.
    #[inline]
    fn hash_tuple(&self, scope: Scope, values: &[&[u8]]) -> Scope {
        let scope = scope.varied((values.len() as u64) << 32);
        let hashed = values.iter();
        hashed.fold(scope, |scope, value| self.hash(scope, value))
    }

    /// Two lanes of folded multiplications, as in wyhash and foldhash, over the same
    /// words: 128 bits for little more than the price of 64.
    #[inline(always)]
    fn hash(&self, scope: Scope, value: &[u8]) -> Scope {
        let Scope([low, high]) = match value.last_chunk::<16>() {
            None => self.mix(scope, short_words(value)),
            Some(last) => {
                let (mut scope, mut rest) = (scope, value);
                while let Some((block, more)) = rest.split_first_chunk()
                    && !more.is_empty()
                {
                    scope = self.mix(scope, words(block));
                    rest = more;
                }
                // The last block overlaps the one before it, or is it.
                self.mix(scope, words(last))
            }
        };
        let length = value.len() as u64;
        Scope([
            fold(low ^ length, self.length[0]),
            fold(high ^ length, self.length[1]),
        ])
    }

    #[inline(always)]
    fn mix(&self, Scope([low, high]): Scope, [first, second]: [u64; 2]) -> Scope {
        Scope([
            fold(first ^ low, second ^ self.bytes[0]),
            fold(first ^ high, second ^ self.bytes[1]),
        ])
    }
}

#[inline]
fn words(block: &[u8; 16]) -> [u64; 2] {
    let number = u128::from_le_bytes(*block);
    #[expect(clippy::cast_possible_truncation, reason = "the two halves of it")]
    let halves = [number as u64, (number >> 64) as u64];
    halves
}

/// All bytes of a value of less than 16, in two words.
#[inline]
fn short_words(value: &[u8]) -> [u64; 2] {
    if let (Some(first), Some(last)) = (value.first_chunk(), value.last_chunk()) {
        [u64::from_le_bytes(*first), u64::from_le_bytes(*last)]
    } else if let (Some(first), Some(last)) = (value.first_chunk(), value.last_chunk()) {
        [first, last].map(|word| u32::from_le_bytes(*word).into())
    } else if let (Some(first), Some(last)) = (value.first(), value.last()) {
        let middle = value[value.len() / 2];
        [(*first).into(), u64::from(middle) << 8 | u64::from(*last)]
    } else {
        [0, 0]
    }
}

/// Both halves of a product in one word.
#[inline]
fn fold(first: u64, second: u64) -> u64 {
    let product = u128::from(first) * u128::from(second);
    #[expect(clippy::cast_possible_truncation, reason = "the two halves of it")]
    let folded = product as u64 ^ (product >> 64) as u64;
    folded
}

impl Scope {
    /// The keys of a level under this algorithm: each has its own counters.
    pub(super) fn of(self, algorithm: Algorithm) -> Self {
        self.varied(algorithm as u64)
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

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn near_keys_and_other_levels_do_not_meet() {
        let seeds = Seeds::random();
        let mut seen = HashSet::new();
        let mut is_new = |scope: Scope, key: KeyRef<'_>| {
            let print = seeds.fingerprint(scope, key);
            seen.insert((print.low, print.high))
        };
        for level in ["", "a", "b"] {
            let scope = seeds.scope(level);
            for length in 0..130 {
                for byte in [0, 1, b'a', b':', 0xff] {
                    let value = vec![byte; length];
                    assert!(is_new(scope, KeyRef::One(&value)) || length == 0);
                }
            }
            for number in 0..100_000_u32 {
                let value = number.to_string();
                assert!(is_new(scope, KeyRef::One(value.as_bytes())));
            }
            for values in [
                [&b"a"[..], b"b:c", b""],
                [b"a:b", b"c", b""],
                [b"", b"a", b"b:c"],
                [b"ab", b"", b"c"],
                [b"a", b"b", b"c"],
                [b"c", b"b", b"a"],
            ] {
                for length in 1..=3 {
                    let tuple = KeyRef::Tuple(&values[..length]);
                    let again = values[..length] == [&b"a"[..]];
                    assert!(is_new(scope, tuple) || again, "{values:?}");
                }
            }
        }
    }

    /// A flipped bit of a key flips each bit of its print with a chance of one half.
    #[test]
    fn every_bit_of_a_key_changes_about_half_the_bits_of_its_print() {
        for length in [1, 2, 3, 4, 7, 8, 15, 16, 17, 33, 100] {
            let mut flips = [0_u32; 83];
            let mut tries = 0;
            for round in 0..200_u64 {
                let seeds = Seeds::random();
                let scope = seeds.scope("level");
                let key: Vec<u8> = (0..length)
                    .map(|at| round.wrapping_mul(at + 7).to_le_bytes()[0])
                    .collect();
                let bits = |key: &[u8]| {
                    let print = seeds.fingerprint(scope, KeyRef::One(key));
                    u128::from(print.high) << 64 | u128::from(print.low)
                };
                for bit in (0..key.len() * 8).step_by(5) {
                    let mut other = key.clone();
                    other[bit / 8] ^= 1 << (bit % 8);
                    let changed = bits(&key) ^ bits(&other);
                    tries += 1;
                    for (at, flips) in flips.iter_mut().enumerate() {
                        *flips += u32::from(changed >> at & 1 == 1);
                    }
                }
            }
            for (at, flips) in flips.iter().enumerate() {
                let share = f64::from(*flips) / f64::from(tries);
                assert!(
                    (0.36..0.64).contains(&share),
                    "{length} bytes, bit {at}: {share}"
                );
            }
        }
    }
}
