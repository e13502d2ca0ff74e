//! Decides one policy in memory: from attributes to a decision.

use std::sync::Arc;

use smallvec::SmallVec;

use super::decision::PolicyDecision;
use super::error::{CheckError, PoliciesError};
use super::keys::{Keys, LevelKey, MissingAttribute};
use super::which::{Explained, Which};
use super::{Policy, PolicyLevel};
use crate::attributes::Attributes;
use crate::cost::Cost;
use crate::decision::{Decision, Receipt};
use crate::limit::Limit;
use crate::memory::{Charge, Check, Level, MemoryStore, TooManyLimits};

/// One policy, in memory.
///
/// ```
/// use std::time::Duration;
/// use tidegate::{Cost, Limit, Policy, PolicyLimiter};
///
/// let api = Policy::builder("api")
///     .level("resource", "{resource}", Limit::per(5, Duration::from_secs(10)).sliding_log())
///     .level("consumer", "{resource}:{consumer}", Limit::per(3, Duration::from_secs(10)).sliding_log())
///     .build()?;
/// let api = PolicyLimiter::in_memory(api)?;
///
/// let attributes = [("resource", "12"), ("consumer", "1")];
/// for _ in 0..3 {
///     assert!(api.check(&attributes, Cost::ONE)?.allowed());
/// }
/// let decision = api.check(&attributes, Cost::ONE)?;
/// assert_eq!(decision.denied_by(), Some("consumer"));
/// for (name, value) in decision.headers().iter() {
///     println!("{name}: {value}"); // RateLimit-Policy, RateLimit, Retry-After
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Clones are handles to the same counters. The policy never changes;
/// [`changed`](Self::changed) makes a limiter of another policy over the same counters.
///
/// `check` decides and charges, `peek` only looks, `refund` gives a charge back, and `reset`
/// forgets keys: the same verbs as those of [`Limiter`](crate::Limiter), which has one limit, and
/// of [`Policies`](crate::Policies), which has several policies by name.
#[derive(Debug, Clone)]
pub struct PolicyLimiter(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    policy: Policy,
    store: MemoryStore,
    charge: Charge,
    /// For each level of the policy, its cases: the limits as registered in the store.
    levels: Box<[Box<[Level]>]>,
}

/// A question to a policy, for callers with more to say than attributes and a cost.
///
/// ```
/// use tidegate::{Cost, Limit, Policy, PolicyLimiter, Question};
///
/// let login = Policy::builder("login").key("{ip}").limit(Limit::per_minute(5)).build()?;
/// let login = PolicyLimiter::in_memory(login)?;
/// let ip = [("ip", "203.0.113.7")];
/// let question = Question { look: true, ..Question::new(&ip, Cost::ONE) };
/// assert_eq!(login.ask(&question)?.remaining(), 5);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Question<'a, A: ?Sized> {
    /// The named values of the check.
    pub attributes: &'a A,
    /// What it costs.
    pub cost: Cost,
    /// A limit that comes with the check, instead of the levels' own. It must use their
    /// algorithm. Keys with an override keep the override's limit.
    pub limit: Option<&'a Limit>,
    /// Whether it charges nothing.
    pub look: bool,
}

impl<'a, A: ?Sized> Question<'a, A> {
    /// A check of these attributes at this cost.
    pub const fn new(attributes: &'a A, cost: Cost) -> Self {
        Self {
            attributes,
            cost,
            limit: None,
            look: false,
        }
    }
}

impl<A: ?Sized> Clone for Question<'_, A> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<A: ?Sized> Copy for Question<'_, A> {}

/// Which of a level's limits applies: its own, or that of an override.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Case(u16);

impl PolicyLimiter {
    /// A limiter in memory, for at most one million keys.
    pub fn in_memory(policy: Policy) -> Result<Self, PoliciesError> {
        Self::over(&MemoryStore::new(), policy)
    }

    /// A limiter over this store, whatever the name of the store that the policy asks for.
    /// Several policies can share a store, if their names differ.
    pub fn over(store: &MemoryStore, policy: Policy) -> Result<Self, PoliciesError> {
        if policy.script.is_some() {
            return Err(PoliciesError::NotInMemory(policy.name().into()));
        }
        let levels = policy.levels.iter().map(|level| {
            let name = level_name(&policy, level);
            let limits = level.overrides.all().iter().map(|it| it.limit);
            // Keys that are exempt have no limit, and are never asked about.
            let limits = limits.map(|limit| limit.unwrap_or(*level.limit()));
            limits.map(|limit| store.level(&name, limit)).collect()
        });
        let levels = levels.collect::<Result<_, TooManyLimits>>()?;
        Ok(Self(Arc::new(Inner {
            store: store.clone(),
            charge: Charge::counting_denied(policy.count_denied()),
            levels,
            policy,
        })))
    }

