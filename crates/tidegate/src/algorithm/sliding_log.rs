//! The sliding log: every admitted event of the last window, exact.
//!
//! Any interval of length `W` holds at most `N`: an event counts for exactly `W` and expires
//! at age `W`. The cost is memory, one record per event. The records themselves are in a
//! [`Log`], which the store keeps; a [`SlidingLogState`] is what a check needs from it.
//!
//! # Example
//! 5 per 10 s:
//!
//! | at (s) | cost | events in the window | admitted | retry after (s) |
//! | --- | --- | --- | --- | --- |
//! | 0 | 3 | 3 | yes | 0 |
//! | 4 | 2 | 5 | yes | 0 |
//! | 5 | 1 | 5 | no | 5 |
//! | 5 | 4 | 5 | no | 9 |
//! | 10 | 3 | 2 + 3 | yes | 0 |

use super::remote::{put, put_parcel};
use super::{
    Algorithm, Counter, Log, LogView, Numbers, Outcome, Parcel, PastCharge, Profile, Used,
};
#[cfg(feature = "audit")]
use crate::audit::{Nodes, Rule};
use crate::cost::Cost;
use crate::error::LimitError;
use crate::limit::LimitSpec;
use crate::rate::Rate;

/// The most requests a log holds.
const MAX_REQUESTS: u32 = 1_000_000;

/// The most it counts: nodes in the mode `background` pass the limit.
const MAX_COUNT: u32 = 16_000_000;

/// At most `requests` in any interval of a window's length.
///
/// ```
/// use tidegate::algorithm::{Log, SlidingLog};
/// use tidegate::{Cost, Rate};
///
/// let limit = SlidingLog::new("5/10s".parse::<Rate>()?)?;
/// let mut log = Log::default();
/// limit.step_log(&mut log, Cost::of(3), 0);
/// limit.step_log(&mut log, Cost::of(2), 4_000_000);
/// let refused = limit.step_log(&mut log, Cost::ONE, 5_000_000);
/// assert_eq!((refused.remaining(), refused.retry_after_us), (0, Some(5_000_000)));
/// let admitted = limit.step_log(&mut log, Cost::of(3), 10_000_000);
/// assert_eq!((admitted.remaining(), admitted.retry_after_us), (0, Some(0)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SlidingLog {
    rate: Rate,
}

/// What a check needs to know of a log at an instant; the events stay in the [`Log`].
/// Where they are not at hand, all of them count until the last one is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub struct SlidingLogState {
    /// The cost of the events in the window.
    pub used: u32,
    /// Until the newest event is gone.
    pub reset_after_us: u64,
    /// Until there is room for the cost the state was read for.
    pub retry_after_us: u64,
    /// The instant of these numbers.
    pub last_us: u64,
}

