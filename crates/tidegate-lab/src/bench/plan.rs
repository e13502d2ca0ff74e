//! What a bench process receives before it begins, and what the processes and the
//! one that started them say to each other.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tidegate::{Mode, PolicyLevel};

use super::Bench;
use super::counted::Counted;
use super::target::{Subject, Target};

/// The most admitted decisions that are kept to be judged, of all processes together:
/// sixteen bytes each while they are judged.
pub(super) const MOST_DECISIONS: u64 = 20_000_000;

/// How fine the picture of the run is over time, and the most such parts.
const BIN: Duration = Duration::from_millis(100);
const MOST_BINS: u128 = 600;

/// What to do.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Plan {
    pub(super) target: Target,
    pub(super) policy: String,
    /// How the store is asked, in the word of a config.
    pub(super) mode: String,
    /// The attributes that the policy's keys are made of.
    pub(super) attributes: Vec<String>,
    /// Those that have the same value in every check.
    pub(super) fixed: BTreeMap<String, String>,
    /// How all keys of this run begin: no other run has them.
    pub(super) run: String,
    pub(super) keys: u32,
    pub(super) zipf: Option<f64>,
    pub(super) cost: u32,
    pub(super) duration: Duration,
    pub(super) callers: u32,
    /// Checks per second of all processes together; none means as many as possible.
    pub(super) rate: Option<f64>,
    pub(super) processes: u32,
    /// Which of the processes this is, from 0.
    pub(super) number: u32,
    /// The length of a part of the run.
    pub(super) bin: Duration,
    /// The most decisions that this process keeps.
    pub(super) most_decisions: u64,
    /// How finely to note what was offered to each key, where the bound depends on it.
    pub(super) offered_bin: Option<Duration>,
}

/// What a process says.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Said {
    /// It can begin.
    Ready,
    /// It cannot.
    Failed(String),
    /// How far it is.
    Progress { checks: u64, admitted: u64 },
    /// All that it has counted; so many bytes of decisions follow the line.
    Done { counted: Box<Counted>, bytes: u64 },
}

/// When to begin, in microseconds of the Unix epoch.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Go {
    pub(super) at_us: u64,
}

impl Plan {
    pub(super) fn new(arguments: &Bench, subject: Subject) -> Self {
        let Subject {
            target,
            policy,
            mode,
            ..
        } = subject;
        let parts = arguments.duration.as_nanos().div_ceil(BIN.as_nanos());
        let wider = u32::try_from(parts.div_ceil(MOST_BINS)).unwrap_or(u32::MAX);
        let is_background = policy.mode() == Mode::Background;
        let attributes = policy.attributes().into_iter().map(str::to_owned);
        Self {
            target,
            policy: policy.name().into(),
            mode,
            attributes: attributes.collect(),
            fixed: arguments.attr.iter().cloned().collect(),
            run: format!("{:016x}", RandomState::new().hash_one(std::process::id())),
            keys: arguments.keys,
            zipf: arguments.zipf.filter(|exponent| *exponent > 0.0),
            cost: arguments.cost.get(),
            duration: arguments.duration,
            callers: arguments.callers,
            rate: arguments.rate,
            processes: arguments.processes,
            number: 0,
            bin: BIN * wider.max(1),
            most_decisions: MOST_DECISIONS / u64::from(arguments.processes),
            offered_bin: is_background
                .then(|| (policy.sync_interval() / 10).max(Duration::from_millis(1))),
        }
    }

    /// Whether a level has a counter for each key of this run.
    pub(super) fn has_keys(&self, level: &PolicyLevel) -> bool {
        let mut names = level.key().attributes();
        names.any(|name| !self.fixed.contains_key(name))
    }

    /// The text of a key.
    pub(super) fn key(&self, number: u32) -> String {
        format!("{}-{number}", self.run)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A plan to change.
    pub(in super::super) fn plan() -> Plan {
        Plan {
            target: Target::Server {
                url: "http://localhost".into(),
                timeout_ms: 1,
                tls: Default::default(),
            },
            policy: "bench".into(),
            mode: "exact".into(),
            attributes: vec!["key".into()],
            fixed: BTreeMap::new(),
            run: "run".into(),
            keys: 1,
            zipf: None,
            cost: 1,
            duration: Duration::from_secs(1),
            callers: 1,
            rate: None,
            processes: 1,
            number: 0,
            bin: BIN,
            most_decisions: 100,
            offered_bin: None,
        }
    }
}
