//! Keys by their hash: 16 bytes, whatever the key.

use tidegate::{KeyHasher, LevelKey};

/// A key of a policy as two hashes: long enough that no two keys collide.
pub(crate) type Fingerprint = [u64; 2];

/// The salt of the hashes: no client can choose keys that collide.
#[derive(Debug, Default)]
pub(crate) struct Fingerprints(KeyHasher);

impl Fingerprints {
    /// Every algorithm has a counter of its own, and so a fingerprint. Levels are told apart
    /// by their places in the policy.
    #[inline]
    pub(crate) fn of(&self, key: &LevelKey<'_>) -> Fingerprint {
        self.0.hash(key)
    }
}

/// The shard of a key, out of this many.
#[inline]
pub(crate) fn shard_of(fingerprint: Fingerprint, shards: usize) -> usize {
    usize::try_from(fingerprint[1] % shards.max(1) as u64).unwrap_or(0)
}
