//! Limits in the form of envoyproxy/ratelimit: domains, nested descriptors, and the limit
//! that a descriptor of a request finds among them.
//!
//! ```text
//! YAML (yaml, tree) ──┐
//!                     ├── DomainDraft (draft) ── Domains::build (build) ── find
//! xDS ────────────────┘
//! ```
//!
//! | file | what it is |
//! | --- | --- |
//! | `draft` | domains before validation: plain fields that any source can fill |
//! | `build` | the only place that validates them |
//! | `find` | from the entries of a descriptor to its limit |
//! | `yaml`, `tree` | drafts from files |

mod build;
mod draft;
mod find;
mod tree;
mod yaml;

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use foldhash::fast::FixedState;
use prost_types::Struct;
use tidegate::text::DurationText;
use tidegate::{Algorithm, Limit, Mode};

pub use draft::{DescriptorDraft, DomainDraft, LimitDraft, Place};
pub use find::Found;
pub(crate) use yaml::MAX_MEBIBYTES;
pub use yaml::{files, read_all, read_text};

/// The most lines about one change.
const MOST_LINES: usize = 30;

/// All domains, valid and ready to be searched.
#[derive(Debug, Default)]
pub struct Domains {
    domains: HashMap<Box<str>, Level, FixedState>,
    /// All limits, in the order of the files.
    rules: Vec<Arc<Rule>>,
}

/// What limits that do not say otherwise have: the settings of `[envoy]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Defaults {
    /// How they count.
    pub algorithm: Algorithm,
    /// How a node asks about those that charge no refusals.
    pub mode: Mode,
    /// Files about the same domain add to it. Otherwise, a second one is an error.
    pub merge_domains: bool,
}

impl Default for Defaults {
    /// As envoyproxy/ratelimit counts.
    fn default() -> Self {
        Self {
            algorithm: Algorithm::FixedWindow,
            mode: Mode::Exact,
            merge_domains: false,
        }
    }
}

/// The limit of a descriptor.
#[derive(Debug, PartialEq)]
pub struct Rule {
    /// Its place among all limits.
    pub index: usize,
    /// The domain it belongs to.
    pub domain: Box<str>,
    /// The descriptors above it and its own, as `key` or `key_value`.
    pub path: Vec<Box<str>>,
    /// What it allows.
    pub quota: Quota,
    /// The name that others replace it by; may be empty.
    pub name: Box<str>,
    /// The names of the limits that do not apply to a request that this one applies to.
    pub replaces: Vec<Box<str>>,
    /// It counts, but never refuses.
    pub shadow_mode: bool,
    /// It refuses a request only together with all other quotas of the request.
    pub quota_mode: bool,
    /// Statistics have the values of the request.
    pub detailed_metric: bool,
    /// What responses say about it while it has room.
    pub metadata: Option<Struct>,
}

/// What a limit allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Quota {
    /// Everything. Nothing is counted.
    Unlimited,
    /// So many per window. Every hit counts, also those above it.
    Counted(Window),
    /// So many, and a refusal charges nothing.
    Exact(Window, Limit),
}

/// So many requests per window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// How many requests; 0 refuses all of them.
    pub requests: u32,
    /// How long the window is, in whole seconds.
    pub seconds: u64,
}

impl Window {
    /// How long it is.
    #[must_use]
    pub fn duration(self) -> Duration {
        Duration::from_secs(self.seconds)
    }
}

/// `60/1m`, and the algorithm where it is another one.
impl fmt::Display for Quota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unlimited => f.write_str("unlimited"),
            Self::Counted(window) => {
                write!(f, "{}/{}", window.requests, DurationText(window.duration()))
            }
            Self::Exact(_, limit) => write!(f, "{limit}"),
        }
    }
}

/// Its name, as statistics have it.
impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.domain)?;
        self.path.iter().try_for_each(|part| write!(f, ".{part}"))
    }
}

impl Rule {
    /// Whether both say the same, wherever they stand.
    fn is_like(&self, other: &Self) -> bool {
        let settings = |it: &Self| (it.shadow_mode, it.quota_mode, it.detailed_metric);
        self.quota == other.quota
            && self.name == other.name
            && self.replaces == other.replaces
            && settings(self) == settings(other)
            && self.metadata == other.metadata
    }
}

/// The descriptors of one level.
#[derive(Debug, Default)]
struct Level {
    /// By `key_value`, or by `key` alone.
    nodes: HashMap<Box<[u8]>, Node, FixedState>,
    /// The names among them with a `*`, in the order of the file.
    wildcards: Vec<Box<str>>,
}

/// A descriptor.
#[derive(Debug)]
struct Node {
    rule: Option<Arc<Rule>>,
    below: Level,
    /// What stands for the value in the key of a counter that all values share.
    shared: Option<Box<str>>,
    /// The value is part of the name of its statistics.
    value_to_metric: bool,
}

/// One thing that is wrong with the domains.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RulesError {
    /// Where.
    pub place: Place,
    /// What, and what was expected.
    pub message: String,
}

impl fmt::Display for RulesError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.message)
    }
}

/// All that is wrong with the domains, one line each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RulesErrors(pub Vec<RulesError>);

impl fmt::Display for RulesErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines: Vec<String> = self.0.iter().map(ToString::to_string).collect();
        f.write_str(&lines.join("\n"))
    }
}

impl std::error::Error for RulesErrors {}

impl Domains {
    /// All limits, in the order of the files.
    #[must_use]
    pub fn rules(&self) -> &[Arc<Rule>] {
        &self.rules
    }

    /// What is different after a change, in words for the log.
    #[must_use]
    pub fn changes(before: &Self, after: &Self) -> Vec<String> {
        let named = |domains: &Self| -> BTreeMap<String, Arc<Rule>> {
            let rules = domains.rules.iter();
            rules.map(|it| (it.to_string(), Arc::clone(it))).collect()
        };
        let (old, new) = (named(before), named(after));
        let mut lines = Vec::new();
        for (name, rule) in &new {
            match old.get(name) {
                None => lines.push(format!("{name}: added, {}", rule.quota)),
                Some(old) if old.quota != rule.quota => {
                    lines.push(format!("{name}: {} -> {}", old.quota, rule.quota));
                }
                Some(old) if !old.is_like(rule) => lines.push(format!("{name}: changed")),
                Some(_) => {}
            }
        }
        let gone = old.keys().filter(|name| !new.contains_key(*name));
        lines.extend(gone.map(|name| format!("{name}: removed")));
        let more = lines.len().saturating_sub(MOST_LINES);
        lines.truncate(MOST_LINES);
        if more > 0 {
            lines.push(format!("and {more} more limits"));
        }
        lines
    }

    /// How many domains there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.domains.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.domains.is_empty()
    }
}
