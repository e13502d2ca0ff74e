//! Decides policies over shared stores: takes a policy's name and attributes, and returns a
//! decision, whatever happens to the store.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use foldhash::fast::FixedState;
use tidegate::{
    Attributes, Charge, CheckError, Cost, Decisions, Explained, Limit, MemoryStore, Mode, Policies,
    PoliciesError, Policy, PolicyDecision, PolicyLimiter, Receipt, Which,
};
use tokio::task::JoinSet;

use crate::configured::SetupError;
use crate::error::StoreError;
use crate::lease::LeaseStats;
use crate::shared::Shared;
use crate::store::RedisStore;

/// Where a policy's counters are kept.
#[derive(Debug, Clone)]
pub enum Store {
    /// In this process.
    Memory(MemoryStore),
    /// In Redis or Valkey.
    Redis(RedisStore),
}

impl From<MemoryStore> for Store {
    fn from(store: MemoryStore) -> Self {
        Self::Memory(store)
    }
}

impl From<RedisStore> for Store {
    fn from(store: RedisStore) -> Self {
        Self::Redis(store)
    }
}

/// A limiter for policies, over any stores.
///
/// ```no_run
/// use tidegate::{Cost, Limit, Policy};
/// use tidegate_redis::{RedisOptions, RedisStore, SharedLimiter};
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let store = RedisStore::new("redis://127.0.0.1:6379/", RedisOptions::default())?;
/// let login = Policy::builder("login").key("{ip}").limit(Limit::per_minute(5)).build()?;
/// let limiter = SharedLimiter::new([("default", store)], [login])?;
///
/// let decision = limiter.check("login", &[("ip", "203.0.113.7")], Cost::ONE).await?;
/// if !decision.allowed() {
///     println!("429, try again in {:?}", decision.retry_after());
/// }
/// # Ok(())
/// # }
/// ```
///
/// If a store cannot answer, the policy's `on_error` decides, and
/// [`source`](PolicyDecision::source) says so. Use [`try_check`](Self::try_check) to see the
/// error instead.
#[derive(Debug)]
pub struct SharedLimiter {
    /// Policies whose counters are kept in this process.
    memory: Policies,
    shared: HashMap<Box<str>, Arc<Shared>, FixedState>,
    stores: BTreeMap<Box<str>, Store>,
}

/// One policy of a [`SharedLimiter`], to look it up once and check it many times.
#[derive(Debug, Clone)]
pub struct SharedHandle(Handle);

#[derive(Debug, Clone)]
enum Handle {
    Memory(PolicyLimiter),
    Shared(Arc<Shared>),
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

impl SharedLimiter {
    /// A limiter over these named stores.
    pub fn new<N: Into<Box<str>>, S: Into<Store>>(
        stores: impl IntoIterator<Item = (N, S)>,
        policies: impl IntoIterator<Item = Policy>,
    ) -> Result<Self, SetupError> {
        let stores = stores.into_iter();
        let stores = stores.map(|(name, store)| (name.into(), store.into()));
        Self::build(stores.collect(), policies, Path::new(""), None)
    }

    /// A limiter with other policies over the same stores. Keys keep their usage. Earlier
    /// receipts may be void.
    pub fn changed(&self, policies: impl IntoIterator<Item = Policy>) -> Result<Self, SetupError> {
        Self::build(self.stores.clone(), policies, Path::new(""), Some(self))
    }

    pub(crate) fn build(
        stores: BTreeMap<Box<str>, Store>,
        policies: impl IntoIterator<Item = Policy>,
        folder: &Path,
        before: Option<&Self>,
    ) -> Result<Self, SetupError> {
        let limiter = Self::build_uncommitted(stores, policies, folder, before)?;
        limiter.commit_policies();
        Ok(limiter)
    }

    /// Puts into force what its policies share with those of the limiter before it.
    pub(crate) fn commit_policies(&self) {
        self.shared.values().for_each(|shared| shared.commit());
    }