    /// A limiter of another policy over the same store. Keys keep their usage if the policy has
    /// the same name. A receipt stays valid if its limit is the same.
    pub fn changed(&self, policy: Policy) -> Result<Self, PoliciesError> {
        Self::over(&self.0.store, policy)
    }

    /// The policy.
    pub fn policy(&self) -> &Policy {
        &self.0.policy
    }

    /// The store that keeps its counters.
    pub fn store(&self) -> &MemoryStore {
        &self.0.store
    }

    /// What a check charges.
    pub fn charge(&self) -> Charge {
        self.0.charge
    }

    /// Decides whether a request with these attributes at this cost may proceed, and charges it
    /// if so: every level of the policy, or none.
    #[inline]
    pub fn check<A>(&self, attributes: &A, cost: Cost) -> Result<PolicyDecision<'_>, CheckError>
    where
        A: Attributes + ?Sized,
    {
        self.decide_now(attributes, cost, self.0.charge)
    }

    /// Returns the decision that [`check`](Self::check) would make, and charges nothing.
    pub fn peek<A>(&self, attributes: &A, cost: Cost) -> Result<PolicyDecision<'_>, CheckError>
    where
        A: Attributes + ?Sized,
    {
        self.decide_now(attributes, cost, Charge::Nothing)
    }

