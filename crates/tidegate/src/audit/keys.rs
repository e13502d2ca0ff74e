//! Keys by number, so that a record need not carry its own.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

use foldhash::fast::FixedState;

/// Every key that was seen, once.
#[derive(Debug, Clone, Default)]
pub(super) struct KeyTable {
    /// The keys, one behind the other, and where each ends.
    bytes: Vec<u8>,
    ends: Vec<usize>,
    /// The number of the key with a hash. Where two keys have one hash, the later one
    /// stands under the next that is free.
    numbers: HashMap<u64, u32, FixedState>,
    /// Keys come from outside: nobody may know which of them meet.
    random: RandomState,
}

impl KeyTable {
    /// The number of a key, which is new when the key is.
    pub(super) fn number(&mut self, key: &[u8]) -> u32 {
        let mut hash = self.random.hash_one(key);
        loop {
            match self.numbers.get(&hash) {
                Some(&number) if self.text(number) == key => return number,
                Some(_) => hash = hash.wrapping_add(1),
                None => break,
            }
        }
        let number = u32::try_from(self.ends.len());
        let number = number.expect("four billion keys are more than memory holds");
        self.bytes.extend(key);
        self.ends.push(self.bytes.len());
        self.numbers.insert(hash, number);
        number
    }

    /// The key with a number.
    pub(super) fn text(&self, number: u32) -> &[u8] {
        let number = number as usize;
        let start = match number {
            0 => 0,
            _ => self.ends[number - 1],
        };
        &self.bytes[start..self.ends[number]]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_that_meet_stay_apart() {
        let mut table = KeyTable::default();
        // Another key already stands where this one would.
        let hash = table.random.hash_one(&b"late"[..]);
        assert_eq!(table.number(b"early"), 0);
        table.numbers.insert(hash, 0);
        assert_eq!(table.number(b"late"), 1);
        assert_eq!(table.number(b"late"), 1);
        assert_eq!(table.text(1), b"late");
    }
}