    /// [`build`](Self::build), but nothing changes for the limiter before it yet.
    pub(crate) fn build_uncommitted(
        stores: BTreeMap<Box<str>, Store>,
        policies: impl IntoIterator<Item = Policy>,
        folder: &Path,
        before: Option<&Self>,
    ) -> Result<Self, SetupError> {
        let in_memory = stores.iter().filter_map(|(name, store)| match store {
            Store::Memory(store) => Some((name.clone(), store.clone())),
            Store::Redis(_) => None,
        });
        let in_memory: Vec<_> = in_memory.collect();
        let (mut own, mut shared) = (Vec::new(), HashMap::default());
        for policy in policies {
            let name: Box<str> = policy.name().into();
            match stores.get(policy.store()) {
                Some(Store::Redis(store)) => {
                    let before = before.and_then(|before| before.shared.get(&name));
                    let before = before.map(|before| &**before);
                    let policy = Shared::new(policy, store.clone(), folder, before)?;
                    if shared.insert(name.clone(), Arc::new(policy)).is_some() {
                        return Err(PoliciesError::Duplicate(name.into()).into());
                    }
                }
                _ => own.push(policy),
            }
        }
        if let Some(policy) = own.iter().find(|policy| shared.contains_key(policy.name())) {
            return Err(PoliciesError::Duplicate(policy.name().into()).into());
        }
        Ok(Self {
            memory: Policies::with_stores(in_memory, own)?,
            shared,
            stores,
        })
    }

    /// Decides whether a request with these attributes and this cost may proceed. If so,
    /// charges every level of the policy; otherwise, none.
    pub async fn check<A>(
        &self,
        policy: &str,
        attributes: &A,
        cost: Cost,
    ) -> Result<PolicyDecision<'_>, CheckError>
    where
        A: Attributes + ?Sized,
    {
        let Some(shared) = self.shared.get(policy) else {
            return self.memory.check(policy, attributes, cost);
        };
        match shared.spend_lease(attributes, cost) {
            Some(decision) => Ok(decision),
            None => shared.check(attributes, cost).await,
        }
    }

    /// [`check`](Self::check), but if the store cannot answer, this returns the error instead
    /// of applying `on_error`.
    pub async fn try_check<A>(
        &self,
        policy: &str,
        attributes: &A,
        cost: Cost,
    ) -> Result<PolicyDecision<'_>, TryCheckError>
    where
        A: Attributes + ?Sized,
    {
        let Some(shared) = self.shared.get(policy) else {
            return Ok(self.memory.check(policy, attributes, cost)?);
        };
        let keys = shared.keys(attributes, cost)?;
        Ok(shared.ask(&keys, cost, shared.charge).await?)
    }

    /// Returns the decision that [`check`](Self::check) would make, and charges nothing.
    pub async fn peek<A>(
        &self,
        policy: &str,
        attributes: &A,
        cost: Cost,
    ) -> Result<PolicyDecision<'_>, TryCheckError>
    where
        A: Attributes + ?Sized,
    {
        let Some(shared) = self.shared.get(policy) else {
            return Ok(self.memory.handle(policy)?.peek(attributes, cost)?);
        };
        let keys = shared.keys(attributes, cost)?;
        Ok(shared.ask(&keys, cost, Charge::Nothing).await?)
    }

    /// Checks several policies in order. The first refusal ends the check, and the policies
    /// before it are refunded, as far as their stores can be reached. Until then, another
    /// request may be refused too early, but never too many are admitted.
    pub async fn check_all<A>(
        &self,
        policies: &[&str],
        attributes: &A,
        cost: Cost,
    ) -> Result<Decisions<'_>, CheckError>
    where
        A: Attributes + ?Sized,
    {
        // Bad input is found before anything is charged.
        for policy in policies {
            match self.shared.get(*policy) {
                Some(shared) => drop(shared.keys(attributes, cost)?),
                None => drop(self.memory.handle(policy)?.peek(attributes, cost)?),
            }
        }
        let mut decisions: Vec<PolicyDecision<'_>> = Vec::new();
        for policy in policies {
            let decision = self.check(policy, attributes, cost).await?;
            let refused = !decision.allowed();
            decisions.push(decision);
            if refused {
                break;
            }
        }
        let decisions: Decisions<'_> = decisions.into_iter().collect();
        if !decisions.allowed() {
            for decision in decisions.as_slice() {
                if let Some(receipt) = decision.receipt() {
                    let policy = decision.policy().name();
                    // A store that fails now is not worth a failed request.
                    drop(self.refund(policy, attributes, &receipt).await);
                }
            }
        }
        Ok(decisions)
    }

