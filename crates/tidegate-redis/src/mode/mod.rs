//! How the checks of a policy in Redis are decided: a [`Query`] is asked of a [`Mode`].

pub(crate) mod background;
mod exact;
pub(crate) mod lease;
pub(crate) mod refusals;
mod script;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use smallvec::SmallVec;
use tidegate::algorithm::Outcome;
use tidegate::{
    Charge, Cost, Decision, KeyHasher, Keys, LevelKey, LevelOutcome, Limit, Policy, PolicyDecision,
    Receipt, Source,
};

use crate::config::SetupError;
use crate::error::StoreError;
use crate::fingerprint::Fingerprint;
use crate::on_error::OnError;
use crate::store::RedisStore;
use background::Background;
use exact::Exact;
use lease::Lease;
use script::Script;

/// A check of one policy. Its keys are made and hashed once, here, for every mode.
#[derive(Debug)]
pub(crate) struct Query<'p, 'k> {
    pub(crate) policy: &'p Policy,
    pub(crate) keys: Keys<'k>,
    /// Of the levels that count, in their order.
    pub(crate) prints: SmallVec<[Fingerprint; 2]>,
    pub(crate) cost: Cost,
    pub(crate) charge: Charge,
}

impl<'p, 'k> Query<'p, 'k> {
    #[inline]
    pub(crate) fn new(
        policy: &'p Policy,
        hasher: &KeyHasher,
        keys: Keys<'k>,
        cost: Cost,
        charge: Charge,
    ) -> Self {
        Self {
            policy,
            prints: keys.iter().map(|key| hasher.hash(&key)).collect(),
            keys,
            cost,
            charge,
        }
    }

    /// Whether it charges nothing.
    #[inline]
    pub(crate) fn is_look(&self) -> bool {
        self.charge == Charge::Nothing
    }

    /// The levels that count, with their fingerprints.
    #[inline]
    pub(crate) fn levels(&self) -> impl Iterator<Item = (Fingerprint, LevelKey<'_>)> {
        self.prints.iter().copied().zip(self.keys.iter())
    }

    /// The same of some levels, by their places among those that count.
    pub(crate) fn only(&self, is_meant: impl Fn(usize) -> bool) -> Self {
        let prints = self.prints.iter().enumerate();
        let prints = prints.filter(|(level, _)| is_meant(*level));
        Self {
            prints: prints.map(|(_, print)| *print).collect(),
            keys: self.keys.only(&is_meant),
            ..*self
        }
    }

    /// A decision of all levels.
    #[inline]
    pub(crate) fn decided(&self, decision: Decision) -> PolicyDecision<'p> {
        PolicyDecision::from_store(self.policy, &self.keys, decision)
    }

    /// A decision that tells of these levels alone.
    pub(crate) fn reporting<'l>(
        &self,
        levels: impl IntoIterator<Item = LevelKey<'l>>,
        decision: Decision,
    ) -> PolicyDecision<'p> {
        PolicyDecision::of_levels(self.policy, levels, decision)
    }

    /// Lets the request pass, without numbers.
    pub(crate) fn allowed(&self, source: Source) -> PolicyDecision<'p> {
        self.reporting([], Decision::from_store([], wall_us(), None, source, None))
    }

    /// Refuses what a level blocks, without asking the store: one that is down must not open a
    /// block. Tells only of the levels that block.
    #[inline]
    fn blocked(&self) -> Option<PolicyDecision<'p>> {
        let blocks = |key: &LevelKey<'_>| *key.limit() == Limit::block();
        let is_blocked = self.keys.iter().any(|key| blocks(&key));
        is_blocked.then(|| self.refused(self.keys.iter().filter(blocks)))
    }

    /// Refuses, and does not say for how long.
    fn refused<'l>(&self, levels: impl Iterator<Item = LevelKey<'l>>) -> PolicyDecision<'p> {
        let levels: SmallVec<[LevelKey<'_>; 2]> = levels.collect();
        let outcomes = levels.iter();
        let outcomes = outcomes.map(|_| LevelOutcome::new(Outcome::BLOCKED, self.cost, 0));
        let decision = Decision::from_store(outcomes, wall_us(), Some(0), Source::Store, None);
        self.reporting(levels, decision)
    }
}

/// What decides the checks of a policy.
#[derive(Debug)]
pub(crate) enum Mode {
    /// The store decides every check.
    Exact(Exact),
    /// This node spends tokens that it took out of the store ahead of time.
    Lease(Lease),
    /// This node decides, and tells the store later.
    Background(Background),
    /// A script of the user's own, in place of the levels' limits.
    Script(Script),
}

