//! One policy over one store: [`PolicyLimiter`].

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tidegate::{
    Attributes, Charge, CheckError, Cost, Explained, MemoryStore, Mode, Policy, PolicyDecision,
    Question, Receipt, Which,
};

use crate::config::SetupError;
use crate::error::StoreError;
use crate::lease::LeaseStats;
use crate::shared::Shared;
use crate::store::RedisStore;

/// Where a policy's counters are kept.
#[derive(Debug, Clone)]
pub enum AnyStore {
    /// In this process.
    Memory(MemoryStore),
    /// In Redis or Valkey.
    Redis(RedisStore),
}

impl From<MemoryStore> for AnyStore {
    fn from(store: MemoryStore) -> Self {
        Self::Memory(store)
    }
}

impl From<RedisStore> for AnyStore {
    fn from(store: RedisStore) -> Self {
        Self::Redis(store)
    }
}

/// One policy over one store.
///
/// ```no_run
/// use tidegate::{Cost, Limit, Policy};
/// use tidegate_redis::{PolicyLimiter, RedisOptions, RedisStore};
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let store = RedisStore::new("redis://127.0.0.1:6379/", RedisOptions::default())?;
/// let login = Policy::builder("login").key("{ip}").limit(Limit::per_minute(5)).build()?;
/// let login = PolicyLimiter::over(store, login)?;
///
/// let decision = login.check(&[("ip", "203.0.113.7")], Cost::ONE).await?;
/// if !decision.allowed() {
///     println!("429, try again in {:?}", decision.retry_after());
/// }
/// # Ok(())
/// # }
/// ```
///
/// If the store cannot answer, the policy's `on_error` decides, and
/// [`source`](tidegate::Decision::source) says so. Use [`try_check`](Self::try_check) to see the
/// error instead.
///
/// Clones are handles to the same counters. For several policies, see
/// [`Policies`](crate::Policies).
#[derive(Debug, Clone)]
pub struct PolicyLimiter(Place);

#[derive(Debug, Clone)]
enum Place {
    Memory(tidegate::PolicyLimiter),
    Redis(Arc<Shared>),
}

