//! The mode `lease`: a node takes tokens out of the store ahead of time and spends them
//! itself. The fleet keeps to the limit as in the mode `exact`, because what is out is not
//! there for anybody else.
//!
//! A check takes tokens of the [`Leases`] that are here, then asks the store for the levels
//! that have none. If one level refuses, the tokens of the others go back.

mod demand;
#[cfg(test)]
pub(crate) mod kept;
pub(crate) mod key;
mod leases;
pub(crate) mod message;
pub(crate) mod out;
mod recent;
mod refund;
#[cfg(test)]
mod rules;
pub(crate) mod tokens;

use std::sync::Arc;

use smallvec::SmallVec;
use tidegate::{Charge, Cost, Decision, LevelKey, LevelOutcome, PolicyDecision, Receipt, Source};

use super::Query;
use super::exact::Exact;
use crate::error::StoreError;
use crate::node::{Why, now_us};
use key::{Answer, Refused};
pub use leases::LeaseStats;
pub(super) use leases::node;
use leases::{Leases, Level, Taken, Taking};
pub(super) use refund::era;
use tokens::Spent;

/// A policy in the mode `lease`. Keys that are not worth a lease are asked for as in the mode
/// `exact`.
#[derive(Debug)]
pub(crate) struct Lease {
    pub(super) node: Arc<Leases>,
    pub(super) exact: Exact,
}

/// What a level has given that the store was asked for: what it tells, when, and who gave it.
type Given = (LevelOutcome, u64, Source);

impl Lease {
    /// Decides by a lease that this thread has spent before: most checks of busy keys.
    #[inline]
    pub(super) fn now<'p>(&self, query: &Query<'p, '_>) -> Option<PolicyDecision<'p>> {
        let [print] = query.prints[..] else {
            return None;
        };
        self.node.table()?;
        let spent = recent::spend(print, query.cost, now_us())?;
        if spent.is_half {
            self.node.send(print, Why::Asked);
            self.tell_local(query);
        }
        let (level, receipt) = (leased(&spent, query.cost), Some(Receipt::fresh_id()));
        let decision = Decision::from_store([level], spent.at_us, None, Source::Lease, receipt);
        Some(query.decided(decision))
    }

