//! The sliding window of two counters: small, smooth, approximate.
//!
//! Windows are aligned to the epoch. The previous window's count decreases in weight as the
//! current one progresses: with `e` elapsed, the estimate is
//! `prev*(W - e)/W + cur`, and a request is admitted if the estimate with it
//! stays within `N`, compared exactly (`prev*(W - e) <= (N - cur - c)*W`).
//!
//! It is an approximation: at most `N` per aligned window, but up to just below
//! `2N` in some other interval of length `W`. With `N` = 10 per minute, 10 requests at
//! 59.9 s and 9 more at 114 s pass: 19 within 54 seconds. For at most `N` in any interval,
//! use [`SlidingLog`](super::SlidingLog).
//!
//! # Example
//! 10 per 60 s, 6 in the last window, 1 in this one, 10 s into it: the estimate
//! is `6*50/60 + 1 = 6.0`, and 4 remain. A cost of 5 has to wait until
//! `6*(60 - e)/60 <= 10 - 1 - 5`, `e = 20`: 10 s.

use super::remote::{put, put_parcel};
use super::{
    Algorithm, Compact, Counter, Numbers, Outcome, Packed, Parcel, PastCharge, Profile, Used,
    mul_div,
};
#[cfg(feature = "audit")]
use crate::audit::{Nodes, Rule, Window};
use crate::cost::Cost;
use crate::error::LimitError;
use crate::limit::LimitSpec;
use crate::rate::Rate;

/// The most requests a sliding window counts.
const MAX_REQUESTS: u32 = 1 << 28;

/// The most it counts in one window: nodes in the mode `background` pass the limit.
const MAX_COUNT: u32 = (1 << 30) - 1;

/// At most `requests` per window, smoothed over the edge.
///
/// ```
/// use tidegate::algorithm::{Counter, SlidingWindow, SlidingWindowState};
/// use tidegate::{Cost, Rate};
///
/// let limit = SlidingWindow::new("10r/m".parse::<Rate>()?)?;
/// let state = SlidingWindowState { prev: 6, cur: 0, elapsed_us: 10_000_000, last_us: 70_000_000 };
/// let (_, outcome) = limit.step(state, Cost::ONE, 70_000_000);
/// assert_eq!((outcome.rate(), outcome.remaining()), (6.0, 4));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SlidingWindow {
    rate: Rate,
}

/// A key's two counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub struct SlidingWindowState {
    /// What the last window admitted.
    pub prev: u32,
    /// What this one has admitted.
    pub cur: u32,
    /// How far into the current window; kept instead of its start, so that a
    /// clock that steps back takes the window along.
    pub elapsed_us: u64,
    /// The instant of these numbers.
    pub last_us: u64,
}

impl SlidingWindow {
    /// A window of this rate, of at most 2^28 requests.
    pub const fn new(rate: Rate) -> Result<Self, LimitError> {
        if rate.requests() > MAX_REQUESTS {
            return Err(LimitError::RequestsOf {
                requests: rate.requests(),
                algorithm: Algorithm::SlidingWindow,
                max: MAX_REQUESTS,
            });
        }
        Ok(Self { rate })
    }

    pub(crate) const fn from_spec(spec: LimitSpec) -> Result<Self, LimitError> {
        Self::new(spec.rate)
    }

    pub(crate) const fn spec(&self) -> Option<LimitSpec> {
        Some(LimitSpec::new(self.rate))
    }

    /// The rate it was made of.
    pub const fn rate(&self) -> Rate {
        self.rate
    }

    /// When the current window ends.
    const fn window_end_us(&self, state: &SlidingWindowState) -> u64 {
        (state.last_us + self.rate.window_us()).saturating_sub(state.elapsed_us)
    }

    /// Until both counters are gone.
    const fn reset_after_us(&self, state: &SlidingWindowState) -> u64 {
        let window_us = self.rate.window_us();
        if state.cur > 0 {
            2 * window_us - state.elapsed_us
        } else if state.prev > 0 {
            window_us - state.elapsed_us
        } else {
            0
        }
    }

    /// Whether nothing that was counted still matters.
    const fn is_over(&self, state: &SlidingWindowState) -> bool {
        let window_us = self.rate.window_us();
        (state.cur == 0 && (state.prev == 0 || state.elapsed_us >= window_us))
            || state.elapsed_us >= 2 * window_us
    }

