//! Keys by their hash: 16 bytes, whatever the key.

/// A key of a policy as two hashes, made by a [`KeyHasher`](tidegate::KeyHasher): long enough
/// that no two keys collide. Every algorithm has a counter of its own, and so a fingerprint.
pub(crate) type Fingerprint = [u64; 2];

/// The shard of a key, out of this many.
#[inline]
pub(crate) fn shard_of(fingerprint: Fingerprint, shards: usize) -> usize {
    usize::try_from(fingerprint[1] % shards.max(1) as u64).unwrap_or(0)
}
