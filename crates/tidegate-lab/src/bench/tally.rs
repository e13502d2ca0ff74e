//! Counts the results of callers while they run.

use std::collections::BTreeMap;
use std::time::Duration;

use tidegate::Source;

use super::counted::{Admitted, Bin, Counted, Offered};
use super::plan::Plan;
use super::wire;

/// The most that is noted of what was offered to keys; beyond it, nodes are taken to
/// have been offered anything.
const MOST_OFFERED: usize = 4_000_000;

/// A check that began later than it should have by this much is late.
pub(super) const LATE: Duration = Duration::from_millis(1);

/// What came of a check.
#[derive(Debug, Clone)]
pub(super) struct Outcome {
    pub(super) key: u32,
    /// When it should have begun, did begin, and was answered, since the start.
    pub(super) intended: Duration,
    pub(super) sent: Duration,
    pub(super) answered: Duration,
    pub(super) answer: Answer,
}

/// What was answered.
#[derive(Debug, Clone)]
pub(super) enum Answer {
    Decided {
        source: Source,
        allowed: bool,
        at_us: u64,
    },
    /// Nothing, for this reason.
    Failed(String),
}

/// What a process counts while it runs.
pub(super) struct Tally {
    pub(super) counted: Counted,
    pub(super) decisions: Vec<Admitted>,
    pub(super) offered: Vec<Offered>,
    /// What each key was offered in the bin that is being noted.
    open: BTreeMap<u32, u32>,
    open_bin: u32,
    bin: Duration,
    offered_bin: Option<Duration>,
    most_decisions: u64,
    /// Whether checks have times of their own.
    is_open: bool,
}

/// Whether the bound speaks of what this source admits.
pub(super) fn is_bound(source: Source) -> bool {
    !matches!(source, Source::Local | Source::ErrorPolicy)
}

impl Tally {
    pub(super) fn new(plan: &Plan) -> Self {
        Self {
            counted: Counted::new(plan),
            decisions: Vec::new(),
            offered: Vec::new(),
            open: BTreeMap::new(),
            open_bin: 0,
            bin: plan.bin,
            offered_bin: plan.offered_bin,
            most_decisions: plan.most_decisions,
            is_open: plan.rate.is_some(),
        }
    }

    /// Takes in a caller's last few checks.
    pub(super) fn add(&mut self, outcomes: &mut Vec<Outcome>) {
        for outcome in outcomes.drain(..) {
            self.add_one(outcome);
        }
    }

    fn add_one(&mut self, outcome: Outcome) {
        let Outcome {
            key,
            intended,
            sent,
            answered,
            answer,
        } = outcome;
        self.began(intended, answered - intended);
        let lateness = sent - intended;
        if self.is_open {
            wire::note(&mut self.counted.lateness, wire::nanos(lateness), 1);
        }
        self.counted.late += u64::from(lateness >= LATE);
        self.counted.length = self.counted.length.max(answered);
        self.counted.keys[(key / 64) as usize] |= 1 << (key % 64);
        self.offer(key, sent);
        match answer {
            Answer::Failed(kind) => *self.counted.failures.entry(kind).or_default() += 1,
            Answer::Decided {
                source,
                allowed,
                at_us,
            } => {
                let waits = match source {
                    Source::Store => &mut self.counted.store_waits,
                    _ => &mut self.counted.memory_waits,
                };
                wire::note(waits, wire::nanos(answered - intended), 1);
                let position = Source::ALL.iter().position(|other| *other == source);
                let answers = position.and_then(|index| self.counted.sources.get_mut(index));
                if let Some(answers) = answers {
                    answers.admitted += u64::from(allowed);
                    answers.refused += u64::from(!allowed);
                }
                if allowed {
                    self.part(answered).admitted += 1;
                    self.keep(source, Admitted { at_us, key });
                }
            }
        }
    }

    /// Notes a check that should have begun at this time and took so long.
    fn began(&mut self, intended: Duration, wait: Duration) {
        let wait = wire::nanos(wait);
        wire::note(&mut self.counted.waits, wait, 1);
        let bin = self.part(intended);
        bin.offered += 1;
        wire::note(&mut bin.waits, wait, 1);
    }

    /// Checks that should have begun, and never did: they have waited until now.
    pub(super) fn unsent(&mut self, intended: impl Iterator<Item = Duration>, now: Duration) {
        for intended in intended {
            let wait = now.saturating_sub(intended);
            self.began(intended, wait);
            wire::note(&mut self.counted.lateness, wire::nanos(wait), 1);
            self.counted.unsent += 1;
        }
    }

    fn part(&mut self, at: Duration) -> &mut Bin {
        let index = usize::try_from(at.as_nanos() / self.bin.as_nanos());
        let last = self.counted.bins.len() - 1;
        &mut self.counted.bins[index.unwrap_or(last).min(last)]
    }

    fn keep(&mut self, source: Source, admitted: Admitted) {
        if !is_bound(source) {
            return;
        }
        match (self.decisions.len() as u64) < self.most_decisions {
            true => self.decisions.push(admitted),
            false => self.counted.unrecorded += 1,
        }
    }

    fn offer(&mut self, key: u32, sent: Duration) {
        let Some(width) = self.offered_bin else {
            return;
        };
        let bin = u32::try_from(sent.as_nanos() / width.as_nanos()).unwrap_or(u32::MAX);
        // Callers tell what they did a while ago: an earlier bin may be noted again, and
        // its parts are put together later.
        if bin != self.open_bin {
            self.close();
            self.open_bin = bin;
        }
        *self.open.entry(key).or_default() += 1;
    }

    /// Notes the bin that was open.
    pub(super) fn close(&mut self) {
        let bin = self.open_bin;
        for (key, checks) in std::mem::take(&mut self.open) {
            match self.offered.len() < MOST_OFFERED {
                true => self.offered.push(Offered { key, bin, checks }),
                false => self.counted.offered_whole = false,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::plan::tests::plan;
    use super::*;

    fn outcome(source: Source, sent_ms: u64) -> Outcome {
        Outcome {
            key: 0,
            intended: Duration::from_millis(sent_ms / 2),
            sent: Duration::from_millis(sent_ms),
            answered: Duration::from_millis(sent_ms + 10),
            answer: Answer::Decided {
                source,
                allowed: true,
                at_us: sent_ms,
            },
        }
    }

    #[test]
    fn decisions_beyond_the_bound_on_them_are_counted_and_not_kept() {
        let mut tally = Tally::new(&Plan {
            most_decisions: 2,
            ..plan()
        });
        for source in [Source::Store, Source::ErrorPolicy, Source::Local] {
            tally.add(&mut (0..3).map(|ms| outcome(source, ms)).collect());
        }
        assert_eq!(tally.decisions.len(), 2);
        assert_eq!(tally.counted.unrecorded, 1);
        assert_eq!(tally.counted.admitted(), 9);
    }
}
