//! The breaker: stops asking a store that keeps failing, and probes until it is back.
//! A state machine without its own clock.
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
//!
//! # When to open
//!
//! Five failures in a row open it. With many callers that takes one deadline, since they
//! all wait at the same time; but callers who come one after the other would pay five of
//! them. For those, three deadlines are enough, each of which began after the one before
//! had passed: then the store has been silent for three deadlines (150 ms by default), while a
//! crowd lets it be silent for one. So this is the more patient of the two rules, and a
//! slow command or a fork of the server that holds up one caller, or two, opens nothing.
//! If it is wrong all the same, the next probe closes it, 50 to 100 ms later. Failures
//! that are answered at once are not among these: they cost nobody a deadline.

use std::time::Duration;

/// Failures in a row that open it.
const FAILURES: u32 = 5;

/// Deadlines one after the other that open it.
const DEADLINES: u32 = 3;

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

/// A question that was put: when, and in which era.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Asked {
    era: Era,
    at: Duration,
}

/// How a store can fail to answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Failure {
    /// With an answer that is no decision, at once.
    Answered,
    /// With none before the deadline, however often it was asked.
    Waited,
    /// With the loss of a connection and the answers to all that it carried: one
    /// failure, however many those were.
    Lost,
}

#[derive(Debug)]
enum State {
    Closed(Failures),
    /// Not asked before `until`, since `start` of the breaker's time.
    Open {
        until: Duration,
        pause: Duration,
    },
    /// One check, asked at `since`, is finding out; another may from `until` on.
    Probing {
        since: Duration,
        until: Duration,
        pause: Duration,
    },
}

impl Default for State {
    fn default() -> Self {
        Self::Closed(Failures::default())
    }
}

/// Failures without a success between them.
#[derive(Debug, Default, Clone, Copy)]
struct Failures {
    all: u32,
    /// Deadlines that passed one after the other, and when the last of them had.
    deadlines: u32,
    passed: Duration,
}

impl Failures {
    /// One more. Whether those are enough.
    fn add(&mut self, asked: Asked, failure: Failure, now: Duration) -> bool {
        self.all += 1;
        if failure == Failure::Waited && (self.deadlines == 0 || asked.at >= self.passed) {
            self.deadlines += 1;
            self.passed = now;
        }
        self.all >= FAILURES || self.deadlines >= DEADLINES
    }
}

