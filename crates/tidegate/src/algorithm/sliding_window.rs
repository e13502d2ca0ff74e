//! The sliding window of two counters: small, smooth, approximate.
//!
//! Windows are aligned to the epoch. The last window's count fades out as the
//! current one goes on: with `e` elapsed, the estimate is
//! `prev*(W - e)/W + cur`, and a request is admitted if the estimate with it
//! stays within `N`, compared exactly (`prev*(W - e) <= (N - cur - c)*W`).
//!
//! It is an approximation: at most `N` per aligned window, but up to just below
//! `2N` in some other stretch of length `W`. With `N` = 10 a minute, 10 at 59.9 s and
//! 9 more at 114 s pass, 19 within 54 seconds. Where any stretch must hold `N`, use
//! [`SlidingLog`](super::SlidingLog).
//!
//! # Example
//! 10 per 60 s, 6 in the last window, 1 in this one, 10 s into it: the estimate
//! is `6*50/60 + 1 = 6.0`, and 4 remain. A cost of 5 has to wait until
//! `6*(60 - e)/60 <= 10 - 1 - 5`, `e = 20`: 10 s.

use super::{Outcome, Used, mul_div};
use crate::cost::Cost;
use crate::error::LimitError;
use crate::limit::Algorithm;
use crate::rate::Rate;

/// The most requests a sliding window counts.
const MAX_REQUESTS: u32 = 1 << 28;

/// At most `requests` per window, smoothed over the edge.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SlidingWindow {
    rate: Rate,
}

