//! How right an approximation is: the same requests by two algorithms, and where they differ.
//!
//! Each of the two continues from its own decisions, as it would alone.

use anyhow::{Context, anyhow};
use tidegate::{Algorithm, Align, Limit, LimitSpec, Policy};

use super::decide::Decider;
use super::tally::Tally;

/// How many differences are kept as examples.
const EXAMPLES: usize = 5;

/// A policy under two algorithms.
#[derive(Debug)]
pub(super) struct Comparison {
    pub(super) algorithms: [Algorithm; 2],
    deciders: [Decider; 2],
    /// Requests that neither refused, both did, only the one and only the other.
    pub(super) neither: u64,
    pub(super) both: u64,
    pub(super) only: [u64; 2],
    /// With the requests marked that the two decided in two ways.
    pub(super) tally: Tally,
    pub(super) examples: Vec<Example>,
}

/// A request that the two decided in two ways.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Example {
    pub(super) at_us: u64,
    pub(super) values: Vec<Vec<u8>>,
    /// Which of the two refused it.
    pub(super) refused_by: Algorithm,
}

impl Comparison {
    pub(super) fn new(
        policy: &Policy,
        (one, other): (Algorithm, Algorithm),
        names: &[String],
    ) -> anyhow::Result<Self> {
        let decider = |algorithm| Decider::unbounded(&under(policy, algorithm)?, names);
        Ok(Self {
            algorithms: [one, other],
            deciders: [decider(one)?, decider(other)?],
            neither: 0,
            both: 0,
            only: [0; 2],
            tally: Tally::default(),
            examples: Vec::new(),
        })
    }

    /// Takes a request that has a key.
    pub(super) fn take<'v>(
        &mut self,
        at_us: u64,
        names: &[String],
        values: &[Option<&'v [u8]>],
        key: impl Iterator<Item = &'v [u8]> + Clone,
    ) {
        let refused = |decider: &Decider| decider.refused_by(at_us, names, values).is_some();
        let refused = [refused(&self.deciders[0]), refused(&self.deciders[1])];
        let which = match refused {
            [false, false] => {
                self.neither += 1;
                None
            }
            [true, true] => {
                self.both += 1;
                None
            }
            [true, false] => Some(0),
            [false, true] => Some(1),
        };
        if let Some(which) = which {
            self.only[which] += 1;
            if self.examples.len() < EXAMPLES {
                self.examples.push(Example {
                    at_us,
                    values: key.clone().map(<[u8]>::to_vec).collect(),
                    refused_by: self.algorithms[which],
                });
            }
        }
        self.tally.add(at_us, key, which.is_some());
    }
}

/// The policy with this algorithm in all its limits.
fn under(policy: &Policy, algorithm: Algorithm) -> anyhow::Result<Policy> {
    let changed = |limit: &Limit| -> anyhow::Result<Limit> {
        let Some(spec) = limit.spec() else {
            return Ok(*limit);
        };
        let same = spec.algorithm == algorithm;
        let spec = LimitSpec {
            algorithm,
            burst: spec.burst.filter(|_| same),
            strict: spec.strict && same,
            align: if same { spec.align } else { Align::default() },
            ..spec
        };
        let built = spec.build().map_err(|error| anyhow!("{error}"));
        built.with_context(|| format!("policy {:?}: {limit} as {algorithm}", policy.name()))
    };
    for level in policy.levels() {
        let others = level.overrides().filter_map(|(_, limit)| limit);
        for limit in others.chain([level.limit()]) {
            changed(limit)?;
        }
    }
    let same_store = policy.store().to_owned();
    Ok(policy.with_limits(&same_store, |limit| changed(limit).unwrap_or(*limit)))
}