    /// Lets the stores compile all user-defined scripts, and returns the errors, including
    /// those of stores that are down.
    pub async fn verify_scripts(&self) -> Vec<(&str, StoreError)> {
        let mut wrong = Vec::new();
        for shared in self.shared.values() {
            if let Some(custom) = shared.decider.script()
                && let Err(error) = shared.store.load(custom.script()).await
            {
                wrong.push((shared.policy.name(), error));
            }
        }
        wrong
    }

    /// Warnings about the configuration of the stores, to be logged after the start.
    ///
    /// A Redis with a `maxmemory` and a `maxmemory-policy` other than `noeviction` can evict
    /// limits that are in use. This runs `INFO memory`, which takes at most the deadline of
    /// each store, or a second where that is longer. If the server is down, or the user may
    /// not run `INFO`, there is no warning.
    ///
    /// If a round trip to a store takes over half of its `timeout`, `on_error` decides many
    /// checks, or all.
    ///
    /// On a cluster, all keys of a policy whose levels have no attribute in common are on
    /// one server, which also gives a warning.
    pub async fn warnings(&self) -> Vec<String> {
        let in_one_place = self
            .shared
            .values()
            .filter(|shared| shared.store.is_cluster() && shared.policy.tag().len() == 0);
        let in_one_place = in_one_place.map(|shared| {
            let name = shared.policy.name();
            format!("policy {name:?}: its levels have no attribute in common, so all its keys are in one slot, and one server of the cluster answers all its checks")
        });
        let mut warnings: Vec<String> = in_one_place.collect();
        warnings.sort_unstable();
        for (name, store) in &self.stores {
            if let Store::Redis(store) = store {
                let wrong = [
                    store.eviction_warning().await,
                    store.distance_warning().await,
                ];
                let wrong = wrong.into_iter().flatten();
                warnings.extend(wrong.map(|wrong| format!("store {name:?}: {wrong}")));
            }
        }
        warnings
    }

    /// Gives back what a check with these attributes charged, as far as it still counts. A
    /// receipt can be refunded once. It is worth nothing after a reset, a change of the
    /// limit or a backward step of the clock. Returns false if the receipt was refunded
    /// before, has expired, or is of other keys.
    pub async fn refund<A>(
        &self,
        policy: &str,
        attributes: &A,
        receipt: &Receipt,
    ) -> Result<bool, TryCheckError>
    where
        A: Attributes + ?Sized,
    {
        let Some(shared) = self.shared.get(policy) else {
            return Ok(self.memory.handle(policy)?.refund(attributes, receipt)?);
        };
        let keys = shared.keys(attributes, Cost::ONE)?;
        if let Some(is_paid) = shared.decider.refund(&keys, receipt) {
            return Ok(is_paid);
        }
        let refunded = match shared.decider.leases() {
            Some(leases) => shared.refund_leases(leases, &keys, receipt).await,
            None => {
                let charges: Vec<_> = receipt.charges().collect();
                let at_us = receipt.decided_at_us();
                shared
                    .store
                    .refund(&keys, receipt, "", at_us, &charges)
                    .await
            }
        };
        shared.decider.forget_refusals(Some(&keys));
        Ok(refunded?)
    }

    /// Forgets the keys of these attributes. Returns how many existed.
    pub async fn reset<A>(
        &self,
        policy: &str,
        attributes: &A,
        which: Which<'_>,
    ) -> Result<usize, TryCheckError>
    where
        A: Attributes + ?Sized,
    {
        let Some(shared) = self.shared.get(policy) else {
            return Ok(self.memory.handle(policy)?.reset(attributes, which)?);
        };
        let prefix = shared.store.prefix();
        let stored = shared.policy.stored_keys(attributes, which, prefix)?;
        let forgotten = shared.store.delete(stored.clone()).await;
        // One level may be named without the attributes of the others.
        let keys = shared.policy.keys(attributes).ok();
        shared.decider.forget_refusals(keys.as_ref());
        let forgotten = forgotten?;
        shared.decider.reset(&stored);
        if let Some(local) = &shared.local {
            local.reset(attributes, which)?;
        }
        Ok(forgotten)
    }

    /// Sends everything to the stores that they do not know yet, such as the charges of
    /// policies in mode `background`. Returns whether that was done within this time. Call
    /// it before the program ends, because unsent counts are lost.
    pub async fn flush(&self, within: Duration) -> bool {
        let mut flushes = JoinSet::new();
        for shared in self.shared.values().cloned() {
            flushes.spawn(async move { shared.decider.flush(within).await });
        }
        let flushed = flushes.join_all().await;
        flushed.into_iter().all(|is_flushed| is_flushed)
    }

