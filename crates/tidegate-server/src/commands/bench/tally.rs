//! What callers went through, counted: latencies, answers by source, parts of the run,
//! and every decision that has to be judged.

use std::collections::BTreeMap;
use std::time::Duration;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use tidegate::Source;

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

/// An admitted check that the bound speaks of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Admitted {
    pub(super) at_us: u64,
    pub(super) key: u32,
}

/// What a key was offered within a short time of the node's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Offered {
    pub(super) key: u32,
    /// Which stretch of time, from 0.
    pub(super) bin: u32,
    pub(super) checks: u32,
}

/// All that fits into a line.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Counted {
    /// Nanoseconds from when a check should have begun to its answer.
    #[serde(with = "wire")]
    pub(super) waits: Histogram<u64>,
    /// Nanoseconds from when a check should have begun to when it did.
    #[serde(with = "wire")]
    pub(super) lateness: Histogram<u64>,
    pub(super) late: u64,
    pub(super) unsent: u64,
    pub(super) bins: Vec<Bin>,
    /// In the order of [`Source::ALL`].
    pub(super) sources: Vec<Answers>,
    pub(super) failures: BTreeMap<String, u64>,
    /// What the store could not answer, by kind, and what it had to forget.
    pub(super) store_errors: BTreeMap<String, u64>,
    pub(super) evicted: u64,
    /// The keys that were asked for, a bit each.
    pub(super) keys: Vec<u64>,
    /// Admitted checks that found no room to be kept.
    pub(super) unrecorded: u64,
    /// Whether all is there that was offered.
    pub(super) offered_whole: bool,
    /// From the start to the last answer.
    pub(super) length: Duration,
    pub(super) told: Told,
}

/// How long what a node has to tell others may have been on its way.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Told {
    /// The longest that a question took, from when it should have been put.
    pub(super) round_trip: Duration,
    /// The longest that no question had an answer.
    pub(super) outage: Duration,
}

/// How many checks had an answer from a source.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub(super) struct Answers {
    pub(super) admitted: u64,
    pub(super) refused: u64,
}

/// A part of the run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Bin {
    /// Checks that should have begun in it, and those that were admitted in it.
    pub(super) offered: u64,
    pub(super) admitted: u64,
    /// Of the checks that should have begun in it.
    #[serde(with = "wire")]
    pub(super) waits: Histogram<u64>,
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

impl Counted {
    fn new(plan: &Plan) -> Self {
        let bins = plan.duration.as_nanos().div_ceil(plan.bin.as_nanos());
        let bins = usize::try_from(bins).unwrap_or(usize::MAX);
        Self {
            waits: wire::histogram(3),
            lateness: wire::histogram(3),
            late: 0,
            unsent: 0,
            bins: (0..bins.max(1)).map(|_| Bin::new()).collect(),
            sources: vec![Answers::default(); Source::ALL.len()],
            failures: BTreeMap::new(),
            store_errors: BTreeMap::new(),
            evicted: 0,
            keys: vec![0; plan.keys.div_ceil(64) as usize],
            unrecorded: 0,
            offered_whole: true,
            length: Duration::ZERO,
            told: Told::default(),
        }
    }

    /// Adds what another process has counted.
    pub(super) fn join(&mut self, other: &Self) {
        wire::add(&mut self.waits, &other.waits);
        wire::add(&mut self.lateness, &other.lateness);
        self.late += other.late;
        self.unsent += other.unsent;
        for (bin, other) in self.bins.iter_mut().zip(&other.bins) {
            bin.offered += other.offered;
            bin.admitted += other.admitted;
            wire::add(&mut bin.waits, &other.waits);
        }
        for (answers, other) in self.sources.iter_mut().zip(&other.sources) {
            answers.admitted += other.admitted;
            answers.refused += other.refused;
        }
        for (kinds, others) in [
            (&mut self.failures, &other.failures),
            (&mut self.store_errors, &other.store_errors),
        ] {
            for (kind, count) in others {
                *kinds.entry(kind.clone()).or_default() += count;
            }
        }
        self.evicted += other.evicted;
        for (bits, others) in self.keys.iter_mut().zip(&other.keys) {
            *bits |= others;
        }
        self.unrecorded += other.unrecorded;
        self.offered_whole &= other.offered_whole;
        self.length = self.length.max(other.length);
        self.told.round_trip = self.told.round_trip.max(other.told.round_trip);
        self.told.outage = self.told.outage.max(other.told.outage);
    }

    /// Checks that had an answer.
    pub(super) fn answered(&self) -> u64 {
        let answers = self.sources.iter();
        answers.map(|it| it.admitted + it.refused).sum()
    }

    pub(super) fn admitted(&self) -> u64 {
        self.sources.iter().map(|it| it.admitted).sum()
    }

    pub(super) fn failed(&self) -> u64 {
        self.failures.values().sum()
    }

    /// What each source has answered.
    pub(super) fn by_source(&self) -> impl Iterator<Item = (Source, Answers)> {
        Source::ALL.into_iter().zip(self.sources.iter().copied())
    }
}

impl Bin {
    fn new() -> Self {
        Self {
            offered: 0,
            admitted: 0,
            waits: wire::histogram(1),
        }
    }
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

    #[test]
    fn latencies_count_from_when_a_check_should_have_begun() {
        let mut tally = Tally::new(&Plan {
            rate: Some(1.0),
            ..plan()
        });
        tally.add(&mut vec![outcome(Source::Store, 400)]);
        let intended = [500, 600].map(Duration::from_millis);
        tally.unsent(intended.into_iter(), Duration::from_millis(900));
        let counted = &tally.counted;
        let ms = |histogram: &Histogram<u64>| -> Vec<u64> {
            let values = histogram.iter_recorded();
            values
                .map(|it| it.value_iterated_to() / 1_000_000)
                .collect()
        };
        assert_eq!(ms(&counted.waits), [210, 300, 400]);
        assert_eq!(ms(&counted.lateness), [200, 300, 400]);
        assert_eq!((counted.late, counted.unsent), (1, 2));
        let offered: Vec<u64> = counted.bins.iter().map(|bin| bin.offered).collect();
        assert_eq!(offered, [0, 0, 1, 0, 0, 1, 1, 0, 0, 0]);
        assert_eq!(counted.bins[4].admitted, 1);
    }
}