/// A key's two counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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

    /// The rate it was made of.
    #[must_use]
    pub const fn rate(&self) -> Rate {
        self.rate
    }

    /// Nothing counted yet.
    #[must_use]
    pub const fn new_state(&self, now_us: u64) -> SlidingWindowState {
        SlidingWindowState {
            prev: 0,
            cur: 0,
            elapsed_us: now_us % self.rate.window_us(),
            last_us: now_us,
        }
    }

    /// The state at a later instant: the current window may have become the
    /// last one, or both may be over.
    #[must_use]
    pub fn at(&self, state: SlidingWindowState, now_us: u64) -> SlidingWindowState {
        let window_us = self.rate.window_us();
        let elapsed_us = state.elapsed_us + now_us.saturating_sub(state.last_us);
        let state = SlidingWindowState {
            elapsed_us,
            last_us: now_us,
            ..state
        };
        if self.good_as_new(&state) {
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
    #[must_use]
    pub fn admits(&self, state: &SlidingWindowState, cost: Cost) -> bool {
        let wanted = u64::from(state.cur) + u64::from(cost.get());
        let Some(room) = u64::from(self.rate.requests()).checked_sub(wanted) else {
            return false;
        };
        let window_us = self.rate.window_us();
        u128::from(state.prev) * u128::from(window_us - state.elapsed_us)
            <= u128::from(room) * u128::from(window_us)
    }

    /// The state after counting an admitted cost.
    #[must_use]
    pub const fn charge(&self, state: SlidingWindowState, cost: Cost) -> SlidingWindowState {
        SlidingWindowState {
            cur: state.cur.saturating_add(cost.get()),
            ..state
        }
    }

    /// The state after counting a refused cost: at most a full window.
    #[must_use]
    pub fn saturate(&self, state: SlidingWindowState, cost: Cost) -> SlidingWindowState {
        let cur = self
            .charge(state, cost)
            .cur
            .min(self.rate.requests().max(state.cur));
        SlidingWindowState { cur, ..state }
    }

    /// The state after giving back a cost charged to the window that ends at
    /// `window_end_us`, if that one still counts.
    #[must_use]
    pub const fn refund(
        &self,
        state: SlidingWindowState,
        cost: Cost,
        window_end_us: u64,
    ) -> SlidingWindowState {
        // The end of the last window is the start of this one.
        let start_us = state.last_us.saturating_sub(state.elapsed_us);
        if window_end_us == start_us {
            SlidingWindowState {
                prev: state.prev.saturating_sub(cost.get()),
                ..state
            }
        } else if window_end_us == self.window_end_us(&state) {
            SlidingWindowState {
                cur: state.cur.saturating_sub(cost.get()),
                ..state
            }
        } else {
            state
        }
    }

    /// When the current window ends: what a refund remembers a charge by.
    #[must_use]
    pub const fn window_end_us(&self, state: &SlidingWindowState) -> u64 {
        (state.last_us + self.rate.window_us()).saturating_sub(state.elapsed_us)
    }

    /// The numbers to report, `cost` being what would be asked for again.
    #[must_use]
    pub fn outcome(&self, state: &SlidingWindowState, cost: Cost, admitted: bool) -> Outcome {
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

    /// One check of one level: the state to keep and what to report.
    ///
    /// ```
    /// use tidegate::algorithm::{SlidingWindow, SlidingWindowState};
    /// use tidegate::{Cost, Rate};
    ///
    /// let limit = SlidingWindow::new("10r/m".parse::<Rate>()?)?;
    /// let state = SlidingWindowState { prev: 6, cur: 0, elapsed_us: 10_000_000, last_us: 70_000_000 };
    /// let (_, outcome) = limit.step(state, Cost::ONE, 70_000_000);
    /// assert_eq!((outcome.rate(), outcome.remaining()), (6.0, 4));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn step(
        &self,
        state: SlidingWindowState,
        cost: Cost,
        now_us: u64,
    ) -> (SlidingWindowState, Outcome) {
        let state = self.at(state, now_us);
        if self.admits(&state, cost) {
            let state = self.charge(state, cost);
            (state, self.outcome(&state, cost, true))
        } else {
            (state, self.outcome(&state, cost, false))
        }
    }

    /// A state that was written under another window, at `now_us`: the estimate
    /// becomes the current count where the windows differ in length.
    #[must_use]
    pub fn adopt(&self, old: &Self, state: SlidingWindowState, now_us: u64) -> SlidingWindowState {
        if old.rate.window_us() == self.rate.window_us() {
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

    /// Until both counters are gone.
    pub(crate) const fn reset_after_us(&self, state: &SlidingWindowState) -> u64 {
        let window_us = self.rate.window_us();
        if state.cur > 0 {
            2 * window_us - state.elapsed_us
        } else if state.prev > 0 {
            window_us - state.elapsed_us
        } else {
            0
        }
    }

    /// How far into its window a state was that is good as new `reset_after_us`
    /// later.
    pub(crate) const fn elapsed_us(&self, cur: u32, reset_after_us: u64) -> u64 {
        let windows = if cur > 0 { 2 } else { 1 };
        windows * self.rate.window_us() - reset_after_us
    }

    const fn good_as_new(&self, state: &SlidingWindowState) -> bool {
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

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000;

    fn limit() -> SlidingWindow {
        SlidingWindow::new("10r/m".parse().unwrap()).unwrap()
    }

    fn state(prev: u32, cur: u32, elapsed: u64) -> SlidingWindowState {
        SlidingWindowState {
            prev,
            cur,
            elapsed_us: elapsed * SECOND,
            last_us: (60 + elapsed) * SECOND,
        }
    }

    #[test]
    fn the_example_of_the_module() {
        let outcome = limit().outcome(&state(6, 1, 10), Cost::of(5), false);
        assert_eq!((outcome.rate(), outcome.remaining()), (6.0, 4));
        assert_eq!(outcome.retry_after_us, Some(10 * SECOND));
        assert_eq!(outcome.reset_after_us, 110 * SECOND);
    }

    #[test]
    fn a_full_window_must_first_become_the_last_one() {
        // 10 in this window: the next one starts at 10 fading, and a cost of 4
        // fits once 10*(60 - e)/60 <= 6: e = 24.
        let outcome = limit().outcome(&state(0, 10, 20), Cost::of(4), false);
        assert_eq!(outcome.retry_after_us, Some((40 + 24) * SECOND));
    }

    #[test]
    fn with_another_window_the_estimate_becomes_the_count() {
        let new = SlidingWindow::new("10/50s".parse().unwrap()).unwrap();
        let adopted = new.adopt(&limit(), state(6, 1, 11), 71 * SECOND);
        assert_eq!((adopted.prev, adopted.cur), (0, 6));
        assert_eq!(adopted.elapsed_us, 21 * SECOND);
    }
}
