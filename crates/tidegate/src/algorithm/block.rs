//! No algorithm at all: everything is refused, and nothing is counted.

use super::{Counter, Numbers, Outcome, PastCharge, Profile};
#[cfg(feature = "audit")]
use crate::audit::{Nodes, Rule, Window};
use crate::cost::Cost;
use crate::error::LimitError;
use crate::limit::LimitSpec;

/// Refuses everything, and so counts nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Block;

impl Block {
    #[expect(clippy::unnecessary_wraps, reason = "other algorithms can refuse")]
    pub(crate) const fn from_spec(_: LimitSpec) -> Result<Self, LimitError> {
        Ok(Self)
    }

    pub(crate) const fn spec(&self) -> Option<LimitSpec> {
        None
    }
}

/// The instant that it was asked about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub struct BlockState {
    pub(super) last_us: u64,
}

impl Counter for Block {
    type State = BlockState;

    const PROFILE: Profile = Profile {
        counts: false,
        ..Profile::new("block", "", include_str!("block.lua"))
    };

    fn new_state(&self, last_us: u64) -> BlockState {
        BlockState { last_us }
    }

    fn at(&self, _: BlockState, now_us: u64) -> BlockState {
        self.new_state(now_us)
    }

    fn admits(&self, _: &BlockState, _: Cost) -> bool {
        false
    }

    fn charge(&self, state: BlockState, _: Cost) -> BlockState {
        state
    }

    fn saturate(&self, state: BlockState, _: Cost) -> BlockState {
        state
    }

    fn refund(&self, state: BlockState, _: PastCharge) -> BlockState {
        state
    }

    fn outcome(&self, _: &BlockState, _: Cost, _: bool) -> Outcome {
        Outcome::BLOCKED
    }

    fn counts_for_us(&self, _: Cost) -> u64 {
        0
    }

    fn counts_like(&self, _: &Self) -> bool {
        true
    }

    fn write_limit(&self, _: Cost, _: &mut Vec<u8>) {}

    fn read_state(&self, now_us: u64, _: &mut Numbers<'_>) -> Option<(BlockState, u64)> {
        Some((self.new_state(now_us), 0))
    }

    fn emptied(state: BlockState) -> BlockState {
        state
    }

    #[cfg(feature = "audit")]
    fn rules(&self, _: &Nodes<'_>) -> Vec<Rule> {
        vec![Rule::Any(Window {
            most: 0,
            length_us: 1,
        })]
    }
}
