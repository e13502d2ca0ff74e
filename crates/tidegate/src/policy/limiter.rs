//! Decides policies in memory: takes a policy's name and attributes, returns a decision.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use foldhash::fast::FixedState;
use smallvec::{SmallVec, smallvec};

use super::decision::{Decisions, PolicyDecision};
use super::error::{CheckError, PoliciesError};
use super::keys::{Keys, MissingAttribute};
use super::which::{Explained, Which};
use super::{Policy, PolicyLevel};
use crate::attributes::Attributes;
use crate::cost::Cost;
use crate::decision::{Decision, Receipt};
use crate::limit::Limit;
use crate::memory::{Charge, Check, Level, MemoryStore, TooManyLimits};

/// A limiter for policies, in memory.
///
/// ```
/// use std::time::Duration;
/// use tidegate::{Cost, Limit, Policy, PolicyLimiter};
///
/// let api = Policy::builder("api")
///     .level("resource", "{resource}", Limit::per(5, Duration::from_secs(10)).sliding_log())
///     .level("consumer", "{resource}:{consumer}", Limit::per(3, Duration::from_secs(10)).sliding_log())
///     .build()?;
/// let limiter = PolicyLimiter::in_memory([api])?;
///
/// let attributes = [("resource", "12"), ("consumer", "1")];
/// for _ in 0..3 {
///     assert!(limiter.check("api", &attributes, Cost::ONE)?.allowed());
/// }
/// let decision = limiter.check("api", &attributes, Cost::ONE)?;
/// assert_eq!(decision.denied_by(), Some("consumer"));
/// for (name, value) in decision.headers().iter() {
///     println!("{name}: {value}"); // RateLimit-Policy, RateLimit, Retry-After
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// A limiter's policies never change. [`changed`](Self::changed) makes a new limiter with
/// other policies over the same counters.
#[derive(Debug, Clone)]
pub struct PolicyLimiter {
    policies: HashMap<Box<str>, Arc<Compiled>, FixedState>,
    stores: BTreeMap<Box<str>, MemoryStore>,
}

/// One policy of a [`PolicyLimiter`], to look it up once and check it many times.
///
/// ```
/// use tidegate::{Cost, Limit, Policy, PolicyLimiter};
///
/// let login = Policy::builder("login").key("{ip}").limit(Limit::per_minute(5)).build()?;
/// let limiter = PolicyLimiter::in_memory([login])?;
/// let login = limiter.handle("login").expect("it was just built");
/// assert!(login.check(&[("ip", "203.0.113.7")], Cost::ONE)?.allowed());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct PolicyHandle(Arc<Compiled>);

/// A policy, its store, and its limits as registered in that store.
#[derive(Debug, Clone)]
struct Compiled {
    policy: Policy,
    store: MemoryStore,
    charge: Charge,
    /// For each level of the policy, its cases.
    levels: Box<[Box<[Level]>]>,
}

impl PolicyLimiter {
    /// A limiter for policies in the store `default`, in memory, for at most one million
    /// keys.
    pub fn in_memory(policies: impl IntoIterator<Item = Policy>) -> Result<Self, PoliciesError> {
        Self::with_stores([("default", MemoryStore::new())], policies)
    }

