//! Domains before validation: plain fields that files and xDS fill alike.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use prost_types::Struct;
use tidegate::Algorithm;

use crate::envoy::wire::Unit;

/// Where something was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The file, or what else it came from.
    pub file: Arc<str>,
    /// The line; 0 where there are none.
    pub line: usize,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => f.write_str(&self.file),
            line => write!(f, "{}:{line}", self.file),
        }
    }
}

/// A domain.
#[derive(Debug, Clone, PartialEq)]
pub struct DomainDraft {
    /// Where it stands.
    pub place: Place,
    /// Its name.
    pub domain: String,
    /// Its descriptors, in order.
    pub descriptors: Vec<DescriptorDraft>,
}

/// A descriptor.
#[derive(Debug, Clone, PartialEq)]
pub struct DescriptorDraft {
    /// Where it stands.
    pub place: Place,
    /// The key of the entry it is about.
    pub key: String,
    /// The value of that entry; empty for any.
    pub value: String,
    /// Its limit.
    pub rate_limit: Option<LimitDraft>,
    /// The descriptors of the next entry.
    pub descriptors: Vec<DescriptorDraft>,
    /// The limit only counts.
    pub shadow_mode: bool,
    /// The limit is a quota.
    pub quota_mode: bool,
    /// Statistics have all values of the request.
    pub detailed_metric: bool,
    /// Statistics have the value of this entry.
    pub value_to_metric: bool,
    /// All values that match a wildcard share one counter.
    pub share_threshold: bool,
    /// What responses say about the limit.
    pub metadata: Option<Struct>,
}

impl DescriptorDraft {
    /// A descriptor of this entry, and nothing else.
    #[must_use]
    pub fn new(place: Place, key: impl Into<String>, value: impl Into<String>) -> Self {
        Self {
            place,
            key: key.into(),
            value: value.into(),
            rate_limit: None,
            descriptors: Vec::new(),
            shadow_mode: false,
            quota_mode: false,
            detailed_metric: false,
            value_to_metric: false,
            share_threshold: false,
            metadata: None,
        }
    }
}

/// A limit.
#[derive(Debug, Clone, PartialEq)]
pub struct LimitDraft {
    /// Where it stands.
    pub place: Place,
    /// How many requests per unit.
    pub requests_per_unit: Option<u32>,
    /// The unit, unless there is a window.
    pub unit: Option<Unit>,
    /// A window that is not one of the units.
    pub window: Option<Duration>,
    /// There is no limit.
    pub unlimited: bool,
    /// Its name.
    pub name: String,
    /// The names of the limits it takes the place of.
    pub replaces: Vec<String>,
    /// How it counts, if not as all others.
    pub algorithm: Option<Algorithm>,
    /// The burst of a token bucket.
    pub burst: Option<u32>,
}

impl LimitDraft {
    /// A limit that says nothing yet.
    #[must_use]
    pub fn new(place: Place) -> Self {
        Self {
            place,
            requests_per_unit: None,
            unit: None,
            window: None,
            unlimited: false,
            name: String::new(),
            replaces: Vec::new(),
            algorithm: None,
            burst: None,
        }
    }
}
