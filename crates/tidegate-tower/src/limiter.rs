//! The policies of a layer: in memory without awaiting, on Redis with it.

use tidegate::{Attributes, CheckError, Cost, Policy, PolicyDecision, PolicyLimiter, Receipt};

/// One policy of a layer, over any store. Made by `into()` from a limiter.
///
/// Clones are handles to the same counters.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum LayerPolicy {
    /// Counts in this process and decides without awaiting.
    Memory(PolicyLimiter),
    /// Counts in Redis or Valkey.
    #[cfg(feature = "redis")]
    Redis(tidegate_redis::PolicyLimiter),
}

impl From<PolicyLimiter> for LayerPolicy {
    fn from(limiter: PolicyLimiter) -> Self {
        Self::Memory(limiter)
    }
}

#[cfg(feature = "redis")]
impl From<tidegate_redis::PolicyLimiter> for LayerPolicy {
    fn from(limiter: tidegate_redis::PolicyLimiter) -> Self {
        match limiter.in_memory() {
            Some(limiter) => Self::Memory(limiter.clone()),
            None => Self::Redis(limiter),
        }
    }
}

impl LayerPolicy {
    pub(crate) fn policy(&self) -> &Policy {
        match self {
            Self::Memory(limiter) => limiter.policy(),
            #[cfg(feature = "redis")]
            Self::Redis(limiter) => limiter.policy(),
        }
    }

    /// The attributes in the keys of its levels.
    pub(crate) fn attributes(&self) -> impl Iterator<Item = &str> {
        let levels = self.policy().levels().iter();
        levels.flat_map(|level| level.key().attributes())
    }

    /// Whether it decides without waiting for a store.
    pub(crate) fn is_in_memory(&self) -> bool {
        matches!(self, Self::Memory(_))
    }

    pub(crate) async fn check(
        &self,
        values: &impl Attributes,
        cost: Cost,
    ) -> Result<PolicyDecision<'_>, CheckError> {
        match self {
            Self::Memory(limiter) => limiter.check(values, cost),
            #[cfg(feature = "redis")]
            Self::Redis(limiter) => limiter.check(values, cost).await,
        }
    }

    /// Gives back what a request was charged, as far as the store can be reached: a store that
    /// fails now is not worth a failed response.
    pub(crate) async fn refund(&self, values: &impl Attributes, receipt: &Receipt) {
        match self {
            Self::Memory(limiter) => drop(limiter.refund(values, receipt)),
            #[cfg(feature = "redis")]
            Self::Redis(limiter) => drop(limiter.refund(values, receipt).await),
        }
    }
}
