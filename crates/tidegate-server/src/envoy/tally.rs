//! The statistics of each limit.

use std::borrow::Cow;

/// Counts the hits of limits. It is called once per descriptor that has found a limit, on
/// the path of a request.
pub trait Tally: Send + Sync {
    /// Adds these hits.
    fn count(&self, hits: &Hits<'_>);
}

/// What a descriptor of a request has added to its limit.
#[derive(Debug, PartialEq, Eq)]
pub struct Hits<'r> {
    /// The domain.
    pub domain: &'r str,
    /// The name of the limit below it, one part per entry: `key` or `key_value`. Parts of
    /// limits with `detailed_metric` or `value_to_metric` have values of the request, of
    /// which there may be any number.
    pub path: &'r [Cow<'r, str>],
    /// All hits.
    pub total: u64,
    /// Those above the limit.
    pub over_limit: u64,
    /// Those below it, but near.
    pub near_limit: u64,
    /// Those of descriptors below the limit.
    pub within_limit: u64,
    /// Those above a limit that only watches.
    pub shadow_mode: u64,
}
