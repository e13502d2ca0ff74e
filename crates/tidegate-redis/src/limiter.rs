//! Policies over stores that many machines share: a policy's name and attributes in, a
//! decision out, whatever happens to the store.
//!
//! Fail open, fail closed, or decide alone: that is chosen here, and nowhere else.

use std::collections::{BTreeMap, HashMap};

use tidegate::algorithm::{Outcome, Used};
use tidegate::{
    Attributes, Charge, CheckError, Cost, Decision, Keys, Kind, LevelOutcome, Limit, MemoryStore,
    OnError, PoliciesError, Policy, PolicyDecision, PolicyLimiter, Receipt, Source, Which,
};

use crate::error::StoreError;
use crate::local;
use crate::store::RedisStore;

/// Where a policy's counts are kept.
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

/// The limiter for policies, over any stores.
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
/// A store that cannot answer is no error here: the policy's `on_error` decides, and
/// [`source`](PolicyDecision::source) says so. [`try_check`](Self::try_check) is for
/// those who want to see the error.
#[derive(Debug)]
pub struct SharedLimiter {
    /// Policies whose counts are kept in this process.
    memory: PolicyLimiter,
    shared: HashMap<Box<str>, Shared>,
    stores: BTreeMap<Box<str>, Store>,
}

/// A policy whose counts are kept in Redis.
#[derive(Debug)]
struct Shared {
    policy: Policy,
    store: RedisStore,
    charge: Charge,
    /// Decides when the store cannot, under `on_error = "local"`.
    local: Option<PolicyLimiter>,
}

/// Why a check has no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TryCheckError {
    /// The question cannot be answered.
    #[error(transparent)]
    Check(#[from] CheckError),
    /// The store has not answered.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl SharedLimiter {
    /// A limiter over these stores, by name.
    pub fn new<N: Into<Box<str>>, S: Into<Store>>(
        stores: impl IntoIterator<Item = (N, S)>,
        policies: impl IntoIterator<Item = Policy>,
    ) -> Result<Self, PoliciesError> {
        let stores = stores.into_iter();
        let stores = stores.map(|(name, store)| (name.into(), store.into()));
        Self::build(stores.collect(), policies, None)
    }

    /// The same stores under other policies: keys go on with what they have used.
    /// Receipts from before may be void.
    pub fn changed(
        &self,
        policies: impl IntoIterator<Item = Policy>,
    ) -> Result<Self, PoliciesError> {
        Self::build(self.stores.clone(), policies, Some(self))
    }

    fn build(
        stores: BTreeMap<Box<str>, Store>,
        policies: impl IntoIterator<Item = Policy>,
        before: Option<&Self>,
    ) -> Result<Self, PoliciesError> {
        let in_memory = stores.iter().filter_map(|(name, store)| match store {
            Store::Memory(store) => Some((name.clone(), store.clone())),
            Store::Redis(_) => None,
        });
        let in_memory: Vec<_> = in_memory.collect();
        let (mut own, mut shared) = (Vec::new(), HashMap::new());
        for policy in policies {
            let name: Box<str> = policy.name().into();
            match stores.get(policy.store()) {
                Some(Store::Redis(store)) => {
                    let before = before.and_then(|before| before.shared.get(&name));
                    let policy = Shared::new(policy, store.clone(), before)?;
                    if shared.insert(name.clone(), policy).is_some() {
                        return Err(PoliciesError::Duplicate(name.into()));
                    }
                }
                _ => own.push(policy),
            }
        }
        if let Some(policy) = own.iter().find(|policy| shared.contains_key(policy.name())) {
            return Err(PoliciesError::Duplicate(policy.name().into()));
        }
        let memory = match before {
            Some(before) => before.memory.changed(own)?,
            None => PolicyLimiter::with_stores(in_memory, own)?,
        };
        Ok(Self {
            memory,
            shared,
            stores,
        })
    }

    /// May a request with these attributes go on, at this cost? Charges every level of
    /// the policy if so, and none otherwise.
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
        let keys = shared.keys(attributes)?;
        let asked = shared.ask(&keys, cost, shared.charge).await;
        Ok(asked.unwrap_or_else(|_| shared.without_store(&keys, cost, shared.charge)))
    }

    /// [`check`](Self::check), but a store that cannot answer is an error, whatever the
    /// policy says.
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
        let keys = shared.keys(attributes)?;
        Ok(shared.ask(&keys, cost, shared.charge).await?)
    }

    /// The numbers [`check`](Self::check) would decide by, charging nothing.
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
            return Ok(self.memory.peek(policy, attributes, cost)?);
        };
        let keys = shared.keys(attributes)?;
        Ok(shared.ask(&keys, cost, Charge::Nothing).await?)
    }

    /// Gives back what a check with these attributes charged, as far as it still
    /// counts. A receipt is for one refund, and worth nothing after a reset, a change
    /// of the limit or a step back of the clock.
    pub async fn refund<A>(
        &self,
        policy: &str,
        attributes: &A,
        receipt: &Receipt,
    ) -> Result<(), TryCheckError>
    where
        A: Attributes + ?Sized,
    {
        let Some(shared) = self.shared.get(policy) else {
            return Ok(self.memory.refund(policy, attributes, receipt)?);
        };
        let keys = shared.keys(attributes)?;
        Ok(shared.store.refund(&keys, receipt).await?)
    }

    /// Forgets the keys of these attributes. Says how many there were.
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
            return Ok(self.memory.reset(policy, attributes, which)?);
        };
        let prefix = shared.store.prefix();
        let keys = shared.policy.stored_keys(attributes, which, prefix)?;
        let forgotten = shared.store.delete(keys).await?;
        if let Some(local) = &shared.local {
            local.reset(policy, attributes, which)?;
        }
        Ok(forgotten)
    }

    /// The policy of a name.
    #[must_use]
    pub fn policy(&self, name: &str) -> Option<&Policy> {
        let shared = self.shared.get(name).map(|shared| &shared.policy);
        shared.or_else(|| self.memory.policy(name))
    }

    /// The stores, by name.
    pub fn stores(&self) -> impl Iterator<Item = (&str, &Store)> {
        self.stores.iter().map(|(name, store)| (&**name, store))
    }
}

