//! Several policies, each by its name.

use std::collections::{BTreeMap, HashMap};

use foldhash::fast::FixedState;
use smallvec::SmallVec;

use super::Policy;
use super::decision::{Decisions, PolicyDecision};
use super::error::{CheckError, PoliciesError};
use super::limiter::PolicyLimiter;
use crate::attributes::Attributes;
use crate::cost::Cost;
use crate::memory::MemoryStore;

/// Several policies, each by its name, in memory.
///
/// ```
/// use tidegate::{Cost, Limit, Policies, Policy};
///
/// let policies = Policies::in_memory([
///     Policy::builder("site").key("").limit(Limit::per_second(100)).build()?,
///     Policy::builder("login").key("{ip}").limit(Limit::per_minute(5)).build()?,
/// ])?;
/// let ip = [("ip", "203.0.113.7")];
/// assert!(policies.check("login", &ip, Cost::ONE)?.allowed());
///
/// // Everything else is asked of one policy.
/// let login = policies.handle("login")?;
/// assert_eq!(login.peek(&ip, Cost::ONE)?.remaining(), 4);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// The policies never change. [`changed`](Self::changed) makes a new set of them over the
/// same counters.
///
/// `check` decides and charges, as it does for [`Limiter`](crate::Limiter) and
/// [`PolicyLimiter`]; [`handle`](Self::handle) leads to the other verbs: `peek` only looks,
/// `refund` gives a charge back, and `reset` forgets keys.
#[derive(Debug, Clone)]
pub struct Policies {
    limiters: HashMap<Box<str>, PolicyLimiter, FixedState>,
    stores: BTreeMap<Box<str>, MemoryStore>,
}

impl Policies {
    /// Limiters in memory, for at most one million keys together, in the store `default`.
    pub fn in_memory(policies: impl IntoIterator<Item = Policy>) -> Result<Self, PoliciesError> {
        Self::with_stores([("default", MemoryStore::new())], policies)
    }

    /// Limiters over these stores: each policy has the one that it [names](Policy::store).
    ///
    /// ```
    /// use tidegate::{Limit, MemoryStore, Policies, Policy};
    ///
    /// let store = MemoryStore::builder().max_keys(10_000).build();
    /// let policy = Policy::builder("login").key("{ip}").limit(Limit::per_minute(5)).build()?;
    /// let policies = Policies::with_stores([("default", store)], [policy])?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn with_stores<N: Into<Box<str>>>(
        stores: impl IntoIterator<Item = (N, MemoryStore)>,
        policies: impl IntoIterator<Item = Policy>,
    ) -> Result<Self, PoliciesError> {
        let stores = stores.into_iter().map(|(name, store)| (name.into(), store));
        Self::new(stores.collect(), policies)
    }

    /// Limiters of other policies over the same stores. Keys keep their usage if their policy
    /// has the same name. A receipt stays valid if its limit is the same.
    pub fn changed(
        &self,
        policies: impl IntoIterator<Item = Policy>,
    ) -> Result<Self, PoliciesError> {
        Self::new(self.stores.clone(), policies)
    }

    fn new(
        stores: BTreeMap<Box<str>, MemoryStore>,
        policies: impl IntoIterator<Item = Policy>,
    ) -> Result<Self, PoliciesError> {
        let mut limiters: HashMap<Box<str>, PolicyLimiter, FixedState> = HashMap::default();
        for policy in policies {
            let store = stores.get(policy.store());
            let store = store.ok_or_else(|| PoliciesError::UnknownStore {
                policy: policy.name().into(),
                store: policy.store().into(),
            });
            let name: Box<str> = policy.name().into();
            let limiter = PolicyLimiter::over(store?, policy)?;
            if limiters.insert(name.clone(), limiter).is_some() {
                return Err(PoliciesError::Duplicate(name.into()));
            }
        }
        Ok(Self { limiters, stores })
    }

    /// Decides whether a request with these attributes at this cost may proceed under the policy
    /// with this name, and charges it if so: every level of the policy, or none.
    #[inline]
    pub fn check<A>(
        &self,
        policy: &str,
        attributes: &A,
        cost: Cost,
    ) -> Result<PolicyDecision<'_>, CheckError>
    where
        A: Attributes + ?Sized,
    {
        self.handle(policy)?.check(attributes, cost)
    }

    /// Decides whether a request may proceed under each of these policies, in order, and charges
    /// it if so. The first refusal ends the check, and the policies before it are refunded. Until
    /// then, another request may be refused too early, but never too many are admitted.
    ///
    /// ```
    /// use tidegate::{Cost, Limit, Policies, Policy};
    ///
    /// let policies = Policies::in_memory([
    ///     Policy::builder("site").key("").limit(Limit::per_second(100)).build()?,
    ///     Policy::builder("login").key("{ip}").limit(Limit::per_minute(1)).build()?,
    /// ])?;
    /// let ip = [("ip", "203.0.113.7")];
    /// assert!(policies.check_all(&["site", "login"], &ip, Cost::ONE)?.allowed());
    /// let decisions = policies.check_all(&["site", "login"], &ip, Cost::ONE)?;
    /// assert_eq!(decisions.refusal().and_then(|refusal| refusal.denied_by()), Some("login"));
    /// assert_eq!(policies.handle("site")?.peek(&(), Cost::ONE)?.remaining(), 99);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn check_all<A>(
        &self,
        policies: &[&str],
        attributes: &A,
        cost: Cost,
    ) -> Result<Decisions<'_>, CheckError>
    where
        A: Attributes + ?Sized,
    {
        // Bad input is found before anything is charged.
        let mut asked: SmallVec<[_; 2]> = SmallVec::new();
        for policy in policies {
            let limiter = self.handle(policy)?;
            asked.push((limiter, limiter.keys(attributes)?));
        }
        let mut decisions: SmallVec<[PolicyDecision<'_>; 2]> = SmallVec::new();
        for (limiter, keys) in &asked {
            decisions.push(limiter.decide(keys, cost));
            if decisions.last().is_some_and(|last| !last.allowed()) {
                break;
            }
        }
        let decisions = Decisions(decisions);
        if !decisions.allowed() {
            for ((limiter, keys), decision) in asked.iter().zip(decisions.as_slice()) {
                if let Some(receipt) = decision.receipt() {
                    limiter.refund_keys(keys, &receipt);
                }
            }
        }
        Ok(decisions)
    }

    /// The limiter of the policy with this name. A clone of it is a handle, which saves the
    /// lookup for each check.
    #[inline]
    pub fn handle(&self, policy: &str) -> Result<&PolicyLimiter, CheckError> {
        let limiter = self.limiters.get(policy);
        limiter.ok_or_else(|| CheckError::UnknownPolicy(policy.to_owned()))
    }

    /// The policy with this name.
    pub fn policy(&self, name: &str) -> Option<&Policy> {
        self.limiters.get(name).map(PolicyLimiter::policy)
    }

    /// The policies, in the order of their names.
    pub fn policies(&self) -> Vec<&Policy> {
        let mut policies: Vec<&Policy> = self.limiters.values().map(|it| it.policy()).collect();
        policies.sort_unstable_by_key(|policy| policy.name());
        policies
    }

    /// The stores, by name.
    pub fn stores(&self) -> impl Iterator<Item = (&str, &MemoryStore)> {
        self.stores.iter().map(|(name, store)| (&**name, store))
    }
}
