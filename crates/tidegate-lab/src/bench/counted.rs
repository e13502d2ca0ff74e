//! The counters of a process: latencies, answers by source, slices of the run, and every
//! decision to be judged. The counters of several processes can be merged.

use std::collections::BTreeMap;
use std::time::Duration;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use tidegate::Source;

use super::plan::Plan;
use super::tally::is_bound;
use super::wire;

/// All that fits into a line.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Counted {
    /// Nanoseconds from when a check should have begun to its answer.
    #[serde(with = "wire")]
    pub(super) waits: Histogram<u64>,
    /// The same of those checks alone that the store has decided, and of those that were
    /// answered without it.
    #[serde(with = "wire")]
    pub(super) store_waits: Histogram<u64>,
    #[serde(with = "wire")]
    pub(super) memory_waits: Histogram<u64>,
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
    /// Commands that a Redis was sent for the checks.
    pub(super) store_commands: u64,
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

impl Counted {
    /// Nothing yet.
    pub(super) fn new(plan: &Plan) -> Self {
        let bins = plan.duration.as_nanos().div_ceil(plan.bin.as_nanos());
        let bins = usize::try_from(bins).unwrap_or(usize::MAX);
        Self {
            waits: wire::histogram(3),
            store_waits: wire::histogram(3),
            memory_waits: wire::histogram(3),
            lateness: wire::histogram(3),
            late: 0,
            unsent: 0,
            bins: (0..bins.max(1)).map(|_| Bin::new()).collect(),
            sources: vec![Answers::default(); Source::ALL.len()],
            failures: BTreeMap::new(),
            store_errors: BTreeMap::new(),
            evicted: 0,
            store_commands: 0,
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
        wire::add(&mut self.store_waits, &other.store_waits);
        wire::add(&mut self.memory_waits, &other.memory_waits);
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
        self.store_commands += other.store_commands;
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

    /// Whether checks were decided, and none of them under the limit: the store has
    /// answered nothing.
    pub(super) fn is_all_without_store(&self) -> bool {
        let sum = |answers: Answers| answers.admitted + answers.refused;
        let inside = self.by_source().filter(|(source, _)| is_bound(*source));
        let inside: u64 = inside.map(|(_, it)| sum(it)).sum();
        inside == 0 && self.answered() > 0
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