    /// `prev*(W - e)/W + cur`.
    fn estimate(&self, state: &SlidingWindowState) -> Used {
        let window_us = self.rate.window_us();
        Used {
            parts: u128::from(state.prev) * u128::from(window_us - state.elapsed_us)
                + u128::from(state.cur) * u128::from(window_us),
            per_request: window_us,
        }
    }

    /// Exact for a cost that is refused now.
    fn retry_after_us(&self, state: &SlidingWindowState, cost: Cost) -> Option<u64> {
        let window_us = self.rate.window_us();
        let room = self.rate.requests().checked_sub(cost.get())?;
        if let Some(room) = room.checked_sub(state.cur) {
            // The last window has to fade until it fits beside this one.
            let enough =
                window_us - mul_div(u64::from(room), window_us, u64::from(state.prev.max(1)));
            Some(enough - state.elapsed_us)
        } else {
            // This window has to become the last one, and then fade.
            let fade = window_us - mul_div(u64::from(room), window_us, u64::from(state.cur));
            Some(window_us - state.elapsed_us + fade)
        }
    }
}

impl Counter for SlidingWindow {
    type State = SlidingWindowState;

    const PROFILE: Profile = Profile {
        max_requests: MAX_REQUESTS,
        ..Profile::new("sliding_window", "~sw", include_str!("sliding_window.lua"))
    };

    fn new_state(&self, now_us: u64) -> SlidingWindowState {
        SlidingWindowState {
            prev: 0,
            cur: 0,
            elapsed_us: now_us % self.rate.window_us(),
            last_us: now_us,
        }
    }

    /// The current window may have become the last one, or both may be over.
    #[inline]
    fn at(&self, state: SlidingWindowState, now_us: u64) -> SlidingWindowState {
        let window_us = self.rate.window_us();
        let elapsed_us = state.elapsed_us + now_us.saturating_sub(state.last_us);
        let state = SlidingWindowState {
            elapsed_us,
            last_us: now_us,
            ..state
        };
        if self.is_over(&state) {
            return self.new_state(now_us);
        }
        if elapsed_us < window_us {
            return state;
        }
        SlidingWindowState {
            prev: state.cur,
            cur: 0,
            elapsed_us: elapsed_us - window_us,
            ..state
        }
    }

    /// Whether the estimate with this cost stays within the limit.
    #[inline]
    fn admits(&self, state: &SlidingWindowState, cost: Cost) -> bool {
        let wanted = u64::from(state.cur) + u64::from(cost.get());
        let Some(room) = u64::from(self.rate.requests()).checked_sub(wanted) else {
            return false;
        };
        let window_us = self.rate.window_us();
        u128::from(state.prev) * u128::from(window_us - state.elapsed_us)
            <= u128::from(room) * u128::from(window_us)
    }

    #[inline]
    fn charge(&self, state: SlidingWindowState, cost: Cost) -> SlidingWindowState {
        SlidingWindowState {
            cur: state.cur.saturating_add(cost.get()),
            ..state
        }
    }

    fn saturate(&self, state: SlidingWindowState, cost: Cost) -> SlidingWindowState {
        let most = self.rate.requests().max(state.cur);
        SlidingWindowState {
            cur: self.charge(state, cost).cur.min(most),
            ..state
        }
    }

    /// Only into the window that was charged, which is known by its end.
    fn refund(&self, state: SlidingWindowState, charge: PastCharge) -> SlidingWindowState {
        let cost = charge.cost.get();
        // The end of the last window is the start of this one.
        let start_us = state.last_us.saturating_sub(state.elapsed_us);
        if charge.mark_us == start_us {
            SlidingWindowState {
                prev: state.prev.saturating_sub(cost),
                ..state
            }
        } else if charge.mark_us == self.window_end_us(&state) {
            SlidingWindowState {
                cur: state.cur.saturating_sub(cost),
                ..state
            }
        } else {
            state
        }
    }

    #[inline]
    fn outcome(&self, state: &SlidingWindowState, cost: Cost, admitted: bool) -> Outcome {
        Outcome {
            limit: self.rate.requests(),
            used: self.estimate(state),
            retry_after_us: if admitted {
                Some(0)
            } else {
                self.retry_after_us(state, cost)
            },
            reset_after_us: self.reset_after_us(state),
        }
    }

    fn counts_for_us(&self, _: Cost) -> u64 {
        2 * self.rate.window_us()
    }

    /// When the current window ends.
    #[inline]
    fn mark_us(&self, state: &SlidingWindowState) -> u64 {
        self.window_end_us(state)
    }

    #[inline]
    fn counts_like(&self, old: &Self) -> bool {
        self.rate.window_us() == old.rate.window_us()
    }

