//! Random numbers from a seed.

/// A small generator (xorshift).
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    #[must_use]
    pub fn new(seed: u64) -> Self {
        // Neighbouring seeds must not begin alike, and none may be zero.
        let mixed = (seed ^ 0x9e37_79b9_7f4a_7c15).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        Self(mixed | 1)
    }

    /// A number of 53 bits.
    pub fn number(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11
    }

    /// A number below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.number() % end.max(1)
    }

    /// An index below `length`.
    pub fn index(&mut self, length: usize) -> usize {
        usize::try_from(self.below(length as u64)).unwrap_or(0)
    }

    /// A number from `low` to `high`.
    pub fn within(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// The same, of small numbers.
    pub fn few(&mut self, low: u32, high: u32) -> u32 {
        u32::try_from(self.within(low.into(), high.into())).unwrap_or(high)
    }

    /// Whether something happens that happens `times` in a thousand.
    pub fn chance(&mut self, times: u64) -> bool {
        self.below(1_000) < times
    }

    pub fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.index(all.len())]
    }

    /// From 0 to 1.
    #[expect(clippy::cast_precision_loss, reason = "53 bits are a double's")]
    pub fn share(&mut self) -> f64 {
        self.number() as f64 / (1_u64 << 53) as f64
    }
}
