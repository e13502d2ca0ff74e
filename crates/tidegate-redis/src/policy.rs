//! One policy over one store: from attributes to a decision.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tidegate::{
    Attributes, Charge, CheckError, Cost, Explained, Keys, MemoryStore, Policy, PolicyDecision,
    Question, Receipt, Source, Which,
};

use crate::config::SetupError;
use crate::error::StoreError;
use crate::mode::lease::LeaseStats;
use crate::mode::{Mode, Query};
use crate::on_error::OnError;
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
pub struct PolicyLimiter(Backend);

/// The store that has its counters.
#[derive(Debug, Clone)]
enum Backend {
    Memory(tidegate::PolicyLimiter),
    Redis(Arc<InRedis>),
}

/// A policy whose counters are kept in Redis.
#[derive(Debug)]
pub(crate) struct InRedis {
    pub(crate) policy: Policy,
    pub(crate) store: RedisStore,
    charge: Charge,
    pub(crate) mode: Mode,
    on_error: Arc<OnError>,
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
        Self::build(&store.into(), policy, Path::new(""), None).inspect(Self::commit)
    }

    /// Another policy over the same store. Keys keep their usage if the policy has the same
    /// name. Earlier receipts may be void.
    pub fn changed(&self, policy: Policy) -> Result<Self, SetupError> {
        let store = match &self.0 {
            Backend::Memory(memory) => memory.store().clone().into(),
            Backend::Redis(redis) => redis.store.clone().into(),
        };
        Self::build(&store, policy, Path::new(""), Some(self)).inspect(Self::commit)
    }

    /// Goes on from the limiter before it, and changes nothing for that one yet.
    pub(crate) fn build(
        store: &AnyStore,
        policy: Policy,
        folder: &Path,
        before: Option<&Self>,
    ) -> Result<Self, SetupError> {
        Ok(Self(match store {
            AnyStore::Memory(store) => {
                Backend::Memory(tidegate::PolicyLimiter::over(store, policy)?)
            }
            AnyStore::Redis(store) => {
                let before = before.and_then(Self::redis);
                Backend::Redis(Arc::new(InRedis::new(policy, store, folder, before)?))
            }
        }))
    }

    /// Puts into force what it shares with the limiter before it.
    pub(crate) fn commit(&self) {
        if let Some(redis) = self.redis() {
            redis.store.0.fallbacks.add(&redis.on_error.note);
            if let Mode::Background(background) = &redis.mode {
                background.node.set_interval(redis.policy.sync_interval());
            }
        }
    }

    pub(crate) fn redis(&self) -> Option<&InRedis> {
        match &self.0 {
            Backend::Redis(redis) => Some(redis),
            Backend::Memory(_) => None,
        }
    }

    /// The policy.
    #[must_use]
    pub fn policy(&self) -> &Policy {
        match &self.0 {
            Backend::Memory(memory) => memory.policy(),
            Backend::Redis(redis) => &redis.policy,
        }
    }

    /// The policy in memory, if its counters are kept in this process. It decides without
    /// awaiting.
    #[inline]
    #[must_use]
    pub fn in_memory(&self) -> Option<&tidegate::PolicyLimiter> {
        match &self.0 {
            Backend::Memory(memory) => Some(memory),
            Backend::Redis(_) => None,
        }
    }

    /// Tells the log of an outage what callers of [`try_check`](Self::try_check) do about its
    /// errors, such as "answered with 503". Without this, the log says what `on_error` does.
    pub fn callers_do(&self, does: &'static str) {
        if let Some(redis) = self.redis() {
            redis.on_error.note.callers_do(does);
        }
    }

    /// Decides whether a request with these attributes and this cost may proceed. If so,
    /// charges every level of the policy; otherwise, none.
    pub async fn check<A: Attributes + ?Sized>(
        &self,
        attributes: &A,
        cost: Cost,
    ) -> Result<PolicyDecision<'_>, CheckError> {
        match &self.0 {
            Backend::Memory(memory) => memory.check(attributes, cost),
            // No future of ours wraps what this node decides: each would copy the decision.
            Backend::Redis(redis) => {
                let query = redis.query(&Question::new(attributes, cost))?;
                if let Some(decision) = redis.now(&query) {
                    return Ok(decision);
                }
                let asked = redis.mode.ask(&query).await;
                Ok(asked.unwrap_or_else(|_| redis.on_error.decide(&query)))
            }
        }
    }

    /// [`check`](Self::check), but if the store cannot answer, this returns the error instead
    /// of applying `on_error`.
    pub async fn try_check<A: Attributes + ?Sized>(
        &self,
        attributes: &A,
        cost: Cost,
    ) -> Result<PolicyDecision<'_>, TryCheckError> {
        match &self.0 {
            Backend::Memory(memory) => Ok(memory.check(attributes, cost)?),
            Backend::Redis(redis) => {
                let query = redis.query(&Question::new(attributes, cost))?;
                Ok(redis.ask(&query).await?)
            }
        }
    }

    /// Returns the decision that [`check`](Self::check) would make, and charges nothing. It
    /// always asks the store, and fails if the store does not answer.
    pub async fn peek<A: Attributes + ?Sized>(
        &self,
        attributes: &A,
        cost: Cost,
    ) -> Result<PolicyDecision<'_>, TryCheckError> {
        let mut question = Question::new(attributes, cost);
        question.look = true;
        self.ask(&question).await
    }

    /// Answers a question: a [`check`](Self::check), or a [look](Self::peek), possibly under a
    /// limit of its own. A policy in memory ignores such a limit; see
    /// [`level_under`](tidegate::PolicyLimiter::level_under).
    pub async fn ask<A: Attributes + ?Sized>(
        &self,
        question: &Question<'_, A>,
    ) -> Result<PolicyDecision<'_>, TryCheckError> {
        match &self.0 {
            Backend::Memory(memory) => Ok(memory.ask(question)?),
            Backend::Redis(redis) => {
                let query = redis.query(question)?;
                match (redis.ask(&query).await, question.look) {
                    (Err(error), true) => Err(error.into()),
                    (asked, _) => Ok(asked.unwrap_or_else(|_| redis.on_error.decide(&query))),
                }
            }
        }
    }

    /// [`ask`](Self::ask), if this node can decide now: with tokens of a lease, by its own
    /// count in mode `background`, or because the store has refused the same key a moment
    /// ago. Returns `None`, and charges nothing, if the store must be asked: use
    /// [`ask`](Self::ask) then. Call it inside a tokio runtime, as it may have something to
    /// tell the store.
    #[inline]
    pub fn now<A: Attributes + ?Sized>(
        &self,
        question: &Question<'_, A>,
    ) -> Option<PolicyDecision<'_>> {
        match &self.0 {
            Backend::Memory(memory) => memory.ask(question).ok(),
            Backend::Redis(redis) => redis.now(&redis.query(question).ok()?),
        }
    }

    /// Gives back what a check with these attributes charged, as far as it still counts. A
    /// receipt can be refunded once. It is worth nothing after a reset, a change of the
    /// limit or a backward step of the clock. Returns false if the receipt was refunded
    /// before, has expired, or is of other keys.
    pub async fn refund<A: Attributes + ?Sized>(
        &self,
        attributes: &A,
        receipt: &Receipt,
    ) -> Result<bool, TryCheckError> {
        match &self.0 {
            Backend::Memory(memory) => Ok(memory.refund(attributes, receipt)?),
            Backend::Redis(redis) => {
                let query = redis.query(&Question::new(attributes, Cost::ONE))?;
                Ok(redis.mode.refund(&query, receipt).await?)
            }
        }
    }

    /// Takes a cost off the counts of a policy of fixed windows, no matter who charged it, down
    /// to zero: for protocols without receipts. Any other limit stays as it is.
    pub async fn give_back<A: Attributes + ?Sized>(
        &self,
        attributes: &A,
        cost: Cost,
    ) -> Result<(), TryCheckError> {
        match &self.0 {
            Backend::Memory(memory) => memory.give_back(attributes, cost),
            Backend::Redis(redis) => {
                let query = redis.query(&Question::new(attributes, cost))?;
                redis.store.give_back(&query.keys, cost).await?;
            }
        }
        Ok(())
    }

    /// Forgets the keys of these attributes. Returns how many existed.
    pub async fn reset<A: Attributes + ?Sized>(
        &self,
        attributes: &A,
        which: Which<'_>,
    ) -> Result<usize, TryCheckError> {
        match &self.0 {
            Backend::Memory(memory) => Ok(memory.reset(attributes, which)?),
            Backend::Redis(redis) => redis.reset(attributes, which).await,
        }
    }

    /// Returns the state and settings of every level for these attributes, and charges
    /// nothing.
    pub async fn explain<A: Attributes + ?Sized>(
        &self,
        attributes: &A,
    ) -> Result<Vec<Explained<'_>>, TryCheckError> {
        match &self.0 {
            Backend::Memory(memory) => Ok(memory.explain(attributes)?),
            Backend::Redis(redis) => {
                // Also of a policy that is not enabled.
                let keys = redis.policy.keys(attributes).map_err(CheckError::from)?;
                let query = redis.query_of(keys, Cost::ONE, Charge::Nothing);
                let look = redis.ask(&query).await?;
                Ok(redis.policy.explain(&query.keys, &look))
            }
        }
    }

    /// Fails as a check with these attributes and this cost would, and charges nothing.
    pub(crate) fn verify<A: Attributes + ?Sized>(
        &self,
        attributes: &A,
        cost: Cost,
    ) -> Result<(), CheckError> {
        if let Some(redis) = self.redis() {
            drop(redis.query(&Question::new(attributes, cost))?);
        } else if self.policy().enabled() {
            drop(self.policy().keys(attributes)?);
        }
        Ok(())
    }

    /// Sends everything to the store that it does not know yet: charges in mode `background`,
    /// leases to return in mode `lease`. Returns whether that was done within this time. Call
    /// it before the program ends, because unsent counts are lost.
    pub async fn flush(&self, within: Duration) -> bool {
        match &self.0 {
            Backend::Memory(_) => true,
            Backend::Redis(redis) => redis.mode.flush(within).await,
        }
    }

    /// Statistics of a policy in mode `lease` on this node; `None` for any other policy.
    #[must_use]
    pub fn lease_stats(&self) -> Option<LeaseStats> {
        match &self.redis()?.mode {
            Mode::Lease(lease) => Some(lease.stats()),
            Mode::Exact(_) | Mode::Background(_) | Mode::Script(_) => None,
        }
    }
}

