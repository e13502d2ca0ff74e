//! The fixed window: a counter that starts over.
//!
//! At most `N` are admitted in a window `W`. With [`Align::First`] a window opens
//! with the first *admitted* request, never with a peek or a refusal; with
//! [`Align::Epoch`] windows begin at whole multiples of `W` since the Unix epoch.
//! Up to `2N` can pass across an edge: `N` at the end of one window and `N` at
//! the start of the next. If that matters, use
//! [`SlidingLog`](super::SlidingLog). A clock that steps back takes the open window
//! along, so with [`Align::Epoch`] each such step may add one `N` around it.
//!
//! A refund under [`Align::First`] cannot undo that the request opened the window. So
//! it may admit more than if the request had never been made: with 2 per minute, A at
//! 0 s opens the window, B follows at 59 s, and a refund of A at 59.5 s lets C in; at
//! 60 s the window ends and admits two more. Had A not been made, B would have opened
//! a window that ends at 119 s. Each window still admits at most `N`.
//!
//! # Example
//! 3 per 60 s, first request at 10 s:
//!
//! | at (s) | admitted | count | remaining | retry after (s) | reset after (s) |
//! | --- | --- | --- | --- | --- | --- |
//! | 10 | yes | 1 | 2 | 0 | 60 |
//! | 20 | yes | 2 | 1 | 0 | 50 |
//! | 69 | yes | 3 | 0 | 0 | 1 |
//! | 69 | no | 3 | 0 | 1 | 1 |
//! | 70 | yes | 1 | 2 | 0 | 60 |

use super::{Compact, Counter, Outcome, Packed, PastCharge, Used};
use crate::cost::Cost;
use crate::limit::Align;
use crate::rate::Rate;

/// At most `requests` per window.
///
/// ```
/// use tidegate::algorithm::{Counter, FixedWindow};
/// use tidegate::{Align, Cost, Rate};
///
/// let limit = FixedWindow::new("3/60s".parse::<Rate>()?, Align::First);
/// let (state, outcome) = limit.step(limit.new_state(0), Cost::of(3), 10_000_000);
/// assert_eq!(outcome.remaining(), 0);
/// let (_, outcome) = limit.step(state, Cost::ONE, 69_000_000);
/// assert_eq!(outcome.retry_after_us, Some(1_000_000));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FixedWindow {
    rate: Rate,
    align: Align,
}

/// A key's count in its window. A count of 0 is a window that has not opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FixedWindowState {
    /// What was admitted in the window.
    pub count: u32,
    /// Time left in the window; kept instead of its start, so that a clock
    /// that steps back takes the window along.
    pub left_us: u64,
    /// The instant of these numbers.
    pub last_us: u64,
}

impl FixedWindow {
    /// A window of this rate.
    #[must_use]
    pub const fn new(rate: Rate, align: Align) -> Self {
        Self { rate, align }
    }

    /// The rate it was made of.
    #[must_use]
    pub const fn rate(&self) -> Rate {
        self.rate
    }

    /// Where its windows begin.
    #[must_use]
    pub const fn align(&self) -> Align {
        self.align
    }

    const fn remaining(&self, state: &FixedWindowState) -> u32 {
        self.rate.requests().saturating_sub(state.count)
    }
}

impl Counter for FixedWindow {
    type State = FixedWindowState;

    /// No window is open.
    fn new_state(&self, now_us: u64) -> FixedWindowState {
        FixedWindowState {
            count: 0,
            left_us: 0,
            last_us: now_us,
        }
    }

    /// The window may be over.
    #[inline]
    fn at(&self, state: FixedWindowState, now_us: u64) -> FixedWindowState {
        let elapsed = now_us.saturating_sub(state.last_us);
        if elapsed >= state.left_us {
            return self.new_state(now_us);
        }
        FixedWindowState {
            left_us: state.left_us - elapsed,
            last_us: now_us,
            ..state
        }
    }

    #[inline]
    fn admits(&self, state: &FixedWindowState, cost: Cost) -> bool {
        cost.get() <= self.remaining(state)
    }

    /// Opens the window, if none is open.
    #[inline]
    fn charge(&self, state: FixedWindowState, cost: Cost) -> FixedWindowState {
        let left_us = match (state.count, self.align) {
            (1.., _) => state.left_us,
            (0, Align::First) => self.rate.window_us(),
            (0, Align::Epoch) => self.rate.window_us() - state.last_us % self.rate.window_us(),
        };
        FixedWindowState {
            count: state.count.saturating_add(cost.get()),
            left_us,
            ..state
        }
    }

    /// A refusal opens no window.
    fn saturate(&self, state: FixedWindowState, cost: Cost) -> FixedWindowState {
        if state.count == 0 {
            return state;
        }
        FixedWindowState {
            count: state.count + cost.get().min(self.remaining(&state)),
            ..state
        }
    }

    /// Only into the window that was charged, which is known by its end.
    fn refund(&self, state: FixedWindowState, charge: PastCharge) -> FixedWindowState {
        if self.mark_us(&state) != charge.mark_us {
            return state;
        }
        match state.count.saturating_sub(charge.cost.get()) {
            0 => self.new_state(state.last_us),
            count => FixedWindowState { count, ..state },
        }
    }

    #[inline]
    fn outcome(&self, state: &FixedWindowState, cost: Cost, admitted: bool) -> Outcome {
        Outcome {
            limit: self.rate.requests(),
            used: Used::requests(state.count),
            retry_after_us: if admitted {
                Some(0)
            } else if cost.get() > self.rate.requests() {
                None
            } else {
                Some(state.left_us)
            },
            reset_after_us: state.left_us,
        }
    }

    fn counts_for_us(&self, _: Cost) -> u64 {
        self.rate.window_us()
    }

    #[inline]
    fn last_us(state: &FixedWindowState) -> u64 {
        state.last_us
    }

    fn moved_to(state: FixedWindowState, last_us: u64) -> FixedWindowState {
        FixedWindowState { last_us, ..state }
    }

    /// When the window ends.
    #[inline]
    fn mark_us(&self, state: &FixedWindowState) -> u64 {
        state.last_us + state.left_us
    }

    #[inline]
    fn counts_like(&self, old: &Self) -> bool {
        self.rate.window_us() == old.rate.window_us()
    }

    /// Start and count stay.
    fn adopt(&self, old: &Self, state: FixedWindowState, _: u64) -> FixedWindowState {
        let elapsed = old.rate.window_us().saturating_sub(state.left_us);
        FixedWindowState {
            left_us: self.rate.window_us().saturating_sub(elapsed),
            ..state
        }
    }
}

impl Compact for FixedWindow {
    #[inline]
    fn pack(&self, state: &FixedWindowState) -> Packed {
        Packed {
            fresh_at_us: state.last_us + state.left_us,
            data: state.left_us,
            extra: u64::from(state.count),
        }
    }

    #[inline]
    fn unpack(&self, packed: Packed) -> FixedWindowState {
        FixedWindowState {
            #[expect(clippy::cast_possible_truncation, reason = "packed from a u32")]
            count: packed.extra as u32,
            left_us: packed.data,
            last_us: packed.fresh_at_us - packed.data,
        }
    }
}