    /// A limiter over these named stores.
    ///
    /// ```
    /// use tidegate::{Limit, MemoryStore, Policy, PolicyLimiter};
    ///
    /// let store = MemoryStore::builder().max_keys(10_000).build();
    /// let policy = Policy::builder("login").key("{ip}").limit(Limit::per_minute(5)).build()?;
    /// let limiter = PolicyLimiter::with_stores([("default", store)], [policy])?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn with_stores<N: Into<Box<str>>>(
        stores: impl IntoIterator<Item = (N, MemoryStore)>,
        policies: impl IntoIterator<Item = Policy>,
    ) -> Result<Self, PoliciesError> {
        let stores = stores.into_iter().map(|(name, store)| (name.into(), store));
        Self::new(stores.collect(), policies)
    }

    /// A limiter with other policies over the same stores. Keys keep their usage. A receipt
    /// stays valid if its limit is the same.
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
        let mut compiled: HashMap<Box<str>, Arc<Compiled>, FixedState> = HashMap::default();
        for policy in policies {
            if policy.script.is_some() {
                return Err(PoliciesError::NotInMemory(policy.name().into()));
            }
            let store = stores.get(policy.store());
            let store = store.ok_or_else(|| PoliciesError::UnknownStore {
                policy: policy.name().into(),
                store: policy.store().into(),
            })?;
            let name = policy.name().into();
            let policy = Arc::new(Compiled::new(policy, store.clone())?);
            if let Some(first) = compiled.insert(name, policy) {
                return Err(PoliciesError::Duplicate(first.policy.name().into()));
            }
        }
        Ok(Self {
            policies: compiled,
            stores,
        })
    }

    /// Decides whether a request with these attributes and this cost may proceed. If so,
    /// charges every level of the policy; otherwise, none.
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
        let compiled = self.compiled(policy)?;
        Ok(compiled.ask(attributes, cost, compiled.charge)?)
    }

    /// Returns the decision that [`check`](Self::check) would make, and charges nothing.
    pub fn peek<A>(
        &self,
        policy: &str,
        attributes: &A,
        cost: Cost,
    ) -> Result<PolicyDecision<'_>, CheckError>
    where
        A: Attributes + ?Sized,
    {
        let compiled = self.compiled(policy)?;
        Ok(compiled.ask(attributes, cost, Charge::Nothing)?)
    }

    /// Checks several policies in order. The first refusal ends the check, and the policies
    /// before it are refunded. Until then, another request may be refused too early, but
    /// never too many are admitted.
    ///
    /// ```
    /// use tidegate::{Cost, Limit, Policy, PolicyLimiter};
    ///
    /// let limiter = PolicyLimiter::in_memory([
    ///     Policy::builder("site").key("").limit(Limit::per_second(100)).build()?,
    ///     Policy::builder("login").key("{ip}").limit(Limit::per_minute(1)).build()?,
    /// ])?;
    /// let ip = [("ip", "203.0.113.7")];
    /// assert!(limiter.check_all(&["site", "login"], &ip, Cost::ONE)?.allowed());
    /// let decisions = limiter.check_all(&["site", "login"], &ip, Cost::ONE)?;
    /// assert_eq!(decisions.refusal().and_then(|refusal| refusal.denied_by()), Some("login"));
    /// assert_eq!(limiter.peek("site", &(), Cost::ONE)?.remaining(), 99);
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
        let mut asked: SmallVec<[(&Compiled, Keys<'_>); 2]> = SmallVec::new();
        for policy in policies {
            let compiled = self.compiled(policy)?;
            asked.push((compiled, compiled.keys(attributes)?));
        }
        let mut decisions: SmallVec<[PolicyDecision<'_>; 2]> = SmallVec::new();
        for (compiled, keys) in &asked {
            let decision = compiled.decide(keys, cost, compiled.charge);
            let refused = !decision.allowed();
            decisions.push(decision);
            if refused {
                break;
            }
        }
        let decisions = Decisions(decisions);
        if !decisions.allowed() {
            for ((compiled, keys), decision) in asked.iter().zip(decisions.as_slice()) {
                if let Some(receipt) = decision.receipt() {
                    compiled.refund(keys, &receipt);
                }
            }
        }
        Ok(decisions)
    }

    /// Gives back what a check with these attributes charged, as far as it still
    /// counts. See [`MemoryStore::refund`] for when a refund is refused.
    pub fn refund<A>(
        &self,
        policy: &str,
        attributes: &A,
        receipt: &Receipt,
    ) -> Result<bool, CheckError>
    where
        A: Attributes + ?Sized,
    {
        let compiled = self.compiled(policy)?;
        Ok(compiled.refund(&compiled.keys(attributes)?, receipt))
    }

    /// Forgets the keys of these attributes. Returns how many existed.
    pub fn reset<A>(
        &self,
        policy: &str,
        attributes: &A,
        which: Which<'_>,
    ) -> Result<usize, CheckError>
    where
        A: Attributes + ?Sized,
    {
        let compiled = self.compiled(policy)?;
        let policy = &compiled.policy;
        let levels = policy.which(which)?;
        // Bad input is found before anything is forgotten.
        let keys: Vec<Keys<'_>> = levels
            .map(|level| policy.key_of(level, attributes))
            .collect::<Result<_, _>>()?;
        let keys = keys.iter().flat_map(Keys::all);
        let forgotten = keys.filter(|key| {
            let level = compiled.level(key.level, key.case);
            compiled.store.reset_check(&level.check_values(key.values))
        });
        Ok(forgotten.count())
    }

    /// Returns the state and settings of every level for these attributes, and charges
    /// nothing.
    pub fn explain<A>(&self, policy: &str, attributes: &A) -> Result<Vec<Explained<'_>>, CheckError>
    where
        A: Attributes + ?Sized,
    {
        let compiled = self.compiled(policy)?;
        let keys = compiled.policy.keys(attributes)?;
        let decision = compiled.decide(&keys, Cost::ONE, Charge::Nothing);
        Ok(compiled.policy.explain(&keys, &decision))
    }

    /// Decides keys made by a policy with the same name and levels, under the limits of the
    /// policy in this limiter. For authors of limiters.
    ///
    /// # Panics
    /// When this limiter has no such policy, or the levels differ.
    pub fn decide_keys(&self, keys: &Keys<'_>, cost: Cost, charge: Charge) -> Decision {
        let compiled = self.policies.get(keys.policy().name());
        let compiled = compiled.expect("a policy of the same name");
        // Of a limit that came with the check there is no level yet. Where there are too
        // many of them, the level's own has to do.
        let given: SmallVec<[Option<Level>; 2]> = keys
            .iter()
            .map(|key| compiled.level_under(key.level, *key.given_limit()?).ok())
            .collect();
        let checks: SmallVec<[Check<'_>; 4]> = keys
            .iter()
            .zip(&given)
            .map(|(key, given)| {
                let level = compiled.level(key.level, key.case);
                let level = given.as_ref().unwrap_or(level);
                level.check_values(key.values).cost(cost)
            })
            .collect();
        compiled.store.decide(&checks, charge)
    }

    /// The policy with this name.
    #[must_use]
    pub fn policy(&self, name: &str) -> Option<&Policy> {
        self.policies.get(name).map(|compiled| &compiled.policy)
    }

    /// A handle to the policy with this name, which saves the lookup for each check.
    #[must_use]
    pub fn handle(&self, name: &str) -> Option<PolicyHandle> {
        self.policies.get(name).cloned().map(PolicyHandle)
    }

    /// The policies, in the order of their names.
    #[must_use]
    pub fn policies(&self) -> Vec<&Policy> {
        let mut policies: Vec<&Policy> = self.policies.values().map(|it| &it.policy).collect();
        policies.sort_unstable_by_key(|policy| policy.name());
        policies
    }

    /// The stores, by name.
    pub fn stores(&self) -> impl Iterator<Item = (&str, &MemoryStore)> {
        self.stores.iter().map(|(name, store)| (&**name, store))
    }

    #[inline]
    fn compiled(&self, policy: &str) -> Result<&Compiled, CheckError> {
        self.policies
            .get(policy)
            .map(|compiled| &**compiled)
            .ok_or_else(|| CheckError::UnknownPolicy(policy.to_owned()))
    }
}

/// Which of a level's limits applies: its own, or that of an override.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Case(u16);

impl PolicyHandle {
    /// The policy.
    #[must_use]
    pub fn policy(&self) -> &Policy {
        &self.0.policy
    }

    /// [`PolicyLimiter::check`] for this policy.
    #[inline]
    pub fn check<A>(&self, attributes: &A, cost: Cost) -> Result<PolicyDecision<'_>, CheckError>
    where
        A: Attributes + ?Sized,
    {
        Ok(self.0.ask(attributes, cost, self.0.charge)?)
    }

    /// [`PolicyLimiter::peek`] for this policy.
    pub fn peek<A>(&self, attributes: &A, cost: Cost) -> Result<PolicyDecision<'_>, CheckError>
    where
        A: Attributes + ?Sized,
    {
        Ok(self.0.ask(attributes, cost, Charge::Nothing)?)
    }

    /// Takes a cost off the count of a policy that has one fixed window, no matter who charged
    /// it, down to zero: [`MemoryStore::give_back`].
    pub fn give_back<A>(&self, attributes: &A, cost: Cost)
    where
        A: Attributes + ?Sized,
    {
        if let Some((check, _)) = self.only_check(attributes) {
            self.0.store.give_back(&check.cost(cost));
        }
    }

    /// The store that keeps its counters, and what a check charges. For callers that decide
    /// many checks at once ([`MemoryStore::decide_each`]).
    #[must_use]
    pub fn store(&self) -> (&MemoryStore, Charge) {
        (&self.0.store, self.0.charge)
    }

    /// The only check of a policy that has one level with one attribute in its key, and
    /// which of its limits applies. `None` for any other policy, if the attribute is
    /// missing, or if nothing is counted.
    #[inline]
    pub fn only_check<'a, A>(&'a self, attributes: &'a A) -> Option<(Check<'a>, Case)>
    where
        A: Attributes + ?Sized,
    {
        let compiled = &*self.0;
        let ([level], true) = (&*compiled.policy.levels, compiled.policy.enabled()) else {
            return None;
        };
        let [name] = level.key.names() else {
            return None;
        };
        let value = attributes.value(name)?;
        let case = level.cases.find(&[value], attributes);
        let counts = level.cases.counts(case);
        counts.then(|| (compiled.level(0, case).check(value), Case(case)))
    }

    /// The policy's decision, from the store's decision on its [only
    /// check](Self::only_check).
    #[inline]
    pub fn decided(&self, case: Case, decision: Decision) -> PolicyDecision<'_> {
        PolicyDecision::new(&self.0.policy, smallvec![(0, case.0)], decision)
    }

    /// The first level with another limit over the same keys, for a limit that comes with
    /// the check. It must use the same algorithm.
    pub fn level_under(&self, limit: Limit) -> Result<Level, TooManyLimits> {
        self.0.level_under(0, limit)
    }
}

