//! The mode `exact`: the store decides every check. What it has just refused need not be asked
//! again for a moment. The other modes ask it for what they cannot decide.

use std::sync::Arc;
use std::time::Duration;

use redis::Value;
use smallvec::SmallVec;
use tidegate::{Charge, Cost, Decision, KeyHasher, Limit, Policy, PolicyDecision, Receipt, Source};
use tokio::time::Instant;

use super::lease::era;
use super::lease::message::TERM_US;
use super::refusals::Refusals;
use super::{Query, wall_us};
use crate::batch::Reply;
use crate::call::{Template, marker, refund_at, stored_keys};
use crate::error::StoreError;
use crate::on_error::OnError;
use crate::script::Task;
use crate::store::{RedisStore, not_ours};

#[derive(Debug)]
pub(crate) struct Exact {
    pub(super) store: RedisStore,
    pub(super) on_error: Arc<OnError>,
    pub(super) hasher: KeyHasher,
    /// What checks have in common, where no override is in force and the cost is one.
    template: Arc<Template>,
    pub(super) refusals: Option<Box<Refusals>>,
    /// The clock of the refusals counts from here.
    start: Instant,
}

impl Exact {
    /// Remembers refusals for so long at most.
    pub(super) fn new(
        policy: &Policy,
        store: &RedisStore,
        charge: Charge,
        on_error: &Arc<OnError>,
        memory: Duration,
    ) -> Self {
        Self {
            store: store.clone(),
            template: Template::of_policy(&store.0.scripts, policy, charge),
            on_error: Arc::clone(on_error),
            hasher: KeyHasher::new(),
            refusals: (!memory.is_zero()).then(|| Box::new(Refusals::new(memory))),
            start: Instant::now(),
        }
    }

    /// Refuses what the store has refused a moment ago, and would refuse again.
    pub(super) fn now<'p>(&self, query: &Query<'p, '_>) -> Option<PolicyDecision<'p>> {
        let known = self.refusals.as_ref()?.find(query, self.start.elapsed());
        if known.is_empty() {
            return None;
        }
        let levels = known.iter().map(|(_, level)| *level);
        let source = Source::RefusalMemory;
        let decision = Decision::from_store(levels, wall_us(), Some(0), source, None);
        Some(query.reporting(known.iter().map(|(key, _)| *key), decision))
    }

    /// Has the store decide, and remembers what it says.
    pub(super) async fn ask(&self, query: &Query<'_, '_>) -> Result<Decision, StoreError> {
        let refusals = self.refusals.as_ref().filter(|_| !query.is_look());
        let sent = refusals.map(|it| (it, it.sent(self.start.elapsed())));
        let (store, keys, cost) = (&*self.store.0, &query.keys, query.cost);
        let template = self
            .template
            .of_check(&store.scripts, keys, cost, query.charge);
        let command = template.command(stored_keys(keys, &store.prefix));
        let decide = |reply: Reply| template.decide(&reply).ok_or_else(not_ours);
        let decided = self.store.ask(command, store.timeout, true, decide);
        let decision = decided.await?;
        if let Some((refusals, sent)) = sent {
            refusals.learn(query, sent, &decision, self.start.elapsed());
        }
        if decision.receipt().is_some() {
            self.on_error.admitted(keys, cost);
        }
        Ok(decision)
    }

    /// Has the store give back some of the levels of a receipt. Says whether it is the first
    /// time for this part of it.
    pub(super) async fn refund(
        &self,
        query: &Query<'_, '_>,
        receipt: &Receipt,
        part: &str,
        is_meant: impl Fn(usize) -> bool,
    ) -> Result<bool, StoreError> {
        let mut decided_at_us = receipt.decided_at_us();
        let mut charges: SmallVec<[(Cost, u64); 2]> = SmallVec::new();
        for (level, (cost, mark)) in receipt.charges().enumerate() {
            let (era_us, is_leased) = era(mark);
            // No charge of the store has the mark 0: this level is not given back there.
            charges.push((cost, if is_meant(level) { era_us } else { 0 }));
            if is_leased && is_meant(level) {
                // The lease was granted then, or later.
                decided_at_us = receipt.decided_at_us().saturating_sub(TERM_US);
            }
        }
        let limits: Vec<Limit> = query.keys.iter().map(|key| *key.limit()).collect();
        let mut keys = stored_keys(&query.keys, &self.store.0.prefix).into_vec();
        let arguments = refund_at(decided_at_us, &charges, &limits);
        let (Some(arguments), Some(first)) = (arguments, keys.first()) else {
            return Ok(false);
        };
        keys.push(marker(query.policy.name(), first, receipt) + part);
        let script = self.store.0.scripts.get(Task::Refund, &limits);
        Ok(self.store.script(script, keys, arguments).await? != Value::Int(0))
    }
}