/// What the breaker says to a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Ask, and report what came of it.
    Go(Asked),
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
    pub(crate) fn ask(&mut self, now: Duration) -> Verdict {
        let go = Verdict::Go(Asked {
            era: self.era,
            at: now,
        });
        match self.state {
            State::Closed(_) => go,
            State::Open { until, pause } | State::Probing { until, pause, .. } if now >= until => {
                self.state = State::Probing {
                    since: now,
                    until: now + PROBE,
                    pause,
                };
                go
            }
            State::Open { until, .. } | State::Probing { until, .. } => Verdict::Wait(until - now),
        }
    }

    /// The store has answered.
    pub(crate) fn succeeded(&mut self, asked: Asked) -> Option<Change> {
        if asked.era != self.era {
            return None;
        }
        let was_open = self.is_open();
        self.state = State::default();
        was_open.then(|| {
            self.next_era();
            Change::Closed
        })
    }

    /// Nothing came of a question: its caller left, or it was never put. If it was the
    /// probe, another one may go out at once.
    pub(crate) fn abandoned(&mut self, asked: Asked) {
        if let State::Probing { since, pause, .. } = self.state
            && asked.era == self.era
            && asked.at == since
        {
            self.state = State::Open {
                until: since,
                pause,
            };
        }
    }

    /// The store has not answered. `jitter`, from 0 to 1, spreads the probes of many
    /// nodes.
    pub(crate) fn failed(
        &mut self,
        asked: Asked,
        failure: Failure,
        now: Duration,
        jitter: f64,
    ) -> Option<Change> {
        if asked.era != self.era {
            return None;
        }
        if failure == Failure::Lost {
            // Whatever else it carried was asked before.
            self.next_era();
        }
        let (pause, change) = match &mut self.state {
            State::Closed(failures) => match failures.add(asked, failure, now) {
                true => (FIRST_PAUSE, Some(Change::Opened)),
                false => return None,
            },
            // A probe that was replaced, after the one that replaced it.
            State::Open { .. } => return None,
            State::Probing { pause, .. } => ((*pause * 2).min(LONGEST_PAUSE), None),
        };
        if change.is_some() {
            self.next_era();
        }
        let until = now + pause.mul_f64(0.5 + jitter / 2.0);
        self.state = State::Open { until, pause };
        change
    }

    fn next_era(&mut self) {
        self.era = Era(self.era.0 + 1);
    }

    /// How long until the next probe may be sent.
    pub(crate) fn next_probe(&self, now: Duration) -> Duration {
        match self.state {
            State::Closed(_) => FIRST_PAUSE,
            State::Open { until, .. } | State::Probing { until, .. } => until.saturating_sub(now),
        }
    }

    pub(crate) fn is_open(&self) -> bool {
        !matches!(self.state, State::Closed(_))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// A check that may ask.
    fn asked(breaker: &mut Breaker, now: Duration) -> Asked {
        match breaker.ask(now) {
            Verdict::Go(asked) => asked,
            Verdict::Wait(wait) => panic!("not for another {wait:?}"),
        }
    }

    fn opened() -> Breaker {
        let mut breaker = Breaker::default();
        for failure in 1..=FAILURES {
            let check = asked(&mut breaker, Duration::ZERO);
            let change = breaker.failed(check, Failure::Answered, Duration::ZERO, 1.0);
            assert_eq!(change, (failure == FAILURES).then_some(Change::Opened));
        }
        breaker
    }

    #[test]
    fn failures_in_a_row_open_it_and_a_success_between_them_does_not() {
        let mut breaker = Breaker::default();
        for _ in 0..100 {
            let check = asked(&mut breaker, Duration::ZERO);
            for _ in 1..FAILURES {
                assert_eq!(
                    breaker.failed(check, Failure::Answered, Duration::ZERO, 1.0),
                    None
                );
            }
            assert_eq!(breaker.succeeded(check), None);
        }
        assert!(!breaker.is_open());
        assert!(opened().is_open());
    }

    #[test]
    fn a_lost_connection_is_one_failure_whatever_it_carried() {
        let mut breaker = Breaker::default();
        for lost in 1..=FAILURES {
            let check = asked(&mut breaker, Duration::ZERO);
            let changes: Vec<_> = (0..100)
                .filter_map(|_| breaker.failed(check, Failure::Lost, Duration::ZERO, 1.0))
                .collect();
            let opens = lost == FAILURES;
            assert_eq!(changes, vec![Change::Opened; usize::from(opens)]);
            assert_eq!(breaker.is_open(), opens);
        }
    }

    #[test]
    fn three_deadlines_one_after_the_other_open_it() {
        let mut breaker = Breaker::default();
        for deadline in 1..=DEADLINES {
            let check = asked(&mut breaker, (deadline - 1) * 50 * MS);
            let change = breaker.failed(check, Failure::Waited, deadline * 50 * MS, 1.0);
            assert_eq!(change, (deadline == DEADLINES).then_some(Change::Opened));
        }
    }

    #[test]
    fn deadlines_of_the_same_time_are_one() {
        let mut breaker = Breaker::default();
        let mut wait = |asked_at: [u32; 2], passed: u32| {
            let checks = asked_at.map(|at| asked(&mut breaker, at * MS));
            for check in checks {
                let change = breaker.failed(check, Failure::Waited, passed * MS, 1.0);
                assert_eq!(change, None);
            }
            breaker.is_open()
        };
        assert!(!wait([0, 49], 50));
        assert!(!wait([10, 49], 99), "before the first one had passed");
        let check = asked(&mut breaker, 100 * MS);
        let change = breaker.failed(check, Failure::Waited, 150 * MS, 1.0);
        assert_eq!(change, Some(Change::Opened), "the fifth of all");
    }

    #[test]
    fn a_success_between_deadlines_keeps_it_closed() {
        let mut breaker = Breaker::default();
        for round in 0..100 {
            for wait in 0..DEADLINES {
                let now = (round * DEADLINES + wait) * 50 * MS;
                let check = asked(&mut breaker, now);
                let change = match wait + 1 < DEADLINES {
                    true => breaker.failed(check, Failure::Waited, now + 50 * MS, 1.0),
                    false => breaker.succeeded(check),
                };
                assert_eq!(change, None);
            }
        }
    }

    #[test]
    fn an_open_one_says_when_it_will_ask_again() {
        let mut breaker = opened();
        assert_eq!(breaker.ask(30 * MS), Verdict::Wait(70 * MS));
        assert_eq!(breaker.ask(99 * MS), Verdict::Wait(MS));
    }

    #[test]
    fn one_probe_goes_out_at_a_time_and_a_lost_one_is_replaced() {
        let mut breaker = opened();
        asked(&mut breaker, 100 * MS);
        assert_eq!(breaker.ask(100 * MS), Verdict::Wait(PROBE));
        assert_eq!(breaker.ask(1_099 * MS), Verdict::Wait(MS));
        asked(&mut breaker, 1_100 * MS);
        assert_eq!(breaker.ask(1_100 * MS), Verdict::Wait(PROBE));
    }

    #[test]
    fn abandoned_probe_lets_the_next_one_out_at_once() {
        let mut breaker = opened();
        let first = asked(&mut breaker, 100 * MS);
        breaker.abandoned(first);
        let second = asked(&mut breaker, 101 * MS);
        assert_eq!(breaker.ask(101 * MS), Verdict::Wait(PROBE));
        // The first one says nothing about the second.
        breaker.abandoned(first);
        assert_eq!(breaker.ask(101 * MS), Verdict::Wait(PROBE));
        breaker.failed(second, Failure::Answered, 102 * MS, 1.0);
        breaker.abandoned(second);
        assert_eq!(breaker.ask(102 * MS), Verdict::Wait(200 * MS));
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
            let Verdict::Wait(pause) = breaker.ask(now) else {
                panic!("open");
            };
            pauses.push(pause.as_millis());
            now += pause;
            let probe = asked(&mut breaker, now);
            assert_eq!(breaker.failed(probe, Failure::Answered, now, 1.0), None);
        }
        assert_eq!(pauses, [100, 200, 400, 800, 1_000, 1_000, 1_000]);
    }

    #[test]
    fn jitter_takes_at_most_half_of_a_pause() {
        for (jitter, pause) in [(0.0, 50), (0.5, 75), (1.0, 100)] {
            let mut breaker = Breaker::default();
            let check = asked(&mut breaker, Duration::ZERO);
            for _ in 0..FAILURES {
                breaker.failed(check, Failure::Answered, Duration::ZERO, jitter);
            }
            assert_eq!(breaker.ask(Duration::ZERO), Verdict::Wait(pause * MS));
        }
    }

    #[test]
    fn what_was_asked_before_it_opened_changes_nothing_after() {
        let mut breaker = Breaker::default();
        let before = asked(&mut breaker, Duration::ZERO);
        for _ in 0..FAILURES {
            breaker.failed(before, Failure::Answered, Duration::ZERO, 1.0);
        }
        for _ in 0..1_000 {
            assert_eq!(
                breaker.failed(before, Failure::Answered, 60 * MS, 1.0),
                None
            );
            assert_eq!(breaker.succeeded(before), None);
        }
        let probe = asked(&mut breaker, 100 * MS);
        // Neither do they stand in for the probe.
        assert_eq!(
            breaker.failed(before, Failure::Answered, 101 * MS, 1.0),
            None
        );
        assert_eq!(breaker.succeeded(before), None);
        assert_eq!(breaker.ask(101 * MS), Verdict::Wait(PROBE - MS));
        assert_eq!(breaker.succeeded(probe), Some(Change::Closed));
        // Nor do they open it again.
        for _ in 0..1_000 {
            assert_eq!(
                breaker.failed(before, Failure::Answered, 102 * MS, 1.0),
                None
            );
            assert_eq!(
                breaker.failed(probe, Failure::Answered, 102 * MS, 1.0),
                None
            );
        }
        assert!(!breaker.is_open());
    }
}