impl Compiled {
    fn new(policy: Policy, store: MemoryStore) -> Result<Self, TooManyLimits> {
        let levels = policy.levels.iter().map(|level| {
            let name = level_name(&policy, level);
            let limits = level.cases.all().iter().map(|case| case.limit);
            // Keys that are exempt have no limit, and are never asked about.
            let limits = limits.map(|limit| limit.unwrap_or(*level.limit()));
            limits.map(|limit| store.level(&name, limit)).collect()
        });
        let levels = levels.collect::<Result<_, _>>()?;
        let charge = match policy.count_denied() {
            true => Charge::Always,
            false => Charge::Admitted,
        };
        Ok(Self {
            policy,
            store,
            charge,
            levels,
        })
    }

    #[inline]
    fn ask<A>(
        &self,
        attributes: &A,
        cost: Cost,
        charge: Charge,
    ) -> Result<PolicyDecision<'_>, MissingAttribute>
    where
        A: Attributes + ?Sized,
    {
        // The everyday case, without lists of one.
        if let ([level], true) = (&*self.policy.levels, self.policy.enabled())
            && let [name] = level.key.names()
            && let Some(value) = attributes.value(name)
        {
            let case = level.cases.find(&[value], attributes);
            if level.cases.counts(case) {
                let check = self.level(0, case).check(value).cost(cost);
                let decision = self.store.decide(&[check], charge);
                let cases = smallvec![(0, case)];
                return Ok(PolicyDecision::new(&self.policy, cases, decision));
            }
        }
        if let (2..=4, true) = (self.policy.levels.len(), self.policy.enabled())
            && let Some(decision) = self.ask_few(attributes, cost, charge)
        {
            return Ok(decision);
        }
        Ok(self.decide(&self.keys(attributes)?, cost, charge))
    }

