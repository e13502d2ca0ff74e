//! The keys, and the order in which they are asked for.
//!
//! An order is a list of the keys themselves, not of indices into a list of
//! keys: it is read from front to back, so the bytes of the next key are in the
//! cache when a check begins, as they are in a program that has just read them
//! from a request. The cache misses that remain are the limiter's own.

/// Key number `index`: 15 to 21 bytes, as long as user names and addresses are.
pub(crate) fn key(index: usize) -> String {
    let digits = 10 + index % 7;
    format!("user:{index:0digits$}")
}

/// Writes a number over digits, with zeros in front.
pub(crate) fn write_digits(digits: &mut [u8], mut number: usize) {
    for digit in digits.iter_mut().rev() {
        *digit = b'0' + u8::try_from(number % 10).expect("a digit");
        number /= 10;
    }
}

/// `length` keys out of the first `keys`, each drawn at random.
pub(crate) fn shuffled(keys: usize, length: usize, seed: u64) -> Vec<String> {
    let keys = u32::try_from(keys).expect("fewer keys than 2^32");
    let mut random = Random(seed);
    (0..length)
        .map(|_| key(random.below(keys) as usize))
        .collect()
}

/// SplitMix64: the same order on every run.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A place in a list of this length.
    pub(crate) fn index(&mut self, length: usize) -> usize {
        let length = u32::try_from(length).expect("lists shorter than 2^32");
        self.below(length) as usize
    }

    /// A number from 0 to 1, which it never is.
    pub(crate) fn fraction(&mut self) -> f64 {
        f64::from(self.below(u32::MAX)) / f64::from(u32::MAX)
    }

    fn below(&mut self, bound: u32) -> u32 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
        let scaled = (mixed >> 32) * u64::from(bound);
        u32::try_from(scaled >> 32).expect("a product of 32-bit numbers, halved")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn keys_are_distinct_and_15_to_21_bytes_long() {
        let keys: Vec<String> = (0..10_000).map(key).collect();
        let lengths: HashSet<usize> = keys.iter().map(String::len).collect();
        assert_eq!(lengths, (15..=21).collect());
        assert_eq!(keys.iter().collect::<HashSet<_>>().len(), keys.len());
    }

    #[test]
    fn an_order_draws_from_all_keys() {
        let order = shuffled(100, 10_000, 1);
        assert_eq!(order.iter().collect::<HashSet<_>>().len(), 100);
    }
}
