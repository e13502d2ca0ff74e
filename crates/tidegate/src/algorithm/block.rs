//! No algorithm at all: everything is refused, and nothing is counted.

#[cfg(feature = "audit")]
use smallvec::smallvec;

use super::{Counter, Numbers, Outcome, PastCharge, Profile};
#[cfg(feature = "audit")]
use crate::audit::{Nodes, Rule, Rules, Window};
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

    #[cfg(feature = "audit")]
    pub(crate) fn rules(&self, _: &Nodes<'_>) -> Rules {
        smallvec![Rule::Any(Window {
            most: 0,
            length_us: 1,
        })]
    }
}

impl Counter for Block {
    /// The instant it was asked about.
    type State = u64;

    const PROFILE: Profile = Profile {
        counts: false,
        ..Profile::new("block", "", include_str!("block.lua"))
    };

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

    fn counts_like(&self, _: &Self) -> bool {
        true
    }

    fn write_limit(&self, _: Cost, _: &mut Vec<u8>) {}

    fn read_state(&self, now_us: u64, _: &mut Numbers<'_>) -> Option<(u64, u64)> {
        Some((now_us, 0))
    }

    fn emptied(state: u64) -> u64 {
        state
    }
}
