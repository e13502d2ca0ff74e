//! What an algorithm and the scripts of a store tell each other, and what nodes that lease
//! tokens or count by themselves need to know of it.

use std::time::Duration;

/// How long the scripts keep a token bucket that is full, after a node has told of charges.
/// A node that has not been able to tell the store anything for longer than this may be
/// credited with too long a time in which nobody else charged anything.
pub const FULL_KEPT: Duration = Duration::from_secs(10);

/// The numbers of a script's reply, one after the other.
#[derive(Debug, Clone, Copy)]
pub struct Numbers<'r>(&'r [i64]);

impl<'r> Numbers<'r> {
    /// The numbers of this reply.
    pub fn new(reply: &'r [i64]) -> Self {
        Self(reply)
    }

    /// The next one that is a `u32`.
    pub fn next_u32(&mut self) -> Option<u32> {
        u32::try_from(self.next()?).ok()
    }

    /// Whether there are no more.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Iterator for Numbers<'_> {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        u64::try_from(*first).ok()
    }
}

/// Appends numbers in little-endian order, each with how many bytes it has.
pub(super) fn put<const COUNT: usize>(out: &mut Vec<u8>, numbers: [(u64, usize); COUNT]) {
    for (number, bytes) in numbers {
        out.extend_from_slice(&number.to_le_bytes()[..bytes]);
    }
}

/// Appends the numbers of a parcel. More than Lua can count exactly makes no difference.
pub(super) fn put_parcel<const COUNT: usize>(out: &mut Vec<u8>, numbers: [u64; COUNT]) {
    put(out, numbers.map(|number| (number.min(1 << 53), 7)));
}

/// What a node needs to know of a limit to take tokens ahead of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LeaseTerms {
    /// The most that is used and out together: `B`, or `N` for a window.
    pub size: u32,
    /// How long a limit that is used up takes to be full again.
    pub refill_us: u64,
    /// How long a token takes to come back; `None` where all of them come back together,
    /// when a window ends.
    pub token_us: Option<u64>,
}

/// What a node tells of charges that it has admitted by itself, beside what they come to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parcel {
    /// The cost of all of them; what counts of them gets less with time.
    pub cost: u64,
    /// How long the key's quota has been full without them, as far as is known.
    pub idle_us: u64,
    /// Whether the node has the store's clock.
    pub on_time: bool,
    /// Whether their window was opened by the node: the store may have another one.
    pub is_opened_here: bool,
}
