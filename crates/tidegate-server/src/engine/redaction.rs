//! The form of a key in log lines, records and `/v1/keys`: a hash that tells keys apart. Its
//! salt is secret, because otherwise a reader could try all addresses.

use std::hash::{BuildHasher, RandomState};

use sha2::{Digest, Sha256};

/// Bytes of a hash that are shown: enough to tell all keys apart.
const HASH_BYTES: usize = 12;

/// Makes hashes of keys.
pub(crate) struct Redaction {
    salt: Vec<u8>,
}

impl Redaction {
    /// The same salt makes the same hash of a key; without one, no other process makes
    /// the same.
    pub(crate) fn new(salt: Option<&str>) -> Self {
        let salt = match salt {
            Some(salt) => salt.as_bytes().to_vec(),
            None => [0; 4]
                .map(|_: u8| RandomState::new().hash_one(0).to_le_bytes())
                .concat(),
        };
        Self { salt }
    }

    /// What stands for a key.
    pub(crate) fn hash(&self, key: &str) -> String {
        let mut hash = Sha256::new();
        hash.update((self.salt.len() as u64).to_le_bytes());
        hash.update(&self.salt);
        hash.update(key.as_bytes());
        let hash = hash.finalize();
        let digits = hash.iter().take(HASH_BYTES);
        digits.map(|byte| format!("{byte:02x}")).collect()
    }
}