/// Why a check could not be decided.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TryCheckError {
    /// The check is invalid.
    #[error(transparent)]
    Check(#[from] CheckError),
    /// The store did not answer.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl PolicyLimiter {
    /// A policy in this store, whatever the name of the store that it asks for. Several
    /// policies can share a store, if their names differ.
    pub fn over(store: impl Into<AnyStore>, policy: Policy) -> Result<Self, SetupError> {
        let limiter = Self::build(&store.into(), policy, Path::new(""), None)?;
        limiter.commit();
        Ok(limiter)
    }

    /// Another policy over the same store. Keys keep their usage if the policy has the same
    /// name. Earlier receipts may be void.
    pub fn changed(&self, policy: Policy) -> Result<Self, SetupError> {
        let store = match &self.0 {
            Place::Memory(memory) => memory.store().clone().into(),
            Place::Redis(shared) => shared.store.clone().into(),
        };
        let limiter = Self::build(&store, policy, Path::new(""), Some(self))?;
        limiter.commit();
        Ok(limiter)
    }

    /// Goes on from the limiter before it, and changes nothing for that one yet.
    pub(crate) fn build(
        store: &AnyStore,
        policy: Policy,
        folder: &Path,
        before: Option<&Self>,
    ) -> Result<Self, SetupError> {
        Ok(Self(match store {
            AnyStore::Memory(store) => Place::Memory(tidegate::PolicyLimiter::over(store, policy)?),
            AnyStore::Redis(store) => {
                let before = before.and_then(Self::redis);
                let shared = Shared::new(policy, store.clone(), folder, before)?;
                Place::Redis(Arc::new(shared))
            }
        }))
    }

    /// Puts into force what it shares with the limiter before it.
    pub(crate) fn commit(&self) {
        if let Place::Redis(shared) = &self.0 {
            shared.commit();
        }
    }

    pub(crate) fn redis(&self) -> Option<&Shared> {
        match &self.0 {
            Place::Redis(shared) => Some(shared),
            Place::Memory(_) => None,
        }
    }

    /// The policy.
    #[must_use]
    pub fn policy(&self) -> &Policy {
        match &self.0 {
            Place::Memory(memory) => memory.policy(),
            Place::Redis(shared) => &shared.policy,
        }
    }

    /// The policy in memory, if its counters are kept in this process. It decides without
    /// awaiting.
    #[inline]
    #[must_use]
    pub fn in_memory(&self) -> Option<&tidegate::PolicyLimiter> {
        match &self.0 {
            Place::Memory(memory) => Some(memory),
            Place::Redis(_) => None,
        }
    }

    /// Tells the log of an outage what callers of [`try_check`](Self::try_check) do about its
    /// errors, such as "answered with 503". Without this, the log says what `on_error` does.
    pub fn callers_do(&self, does: &'static str) {
        if let Some(shared) = self.redis()
            && shared.policy.mode() != Mode::Background
        {
            shared.note.callers_do(does);
        }
    }

    /// Decides whether a request with these attributes and this cost may proceed. If so,
    /// charges every level of the policy; otherwise, none.
    pub async fn check<A>(
        &self,
        attributes: &A,
        cost: Cost,
    ) -> Result<PolicyDecision<'_>, CheckError>
    where
        A: Attributes + ?Sized,
    {
        match &self.0 {
            Place::Memory(memory) => memory.check(attributes, cost),
            Place::Redis(shared) => match shared.spend_lease(attributes, cost) {
                Some(decision) => Ok(decision),
                None => shared.check(&Question::new(attributes, cost)).await,
            },
        }
    }

    /// [`check`](Self::check), but if the store cannot answer, this returns the error instead
    /// of applying `on_error`.
    pub async fn try_check<A>(
        &self,
        attributes: &A,
        cost: Cost,
    ) -> Result<PolicyDecision<'_>, TryCheckError>
    where
        A: Attributes + ?Sized,
    {
        match &self.0 {
            Place::Memory(memory) => Ok(memory.check(attributes, cost)?),
            Place::Redis(shared) => shared.ask(&Question::new(attributes, cost)).await,
        }
    }

    /// Returns the decision that [`check`](Self::check) would make, and charges nothing. It
    /// always asks the store, and fails if the store does not answer.
    pub async fn peek<A>(
        &self,
        attributes: &A,
        cost: Cost,
    ) -> Result<PolicyDecision<'_>, TryCheckError>
    where
        A: Attributes + ?Sized,
    {
        let question = Question::new(attributes, cost);
        self.ask(&Question {
            look: true,
            ..question
        })
        .await
    }

    /// Answers a question: a [`check`](Self::check), or a [look](Self::peek), possibly under a
    /// limit of its own. A policy in memory ignores such a limit; see
    /// [`level_under`](tidegate::PolicyLimiter::level_under).
    pub async fn ask<A>(
        &self,
        question: &Question<'_, A>,
    ) -> Result<PolicyDecision<'_>, TryCheckError>
    where
        A: Attributes + ?Sized,
    {
        match &self.0 {
            Place::Memory(memory) => Ok(memory.ask(question)?),
            Place::Redis(shared) if question.look => shared.ask(question).await,
            Place::Redis(shared) => Ok(shared.check(question).await?),
        }
    }

    /// [`ask`](Self::ask), if this node can decide now: with tokens of a lease, by its own
    /// count in mode `background`, or because the store has refused the same key a moment
    /// ago. Returns `None`, and charges nothing, if the store must be asked: use
    /// [`ask`](Self::ask) then. Call it inside a tokio runtime, as it may have something to
    /// tell the store.
    #[inline]
    pub fn now<A>(&self, question: &Question<'_, A>) -> Option<PolicyDecision<'_>>
    where
        A: Attributes + ?Sized,
    {
        match &self.0 {
            Place::Memory(memory) => memory.ask(question).ok(),
            Place::Redis(shared) => shared.now(question),
        }
    }

    /// Gives back what a check with these attributes charged, as far as it still counts. A
    /// receipt can be refunded once. It is worth nothing after a reset, a change of the
    /// limit or a backward step of the clock. Returns false if the receipt was refunded
    /// before, has expired, or is of other keys.
    pub async fn refund<A>(&self, attributes: &A, receipt: &Receipt) -> Result<bool, TryCheckError>
    where
        A: Attributes + ?Sized,
    {
        match &self.0 {
            Place::Memory(memory) => Ok(memory.refund(attributes, receipt)?),
            Place::Redis(shared) => shared.refund(attributes, receipt).await,
        }
    }

    /// Takes a cost off the counts of a policy of fixed windows, no matter who charged it, down
    /// to zero: for protocols without receipts. Any other limit stays as it is.
    pub async fn give_back<A>(&self, attributes: &A, cost: Cost) -> Result<(), TryCheckError>
    where
        A: Attributes + ?Sized,
    {
        match &self.0 {
            Place::Memory(memory) => memory.give_back(attributes, cost),
            Place::Redis(shared) => {
                let keys = shared.keys(attributes, cost)?;
                shared.store.give_back(&keys, cost).await?;
            }
        }
        Ok(())
    }

    /// Forgets the keys of these attributes. Returns how many existed.
    pub async fn reset<A>(&self, attributes: &A, which: Which<'_>) -> Result<usize, TryCheckError>
    where
        A: Attributes + ?Sized,
    {
        match &self.0 {
            Place::Memory(memory) => Ok(memory.reset(attributes, which)?),
            Place::Redis(shared) => shared.reset(attributes, which).await,
        }
    }

    /// Returns the state and settings of every level for these attributes, and charges
    /// nothing.
    pub async fn explain<A>(&self, attributes: &A) -> Result<Vec<Explained<'_>>, TryCheckError>
    where
        A: Attributes + ?Sized,
    {
        match &self.0 {
            Place::Memory(memory) => Ok(memory.explain(attributes)?),
            Place::Redis(shared) => {
                let keys = shared.policy.keys(attributes).map_err(CheckError::from)?;
                let look = shared.ask_keys(&keys, Cost::ONE, Charge::Nothing).await?;
                Ok(shared.policy.explain(&keys, &look))
            }
        }
    }

    /// Fails as a check with these attributes and this cost would, and charges nothing.
    pub(crate) fn verify<A>(&self, attributes: &A, cost: Cost) -> Result<(), CheckError>
    where
        A: Attributes + ?Sized,
    {
        match &self.0 {
            Place::Memory(memory) if memory.policy().enabled() => {
                drop(memory.policy().keys(attributes)?);
            }
            Place::Memory(_) => {}
            Place::Redis(shared) => drop(shared.keys(attributes, cost)?),
        }
        Ok(())
    }

    /// Sends everything to the store that it does not know yet: charges in mode `background`,
    /// leases to return in mode `lease`. Returns whether that was done within this time. Call
    /// it before the program ends, because unsent counts are lost.
    pub async fn flush(&self, within: Duration) -> bool {
        match &self.0 {
            Place::Memory(_) => true,
            Place::Redis(shared) => shared.decider.flush(within).await,
        }
    }

    /// Statistics of a policy in mode `lease` on this node; `None` for any other policy.
    #[must_use]
    pub fn lease_stats(&self) -> Option<LeaseStats> {
        Some(self.redis()?.decider.leases()?.stats())
    }
}

#[cfg(test)]
mod tests {
    use tidegate::Limit;

    use super::*;
    use crate::options::RedisOptions;

    impl PolicyLimiter {
        /// How often a policy in mode `background` reports.
        pub(crate) fn sync_interval(&self) -> Duration {
            let background = self.redis().and_then(|it| it.decider.background());
            background.expect("the mode background").sync_interval()
        }
    }

    #[tokio::test]
    async fn node_decides_at_once_what_it_knows_and_nothing_else() {
        // No server listens there, so what is decided is decided by this node.
        let redis = RedisStore::new("redis://127.0.0.1:1/", RedisOptions::default());
        let redis = redis.expect("a valid URL");
        let admitted = |mode: Mode, store: AnyStore| {
            let policy = Policy::builder("p").limit(Limit::per_hour(5)).mode(mode);
            let policy = policy.build().expect("a policy");
            let limiter = PolicyLimiter::over(store, policy).expect("a policy for the store");
            let key = [("key", "a")];
            let decide = || limiter.now(&Question::new(&key, Cost::ONE));
            let decided: Vec<bool> = (0..6).map_while(|_| Some(decide()?.allowed())).collect();
            decided
        };
        let five = [true, true, true, true, true, false];
        assert_eq!(admitted(Mode::Background, redis.clone().into()), five);
        assert_eq!(admitted(Mode::Exact, MemoryStore::new().into()), five);
        let exact = admitted(Mode::Exact, redis.into());
        assert!(exact.is_empty(), "the store must be asked");
    }
}
