//! Keys by their hash: 16 bytes, whatever the key.

use std::hash::{BuildHasher, RandomState};

use tidegate::LevelKey;

/// A key of a policy as two hashes: long enough that no two keys collide.
pub(crate) type Fingerprint = [u64; 2];

/// The salt of the hashes: no client can choose keys that collide.
#[derive(Debug, Default)]
pub(crate) struct Fingerprints([RandomState; 2]);

impl Fingerprints {
    pub(crate) fn of(&self, key: &LevelKey<'_>) -> Fingerprint {
        let text = key.text();
        // Every algorithm has a counter of its own.
        let identity = (key.level().name(), key.limit().algorithm(), &*text);
        self.0.each_ref().map(|seed| seed.hash_one(identity))
    }
}

/// The shard of a key, out of this many.
pub(crate) fn shard_of(fingerprint: Fingerprint, shards: usize) -> usize {
    usize::try_from(fingerprint[1] % shards.max(1) as u64).unwrap_or(0)
}
