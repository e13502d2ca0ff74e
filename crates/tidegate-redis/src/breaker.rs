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
//! Five failures in a row open it, where a failure is an error that the server answers or a
//! lost connection. Deadlines that pass are not counted. Calls that were in flight together
//! time out together, so their number says nothing about the server: it opens when deadlines
//! have been passing for [`PATIENCE`] without an answer between them. With the default deadline
//! of 50 ms, a server may be silent for 70 ms. A stall of 60 ms opens nothing, and neither does
//! a stall of this process, whose calls then all time out at once.
//!
//! # Probes
//!
//! While it is open, nobody waits for the server. When it is time for a probe, the caller that
//! comes by sends one, and goes on without its answer. So probes cost no check anything, and
//! can be frequent enough to find a server that is back after a moment.

use std::time::Duration;

/// Failures in a row that open it.
const FAILURES: u32 = 5;

/// How long deadlines may pass, one after the other, in parts of a deadline.
const PATIENCE: f64 = 0.4;

/// The first pause before a probe, and the longest; each failed probe doubles it.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// How long a probe may take before another one goes out: its runtime may be gone.
const PROBE: Duration = Duration::from_secs(1);

/// Whether to ask a store.
#[derive(Debug)]
pub(crate) struct Breaker {
    /// The deadline of a check.
    timeout: Duration,
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

impl Asked {
    /// When it was put.
    pub(crate) fn at(self) -> Duration {
        self.at
    }
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
    /// A probe, sent at `since`, is finding out; another may from `until` on.
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
    /// Errors and lost connections.
    count: u32,
    /// When the first deadline passed.
    late_since: Option<Duration>,
}

impl Failures {
    /// A deadline has passed. Whether they have been passing for long enough.
    fn late(&mut self, now: Duration, timeout: Duration) -> bool {
        let since = *self.late_since.get_or_insert(now);
        now > since && now - since >= timeout.mul_f64(PATIENCE)
    }
}

/// What the breaker says to a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Ask, and report what came of it.
    Go(Asked),
    /// Do not wait, but send a probe, and report what came of it.
    Probe(Asked),
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
    /// A closed one, for a server whose checks have this deadline.
    pub(crate) fn new(timeout: Duration) -> Self {
        Self {
            timeout,
            state: State::default(),
            era: Era::default(),
        }
    }

    /// May a check ask the store at this time?
    pub(crate) fn ask(&mut self, now: Duration) -> Verdict {
        let asked = Asked {
            era: self.era,
            at: now,
        };
        match self.state {
            State::Closed(_) => Verdict::Go(asked),
            State::Open { until, pause } | State::Probing { until, pause, .. } if now >= until => {
                self.state = State::Probing {
                    since: now,
                    until: now + PROBE,
                    pause,
                };
                Verdict::Probe(asked)
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
            State::Closed(failures) => {
                let is_enough = match failure {
                    Failure::Waited => failures.late(now, self.timeout),
                    Failure::Answered | Failure::Lost => {
                        failures.count += 1;
                        failures.count >= FAILURES
                    }
                };
                if !is_enough {
                    return None;
                }
                (FIRST_PAUSE, Some(Change::Opened))
            }
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

    /// Whether to stop waiting for the answer to a question: others have found the server to
    /// be silent, or this one does. A message that nobody waits for may have more time than
    /// the deadline of a check; that passes all the same.
    pub(crate) fn gives_up(&mut self, asked: Asked, now: Duration) -> bool {
        match &mut self.state {
            State::Closed(failures) => {
                let is_late = asked.era == self.era && now - asked.at >= self.timeout;
                is_late && failures.late(now, self.timeout)
            }
            State::Open { .. } | State::Probing { .. } => true,
        }
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

    const TIMEOUT: Duration = Duration::from_millis(50);

    /// A check or a probe that may ask.
    fn asked(breaker: &mut Breaker, now: Duration) -> Asked {
        match breaker.ask(now) {
            Verdict::Go(asked) | Verdict::Probe(asked) => asked,
            Verdict::Wait(wait) => panic!("not for another {wait:?}"),
        }
    }

    fn opened() -> Breaker {
        let mut breaker = Breaker::new(TIMEOUT);
        for failure in 1..=FAILURES {
            let check = asked(&mut breaker, Duration::ZERO);
            let change = breaker.failed(check, Failure::Answered, Duration::ZERO, 1.0);
            assert_eq!(change, (failure == FAILURES).then_some(Change::Opened));
        }
        breaker
    }

    #[test]
    fn failures_in_a_row_open_it_and_a_success_between_them_does_not() {
        let mut breaker = Breaker::new(TIMEOUT);
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
        let mut breaker = Breaker::new(TIMEOUT);
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

    /// Deadlines that pass at these times, and whether they open it.
    fn opens(passed_at: impl IntoIterator<Item = u32>) -> bool {
        let mut breaker = Breaker::new(TIMEOUT);
        let checks = passed_at.into_iter().map(|at| at * MS);
        let changes = checks.filter_map(|at| {
            let check = Asked {
                era: Era::default(),
                at: at - TIMEOUT,
            };
            breaker.failed(check, Failure::Waited, at, 1.0)
        });
        changes.collect::<Vec<_>>() == [Change::Opened]
    }

    #[test]
    fn calls_that_time_out_together_are_one_failure() {
        let table: [(&str, Vec<u32>, bool); 5] = [
            ("all at once", vec![50; 1_000], false),
            ("a stall of 60 ms", (50..=60).collect(), false),
            ("a server that is gone", (50..=70).collect(), true),
            ("one after the other", vec![50, 100], true),
            ("now and then", vec![50, 10_050], true),
        ];
        for (what, passed_at, expected) in table {
            assert_eq!(opens(passed_at), expected, "{what}");
        }
    }

    #[test]
    fn a_success_between_deadlines_keeps_it_closed() {
        let mut breaker = Breaker::new(TIMEOUT);
        for round in 0..100 {
            let now = round * 100 * MS;
            let check = asked(&mut breaker, now);
            let change = breaker.failed(check, Failure::Waited, now + TIMEOUT, 1.0);
            assert_eq!((change, breaker.succeeded(check)), (None, None));
        }
    }

    #[test]
    fn a_message_with_more_time_is_given_up_when_the_server_is_silent() {
        let mut breaker = Breaker::new(TIMEOUT);
        let message = asked(&mut breaker, Duration::ZERO);
        let given_up = (0..100).find(|ms| breaker.gives_up(message, *ms * MS));
        assert_eq!(given_up, Some(70));
        let change = breaker.failed(message, Failure::Waited, 70 * MS, 1.0);
        assert_eq!(change, Some(Change::Opened));
        let later = Asked {
            at: 65 * MS,
            ..message
        };
        assert!(breaker.gives_up(later, 71 * MS), "nobody waits any more");
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
            let mut breaker = Breaker::new(TIMEOUT);
            let check = asked(&mut breaker, Duration::ZERO);
            for _ in 0..FAILURES {
                breaker.failed(check, Failure::Answered, Duration::ZERO, jitter);
            }
            assert_eq!(breaker.ask(Duration::ZERO), Verdict::Wait(pause * MS));
        }
    }

    #[test]
    fn what_was_asked_before_it_opened_changes_nothing_after() {
        let mut breaker = Breaker::new(TIMEOUT);
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