impl Mode {
    /// For this policy. Keeps what the mode before it knows, if that decided the same keys in
    /// the same way, and changes nothing in it.
    pub(crate) fn new(
        policy: &Policy,
        store: &RedisStore,
        charge: Charge,
        on_error: &Arc<OnError>,
        folder: &Path,
        before: Option<&Self>,
    ) -> Result<Self, SetupError> {
        if let Some(script) = policy.script() {
            let made = Script::read(script, store, folder).map_err(|problem| {
                let policy = policy.name().into();
                SetupError::Script { policy, problem }
            });
            return Ok(Self::Script(made?));
        }
        let memory = match (policy.mode(), charge) {
            // A refusal that is charged has to reach the store.
            (tidegate::Mode::Background, _) | (_, Charge::Always) => Duration::ZERO,
            _ => policy.refusal_memory(),
        };
        let exact = Exact::new(policy, store, charge, on_error, memory);
        Ok(match policy.mode() {
            tidegate::Mode::Exact => Self::Exact(exact),
            tidegate::Mode::Lease => {
                let node = match before {
                    Some(Self::Lease(before)) => before.node.for_policy(policy, store),
                    _ => None,
                };
                let node = node.unwrap_or_else(|| lease::node(policy, store));
                Self::Lease(Lease { node, exact })
            }
            tidegate::Mode::Background => {
                let node = match before {
                    Some(Self::Background(before)) => before.node.for_policy(policy, store),
                    _ => None,
                };
                let node = node.unwrap_or_else(|| background::node(policy, store));
                Self::Background(Background { node, exact })
            }
        })
    }

    /// What makes fingerprints of its keys, as long as it keeps something of them.
    #[inline]
    pub(crate) fn hasher(&self) -> &KeyHasher {
        match self {
            Self::Exact(exact) => &exact.hasher,
            Self::Lease(lease) => lease.node.hasher(),
            Self::Background(background) => background.node.hasher(),
            Self::Script(script) => &script.hasher,
        }
    }

    /// Decides without the store, if that is possible now. A query that charges nothing has to
    /// ask the store, which alone has the numbers of all levels.
    #[inline]
    pub(crate) fn now<'p>(&self, query: &Query<'p, '_>) -> Option<PolicyDecision<'p>> {
        match self {
            // Without its script, such a policy blocks.
            Self::Script(_) => None,
            Self::Exact(exact) => query.blocked().or_else(|| exact.now(query)),
            Self::Lease(lease) => query.blocked().or_else(|| lease.now(query)),
            Self::Background(here) => query.blocked().or_else(|| here.now(query)),
        }
    }

    /// Asks the store what [`now`](Self::now) could not decide.
    pub(crate) async fn ask<'p>(
        &self,
        query: &Query<'p, '_>,
    ) -> Result<PolicyDecision<'p>, StoreError> {
        match self {
            Self::Exact(exact) => Ok(query.decided(exact.ask(query).await?)),
            Self::Lease(lease) => lease.ask(query).await,
            Self::Background(background) => background.ask(query).await,
            Self::Script(script) => script.ask(query).await,
        }
    }

    /// Gives back what a check charged. Returns whether it is the first time.
    pub(crate) async fn refund(
        &self,
        query: &Query<'_, '_>,
        receipt: &Receipt,
    ) -> Result<bool, StoreError> {
        let refunded = match self {
            Self::Exact(exact) => exact.refund(query, receipt, "", |_| true).await,
            Self::Lease(lease) => lease.refund(query, receipt).await,
            Self::Background(background) => background.refund(query, receipt).await,
            // Its decisions have no receipts.
            Self::Script(_) => Ok(false),
        };
        self.forget_refusals(Some(&query.prints));
        refunded
    }

    /// Refusals of these keys no longer hold; `None` stands for keys that are not known.
    pub(crate) fn forget_refusals(&self, prints: Option<&[Fingerprint]>) {
        if let Self::Exact(exact) | Self::Lease(Lease { exact, .. }) = self
            && let Some(refusals) = &exact.refusals
        {
            match prints {
                Some(prints) => refusals.forget(prints),
                None => refusals.forget_all(),
            }
        }
    }

    /// The store has deleted these keys.
    pub(crate) fn forget(&self, stored: &[String]) {
        match self {
            Self::Background(background) => background.node.forget(stored),
            Self::Lease(lease) => lease.node.forget(stored),
            Self::Exact(_) | Self::Script(_) => {}
        }
    }

    /// Sends the store everything it does not know yet. Says whether that was done in time.
    pub(crate) async fn flush(&self, within: Duration) -> bool {
        match self {
            Self::Background(background) => background.node.flush(within).await,
            Self::Lease(lease) => lease.node.flush(within).await,
            Self::Exact(_) | Self::Script(_) => true,
        }
    }
}

/// This node's clock, for answers that the store has not given.
pub(crate) fn wall_us() -> u64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::LazyLock;

    use tidegate::Attributes;

    use super::*;

    /// A check, for modes without a limiter. The same keys have the same fingerprints.
    pub(crate) fn check<'a, A>(policy: &'a Policy, attributes: &'a A, cost: Cost) -> Query<'a, 'a>
    where
        A: Attributes,
    {
        static HASHER: LazyLock<KeyHasher> = LazyLock::new(KeyHasher::new);
        let keys = policy
            .keys(attributes)
            .expect("the attributes of the policy");
        Query::new(policy, &HASHER, keys, cost, Charge::Admitted)
    }
}