    /// Returns the state and settings of every level for these attributes, and charges
    /// nothing.
    pub async fn explain<A>(
        &self,
        policy: &str,
        attributes: &A,
    ) -> Result<Vec<Explained<'_>>, TryCheckError>
    where
        A: Attributes + ?Sized,
    {
        let Some(shared) = self.shared.get(policy) else {
            return Ok(self.memory.handle(policy)?.explain(attributes)?);
        };
        let keys = shared.policy.keys(attributes).map_err(CheckError::from)?;
        let look = shared.ask(&keys, Cost::ONE, Charge::Nothing).await?;
        Ok(shared.policy.explain(&keys, &look))
    }

    /// A handle to the policy with this name, which saves the lookup for each check.
    #[must_use]
    pub fn handle(&self, name: &str) -> Option<SharedHandle> {
        let shared = self.shared.get(name).cloned().map(Handle::Shared);
        let handle =
            shared.or_else(|| Some(Handle::Memory(self.memory.handle(name).ok()?.clone())));
        handle.map(SharedHandle)
    }

    /// The policy with this name.
    #[must_use]
    pub fn policy(&self, name: &str) -> Option<&Policy> {
        let shared = self.shared.get(name).map(|shared| &shared.policy);
        shared.or_else(|| self.memory.policy(name))
    }

    /// Statistics of a policy in mode `lease` on this node; `None` for any other policy.
    #[must_use]
    pub fn lease_stats(&self, policy: &str) -> Option<LeaseStats> {
        let leases = self.shared.get(policy)?.decider.leases()?;
        Some(leases.stats())
    }

    /// [`lease_stats`](Self::lease_stats) of every policy in mode `lease`, by name.
    pub fn leases(&self) -> impl Iterator<Item = (&str, LeaseStats)> {
        let shared = self.shared.iter();
        shared.filter_map(|(name, shared)| Some((&**name, shared.decider.leases()?.stats())))
    }

    /// The stores, by name.
    pub fn stores(&self) -> impl Iterator<Item = (&str, &Store)> {
        self.stores.iter().map(|(name, store)| (&**name, store))
    }
}

impl SharedHandle {
    /// The policy.
    #[must_use]
    pub fn policy(&self) -> &Policy {
        match &self.0 {
            Handle::Memory(memory) => memory.policy(),
            Handle::Shared(shared) => &shared.policy,
        }
    }

    /// Tells the log of an outage what callers of [`try_check`](Self::try_check) do about its
    /// errors, such as "answered with 503". Without this, the log says what `on_error` does.
    pub fn callers_do(&self, does: &'static str) {
        match &self.0 {
            Handle::Shared(shared) if shared.policy.mode() != Mode::Background => {
                shared.note.callers_do(does);
            }
            Handle::Shared(_) | Handle::Memory(_) => {}
        }
    }

    /// The policy's handle in memory, if its counters are kept in this process. It decides
    /// without awaiting.
    #[inline]
    #[must_use]
    pub fn in_memory(&self) -> Option<&PolicyLimiter> {
        match &self.0 {
            Handle::Memory(memory) => Some(memory),
            Handle::Shared(_) => None,
        }
    }

    /// [`SharedLimiter::check`] for this policy.
    pub async fn check<A>(
        &self,
        attributes: &A,
        cost: Cost,
    ) -> Result<PolicyDecision<'_>, CheckError>
    where
        A: Attributes + ?Sized,
    {
        match &self.0 {
            Handle::Memory(memory) => memory.check(attributes, cost),
            Handle::Shared(shared) => match shared.spend_lease(attributes, cost) {
                Some(decision) => Ok(decision),
                None => shared.check(attributes, cost).await,
            },
        }
    }

    /// [`check`](Self::check), if this node can decide now: with tokens of a lease, by its own
    /// count in mode `background`, or because the store has refused the same key a moment
    /// ago. Returns `None`, and charges nothing, if the store must be asked: use
    /// [`check`](Self::check) then. Call it inside a tokio runtime, as it may have something to
    /// tell the store.
    #[inline]
    pub fn check_at_once<A>(&self, attributes: &A, cost: Cost) -> Option<PolicyDecision<'_>>
    where
        A: Attributes + ?Sized,
    {
        match &self.0 {
            Handle::Memory(memory) => memory.check(attributes, cost).ok(),
            Handle::Shared(shared) => shared.check_at_once(attributes, cost),
        }
    }

