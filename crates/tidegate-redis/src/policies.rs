//! Several policies over any stores, each by its name.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::time::Duration;

use foldhash::fast::FixedState;
use futures_util::future::join_all;
use smallvec::SmallVec;
use tidegate::{Attributes, CheckError, Cost, Decisions, PoliciesError, Policy, PolicyDecision};

use crate::config::SetupError;
use crate::error::StoreError;
use crate::mode::Mode;
use crate::mode::lease::LeaseStats;
use crate::policy::{AnyStore, PolicyLimiter};

/// Policies over any stores, by name.
///
/// ```no_run
/// use tidegate::{Cost, Limit, Policy};
/// use tidegate_redis::{Policies, RedisOptions, RedisStore};
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let store = RedisStore::new("redis://127.0.0.1:6379/", RedisOptions::default())?;
/// let login = Policy::builder("login").key("{ip}").limit(Limit::per_minute(5)).build()?;
/// let policies = Policies::new([("default", store)], [login])?;
///
/// let ip = [("ip", "203.0.113.7")];
/// let decision = policies.check("login", &ip, Cost::ONE).await?;
/// if !decision.allowed() {
///     println!("429, try again in {:?}", decision.retry_after());
/// }
///
/// // Everything else is asked of one policy.
/// let login = policies.handle("login")?;
/// println!("{} left", login.peek(&ip, Cost::ONE).await?.remaining());
/// # Ok(())
/// # }
/// ```
///
/// The policies never change. [`changed`](Self::changed) makes a new set of them over the
/// same counters.
#[derive(Debug)]
pub struct Policies {
    limiters: HashMap<Box<str>, PolicyLimiter, FixedState>,
    pub(crate) stores: BTreeMap<Box<str>, AnyStore>,
}

impl Policies {
    /// These policies, each in the store that it [names](Policy::store).
    pub fn new<N: Into<Box<str>>, S: Into<AnyStore>>(
        stores: impl IntoIterator<Item = (N, S)>,
        policies: impl IntoIterator<Item = Policy>,
    ) -> Result<Self, SetupError> {
        let stores = stores.into_iter();
        let stores = stores.map(|(name, store)| (name.into(), store.into()));
        Self::prepared(stores.collect(), policies, Path::new(""), None)
            .inspect(Self::commit_policies)
    }

    /// Other policies over the same stores. Keys keep their usage. Earlier receipts may be
    /// void.
    pub fn changed(&self, policies: impl IntoIterator<Item = Policy>) -> Result<Self, SetupError> {
        let made = Self::prepared(self.stores.clone(), policies, Path::new(""), Some(self));
        made.inspect(Self::commit_policies)
    }

    /// Goes on from the policies before, and changes nothing for those yet.
    pub(crate) fn prepared(
        stores: BTreeMap<Box<str>, AnyStore>,
        policies: impl IntoIterator<Item = Policy>,
        folder: &Path,
        before: Option<&Self>,
    ) -> Result<Self, SetupError> {
        let mut limiters: HashMap<Box<str>, PolicyLimiter, FixedState> = HashMap::default();
        for policy in policies {
            let store = stores.get(policy.store());
            let store = store.ok_or_else(|| PoliciesError::UnknownStore {
                policy: policy.name().into(),
                store: policy.store().into(),
            })?;
            let name: Box<str> = policy.name().into();
            let before = before.and_then(|before| before.limiters.get(&name));
            let limiter = PolicyLimiter::build(store, policy, folder, before)?;
            if limiters.insert(name.clone(), limiter).is_some() {
                return Err(PoliciesError::Duplicate(name.into()).into());
            }
        }
        Ok(Self { limiters, stores })
    }

    /// Puts into force what the policies share with those before them.
    pub(crate) fn commit_policies(&self) {
        self.limiters.values().for_each(PolicyLimiter::commit);
    }

    /// [`PolicyLimiter::check`] of the policy with this name.
    pub async fn check<A: Attributes + ?Sized>(
        &self,
        policy: &str,
        attributes: &A,
        cost: Cost,
    ) -> Result<PolicyDecision<'_>, CheckError> {
        self.handle(policy)?.check(attributes, cost).await
    }

    /// Checks several policies in order. The first refusal ends the check, and the policies
    /// before it are refunded, as far as their stores can be reached. Until then, another
    /// request may be refused too early, but never too many are admitted.
    pub async fn check_all<A: Attributes + ?Sized>(
        &self,
        policies: &[&str],
        attributes: &A,
        cost: Cost,
    ) -> Result<Decisions<'_>, CheckError> {
        // Bad input is found before anything is charged.
        let mut limiters: SmallVec<[&PolicyLimiter; 2]> = SmallVec::new();
        for policy in policies {
            let limiter = self.handle(policy)?;
            limiter.verify(attributes, cost)?;
            limiters.push(limiter);
        }
        let mut decisions: SmallVec<[PolicyDecision<'_>; 2]> = SmallVec::new();
        for limiter in &limiters {
            decisions.push(limiter.check(attributes, cost).await?);
            if decisions.last().is_some_and(|last| !last.allowed()) {
                break;
            }
        }
        let decisions: Decisions<'_> = decisions.into_iter().collect();
        if !decisions.allowed() {
            for (limiter, decision) in limiters.iter().zip(decisions.as_slice()) {
                if let Some(receipt) = decision.receipt() {
                    // A store that fails now is not worth a failed request.
                    drop(limiter.refund(attributes, &receipt).await);
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
    #[must_use]
    pub fn policy(&self, name: &str) -> Option<&Policy> {
        self.limiters.get(name).map(PolicyLimiter::policy)
    }

    /// The stores, by name.
    pub fn stores(&self) -> impl Iterator<Item = (&str, &AnyStore)> {
        self.stores.iter().map(|(name, store)| (&**name, store))
    }

    /// [`PolicyLimiter::lease_stats`] of every policy in mode `lease`, by name.
    pub fn leases(&self) -> impl Iterator<Item = (&str, LeaseStats)> {
        let limiters = self.limiters.iter();
        limiters.filter_map(|(name, limiter)| Some((&**name, limiter.lease_stats()?)))
    }

    /// [`PolicyLimiter::flush`] of all policies at once.
    pub async fn flush(&self, within: Duration) -> bool {
        let flushes = self.limiters.values().map(|limiter| limiter.flush(within));
        let flushed = join_all(flushes).await;
        flushed.into_iter().all(|is_flushed| is_flushed)
    }

    /// Lets the stores compile all user-defined scripts, and returns the errors, including
    /// those of stores that are down.
    pub async fn verify_scripts(&self) -> Vec<(&str, StoreError)> {
        let mut wrong = Vec::new();
        for redis in self.limiters.values().filter_map(PolicyLimiter::redis) {
            if let Mode::Script(script) = &redis.mode
                && let Err(error) = script.verify().await
            {
                wrong.push((redis.policy.name(), error));
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
        let redis = self.limiters.values().filter_map(PolicyLimiter::redis);
        let in_one_place = redis
            .filter(|redis| redis.store.0.cluster.is_spread() && redis.policy.tag().len() == 0);
        let in_one_place = in_one_place.map(|redis| {
            let name = redis.policy.name();
            format!("policy {name:?}: its levels have no attribute in common, so all its keys are in one slot, and one server of the cluster answers all its checks")
        });
        let mut warnings: Vec<String> = in_one_place.collect();
        warnings.sort_unstable();
        for (name, store) in &self.stores {
            if let AnyStore::Redis(store) = store {
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
}