impl InRedis {
    fn new(
        policy: Policy,
        store: &RedisStore,
        folder: &Path,
        before: Option<&Self>,
    ) -> Result<Self, SetupError> {
        let charge = match policy.count_denied() {
            true => Charge::Always,
            false => Charge::Admitted,
        };
        let on_error_before = before.map(|before| &*before.on_error);
        let on_error = Arc::new(OnError::new(&policy, store, on_error_before)?);
        let mode_before = before.map(|before| &before.mode);
        let mode = Mode::new(&policy, store, charge, &on_error, folder, mode_before)?;
        Ok(Self {
            mode,
            store: store.clone(),
            policy,
            charge,
            on_error,
        })
    }

    /// The query behind a question: without keys where nothing is measured.
    #[inline]
    fn query<'p: 'k, 'k, A: Attributes + ?Sized>(
        &'p self,
        question: &Question<'k, A>,
    ) -> Result<Query<'p, 'k>, CheckError> {
        let (policy, cost) = (&self.policy, question.cost);
        let charge = match question.look {
            true => Charge::Nothing,
            false => self.charge,
        };
        if !policy.enabled() {
            return Ok(self.query_of(Keys::none(policy), cost, charge));
        }
        let script = policy.script();
        // A script that is not told the cost would charge too little.
        if cost != Cost::ONE && script.is_some_and(|script| !script.takes_the_cost()) {
            return Err(CheckError::CostUntold {
                policy: policy.name().into(),
                cost: cost.get(),
            });
        }
        let keys = policy.keys(question.attributes)?.under(question.limit);
        Ok(self.query_of(keys, cost, charge))
    }

    #[inline]
    fn query_of<'p, 'k>(&'p self, keys: Keys<'k>, cost: Cost, charge: Charge) -> Query<'p, 'k> {
        Query::new(&self.policy, self.mode.hasher(), keys, cost, charge)
    }

    /// Decides what this node can decide without asking the store.
    #[inline]
    fn now<'p>(&self, query: &Query<'p, '_>) -> Option<PolicyDecision<'p>> {
        if query.prints.is_empty() {
            // Nothing counts, so there is nothing to ask.
            return Some(query.allowed(Source::Store));
        }
        // A look tells of every level, which only the store can.
        if query.is_look() {
            return None;
        }
        self.mode.now(query)
    }

    /// Decides, unless the store has to be asked and does not answer.
    async fn ask<'p>(&self, query: &Query<'p, '_>) -> Result<PolicyDecision<'p>, StoreError> {
        match self.now(query) {
            Some(decision) => Ok(decision),
            None => self.mode.ask(query).await,
        }
    }

    async fn reset<A: Attributes + ?Sized>(
        &self,
        attributes: &A,
        which: Which<'_>,
    ) -> Result<usize, TryCheckError> {
        let prefix = &self.store.0.prefix;
        let stored = self.policy.stored_keys(attributes, which, prefix)?;
        let forgotten = self.store.delete(stored.clone()).await;
        // One level may be named without the attributes of the others.
        let keys = self.policy.keys(attributes).ok();
        let query = keys.map(|keys| self.query_of(keys, Cost::ONE, Charge::Nothing));
        self.mode
            .forget_refusals(query.as_ref().map(|query| &*query.prints));
        let forgotten = forgotten?;
        self.mode.forget(&stored);
        if let Some(local) = &self.on_error.local {
            local.reset(attributes, which)?;
        }
        Ok(forgotten)
    }
}