    /// Where the windows differ in length, the estimate becomes the current count.
    fn adopt(&self, old: &Self, state: SlidingWindowState, now_us: u64) -> SlidingWindowState {
        if self.counts_like(old) {
            return state;
        }
        // Counted refusals can fill both counters.
        let estimate = old
            .estimate(&old.at(state, now_us))
            .ceil()
            .min(MAX_REQUESTS);
        SlidingWindowState {
            cur: estimate,
            ..self.new_state(now_us)
        }
    }

    fn write_limit(&self, _: Cost, out: &mut Vec<u8>) {
        let requests = self.rate.requests().into();
        put(out, [(requests, 4), (self.rate.window_us(), 6)]);
    }

    fn read_state(&self, now_us: u64, numbers: &mut Numbers<'_>) -> Option<(Self::State, u64)> {
        let state = SlidingWindowState {
            prev: numbers.next_u32()?,
            cur: numbers.next_u32()?,
            elapsed_us: numbers.next()?,
            last_us: now_us,
        };
        let mark_us = numbers.next()?;
        (state.elapsed_us < self.rate.window_us()).then_some((state, mark_us))
    }

    fn emptied(state: SlidingWindowState) -> SlidingWindowState {
        SlidingWindowState {
            prev: 0,
            cur: 0,
            ..state
        }
    }

    /// The end of this window or of the last one, whichever was open then.
    fn mark_at(&self, state: &SlidingWindowState, charged_at_us: u64) -> u64 {
        let start_us = state.last_us.saturating_sub(state.elapsed_us);
        if charged_at_us >= start_us {
            self.mark_us(state)
        } else if charged_at_us.saturating_add(self.rate.window_us()) >= start_us {
            start_us
        } else {
            0
        }
    }

    fn write_parcel(&self, own: &SlidingWindowState, parcel: &Parcel, out: &mut Vec<u8>) {
        let cost = u64::from(own.cur) + u64::from(own.prev);
        put_parcel(out, [cost, own.prev.into(), told_elapsed_us(own, parcel)]);
    }

    /// An edge may have passed on the way.
    fn arrive(
        &self,
        state: SlidingWindowState,
        own: &SlidingWindowState,
        parcel: &Parcel,
    ) -> SlidingWindowState {
        let behind_us = told_elapsed_us(own, parcel).saturating_sub(state.elapsed_us);
        let (last, this) = match 2 * behind_us > self.rate.window_us() {
            true => (own.cur, 0),
            false => (own.prev, own.cur),
        };
        SlidingWindowState {
            prev: state.prev.saturating_add(last).min(MAX_COUNT),
            cur: state.cur.saturating_add(this).min(MAX_COUNT),
            ..state
        }
    }

    #[cfg(feature = "audit")]
    fn rules(&self, nodes: &Nodes<'_>) -> Vec<Rule> {
        let window = nodes.window(self.rate);
        let both = match nodes.background {
            // Any window lies in two of the grid, of which the first has faded by
            // what the second has.
            None => window.most + u64::from(self.rate.requests()) - 1,
            Some(_) => window.most.saturating_mul(2),
        };
        vec![
            Rule::Aligned(window),
            Rule::Any(Window {
                most: both,
                ..window
            }),
        ]
    }
}

/// How much of its window has elapsed: by a clock that is not the store's, nobody knows.
fn told_elapsed_us(own: &SlidingWindowState, parcel: &Parcel) -> u64 {
    match parcel.on_time {
        true => own.elapsed_us,
        false => 0,
    }
}

/// Bits of a counter in an entry: it counts to 2^28 inclusive.
const COUNT_BITS: u32 = 29;

impl Compact for SlidingWindow {
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
    fn unpack(&self, packed: Packed) -> SlidingWindowState {
        let mask = (1 << COUNT_BITS) - 1;
        let reset_us =
            packed.extra << (u64::BITS - 2 * COUNT_BITS) | packed.data >> (2 * COUNT_BITS);
        #[expect(clippy::cast_possible_truncation, reason = "masked to 29 bits")]
        let (prev, cur) = (
            (packed.data & mask) as u32,
            (packed.data >> COUNT_BITS & mask) as u32,
        );
        // Until the quota is full, this window ends, and the next one if this one counts.
        let windows = if cur > 0 { 2 } else { 1 };
        SlidingWindowState {
            prev,
            cur,
            elapsed_us: windows * self.rate.window_us() - reset_us,
            last_us: packed.fresh_at_us - reset_us,
        }
    }
}