    /// Two to four levels with few attributes, without lists. `None` if there are more, if
    /// an attribute is missing, or if a level does not count.
    #[inline]
    fn ask_few<A>(&self, attributes: &A, cost: Cost, charge: Charge) -> Option<PolicyDecision<'_>>
    where
        A: Attributes + ?Sized,
    {
        let mut values: [&[u8]; 8] = [&[]; 8];
        let (mut ends, mut cases) = ([0; 5], [(0, 0); 4]);
        let mut end = 0;
        for (number, level) in (0_u16..).zip(&self.policy.levels) {
            let start = end;
            for name in level.key.names() {
                *values.get_mut(end)? = attributes.value(name)?;
                end += 1;
            }
            let case = level.cases.find(&values[start..end], attributes);
            if !level.cases.counts(case) {
                return None;
            }
            cases[usize::from(number)] = (number, case);
            ends[usize::from(number) + 1] = end;
        }
        let check = |level: usize| {
            let (number, case) = cases[level];
            let values = &values[ends[level]..ends[level + 1]];
            self.level(number, case).check_values(values).cost(cost)
        };
        let decision = match self.policy.levels.len() {
            2 => self.store.decide(&[check(0), check(1)], charge),
            3 => self.store.decide(&[check(0), check(1), check(2)], charge),
            4 => self
                .store
                .decide(&[check(0), check(1), check(2), check(3)], charge),
            _ => return None,
        };
        let cases = SmallVec::from_slice(&cases[..self.policy.levels.len()]);
        Some(PolicyDecision::new(&self.policy, cases, decision))
    }