impl Shared {
    fn new(
        policy: Policy,
        store: RedisStore,
        before: Option<&Self>,
    ) -> Result<Self, PoliciesError> {
        let local = match policy.on_error() {
            OnError::Local => Some(local::limiter(
                &policy,
                before.and_then(|before| before.local.as_ref()),
            )?),
            OnError::Allow | OnError::Deny => None,
        };
        let charge = match policy.count_denied() {
            true => Charge::Always,
            false => Charge::Admitted,
        };
        Ok(Self {
            policy,
            store,
            charge,
            local,
        })
    }

    /// The keys to ask about: none where nothing is measured.
    fn keys<'a, A>(&'a self, attributes: &'a A) -> Result<Keys<'a>, CheckError>
    where
        A: Attributes + ?Sized,
    {
        Ok(match self.policy.enabled() {
            true => self.policy.keys(attributes)?,
            false => Keys::none(&self.policy),
        })
    }

    async fn ask(
        &self,
        keys: &Keys<'_>,
        cost: Cost,
        charge: Charge,
    ) -> Result<PolicyDecision<'_>, StoreError> {
        if keys.iter().next().is_none() {
            // Nothing counts, so there is nothing to ask.
            return Ok(self.decision(keys, self.allowed(Source::Store)));
        }
        let decision = self.store.decide(keys, cost, charge).await?;
        if let (Some(local), true) = (&self.local, decision.receipt().is_some()) {
            // What the store has admitted counts here, too: it goes on from there.
            local::charge(local, keys, cost);
        }
        Ok(self.decision(keys, decision))
    }

    /// What the policy says when the store has not answered.
    fn without_store(&self, keys: &Keys<'_>, cost: Cost, charge: Charge) -> PolicyDecision<'_> {
        match (&self.local, self.policy.on_error()) {
            (Some(local), _) => self.decision(keys, local::decide(local, keys, cost, charge)),
            (None, OnError::Deny) => self.decision(keys, self.denied(keys, cost)),
            (None, _) => {
                self.decision(&Keys::none(&self.policy), self.allowed(Source::ErrorPolicy))
            }
        }
    }

    fn decision(&self, keys: &Keys<'_>, decision: Decision) -> PolicyDecision<'_> {
        PolicyDecision::from_store(&self.policy, keys, decision)
    }

    fn allowed(&self, source: Source) -> Decision {
        Decision::from_store([], local::now_us(), None, source, false)
    }

    /// Refused until the store is asked again.
    fn denied(&self, keys: &Keys<'_>, cost: Cost) -> Decision {
        let probe = self.store.next_probe().as_micros();
        let probe_us = u64::try_from(probe).unwrap_or(u64::MAX).max(1);
        let levels = keys.iter().map(|key| {
            let limit = size(key.limit());
            LevelOutcome {
                outcome: Outcome {
                    limit,
                    used: Used::requests(limit),
                    retry_after_us: Some(probe_us),
                    reset_after_us: probe_us,
                },
                cost,
                mark: 0,
            }
        });
        Decision::from_store(levels, local::now_us(), Some(0), Source::ErrorPolicy, false)
    }
}

/// What a decision reports as the limit.
fn size(limit: &Limit) -> u32 {
    match limit.kind() {
        Kind::TokenBucket(bucket) => bucket.burst(),
        _ => limit.spec().map_or(0, |spec| spec.rate.requests()),
    }
}
