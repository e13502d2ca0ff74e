//! The state of a key in a script's reply, by algorithm: the only table in this crate with
//! a line per algorithm.

use tidegate::algorithm::{
    Counter, FixedWindowState, PastCharge, SlidingLogState, SlidingWindowState, Span, State,
    TokenBucketState,
};
use tidegate::{Cost, Kind, Limit};

use crate::call::{BadReply, Numbers};

/// A key's state from a script's reply, with the mark of a charge.
pub(crate) fn read(
    limit: &Limit,
    now_us: u64,
    numbers: &mut Numbers<'_>,
) -> Result<(State, u64), BadReply> {
    let state = match limit.kind() {
        Kind::TokenBucket(_) => State::TokenBucket(TokenBucketState {
            debt: Span {
                us: numbers.next()?,
                parts: numbers.next_u32()?,
            },
            last_us: now_us,
        }),
        Kind::FixedWindow(_) => State::FixedWindow(FixedWindowState {
            count: numbers.next_u32()?,
            left_us: numbers.next()?,
            last_us: now_us,
        }),
        Kind::SlidingWindow(limit) => {
            let state = SlidingWindowState {
                prev: numbers.next_u32()?,
                cur: numbers.next_u32()?,
                elapsed_us: numbers.next()?,
                last_us: now_us,
            };
            if state.elapsed_us >= limit.rate().window_us() {
                return Err(BadReply);
            }
            State::SlidingWindow(state)
        }
        Kind::SlidingLog(_) => State::SlidingLog(SlidingLogState {
            used: numbers.next_u32()?,
            reset_after_us: numbers.next()?,
            retry_after_us: numbers.next()?,
            last_us: now_us,
        }),
        Kind::Block(_) => return Ok((limit.new_state(now_us), 0)),
    };
    Ok((state, numbers.next()?))
}

/// How long until the key's quota is full again.
pub(crate) fn reset_after_us(limit: &Limit, state: &State) -> u64 {
    limit.outcome(state, Cost::ONE, true).reset_after_us
}

/// The same state on a clock that reads later by this much.
pub(crate) fn shifted(state: State, by_us: i64) -> State {
    state.moved_to(state.last_us().saturating_add_signed(by_us))
}

/// The state after giving back a charge that no other node knows of. All that is known
/// of it is when it was made: its window is the one that was open then.
pub(crate) fn give_back(limit: &Limit, state: State, cost: Cost, charged_at_us: u64) -> State {
    let mark_us = match (limit.kind(), &state) {
        (Kind::FixedWindow(limit), State::FixedWindow(state)) => {
            let end_us = limit.mark_us(state);
            let is_open = charged_at_us.saturating_add(limit.rate().window_us()) >= end_us;
            if is_open { end_us } else { 0 }
        }
        (Kind::SlidingWindow(limit), State::SlidingWindow(state)) => {
            let start_us = state.last_us.saturating_sub(state.elapsed_us);
            if charged_at_us >= start_us {
                limit.mark_us(state)
            } else if charged_at_us.saturating_add(limit.rate().window_us()) >= start_us {
                start_us
            } else {
                0
            }
        }
        (Kind::FixedWindow(_) | Kind::SlidingWindow(_), _)
        | (Kind::TokenBucket(_) | Kind::SlidingLog(_) | Kind::Block(_), _) => charged_at_us,
    };
    let charge = PastCharge {
        cost,
        at_us: charged_at_us,
        mark_us,
    };
    limit.refund(state, charge)
}