#[cfg(test)]
mod tests {
    use tidegate::{Limit, Mode as Setting};

    use super::*;
    use crate::options::RedisOptions;

    impl PolicyLimiter {
        /// How often a policy in mode `background` reports.
        pub(crate) fn sync_interval(&self) -> Duration {
            match self.redis().map(|redis| &redis.mode) {
                Some(Mode::Background(background)) => background.node.interval(),
                other => panic!("{other:?}"),
            }
        }
    }

    #[tokio::test]
    async fn b1_node_decides_at_once_what_it_knows_and_nothing_else() {
        // No server listens there, so what is decided is decided by this node.
        let redis = RedisStore::new("redis://127.0.0.1:1/", RedisOptions::default());
        let redis = redis.expect("a valid URL");
        let admitted = |mode: Setting, store: AnyStore| {
            let policy = Policy::builder("p").limit(Limit::per_hour(5)).mode(mode);
            let policy = policy.build().expect("a policy");
            let limiter = PolicyLimiter::over(store, policy).expect("a policy for the store");
            let key = [("key", "a")];
            let decide = || limiter.now(&Question::new(&key, Cost::ONE));
            let decided: Vec<bool> = (0..6).map_while(|_| Some(decide()?.allowed())).collect();
            decided
        };
        let five = [true, true, true, true, true, false];
        assert_eq!(admitted(Setting::Background, redis.clone().into()), five);
        assert_eq!(admitted(Setting::Exact, MemoryStore::new().into()), five);
        let exact = admitted(Setting::Exact, redis.into());
        assert!(exact.is_empty(), "the store must be asked");
    }
}
