//! A policy whose counters are kept in Redis: asks the store, and decides when it does not
//! answer. This is the only place that chooses between failing open, failing closed and
//! deciding locally.

use std::path::Path;
use std::sync::Arc;

use tidegate::algorithm::Outcome;
use tidegate::{
    Attributes, Charge, CheckError, Cost, Decision, Keys, LevelOutcome, Limit, OnError, Policy,
    PolicyDecision, PolicyLimiter, Question, Receipt, Source, Which,
};
use tokio::time::Instant;

use crate::background::Decided;
use crate::call::Prepared;
use crate::config::SetupError;
use crate::decider::Decider;
use crate::error::{ErrorKind, StoreError};
use crate::local;
use crate::outage::FallbackNote;
use crate::policy::TryCheckError;
use crate::refusals::Known;
use crate::store::RedisStore;

/// A policy whose counters are kept in Redis.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) policy: Policy,
    pub(crate) store: RedisStore,
    pub(crate) charge: Charge,
    prepared: Prepared,
    pub(crate) decider: Decider,
    /// Decides when the store cannot, under `on_error = "local"`.
    pub(crate) local: Option<PolicyLimiter>,
    /// The clock of the refusals counts from here.
    start: Instant,
    /// What it does without the store, for the log.
    pub(crate) note: Arc<FallbackNote>,
}

impl Shared {
    pub(crate) fn new(
        policy: Policy,
        store: RedisStore,
        folder: &Path,
        before: Option<&Self>,
    ) -> Result<Self, SetupError> {
        let charge = match policy.count_denied() {
            true => Charge::Always,
            false => Charge::Admitted,
        };
        let decider_before = before.map(|before| &before.decider);
        let decider = Decider::new(&policy, &store, charge, folder, decider_before)?;
        let local = match policy.on_error() {
            OnError::Local => Some(local::limiter(
                &policy,
                before.and_then(|before| before.local.as_ref()),
            )?),
            OnError::Allow | OnError::Deny => None,
        };
        Ok(Self {
            prepared: store.prepare(&policy, charge),
            decider,
            note: FallbackNote::new(&policy),
            policy,
            store,
            charge,
            start: Instant::now(),
            local,
        })
    }

    /// Puts into force what it shares with the policy before it. Building it changed
    /// nothing: the policies after it may have been refused.
    pub(crate) fn commit(&self) {
        self.store.fallbacks().add(&self.note);
        self.decider.commit(&self.policy);
    }

