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
//!
//! Answers come late: some of a store that was well when they were asked for, some of
//! one that was not. So every question carries the era it was asked in, and its result
//! counts only while that lasts.

use std::time::Duration;

/// Failures in a row that open it.
const FAILURES: u32 = 5;

/// The first pause before a probe, and the longest; each failed probe doubles it.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// How long a probe may take before another one goes out: its caller may be gone.
const PROBE: Duration = Duration::from_secs(1);

/// Whether to ask a store.
#[derive(Debug, Default)]
pub(crate) struct Breaker {
    state: State,
    era: Era,
}

/// A time in which results say the same thing: it ends when the breaker opens or closes,
/// and when a connection is lost.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Era(u64);

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
    /// Ask, and report what came of it under this era.
    Go(Era),
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
            State::Closed { .. } => Permit::Go(self.era),
            State::Open { until, pause } | State::Probing { until, pause } if now >= until => {
                self.state = State::Probing {
                    until: now + PROBE,
                    pause,
                };
                Permit::Go(self.era)
            }
            State::Open { until, .. } | State::Probing { until, .. } => Permit::Wait(until - now),
        }
    }

    /// The store has answered.
    pub(crate) fn succeeded(&mut self, asked: Era) -> Option<Change> {
        if asked != self.era {
            return None;
        }
        let was_open = self.is_open();
        self.state = State::default();
        was_open.then(|| {
            self.next_era();
            Change::Closed
        })
    }

    /// The store has not answered. `jitter`, from 0 to 1, spreads the probes of many
    /// nodes.
    pub(crate) fn failed(&mut self, asked: Era, now: Duration, jitter: f64) -> Option<Change> {
        if asked != self.era {
            return None;
        }
        let (pause, change) = match self.state {
            State::Closed { failures } if failures + 1 < FAILURES => {
                self.state = State::Closed {
                    failures: failures + 1,
                };
                return None;
            }
            State::Closed { .. } => {
                self.next_era();
                (FIRST_PAUSE, Some(Change::Opened))
            }
            // A probe that was replaced, after the one that replaced it.
            State::Open { .. } => return None,
            State::Probing { pause, .. } => ((pause * 2).min(LONGEST_PAUSE), None),
        };
        let until = now + pause.mul_f64(0.5 + jitter / 2.0);
        self.state = State::Open { until, pause };
        change
    }

    /// A connection was lost, and the answers to all that it carried: one failure,
    /// however many those were.
    pub(crate) fn lost(&mut self, asked: Era, now: Duration, jitter: f64) -> Option<Change> {
        if asked != self.era {
            return None;
        }
        let change = self.failed(asked, now, jitter);
        self.next_era();
        change
    }

    fn next_era(&mut self) {
        self.era = Era(self.era.0 + 1);
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

    /// The era of a check that may ask.
    fn asked(breaker: &mut Breaker, now: Duration) -> Era {
        match breaker.ask(now) {
            Permit::Go(era) => era,
            Permit::Wait(wait) => panic!("not for another {wait:?}"),
        }
    }

    fn opened() -> Breaker {
        let mut breaker = Breaker::default();
        for failure in 1..=FAILURES {
            let era = asked(&mut breaker, Duration::ZERO);
            let change = breaker.failed(era, Duration::ZERO, 1.0);
            assert_eq!(change, (failure == FAILURES).then_some(Change::Opened));
        }
        breaker
    }

    #[test]
    fn failures_in_a_row_open_it_and_a_success_between_them_does_not() {
        let mut breaker = Breaker::default();
        for _ in 0..100 {
            let era = asked(&mut breaker, Duration::ZERO);
            for _ in 1..FAILURES {
                assert_eq!(breaker.failed(era, Duration::ZERO, 1.0), None);
            }
            assert_eq!(breaker.succeeded(era), None);
        }
        assert!(!breaker.is_open());
        assert!(opened().is_open());
    }

    #[test]
    fn a_lost_connection_is_one_failure_whatever_it_carried() {
        let mut breaker = Breaker::default();
        for lost in 1..=FAILURES {
            let era = asked(&mut breaker, Duration::ZERO);
            let changes: Vec<_> = (0..100)
                .filter_map(|_| breaker.lost(era, Duration::ZERO, 1.0))
                .collect();
            let opens = lost == FAILURES;
            assert_eq!(changes, vec![Change::Opened; usize::from(opens)]);
            assert_eq!(breaker.is_open(), opens);
        }
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
        asked(&mut breaker, 100 * MS);
        assert_eq!(breaker.ask(100 * MS), Permit::Wait(PROBE));
        assert_eq!(breaker.ask(1_099 * MS), Permit::Wait(MS));
        asked(&mut breaker, 1_100 * MS);
        assert_eq!(breaker.ask(1_100 * MS), Permit::Wait(PROBE));
    }

    #[test]
    fn a_probe_that_succeeds_closes_it_even_when_it_was_replaced() {
        let mut breaker = opened();
        let first = asked(&mut breaker, 100 * MS);
        asked(&mut breaker, 100 * MS + PROBE);
        assert_eq!(breaker.succeeded(first), Some(Change::Closed));
        asked(&mut breaker, 100 * MS + PROBE);
        asked(&mut breaker, 100 * MS + PROBE);
    }

    #[test]
    fn each_failed_probe_doubles_the_pause_up_to_a_bound() {
        let mut breaker = opened();
        let mut now = Duration::ZERO;
        let mut pauses = Vec::new();
        for _ in 0..7 {
            let Permit::Wait(pause) = breaker.ask(now) else {
                panic!("open");
            };
            pauses.push(pause.as_millis());
            now += pause;
            let probe = asked(&mut breaker, now);
            assert_eq!(breaker.failed(probe, now, 1.0), None);
        }
        assert_eq!(pauses, [100, 200, 400, 800, 1_000, 1_000, 1_000]);
    }

    #[test]
    fn jitter_takes_at_most_half_of_a_pause() {
        for (jitter, pause) in [(0.0, 50), (0.5, 75), (1.0, 100)] {
            let mut breaker = Breaker::default();
            let era = asked(&mut breaker, Duration::ZERO);
            for _ in 0..FAILURES {
                breaker.failed(era, Duration::ZERO, jitter);
            }
            assert_eq!(breaker.ask(Duration::ZERO), Permit::Wait(pause * MS));
        }
    }

    #[test]
    fn what_was_asked_before_it_opened_changes_nothing_after() {
        let mut breaker = Breaker::default();
        let before = asked(&mut breaker, Duration::ZERO);
        for _ in 0..FAILURES {
            breaker.failed(before, Duration::ZERO, 1.0);
        }
        for _ in 0..1_000 {
            assert_eq!(breaker.failed(before, 60 * MS, 1.0), None);
            assert_eq!(breaker.succeeded(before), None);
        }
        let probe = asked(&mut breaker, 100 * MS);
        // Neither do they stand in for the probe.
        assert_eq!(breaker.failed(before, 101 * MS, 1.0), None);
        assert_eq!(breaker.succeeded(before), None);
        assert_eq!(breaker.ask(101 * MS), Permit::Wait(PROBE - MS));
        assert_eq!(breaker.succeeded(probe), Some(Change::Closed));
        // Nor do they open it again.
        for _ in 0..1_000 {
            assert_eq!(breaker.failed(before, 102 * MS, 1.0), None);
            assert_eq!(breaker.failed(probe, 102 * MS, 1.0), None);
        }
        assert!(!breaker.is_open());
    }
}