    /// Decides by leases, and asks the store for what they do not have.
    pub(super) async fn ask<'p>(
        &self,
        query: &Query<'p, '_>,
    ) -> Result<PolicyDecision<'p>, StoreError> {
        if query.is_look() {
            return Ok(query.decided(self.exact.ask(query).await?));
        }
        let taking = self.take(query);
        let is_quiet = |level: &Level| matches!(level.taken, Taken::Spent(it) if !it.is_half);
        if !taking.levels.iter().all(is_quiet) {
            self.tell_local(query);
        }
        // A refusal that is counted has to reach the store.
        let counts_refusals = query.charge == Charge::Always;
        let levels = || query.keys.iter().zip(&taking.levels);
        let refused = levels().find_map(|(key, level)| match level.taken {
            Taken::Refused(refused) if !counts_refusals => Some((key, refused)),
            _ => None,
        });
        if let Some((key, refused)) = refused {
            return Ok(refuse(query, key, &refused, Source::Lease));
        }
        let mut left = levels().filter(|(_, level)| !level.is_spent());
        let (first, is_alone) = (left.next(), left.next().is_none());
        let Some((key, level)) = first else {
            return Ok(admit(query, taking, &[]));
        };
        if !is_alone || !level.is_missing() || counts_refusals {
            return self.ask_the_rest(query, taking).await;
        }
        let cost = query.cost;
        let given = match self.ask_for_lease(level, &key, cost).await? {
            // Not worth a lease, or no room for the key here.
            None => return self.ask_the_rest(query, taking).await,
            Some(Answer::Refused(refused)) => {
                return Ok(refuse(query, key, &refused, Source::Store));
            }
            Some(Answer::Spent(spent, _)) => (leased(&spent, cost), spent.at_us, Source::Lease),
            Some(Answer::Admitted {
                at_us,
                era_us,
                outcome,
            }) => {
                let asked = query.keys.only(|level| !taking.levels[level].is_spent());
                self.exact.on_error.admitted(&asked, cost);
                let level = LevelOutcome::new(outcome, cost, era_us);
                (level, at_us, Source::Store)
            }
        };
        Ok(admit(query, taking, &[given]))
    }

    /// Several levels have no lease, or are not worth one: the store decides them in one
    /// step, as in the mode `exact`.
    async fn ask_the_rest<'p>(
        &self,
        query: &Query<'p, '_>,
        taking: Taking<'_>,
    ) -> Result<PolicyDecision<'p>, StoreError> {
        let rest = query.only(|level| !taking.levels[level].is_spent());
        if let Some(refused) = self.exact.now(&rest) {
            return Ok(refused);
        }
        for (key, level) in query.keys.iter().zip(&taking.levels) {
            // One that is alone has been asked for with a lease, unless refusals count.
            let is_new = taking.levels.len() > 1 || query.charge == Charge::Always;
            if level.is_missing() && is_new {
                self.want(level, &key, query.cost);
            }
        }
        let decision = self.exact.ask(&rest).await?;
        let Some(receipt) = decision.receipt() else {
            return Ok(rest.decided(decision));
        };
        let (at_us, levels) = (decision.decided_at_us(), decision.levels().iter());
        let levels = levels.zip(receipt.charges()).map(|(level, (cost, mark))| {
            let level = LevelOutcome::new(level.outcome(), cost, mark);
            (level, at_us, Source::Store)
        });
        let given: SmallVec<[Given; 2]> = levels.collect();
        Ok(admit(query, taking, &given))
    }

    /// Has `on_error` count what was spent of leases since it was last told: when the store is
    /// about to be asked. So it knows everything before it has to decide, and checks that a
    /// lease decides do not pay for it.
    #[cold]
    fn tell_local(&self, query: &Query<'_, '_>) {
        if self.exact.on_error.local.is_none() {
            return;
        }
        for (level, print) in query.prints.iter().enumerate() {
            if let Some(spent) = self.newly_spent(*print) {
                let keys = query.keys.only(|other| other == level);
                self.exact.on_error.admitted(&keys, spent);
            }
        }
    }
}

/// Every level has given what was asked for: those with leases, and `given` in the places of
/// the others.
fn admit<'p>(query: &Query<'p, '_>, taking: Taking<'_>, given: &[Given]) -> PolicyDecision<'p> {
    let mut given = given.iter().copied();
    let given = taking.levels.iter().filter_map(|level| match level.taken {
        Taken::Spent(spent) => Some((leased(&spent, query.cost), spent.at_us, Source::Lease)),
        _ => given.next(),
    });
    let given: SmallVec<[Given; 2]> = given.collect();
    let at_us = given.iter().map(|(_, at_us, _)| *at_us).max();
    let is_leased = given.iter().any(|(_, _, source)| *source == Source::Lease);
    let source = if is_leased {
        Source::Lease
    } else {
        Source::Store
    };
    let levels = given.into_iter().map(|(level, _, _)| level);
    taking.keep();
    let receipt = Some(Receipt::fresh_id());
    query.decided(Decision::from_store(
        levels,
        at_us.unwrap_or(0),
        None,
        source,
        receipt,
    ))
}

/// One level refuses, and is the only one that is told of.
fn refuse<'p>(
    query: &Query<'p, '_>,
    key: LevelKey<'_>,
    refused: &Refused,
    source: Source,
) -> PolicyDecision<'p> {
    let level = LevelOutcome::new(refused.outcome, query.cost, 0);
    let decision = Decision::from_store([level], refused.at_us, Some(0), source, None);
    query.reporting([key], decision)
}

/// A level that was spent from a lease.
fn leased(spent: &Spent, cost: Cost) -> LevelOutcome {
    LevelOutcome::new(spent.outcome, cost, refund::mark(spent))
}
