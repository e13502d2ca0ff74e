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
    /// A time in which results say the same thing: it ends when the breaker opens or closes,
    /// and when a connection is lost.
    era: u64,
}

/// A question that is put: when, and in which era.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Attempt {
    era: u64,
    pub(crate) at: Duration,
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

/// Whether a check may ask the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Permission {
    /// Ask, and report what came of it.
    Go(Attempt),
    /// Do not wait, but send a probe, and report what came of it.
    Probe(Attempt),
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
            state: State::Closed(Failures::default()),
            era: 0,
        }
    }

    /// May a check ask the store at this time?
    pub(crate) fn ask(&mut self, now: Duration) -> Permission {
        let attempt = Attempt {
            era: self.era,
            at: now,
        };
        match self.state {
            State::Closed(_) => Permission::Go(attempt),
            State::Open { until, pause } | State::Probing { until, pause, .. } if now >= until => {
                self.state = State::Probing {
                    since: now,
                    until: now + PROBE,
                    pause,
                };
                Permission::Probe(attempt)
            }
            State::Open { until, .. } | State::Probing { until, .. } => {
                Permission::Wait(until - now)
            }
        }
    }

    /// The store has answered.
    pub(crate) fn succeeded(&mut self, attempt: Attempt) -> Option<Change> {
        if attempt.era != self.era {
            return None;
        }
        let was_open = self.is_open();
        self.state = State::Closed(Failures::default());
        was_open.then(|| {
            self.era += 1;
            Change::Closed
        })
    }

    /// Nothing came of a question: its caller left, or it was never put. If it was the
    /// probe, another one may go out at once.
    pub(crate) fn abandoned(&mut self, attempt: Attempt) {
        if let State::Probing { since, pause, .. } = self.state
            && attempt.era == self.era
            && attempt.at == since
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
        attempt: Attempt,
        failure: Failure,
        now: Duration,
        jitter: f64,
    ) -> Option<Change> {
        if attempt.era != self.era {
            return None;
        }
        if failure == Failure::Lost {
            // Whatever else it carried was asked before.
            self.era += 1;
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
            self.era += 1;
        }
        let until = now + pause.mul_f64(0.5 + jitter / 2.0);
        self.state = State::Open { until, pause };
        change
    }

    /// Until when at most to wait for the answer to a question, and then to ask again here;
    /// `None` where others have found the server to be silent, or this question does. A message
    /// that nobody waits for may have more time than the deadline of a check; that passes all
    /// the same.
    pub(crate) fn patience(&mut self, attempt: Attempt, now: Duration) -> Option<Duration> {
        let State::Closed(failures) = &mut self.state else {
            return None;
        };
        let deadline = attempt.at + self.timeout;
        if now < deadline {
            return Some(deadline);
        }
        if attempt.era != self.era {
            return Some(now + self.timeout);
        }
        let is_enough = failures.late(now, self.timeout);
        let since = failures.late_since.unwrap_or(now);
        (!is_enough).then(|| since + self.timeout.mul_f64(PATIENCE))
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
    use std::collections::HashMap;

    use tidegate_testkit::cases;

    use super::*;

    const STEPS: &str = include_str!("breaker.txt");

    const MS: Duration = Duration::from_millis(1);

    const TIMEOUT: Duration = Duration::from_millis(50);

    #[derive(Default)]
    struct Steps {
        checks: HashMap<String, Attempt>,
        changes: Vec<&'static str>,
    }

    impl Steps {
        /// Does at a time what is said in words. Whatever comes of it is a change.
        fn run(&mut self, breaker: &mut Breaker, now: Duration, words: &[&str]) {
            let jitter = match words {
                [.., "jitter", number] => number.parse().expect(number),
                _ => 1.0,
            };
            let mut check = self.checks.get(words[0]).copied();
            if words[0] == "late" {
                let at = now.saturating_sub(TIMEOUT);
                check = Some(Attempt { era: 0, at });
            }
            let check = check.expect("a check of this name");
            let mut failed = |failure| breaker.failed(check, failure, now, jitter);
            let change = match words {
                ["late", ..] | [_, "times-out", ..] => failed(Failure::Waited),
                [_, "fails", ..] => failed(Failure::Answered),
                [_, "is-lost", ..] => failed(Failure::Lost),
                [_, "succeeds"] => breaker.succeeded(check),
                [_, "is-abandoned"] => {
                    breaker.abandoned(check);
                    None
                }
                [_, "gives-up"] => {
                    let is_given_up = breaker.patience(check, now).is_none();
                    self.changes.extend(is_given_up.then_some("yes"));
                    None
                }
                _ => panic!("{words:?}"),
            };
            self.changes.extend(change.map(|change| match change {
                Change::Opened => "opened",
                Change::Closed => "closed",
            }));
        }
    }

    fn step(breaker: &mut Breaker, steps: &mut Steps, text: &str) -> String {
        let (at, text) = text.split_once(' ').expect("a time");
        let (first, last) = at.split_once('-').unwrap_or((at, at));
        let [first, last]: [u32; 2] = [first, last].map(|ms| ms.parse().expect(ms));
        let words: Vec<&str> = text.split(' ').collect();
        if let ["ask", name] = words[..] {
            let (answer, check) = match breaker.ask(first * MS) {
                Permission::Go(check) => ("go", check),
                Permission::Probe(check) => ("probe", check),
                Permission::Wait(wait) => return format!("wait {}", wait.as_millis()),
            };
            steps.checks.insert(name.into(), check);
            return answer.into();
        }
        let times = words.iter().find_map(|word| word.strip_prefix('x'));
        let times: u32 = times.map_or(1, |times| times.parse().expect(times));
        steps.changes.clear();
        for ms in first..=last {
            for _ in 0..times {
                steps.run(breaker, ms * MS, &words);
            }
        }
        match &steps.changes[..] {
            [] => "-".into(),
            changes => changes.join(", "),
        }
    }

    #[test]
    fn steps_of_a_breaker() {
        let headings = STEPS.lines().filter_map(|line| line.strip_prefix("# "));
        for heading in headings {
            let (mut breaker, mut steps) = (Breaker::new(TIMEOUT), Steps::default());
            cases::rows(STEPS, heading, |text| step(&mut breaker, &mut steps, text));
        }
    }
}