    /// The keys to ask about at this cost: none where nothing is measured.
    pub(crate) fn keys<'a, A>(
        &'a self,
        attributes: &'a A,
        cost: Cost,
    ) -> Result<Keys<'a>, CheckError>
    where
        A: Attributes + ?Sized,
    {
        if !self.policy.enabled() {
            return Ok(Keys::none(&self.policy));
        }
        let script = self.policy.script();
        // A script that is not told the cost would charge too little.
        if cost != Cost::ONE && script.is_some_and(|script| !script.takes_the_cost()) {
            return Err(CheckError::CostUntold {
                policy: self.policy.name().into(),
                cost: cost.get(),
            });
        }
        Ok(self.policy.keys(attributes)?)
    }

    /// Decides what no lease at hand [does](Self::spend_lease), whatever happens to the store.
    pub(crate) async fn check<A>(
        &self,
        question: &Question<'_, A>,
    ) -> Result<PolicyDecision<'_>, CheckError>
    where
        A: Attributes + ?Sized,
    {
        let (cost, charge) = (question.cost, self.charge(question.look));
        let keys = self.keys(question.attributes, cost)?.under(question.limit);
        let asked = self.ask_keys(&keys, cost, charge).await;
        Ok(asked.unwrap_or_else(|_| self.without_store(&keys, cost, charge)))
    }

    /// [`check`](Self::check), but fails when the store does.
    pub(crate) async fn ask<A>(
        &self,
        question: &Question<'_, A>,
    ) -> Result<PolicyDecision<'_>, TryCheckError>
    where
        A: Attributes + ?Sized,
    {
        let (cost, charge) = (question.cost, self.charge(question.look));
        let keys = self.keys(question.attributes, cost)?.under(question.limit);
        Ok(self.ask_keys(&keys, cost, charge).await?)
    }

    fn charge(&self, look: bool) -> Charge {
        match look {
            true => Charge::Nothing,
            false => self.charge,
        }
    }

    /// Decides without asking the store, if this node can: by a lease, by its own count, or
    /// because the store has refused the same key a moment ago.
    #[inline]
    pub(crate) fn now<A>(&self, question: &Question<'_, A>) -> Option<PolicyDecision<'_>>
    where
        A: Attributes + ?Sized,
    {
        let Question {
            attributes,
            cost,
            limit: None,
            look: false,
        } = *question
        else {
            return None;
        };
        if let Some(decision) = self.spend_lease(attributes, cost) {
            return Some(decision);
        }
        let keys = self.keys(attributes, cost).ok()?;
        keys.iter().next()?;
        let blocked = self.blocked(&keys, cost);
        blocked.or_else(|| self.decide_here(&keys, cost))
    }

    /// Decides by a lease at hand. No future of ours wraps this: each would copy the keys or
    /// the decision once more.
    #[inline]
    pub(crate) fn spend_lease<A>(&self, attributes: &A, cost: Cost) -> Option<PolicyDecision<'_>>
    where
        A: Attributes + ?Sized,
    {
        let leases = self.decider.leases()?;
        let keys = self.keys(attributes, cost).ok()?;
        self.decide_at_once(leases, &keys, cost)
    }

    pub(crate) async fn ask_keys(
        &self,
        keys: &Keys<'_>,
        cost: Cost,
        charge: Charge,
    ) -> Result<PolicyDecision<'_>, StoreError> {
        if keys.iter().next().is_none() {
            // Nothing counts, so there is nothing to ask.
            return Ok(self.decision(keys, self.allowed(Source::Store)));
        }
        if let Decider::Script(custom) = &self.decider {
            if charge == Charge::Nothing {
                let detail = "a user-defined script has no numbers to show";
                return Err(StoreError::new(ErrorKind::Script, detail));
            }
            return custom.decide(&self.store, &self.policy, keys, cost).await;
        }
        // A look reports every level's numbers, which only the store has.
        if charge != Charge::Nothing {
            if let Some(blocked) = self.blocked(keys, cost) {
                return Ok(blocked);
            }
            if let Decider::Lease(leases, _) = &self.decider {
                return self.ask_leases(leases, keys, cost, charge).await;
            }
            if let Some(decided) = self.decide_here(keys, cost) {
                return Ok(decided);
            }
        }
        let decision = self.ask_store(keys, cost, charge).await?;
        Ok(self.decision(keys, decision))
    }

    /// What this node can decide without asking the store.
    fn decide_here(&self, keys: &Keys<'_>, cost: Cost) -> Option<PolicyDecision<'_>> {
        match &self.decider {
            Decider::Background(background) => {
                let Decided {
                    decision, levels, ..
                } = background.decide(keys, cost)?;
                let reported = keys.iter().enumerate();
                let reported = reported.filter(|(level, _)| levels.contains(level));
                let reported = reported.map(|(_, key)| key);
                Some(PolicyDecision::of_levels(&self.policy, reported, decision))
            }
            Decider::Exact(_) => self.refused_before(keys, cost),
            Decider::Lease(..) | Decider::Script(_) => None,
        }
    }

    /// Refuses what the store has refused a moment ago.
    pub(crate) fn refused_before(&self, keys: &Keys<'_>, cost: Cost) -> Option<PolicyDecision<'_>> {
        let refusals = self.decider.refusals()?;
        let known = refusals.find(keys, cost, self.start.elapsed());
        (!known.is_empty()).then(|| self.remembered(&known))
    }

    /// Has the store decide, and remembers what it says.
    pub(crate) async fn ask_store(
        &self,
        keys: &Keys<'_>,
        cost: Cost,
        charge: Charge,
    ) -> Result<Decision, StoreError> {
        let refusals = self.decider.refusals();
        let refusals = refusals.filter(|_| charge != Charge::Nothing);
        let sent = refusals.map(|it| (it, it.sent(self.start.elapsed())));
        let decision = self
            .store
            .decide(&self.prepared, keys, cost, charge)
            .await?;
        if let Some((refusals, sent)) = sent {
            refusals.learn(keys, cost, sent, &decision, self.start.elapsed());
        }
        if decision.receipt().is_some() {
            if let Decider::Background(background) = &self.decider {
                background.admitted(keys, cost);
            }
            if let Some(local) = &self.local {
                // What the store has admitted counts here, too: it goes on from there.
                local::charge(local, keys, cost);
            }
        }
        Ok(decision)
    }

    /// Refuses keys that a level blocks, without asking the store: one that is down must
    /// not open a block. Reports only the levels that block.
    fn blocked(&self, keys: &Keys<'_>, cost: Cost) -> Option<PolicyDecision<'_>> {
        let blocking = || keys.iter().filter(|key| *key.limit() == Limit::block());
        blocking().next()?;
        let levels = blocking().map(|_| LevelOutcome {
            outcome: Outcome::BLOCKED,
            cost,
            mark: 0,
        });
        let (now_us, source) = (local::now_us(), Source::Store);
        let decision = Decision::from_store(levels, now_us, Some(0), source, None);
        Some(PolicyDecision::of_levels(
            &self.policy,
            blocking(),
            decision,
        ))
    }

    /// What the policy says when the store has not answered.
    pub(crate) fn without_store(
        &self,
        keys: &Keys<'_>,
        cost: Cost,
        charge: Charge,
    ) -> PolicyDecision<'_> {
        match (&self.local, self.policy.on_error()) {
            (Some(local), _) => self.decision(keys, local::decide(local, keys, cost, charge)),
            (None, OnError::Deny) => self.decision(&Keys::none(&self.policy), self.denied()),
            (None, _) => {
                self.decision(&Keys::none(&self.policy), self.allowed(Source::ErrorPolicy))
            }
        }
    }

    /// What the store said a moment ago, and would say again.
    fn remembered(&self, known: &Known<'_>) -> PolicyDecision<'_> {
        let levels = known.iter().map(|(_, level)| *level);
        let (now_us, source) = (local::now_us(), Source::RefusalMemory);
        let decision = Decision::from_store(levels, now_us, Some(0), source, None);
        PolicyDecision::of_levels(&self.policy, known.iter().map(|(key, _)| *key), decision)
    }

    /// See [`PolicyLimiter::refund`](crate::PolicyLimiter::refund).
    pub(crate) async fn refund<A>(
        &self,
        attributes: &A,
        receipt: &Receipt,
    ) -> Result<bool, TryCheckError>
    where
        A: Attributes + ?Sized,
    {
        let keys = self.keys(attributes, Cost::ONE)?;
        if let Some(is_paid) = self.decider.refund(&keys, receipt) {
            return Ok(is_paid);
        }
        let refunded = match self.decider.leases() {
            Some(leases) => self.refund_leases(leases, &keys, receipt).await,
            None => {
                let charges: Vec<_> = receipt.charges().collect();
                let at_us = receipt.decided_at_us();
                let refund = self.store.refund(&keys, receipt, "", at_us, &charges);
                refund.await
            }
        };
        self.decider.forget_refusals(Some(&keys));
        Ok(refunded?)
    }

    /// See [`PolicyLimiter::reset`](crate::PolicyLimiter::reset).
    pub(crate) async fn reset<A>(
        &self,
        attributes: &A,
        which: Which<'_>,
    ) -> Result<usize, TryCheckError>
    where
        A: Attributes + ?Sized,
    {
        let prefix = self.store.prefix();
        let stored = self.policy.stored_keys(attributes, which, prefix)?;
        let forgotten = self.store.delete(stored.clone()).await;
        // One level may be named without the attributes of the others.
        let keys = self.policy.keys(attributes).ok();
        self.decider.forget_refusals(keys.as_ref());
        let forgotten = forgotten?;
        self.decider.reset(&stored);
        if let Some(local) = &self.local {
            local.reset(attributes, which)?;
        }
        Ok(forgotten)
    }

    fn decision(&self, keys: &Keys<'_>, decision: Decision) -> PolicyDecision<'_> {
        PolicyDecision::from_store(&self.policy, keys, decision)
    }

    fn allowed(&self, source: Source) -> Decision {
        Decision::from_store([], local::now_us(), None, source, None)
    }

    /// Refused until the store is asked again: no quota, so without numbers.
    fn denied(&self) -> Decision {
        Decision::unavailable(self.store.next_probe(), local::now_us())
    }
}
