//! No algorithm at all: everything is refused, and nothing is counted.

use super::{Counter, Outcome, PastCharge};
use crate::cost::Cost;

/// Refuses everything, and so counts nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Block;

impl Counter for Block {
    /// The instant it was asked about.
    type State = u64;

    fn new_state(&self, now_us: u64) -> u64 {
        now_us
    }

    fn at(&self, _: u64, now_us: u64) -> u64 {
        now_us
    }

    fn admits(&self, _: &u64, _: Cost) -> bool {
        false
    }

    fn charge(&self, state: u64, _: Cost) -> u64 {
        state
    }

    fn saturate(&self, state: u64, _: Cost) -> u64 {
        state
    }

    fn refund(&self, state: u64, _: PastCharge) -> u64 {
        state
    }

    fn outcome(&self, _: &u64, _: Cost, _: bool) -> Outcome {
        Outcome::BLOCKED
    }

    fn counts_for_us(&self, _: Cost) -> u64 {
        0
    }

    fn last_us(state: &u64) -> u64 {
        *state
    }

    fn moved_to(_: u64, last_us: u64) -> u64 {
        last_us
    }

    fn mark_us(&self, _: &u64) -> u64 {
        0
    }

    fn counts_like(&self, _: &Self) -> bool {
        true
    }

    fn adopt(&self, _: &Self, state: u64, _: u64) -> u64 {
        state
    }
}
