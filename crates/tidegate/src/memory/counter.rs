//! How the table keeps the algorithms whose state is a few integers.

use super::bucket::Packed;
use crate::algorithm::{
    FixedWindow, FixedWindowState, Outcome, SlidingWindow, SlidingWindowState, Span, TokenBucket,
    TokenBucketState,
};
use crate::cost::Cost;

/// A limit whose state fits into an entry.
pub(super) trait Counter {
    type State: Copy;

    fn new_state(&self, now_us: u64) -> Self::State;
    fn at(&self, state: Self::State, now_us: u64) -> Self::State;
    fn admits(&self, state: &Self::State, cost: Cost) -> bool;
    fn charge(&self, state: Self::State, cost: Cost) -> Self::State;
    fn outcome(&self, state: &Self::State, cost: Cost, admitted: bool) -> Outcome;
    fn last_us(state: &Self::State) -> u64;
    /// What a refund will remember a charge by.
    fn mark_us(&self, state: &Self::State) -> u64;
    fn pack(&self, state: &Self::State) -> Packed;
    /// Only for what was packed under the same limit.
    fn unpack(&self, stored: Packed) -> Self::State;
}

/// The verbs every algorithm has under the same name.
macro_rules! verbs {
    ($state:ty) => {
        type State = $state;

        #[inline]
        fn new_state(&self, now_us: u64) -> $state {
            self.new_state(now_us)
        }

        #[inline]
        fn at(&self, state: $state, now_us: u64) -> $state {
            self.at(state, now_us)
        }

        #[inline]
        fn admits(&self, state: &$state, cost: Cost) -> bool {
            self.admits(state, cost)
        }

        #[inline]
        fn charge(&self, state: $state, cost: Cost) -> $state {
            self.charge(state, cost)
        }

        #[inline]
        fn outcome(&self, state: &$state, cost: Cost, admitted: bool) -> Outcome {
            self.outcome(state, cost, admitted)
        }

        #[inline]
        fn last_us(state: &$state) -> u64 {
            state.last_us
        }
    };
}

impl Counter for TokenBucket {
    verbs!(TokenBucketState);

    fn mark_us(&self, state: &TokenBucketState) -> u64 {
        state.last_us
    }

    #[inline]
    fn pack(&self, state: &TokenBucketState) -> Packed {
        let reset_us = state.debt.us + u64::from(state.debt.parts > 0);
        Packed {
            fresh_at_us: state.last_us + reset_us,
            data: reset_us,
            extra: u64::from(state.debt.parts),
        }
    }

    #[inline]
    fn unpack(&self, stored: Packed) -> TokenBucketState {
        #[expect(clippy::cast_possible_truncation, reason = "packed from a u32")]
        let parts = stored.extra as u32;
        TokenBucketState {
            debt: Span {
                us: stored.data - u64::from(parts > 0),
                parts,
            },
            last_us: stored.fresh_at_us - stored.data,
        }
    }
}

impl Counter for FixedWindow {
    verbs!(FixedWindowState);

    fn mark_us(&self, state: &FixedWindowState) -> u64 {
        state.last_us + state.left_us
    }

    #[inline]
    fn pack(&self, state: &FixedWindowState) -> Packed {
        Packed {
            fresh_at_us: state.last_us + state.left_us,
            data: state.left_us,
            extra: u64::from(state.count),
        }
    }

    #[inline]
    fn unpack(&self, stored: Packed) -> FixedWindowState {
        FixedWindowState {
            #[expect(clippy::cast_possible_truncation, reason = "packed from a u32")]
            count: stored.extra as u32,
            left_us: stored.data,
            last_us: stored.fresh_at_us - stored.data,
        }
    }
}

/// Bits of a counter of a sliding window, which counts to 2^28 inclusive.
const COUNT_BITS: u32 = 29;

impl Counter for SlidingWindow {
    verbs!(SlidingWindowState);

    fn mark_us(&self, state: &SlidingWindowState) -> u64 {
        self.window_end_us(state)
    }

    #[inline]
    fn pack(&self, state: &SlidingWindowState) -> Packed {
        let reset_us = self.reset_after_us(state);
        Packed {
            fresh_at_us: state.last_us + reset_us,
            data: reset_us << COUNT_BITS << COUNT_BITS
                | u64::from(state.cur) << COUNT_BITS
                | u64::from(state.prev),
            extra: reset_us >> (u64::BITS - 2 * COUNT_BITS),
        }
    }

    #[inline]
    fn unpack(&self, stored: Packed) -> SlidingWindowState {
        let mask = (1 << COUNT_BITS) - 1;
        let reset_us =
            stored.extra << (u64::BITS - 2 * COUNT_BITS) | stored.data >> (2 * COUNT_BITS);
        #[expect(clippy::cast_possible_truncation, reason = "masked to 29 bits")]
        let (prev, cur) = (
            (stored.data & mask) as u32,
            (stored.data >> COUNT_BITS & mask) as u32,
        );
        SlidingWindowState {
            prev,
            cur,
            elapsed_us: self.elapsed_us(cur, reset_us),
            last_us: stored.fresh_at_us - reset_us,
        }
    }
}
