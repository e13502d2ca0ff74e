//! The limiters that a layer can use: in memory without awaiting, through Redis with it.

use std::sync::Arc;

use tidegate::{Attributes, CheckError, Cost, Decisions, Policies, Policy, Receipt};

/// A limiter for policies, shared by all clones of a layer.
///
/// Made by `into()` from a limiter or an `Arc` of one, so that several layers can share it.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum AnyLimiter {
    /// Counts in this process and decides without awaiting.
    Memory(Arc<Policies>),
    /// Counts in any store, such as Redis.
    #[cfg(feature = "redis")]
    Shared(Arc<tidegate_redis::Policies>),
}

impl From<Policies> for AnyLimiter {
    fn from(limiter: Policies) -> Self {
        Self::Memory(Arc::new(limiter))
    }
}

impl From<Arc<Policies>> for AnyLimiter {
    fn from(limiter: Arc<Policies>) -> Self {
        Self::Memory(limiter)
    }
}

#[cfg(feature = "redis")]
impl From<tidegate_redis::Policies> for AnyLimiter {
    fn from(limiter: tidegate_redis::Policies) -> Self {
        Self::Shared(Arc::new(limiter))
    }
}

#[cfg(feature = "redis")]
impl From<Arc<tidegate_redis::Policies>> for AnyLimiter {
    fn from(limiter: Arc<tidegate_redis::Policies>) -> Self {
        Self::Shared(limiter)
    }
}

impl AnyLimiter {
    /// The policy of a name.
    pub(crate) fn policy(&self, name: &str) -> Option<&Policy> {
        match self {
            Self::Memory(limiter) => limiter.policy(name),
            #[cfg(feature = "redis")]
            Self::Shared(limiter) => limiter.policy(name),
        }
    }

    /// The limiter, if it answers at once.
    pub(crate) fn at_once(&self) -> Option<&Policies> {
        match self {
            Self::Memory(limiter) => Some(limiter),
            #[cfg(feature = "redis")]
            Self::Shared(_) => None,
        }
    }

    pub(crate) async fn check<A: Attributes>(
        &self,
        policies: &[&str],
        attributes: &A,
        cost: Cost,
    ) -> Result<Decisions<'_>, CheckError> {
        match self {
            Self::Memory(limiter) => limiter.check_all(policies, attributes, cost),
            #[cfg(feature = "redis")]
            Self::Shared(limiter) => match policies {
                [policy] => {
                    let decision = limiter.check(policy, attributes, cost).await?;
                    Ok(std::iter::once(decision).collect())
                }
                policies => limiter.check_all(policies, attributes, cost).await,
            },
        }
    }

    /// Gives back what a policy has charged, as far as its store can be reached.
    pub(crate) async fn refund<A: Attributes>(
        &self,
        policy: &str,
        attributes: &A,
        receipt: &Receipt,
    ) {
        match self {
            Self::Memory(limiter) => {
                let handle = limiter.handle(policy);
                drop(handle.and_then(|it| it.refund(attributes, receipt)));
            }
            // A store that fails now is not worth a failed response.
            #[cfg(feature = "redis")]
            Self::Shared(limiter) => {
                if let Ok(handle) = limiter.handle(policy) {
                    drop(handle.refund(attributes, receipt).await);
                }
            }
        }
    }
}