impl SlidingLog {
    /// A log of this rate, of at most 1,000,000 requests.
    pub const fn new(rate: Rate) -> Result<Self, LimitError> {
        if rate.requests() > MAX_REQUESTS {
            return Err(LimitError::RequestsOf {
                requests: rate.requests(),
                algorithm: Algorithm::SlidingLog,
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

    /// The events of a log that count at this instant.
    pub fn view(&self, log: &Log, now_us: u64) -> LogView {
        log.at(self.rate.window_us(), now_us)
    }

    /// What a check of this cost needs to know of them.
    pub fn read(&self, log: &Log, view: &LogView, cost: Cost) -> SlidingLogState {
        let window_us = self.rate.window_us();
        let spare = self.rate.requests().saturating_sub(cost.get());
        let excess = view.used().saturating_sub(spare);
        SlidingLogState {
            used: view.used(),
            reset_after_us: view.reset_after_us(window_us),
            retry_after_us: match excess {
                0 => 0,
                excess => log.leaves_after_us(view, excess, window_us),
            },
            last_us: view.now_us(),
        }
    }

    /// One check of one level with its log, and what to report.
    pub fn step_log(&self, log: &mut Log, cost: Cost, now_us: u64) -> Outcome {
        let view = self.view(log, now_us);
        let state = self.read(log, &view, cost);
        if self.admits(&state, cost) {
            log.write(&view, cost.get(), self.rate.requests());
            self.outcome(&self.charge(state, cost), cost, true)
        } else {
            log.trim(&view);
            self.outcome(&state, cost, false)
        }
    }

    fn remaining(&self, state: &SlidingLogState) -> u32 {
        self.rate.requests().saturating_sub(state.used)
    }

    /// The state after an event of this cost.
    fn with_event(&self, state: SlidingLogState, cost: u32) -> SlidingLogState {
        SlidingLogState {
            used: state.used.saturating_add(cost),
            reset_after_us: self.rate.window_us(),
            ..state
        }
    }
}

impl Counter for SlidingLog {
    type State = SlidingLogState;

    const PROFILE: Profile = Profile {
        max_requests: MAX_REQUESTS,
        ..Profile::new("sliding_log", "~sl", include_str!("sliding_log.lua"))
    };

    fn new_state(&self, now_us: u64) -> SlidingLogState {
        SlidingLogState {
            used: 0,
            reset_after_us: 0,
            retry_after_us: 0,
            last_us: now_us,
        }
    }

    fn at(&self, state: SlidingLogState, now_us: u64) -> SlidingLogState {
        let elapsed = now_us.saturating_sub(state.last_us);
        let reset_after_us = state.reset_after_us.saturating_sub(elapsed);
        SlidingLogState {
            used: if reset_after_us == 0 { 0 } else { state.used },
            reset_after_us,
            retry_after_us: state.retry_after_us.saturating_sub(elapsed),
            last_us: now_us,
        }
    }

    fn admits(&self, state: &SlidingLogState, cost: Cost) -> bool {
        cost.get() <= self.remaining(state)
    }

    fn charge(&self, state: SlidingLogState, cost: Cost) -> SlidingLogState {
        self.with_event(state, cost.get())
    }

    fn saturate(&self, state: SlidingLogState, cost: Cost) -> SlidingLogState {
        match cost.get().min(self.remaining(&state)) {
            0 => state,
            added => self.with_event(state, added),
        }
    }

    /// Only if the event is still in the window.
    fn refund(&self, state: SlidingLogState, charge: PastCharge) -> SlidingLogState {
        if charge.at_us + self.rate.window_us() <= state.last_us {
            return state;
        }
        SlidingLogState {
            used: state.used.saturating_sub(charge.cost.get()),
            ..state
        }
    }

    fn outcome(&self, state: &SlidingLogState, cost: Cost, admitted: bool) -> Outcome {
        let requests = self.rate.requests();
        Outcome {
            limit: requests,
            used: Used::requests(state.used),
            retry_after_us: if admitted {
                Some(0)
            } else if cost.get() > requests {
                None
            } else {
                Some(state.retry_after_us)
            },
            reset_after_us: state.reset_after_us,
        }
    }

    fn counts_for_us(&self, _: Cost) -> u64 {
        self.rate.window_us()
    }

    fn counts_like(&self, old: &Self) -> bool {
        self.rate.window_us() == old.rate.window_us()
    }

    fn write_limit(&self, _: Cost, out: &mut Vec<u8>) {
        let requests = self.rate.requests().into();
        put(out, [(requests, 4), (self.rate.window_us(), 6)]);
    }

    fn read_state(&self, now_us: u64, numbers: &mut Numbers<'_>) -> Option<(Self::State, u64)> {
        let state = SlidingLogState {
            used: numbers.next_u32()?,
            reset_after_us: numbers.next()?,
            retry_after_us: numbers.next()?,
            last_us: now_us,
        };
        Some((state, numbers.next()?))
    }

    fn emptied(state: SlidingLogState) -> SlidingLogState {
        SlidingLogState { used: 0, ..state }
    }

    fn write_parcel(&self, own: &SlidingLogState, _: &Parcel, out: &mut Vec<u8>) {
        put_parcel(out, [own.used.into()]);
    }

    fn arrive(&self, state: SlidingLogState, own: &SlidingLogState, _: &Parcel) -> SlidingLogState {
        match own.used.min(MAX_COUNT.saturating_sub(state.used)) {
            0 => state,
            added => self.with_event(state, added),
        }
    }

    #[cfg(feature = "audit")]
    fn rules(&self, nodes: &Nodes<'_>) -> Vec<Rule> {
        vec![Rule::Any(nodes.window(self.rate))]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000;

    struct Ring {
        limit: SlidingLog,
        log: Log,
    }

    impl Ring {
        fn new(rate: &str) -> Self {
            Self {
                limit: SlidingLog::new(rate.parse().unwrap()).unwrap(),
                log: Log::default(),
            }
        }

        fn step(&mut self, cost: u32, at: u64) -> Option<u64> {
            let outcome = self.limit.step_log(&mut self.log, Cost::of(cost), at);
            outcome.retry_after_us
        }
    }

    /// Random steps on a log and on a plain list of events.
    #[test]
    fn log_agrees_with_a_plain_list_of_events() {
        for seed in 0..40_u64 {
            let mut random = seed * 2 + 1;
            let mut next = |below: u32| {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                u32::try_from(random % u64::from(below)).unwrap()
            };
            let requests = [1, 3, 255, 256, 257, 700, 3_000][next(7) as usize];
            let mut ring = Ring::new(&format!("{requests}/1s"));
            let mut events: Vec<(u64, u32)> = Vec::new();
            let mut now = 0;
            for _ in 0..6_000 {
                now += u64::from(match next(50) {
                    0 => next(1_000_000),
                    1..30 => next(2_000),
                    _ => 0,
                });
                events.retain(|(at, _)| at + SECOND > now);
                let used: u32 = events.iter().map(|(_, cost)| cost).sum();
                let view = ring.limit.view(&ring.log, now);
                assert_eq!(view.used(), used, "seed {seed}");
                if next(10) == 0 && !events.is_empty() {
                    let index = next(u32::try_from(events.len()).unwrap()) as usize;
                    let at = events[index].0;
                    assert!(ring.log.refund(&view, Cost::ONE, at), "seed {seed}");
                    events[index].1 -= 1;
                    events.retain(|(_, cost)| *cost > 0);
                    continue;
                }
                let cost = 1 + next(3);
                let retry = ring.step(cost, now);
                let expected = if used + cost <= requests {
                    match events.last_mut().filter(|(at, _)| *at == now) {
                        Some(last) => last.1 += cost,
                        None => events.push((now, cost)),
                    }
                    Some(0)
                } else if cost > requests {
                    None
                } else {
                    let mut excess = used + cost - requests;
                    let gone = events.iter().find(|(_, cost)| {
                        excess = excess.saturating_sub(*cost);
                        excess == 0
                    });
                    gone.map(|(at, _)| at + SECOND - now)
                };
                assert_eq!(retry, expected, "seed {seed}");
            }
        }
    }

    #[test]
    fn a_log_gives_its_memory_back_in_small_steps() {
        let mut ring = Ring::new("100000/60s");
        for at in 0..100_000 {
            ring.step(1, at);
        }
        let full = ring.log.bytes();
        assert!((1_200_000..1_250_000).contains(&full), "{full} bytes");
        let mut before = full;
        for step in 0..20 {
            ring.step(1, 200 * SECOND + step);
            let now = ring.log.bytes();
            assert!(
                before - now <= 33 * (256 * 12 + 32),
                "{before} to {now} bytes"
            );
            before = now;
        }
        assert!(before < 10_000, "{before} bytes are still held");
    }
}
