//! The breaker: stops asking a store that keeps failing, and finds out when it is back.
//! A state machine without a clock of its own.
//!
//! ```text
//!            failures in a row                time for a probe
//!  closed ───────────────────────▶ open ───────────────────────▶ probing
//!    ▲                              ▲                               │ │
//!    │                              └────────── it failed ──────────┘ │
//!    └─────────────────────────── it succeeded ───────────────────────┘
//! ```

use std::time::Duration;

/// Failures in a row that open it.
const FAILURES: u32 = 5;

/// The first pause before a probe, and the longest; each failed probe doubles it.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// How long a probe may take before another one goes out: its caller may be gone.
const PROBE: Duration = Duration::from_secs(1);

/// Whether to ask a store.
#[derive(Debug, Default)]
pub(crate) struct Breaker {
    state: State,
}

#[derive(Debug)]
enum State {
    Closed {
        failures: u32,
    },
    /// Not asked before `until`, since `start` of the breaker's time.
    Open {
        until: Duration,
        pause: Duration,
    },
    /// One check is finding out; another may from `until` on.
    Probing {
        until: Duration,
        pause: Duration,
    },
}

impl Default for State {
    fn default() -> Self {
        Self::Closed { failures: 0 }
    }
}

/// What the breaker says to a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Permit {
    /// Ask.
    Go,
    /// Do not ask; the next probe goes out after this long.
    Wait(Duration),
}

/// What a result has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    Opened,
    Closed,
}

impl Breaker {
    /// May a check ask the store at this time?
    pub(crate) fn ask(&mut self, now: Duration) -> Permit {
        match self.state {
            State::Closed { .. } => Permit::Go,
            State::Open { until, pause } | State::Probing { until, pause } if now >= until => {
                self.state = State::Probing {
                    until: now + PROBE,
                    pause,
                };
                Permit::Go
            }
            State::Open { until, .. } | State::Probing { until, .. } => Permit::Wait(until - now),
        }
    }

    /// The store has answered.
    pub(crate) fn succeeded(&mut self) -> Option<Change> {
        let was_open = self.is_open();
        self.state = State::default();
        was_open.then_some(Change::Closed)
    }

    /// The store has not answered. `jitter`, from 0 to 1, spreads the probes of many
    /// nodes.
    pub(crate) fn failed(&mut self, now: Duration, jitter: f64) -> Option<Change> {
        let (pause, change) = match self.state {
            State::Closed { failures } if failures + 1 < FAILURES => {
                self.state = State::Closed {
                    failures: failures + 1,
                };
                return None;
            }
            State::Closed { .. } => (FIRST_PAUSE, Some(Change::Opened)),
            // Others that were on their way when it opened.
            State::Open { .. } => return None,
            State::Probing { pause, .. } => ((pause * 2).min(LONGEST_PAUSE), None),
        };
        let until = now + pause.mul_f64(0.5 + jitter / 2.0);
        self.state = State::Open { until, pause };
        change
    }

    /// How long until a probe may go out, whoever sends it.
    pub(crate) fn next_probe(&self, now: Duration) -> Duration {
        match self.state {
            State::Closed { .. } => FIRST_PAUSE,
            State::Open { until, .. } | State::Probing { until, .. } => until.saturating_sub(now),
        }
    }

    pub(crate) fn is_open(&self) -> bool {
        !matches!(self.state, State::Closed { .. })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn opened() -> Breaker {
        let mut breaker = Breaker::default();
        for failure in 1..=FAILURES {
            assert_eq!(breaker.ask(Duration::ZERO), Permit::Go);
            let change = breaker.failed(Duration::ZERO, 1.0);
            assert_eq!(change, (failure == FAILURES).then_some(Change::Opened));
        }
        breaker
    }

    #[test]
    fn failures_in_a_row_open_it_and_a_success_between_them_does_not() {
        let mut breaker = Breaker::default();
        for _ in 0..100 {
            for _ in 1..FAILURES {
                assert_eq!(breaker.failed(Duration::ZERO, 1.0), None);
            }
            assert_eq!(breaker.succeeded(), None);
        }
        assert!(!breaker.is_open());
        assert!(opened().is_open());
    }

    #[test]
    fn an_open_one_says_when_it_will_ask_again() {
        let mut breaker = opened();
        assert_eq!(breaker.ask(30 * MS), Permit::Wait(70 * MS));
        assert_eq!(breaker.ask(99 * MS), Permit::Wait(MS));
    }

    #[test]
    fn one_probe_goes_out_at_a_time_and_a_lost_one_is_replaced() {
        let mut breaker = opened();
        assert_eq!(breaker.ask(100 * MS), Permit::Go);
        assert_eq!(breaker.ask(100 * MS), Permit::Wait(PROBE));
        assert_eq!(breaker.ask(1_099 * MS), Permit::Wait(MS));
        assert_eq!(breaker.ask(1_100 * MS), Permit::Go);
        assert_eq!(breaker.ask(1_100 * MS), Permit::Wait(PROBE));
    }

    #[test]
    fn a_probe_that_succeeds_closes_it() {
        let mut breaker = opened();
        assert_eq!(breaker.ask(100 * MS), Permit::Go);
        assert_eq!(breaker.succeeded(), Some(Change::Closed));
        assert_eq!(breaker.ask(100 * MS), Permit::Go);
        assert_eq!(breaker.ask(100 * MS), Permit::Go);
    }

    #[test]
    fn each_failed_probe_doubles_the_pause_up_to_a_bound() {
        let mut breaker = opened();
        let mut now = Duration::ZERO;
        let mut pauses = Vec::new();
        for _ in 0..8 {
            let Permit::Wait(pause) = breaker.ask(now) else {
                panic!("open");
            };
            pauses.push(pause.as_millis());
            now += pause;
            assert_eq!(breaker.ask(now), Permit::Go);
            assert_eq!(breaker.failed(now, 1.0), None);
        }
        assert_eq!(pauses, [100, 200, 400, 800, 1_600, 2_000, 2_000, 2_000]);
    }

    #[test]
    fn jitter_takes_at_most_half_of_a_pause() {
        for (jitter, pause) in [(0.0, 50), (0.5, 75), (1.0, 100)] {
            let mut breaker = Breaker::default();
            for _ in 0..FAILURES {
                breaker.failed(Duration::ZERO, jitter);
            }
            assert_eq!(breaker.ask(Duration::ZERO), Permit::Wait(pause * MS));
        }
    }

    #[test]
    fn failures_that_come_late_do_not_put_off_the_probe() {
        let mut breaker = opened();
        for _ in 0..1_000 {
            assert_eq!(breaker.failed(60 * MS, 1.0), None);
        }
        assert_eq!(breaker.ask(100 * MS), Permit::Go);
    }
}
