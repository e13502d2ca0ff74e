//! Errors of limiters and checks: bad input, not refusals.

use super::keys::MissingAttribute;
use super::template::shown;
use crate::memory::TooManyLimits;

/// Why a limiter cannot be built from some policies.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PoliciesError {
    /// Two policies have the same name.
    #[error("two policies are named {0:?}: expected different names")]
    Duplicate(String),
    /// A policy names an unknown store.
    #[error("policy {policy:?}: no store is named {store:?}")]
    UnknownStore {
        /// The policy's name.
        policy: String,
        /// The store's name.
        store: String,
    },
    /// A policy needs a store that is not in memory, for itself or for its script.
    #[error("policy {0:?} needs a Redis store: expected a limiter that has one")]
    NotInMemory(String),
    /// A store has seen too many different limits.
    #[error(transparent)]
    TooManyLimits(#[from] TooManyLimits),
}

/// A check that cannot be decided: bad input, not a refusal.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CheckError {
    /// No policy has this name.
    #[error("no policy named {}", shown(.0))]
    UnknownPolicy(String),
    /// An attribute is missing.
    #[error(transparent)]
    MissingAttribute(#[from] MissingAttribute),
    /// A policy has no level with this name.
    #[error("policy {policy:?} has no level named {}: expected one of {levels}", shown(.level))]
    UnknownLevel {
        /// The policy's name.
        policy: String,
        /// The name given.
        level: String,
        /// The names it has.
        levels: String,
    },
    /// A policy has several levels, and none was selected.
    #[error("policy {policy:?} has several levels: expected one of {levels}, or all")]
    WhichLevel {
        /// The policy's name.
        policy: String,
        /// The names of its levels.
        levels: String,
    },
    /// The policy's script does not use the cost, so it can only count requests.
    #[error(
        "a cost of {cost} for policy {policy:?}, whose script does not use the cost: expected 1, or \"{{cost}}\" among its args"
    )]
    CostUntold {
        /// The policy's name.
        policy: String,
        /// The cost given.
        cost: u32,
    },
}
