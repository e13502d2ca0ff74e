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

use super::remote::{put, put_parcel};
use super::{
    Compact, Counter, LeaseTerms, Numbers, Outcome, Packed, Parcel, PastCharge, Profile, Used,
};
#[cfg(feature = "audit")]
use crate::audit::{Nodes, Rule};
use crate::cost::Cost;
use crate::error::LimitError;
use crate::limit::{Align, LimitSpec};
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
#[must_use]
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
    pub const fn new(rate: Rate, align: Align) -> Self {
        Self { rate, align }
    }

    #[expect(clippy::unnecessary_wraps, reason = "other algorithms can refuse")]
    pub(crate) const fn from_spec(spec: LimitSpec) -> Result<Self, LimitError> {
        Ok(Self::new(spec.rate, spec.align))
    }

    pub(crate) const fn spec(&self) -> Option<LimitSpec> {
        Some(LimitSpec {
            align: self.align,
            ..LimitSpec::new(self.rate)
        })
    }

    /// The rate it was made of.
    pub const fn rate(&self) -> Rate {
        self.rate
    }

    /// Where its windows begin.
    pub const fn align(&self) -> Align {
        self.align
    }

    const fn remaining(&self, state: &FixedWindowState) -> u32 {
        self.rate.requests().saturating_sub(state.count)
    }

    /// How long a window runs that opens now.
    const fn opened_us(&self, now_us: u64) -> u64 {
        match self.align {
            Align::First => self.rate.window_us(),
            Align::Epoch => self.rate.window_us() - now_us % self.rate.window_us(),
        }
    }
}

impl Counter for FixedWindow {
    type State = FixedWindowState;

    const PROFILE: Profile = Profile {
        has_align: true,
        can_lease: true,
        gives_back: true,
        ..Profile::new("fixed_window", "~fw", include_str!("fixed_window.lua"))
    };

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
        let left_us = match state.count {
            0 => self.opened_us(state.last_us),
            _ => state.left_us,
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

    fn write_limit(&self, _: Cost, out: &mut Vec<u8>) {
        let epoch = u64::from(self.align == Align::Epoch);
        let requests = self.rate.requests().into();
        put(out, [(requests, 4), (self.rate.window_us(), 6), (epoch, 1)]);
    }

    fn read_state(&self, now_us: u64, numbers: &mut Numbers<'_>) -> Option<(Self::State, u64)> {
        let state = FixedWindowState {
            count: numbers.next_u32()?,
            left_us: numbers.next()?,
            last_us: now_us,
        };
        Some((state, numbers.next()?))
    }

    fn lease_terms(&self) -> LeaseTerms {
        LeaseTerms {
            size: self.rate.requests(),
            refill_us: self.rate.window_us(),
            token_us: None,
        }
    }

    /// A lease is of an open window, also where nothing of it was used.
    fn with_leased(&self, state: FixedWindowState, tokens: u32) -> FixedWindowState {
        FixedWindowState {
            count: state.count.saturating_add(tokens),
            left_us: state.left_us.max(1),
            ..state
        }
    }

    fn emptied(state: FixedWindowState) -> FixedWindowState {
        FixedWindowState { count: 0, ..state }
    }

    /// In the window that everybody's charges are in.
    fn charge_own(
        &self,
        own: FixedWindowState,
        cost: Cost,
        with_it: &FixedWindowState,
    ) -> FixedWindowState {
        let last_us = if own.count == 0 {
            with_it.last_us
        } else {
            own.last_us
        };
        FixedWindowState {
            count: own.count.saturating_add(cost.get()),
            left_us: with_it.left_us,
            last_us,
        }
    }

    /// The end of the window, if it was open then.
    fn mark_at(&self, state: &FixedWindowState, charged_at_us: u64) -> u64 {
        let end_us = self.mark_us(state);
        let is_open = charged_at_us.saturating_add(self.rate.window_us()) >= end_us;
        if is_open { end_us } else { 0 }
    }

    fn write_parcel(&self, own: &FixedWindowState, parcel: &Parcel, out: &mut Vec<u8>) {
        let opened = parcel.is_opened_here.into();
        put_parcel(out, [own.count.into(), own.left_us, opened]);
    }

    /// Of two windows that begin with a request, the later end.
    fn arrive(
        &self,
        state: FixedWindowState,
        own: &FixedWindowState,
        parcel: &Parcel,
    ) -> FixedWindowState {
        let is_new = state.count == 0;
        let left_us = match self.align {
            Align::First if is_new || parcel.is_opened_here => {
                let own_left_us = own.left_us.clamp(1, self.rate.window_us());
                state.left_us.max(own_left_us)
            }
            Align::Epoch if is_new => self.opened_us(state.last_us),
            Align::First | Align::Epoch => state.left_us,
        };
        FixedWindowState {
            count: state.count.saturating_add(own.count),
            left_us,
            ..state
        }
    }

    fn write_give_back(&self, cost: Cost, out: &mut Vec<u8>) {
        const TAKES_OFF: u64 = 2;
        put_parcel(out, [cost.get().into(), 0, TAKES_OFF]);
    }

    #[cfg(feature = "audit")]
    fn rules(&self, nodes: &Nodes<'_>) -> Vec<Rule> {
        vec![match self.align {
            Align::Epoch => Rule::Aligned(nodes.window(self.rate)),
            // Nodes that have not heard of each other open windows of their own: one of
            // a node's may have the end of one and the start of the next in it.
            Align::First if nodes.may_open_others() => Rule::Partition(nodes.windows(self.rate, 2)),
            Align::First => Rule::FromFirst(nodes.window(self.rate)),
        }]
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