    /// The keys to check; none if nothing is measured.
    #[inline]
    fn keys<'a, A>(&'a self, attributes: &'a A) -> Result<Keys<'a>, MissingAttribute>
    where
        A: Attributes + ?Sized,
    {
        if self.policy.enabled() {
            self.policy.keys(attributes)
        } else {
            Ok(Keys::none(&self.policy))
        }
    }

    #[inline]
    fn decide(&self, keys: &Keys<'_>, cost: Cost, charge: Charge) -> PolicyDecision<'_> {
        let mut cases = SmallVec::new();
        let checks: SmallVec<[Check<'_>; 4]> = keys
            .iter()
            .map(|key| {
                cases.push((key.level, key.case));
                self.level(key.level, key.case)
                    .check_values(key.values)
                    .cost(cost)
            })
            .collect();
        PolicyDecision::new(&self.policy, cases, self.store.decide(&checks, charge))
    }

    fn refund(&self, keys: &Keys<'_>, receipt: &Receipt) -> bool {
        let checks: SmallVec<[Check<'_>; 4]> = keys
            .iter()
            .map(|key| self.level(key.level, key.case).check_values(key.values))
            .collect();
        self.store.refund(&checks, receipt)
    }

    #[inline]
    fn level(&self, level: u16, case: u16) -> &Level {
        &self.levels[usize::from(level)][usize::from(case)]
    }

    /// A level with another limit, over the same keys.
    fn level_under(&self, level: u16, limit: Limit) -> Result<Level, TooManyLimits> {
        let name = level_name(&self.policy, &self.policy.levels[usize::from(level)]);
        self.store.level(&name, limit)
    }
}

/// The name of a level in the store. Names have no colon, so no two levels share one. All
/// keys of a level are tuples of one length; another length makes another level.
fn level_name(policy: &Policy, level: &PolicyLevel) -> String {
    let length = level.key.names().len();
    format!("{}:{}:{length}", policy.name, level.name)
}
