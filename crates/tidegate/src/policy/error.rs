//! Why there is no limiter, or no answer: bad input, not a refusal.

use super::keys::MissingAttribute;
use super::name::shown;
use crate::memory::TooManyLimits;

/// Why there is no limiter over some policies.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PoliciesError {
    /// Two policies have one name.
    #[error("two policies of the name {0:?}: expected different names")]
    Duplicate(String),
    /// A policy names a store that is not there.
    #[error("policy {policy:?}: no store of the name {store:?}")]
    UnknownStore {
        /// The policy's name.
        policy: String,
        /// The store's name.
        store: String,
    },
    /// A policy's store is not in memory, or its script needs one that is not.
    #[error("policy {0:?} needs a Redis store: expected a limiter that has one")]
    NotInMemory(String),
    /// A store has seen too many different limits.
    #[error(transparent)]
    TooManyLimits(#[from] TooManyLimits),
}

/// A question that cannot be answered: bad input, not a refusal.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CheckError {
    /// No policy of this name.
    #[error("no policy of the name {}", shown(.0))]
    UnknownPolicy(String),
    /// An attribute is missing.
    #[error(transparent)]
    MissingAttribute(#[from] MissingAttribute),
    /// A policy has no level of this name.
    #[error("policy {policy:?} has no level of the name {}: expected one of {levels}", shown(.level))]
    UnknownLevel {
        /// The policy's name.
        policy: String,
        /// The name given.
        level: String,
        /// The names it has.
        levels: String,
    },
    /// A policy has several levels, and it was not said which of them is meant.
    #[error("policy {policy:?} has several levels: expected one of {levels}, or all")]
    WhichLevel {
        /// The policy's name.
        policy: String,
        /// The names of its levels.
        levels: String,
    },
    /// The policy's script is not told the cost, so it can only count requests.
    #[error(
        "a cost of {cost} for policy {policy:?}, whose script is not told it: expected 1, or \"{{cost}}\" among its args"
    )]
    CostUntold {
        /// The policy's name.
        policy: String,
        /// The cost given.
        cost: u32,
    },
}
