//! A fleet in a box: nodes that ask one store over a bad network, in a time of its own.
//!
//! The nodes drive the same state machines that production drives ([`Refusals`]), and
//! the store decides by the core's own algorithms, which the conformance tests hold
//! equal to the scripts. Everything else is made up from a seed: latencies, losses,
//! repetitions, pauses, crashes, steps of the clock, failovers that forget. The same
//! seed gives the same run; one that fails is printed, and kept in [`tests`].

mod background_store;
mod due;
mod explorer;
mod fleet;
mod fleet_tests;
mod leases;
mod leases_tests;
mod network;
mod node;
mod scale;
mod store;
mod tests;
mod world;

/// Numbers that look random and are not.
#[derive(Debug, Clone)]
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        // Neighbouring seeds must not begin alike, and none may be zero.
        let mixed = (seed ^ 0x9e37_79b9_7f4a_7c15).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        Self(mixed | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11
    }

    /// A number below `end`.
    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.next() % end.max(1)
    }

    /// A number from `low` to `high`.
    pub(super) fn within(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// Whether something happens that does so `times` in a thousand.
    pub(super) fn chance(&mut self, times: u64) -> bool {
        self.below(1_000) < times
    }

    pub(super) fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[usize::try_from(self.below(all.len() as u64)).unwrap_or(0)]
    }
}