    /// [`check`](Self::check) under a limit that comes with the check, instead of the
    /// policy's own. It must use the same algorithm. For a policy in memory, the policy's
    /// own limit decides: see [`PolicyLimiter::level_under`].
    pub async fn check_under<A>(
        &self,
        limit: &Limit,
        attributes: &A,
        cost: Cost,
    ) -> Result<PolicyDecision<'_>, CheckError>
    where
        A: Attributes + ?Sized,
    {
        let Handle::Shared(shared) = &self.0 else {
            return self.check(attributes, cost).await;
        };
        let keys = shared.keys(attributes, cost)?;
        let keys = keys.with_limit(Some(limit));
        let asked = shared.ask(&keys, cost, shared.charge).await;
        Ok(asked.unwrap_or_else(|_| shared.without_store(&keys, cost, shared.charge)))
    }

    /// Returns the decision that [`check`](Self::check) would make, and charges nothing. A
    /// limit that comes with the check replaces the policy's own.
    pub async fn peek_under<A>(
        &self,
        limit: Option<&Limit>,
        attributes: &A,
        cost: Cost,
    ) -> Result<PolicyDecision<'_>, TryCheckError>
    where
        A: Attributes + ?Sized,
    {
        match &self.0 {
            Handle::Memory(memory) => Ok(memory.peek(attributes, cost)?),
            Handle::Shared(shared) => {
                let keys = shared.keys(attributes, cost)?;
                let keys = keys.with_limit(limit);
                Ok(shared.ask(&keys, cost, Charge::Nothing).await?)
            }
        }
    }

    /// Takes a cost off the counts of a policy of fixed windows, no matter who charged it, down
    /// to zero: for protocols without receipts. Any other limit stays as it is.
    pub async fn give_back<A>(&self, attributes: &A, cost: Cost) -> Result<(), TryCheckError>
    where
        A: Attributes + ?Sized,
    {
        match &self.0 {
            Handle::Memory(memory) => memory.give_back(attributes, cost),
            Handle::Shared(shared) => {
                let keys = shared.keys(attributes, cost)?;
                shared.store.give_back(&keys, cost).await?;
            }
        }
        Ok(())
    }

    /// [`SharedLimiter::try_check`] for this policy.
    pub async fn try_check<A>(
        &self,
        attributes: &A,
        cost: Cost,
    ) -> Result<PolicyDecision<'_>, TryCheckError>
    where
        A: Attributes + ?Sized,
    {
        match &self.0 {
            Handle::Memory(memory) => Ok(memory.check(attributes, cost)?),
            Handle::Shared(shared) => {
                let keys = shared.keys(attributes, cost)?;
                Ok(shared.ask(&keys, cost, shared.charge).await?)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tidegate::{Limit, Mode};

    use super::*;
    use crate::options::RedisOptions;

    impl SharedLimiter {
        /// How often a policy in mode `background` reports.
        pub(crate) fn sync_interval(&self, policy: &str) -> Duration {
            let background = self.shared[policy].decider.background();
            background.expect("the mode background").sync_interval()
        }
    }

    #[tokio::test]
    async fn node_decides_at_once_what_it_knows_and_nothing_else() {
        let policy = |name: &str| Policy::builder(name).limit(Limit::per_hour(5));
        let policies = [
            policy("shared").mode(Mode::Background),
            policy("own").store("memory"),
            policy("exact"),
        ];
        let policies = policies.map(|policy| policy.build().expect("a policy"));
        // No server listens there, so what is decided is decided by this node.
        let redis = RedisStore::new("redis://127.0.0.1:1/", RedisOptions::default());
        let stores = [
            ("default", Store::from(redis.expect("a valid URL"))),
            ("memory", MemoryStore::new().into()),
        ];
        let limiter = SharedLimiter::new(stores, policies).expect("policies");
        let admitted = |policy: &str| {
            let handle = limiter.handle(policy).expect("a policy");
            let decide = || handle.check_at_once(&[("key", "a")], Cost::ONE);
            let decided: Vec<bool> = (0..6).map_while(|_| Some(decide()?.allowed())).collect();
            decided
        };
        for policy in ["shared", "own"] {
            assert_eq!(admitted(policy), [true, true, true, true, true, false]);
        }
        assert!(admitted("exact").is_empty(), "the store must be asked");
    }
}