    /// Answers a question: a check, or a look, possibly under a limit of its own.
    pub fn ask<A>(&self, question: &Question<'_, A>) -> Result<PolicyDecision<'_>, CheckError>
    where
        A: Attributes + ?Sized,
    {
        let charge = match question.look {
            true => Charge::Nothing,
            false => self.0.charge,
        };
        if question.limit.is_none() {
            return self.decide_now(question.attributes, question.cost, charge);
        }
        let keys = self.keys(question.attributes)?.under(question.limit);
        let decision = self.decide_keys(&keys, question.cost, charge);
        Ok(PolicyDecision::from_store(&self.0.policy, &keys, decision))
    }

    /// Gives back what a check with these attributes charged, as far as it still counts, and
    /// never more than if the request had not been made. A receipt can be refunded once; see
    /// [`MemoryStore::refund`] for when a refund is refused.
    pub fn refund<A>(&self, attributes: &A, receipt: &Receipt) -> Result<bool, CheckError>
    where
        A: Attributes + ?Sized,
    {
        Ok(self.refund_keys(&self.keys(attributes)?, receipt))
    }

    /// Forgets the keys of these attributes. Returns how many of them existed.
    pub fn reset<A>(&self, attributes: &A, which: Which<'_>) -> Result<usize, CheckError>
    where
        A: Attributes + ?Sized,
    {
        let Inner { policy, store, .. } = &*self.0;
        // Bad input is found before anything is forgotten.
        let keys = policy.keys_of(policy.which(which)?, attributes)?;
        let forgotten = keys.all().filter(|key| {
            let level = self.level(key.level, key.case);
            store.reset_check(&level.check_values(key.values))
        });
        Ok(forgotten.count())
    }

    /// Returns the state and settings of every level for these attributes, and charges
    /// nothing.
    pub fn explain<A>(&self, attributes: &A) -> Result<Vec<Explained<'_>>, CheckError>
    where
        A: Attributes + ?Sized,
    {
        let policy = &self.0.policy;
        let keys = policy.keys(attributes)?;
        let decision = self.decide_keys(&keys, Cost::ONE, Charge::Nothing);
        let look = PolicyDecision::from_store(policy, &keys, decision);
        Ok(policy.explain(&keys, &look))
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

    /// Decides keys made by a policy with the same levels, under the limits of this one. For
    /// authors of limiters.
    ///
    /// # Panics
    /// When the levels differ.
    pub fn decide_keys(&self, keys: &Keys<'_>, cost: Cost, charge: Charge) -> Decision {
        // Of a limit that came with the check there is no level yet. Where there are too
        // many of them, the level's own has to do.
        let given: Vec<Option<Level>> = match keys.given_limit() {
            None => Vec::new(),
            Some(_) => {
                let level = |key: LevelKey<'_>| self.level_of(key.level, *key.given_limit()?).ok();
                keys.iter().map(level).collect()
            }
        };
        let mut checks: SmallVec<[Check<'_>; 4]> = SmallVec::new();
        for (index, key) in keys.iter().enumerate() {
            let given = given.get(index).and_then(Option::as_ref);
            let level = given.unwrap_or_else(|| self.level(key.level, key.case));
            checks.push(level.check_values(key.values).cost(cost));
        }
        self.0.store.decide(&checks, charge)
    }

    /// The only check of a policy that has one level with one attribute in its key, and
    /// which of its limits applies. `None` for any other policy, if the attribute is
    /// missing, or if nothing is counted.
    #[inline]
    pub fn only_check<'a, A>(&'a self, attributes: &'a A) -> Option<(Check<'a>, Case)>
    where
        A: Attributes + ?Sized,
    {
        let ([level], true) = (&*self.0.policy.levels, self.0.policy.enabled()) else {
            return None;
        };
        let [name] = level.key.names() else {
            return None;
        };
        let value = attributes.value(name)?;
        let case = level.overrides.find(&[value], attributes);
        level.overrides.limit(case)?;
        Some((self.level(0, case).check(value), Case(case)))
    }

    /// The policy's decision, from the store's decision on its [only
    /// check](Self::only_check).
    #[inline]
    pub fn decided(&self, case: Case, decision: Decision) -> PolicyDecision<'_> {
        let cases = SmallVec::from_buf_and_len([(0, case.0); 2], 1);
        PolicyDecision::new(&self.0.policy, cases, decision)
    }

    /// The first level with another limit over the same keys, for a limit that comes with
    /// the check. It must use the same algorithm.
    pub fn level_under(&self, limit: Limit) -> Result<Level, TooManyLimits> {
        self.level_of(0, limit)
    }

    #[inline]
    fn decide_now<A>(
        &self,
        attributes: &A,
        cost: Cost,
        charge: Charge,
    ) -> Result<PolicyDecision<'_>, CheckError>
    where
        A: Attributes + ?Sized,
    {
        // The everyday case, without lists of one.
        if let Some((check, case)) = self.only_check(attributes) {
            let decision = self.0.store.decide(&[check.cost(cost)], charge);
            return Ok(self.decided(case, decision));
        }
        let keys = self.keys(attributes)?;
        let decision = self.decide_keys(&keys, cost, charge);
        Ok(PolicyDecision::from_store(&self.0.policy, &keys, decision))
    }

    /// The keys to check; none if nothing is measured.
    #[inline]
    pub(super) fn keys<'a, A>(&'a self, attributes: &'a A) -> Result<Keys<'a>, MissingAttribute>
    where
        A: Attributes + ?Sized,
    {
        let policy = &self.0.policy;
        match policy.enabled() {
            true => policy.keys(attributes),
            false => Ok(Keys::none(policy)),
        }
    }

    /// Checks keys of this policy.
    pub(super) fn decide(&self, keys: &Keys<'_>, cost: Cost) -> PolicyDecision<'_> {
        let decision = self.decide_keys(keys, cost, self.0.charge);
        PolicyDecision::from_store(&self.0.policy, keys, decision)
    }

    pub(super) fn refund_keys(&self, keys: &Keys<'_>, receipt: &Receipt) -> bool {
        let checks: SmallVec<[Check<'_>; 4]> = keys
            .iter()
            .map(|key| self.level(key.level, key.case).check_values(key.values))
            .collect();
        self.0.store.refund(&checks, receipt)
    }

    #[inline]
    fn level(&self, level: u16, case: u16) -> &Level {
        &self.0.levels[usize::from(level)][usize::from(case)]
    }

    /// A level with another limit, over the same keys.
    fn level_of(&self, level: u16, limit: Limit) -> Result<Level, TooManyLimits> {
        let policy = &self.0.policy;
        let name = level_name(policy, &policy.levels[usize::from(level)]);
        self.0.store.level(&name, limit)
    }
}

/// The name of a level in the store. Names have no colon, so no two levels share one. All
/// keys of a level are tuples of one length; another length makes another level.
fn level_name(policy: &Policy, level: &PolicyLevel) -> String {
    let length = level.key.names().len();
    format!("{}:{}:{length}", policy.name, level.name)
}
