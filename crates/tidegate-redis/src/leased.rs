//! A check in the mode `lease`: tokens of leases first, then the store for the levels that
//! have none. If one level refuses, the tokens of the others go back.

use smallvec::SmallVec;
use tidegate::{
    Charge, Cost, Decision, Keys, LevelKey, LevelOutcome, Limit, PolicyDecision, Receipt, Source,
};
use tokio::time::Instant;

use crate::error::StoreError;
use crate::lease::{self, Answer, Got, Leases, Refused, Spent, Taking};
use crate::local;
use crate::shared::Shared;

impl Shared {
    /// Decides by a lease that this thread has spent before, at once: most checks of busy
    /// keys. `None` says nothing.
    #[inline]
    pub(crate) fn decide_at_once(
        &self,
        leases: &Leases,
        keys: &Keys<'_>,
        cost: Cost,
    ) -> Option<PolicyDecision<'_>> {
        let mut levels = keys.iter();
        let (Some(key), None) = (levels.next(), levels.next()) else {
            return None;
        };
        if *key.limit() == Limit::block() {
            return None;
        }
        let spent = leases.spend(&key, cost)?;
        if spent.is_half {
            self.tell_local(leases, keys);
        }
        let (level, receipt) = (leased(&spent, cost), Some(Receipt::fresh_id()));
        let decision = Decision::from_store([level], spent.at_us, None, Source::Lease, receipt);
        Some(PolicyDecision::of_levels(&self.policy, [key], decision))
    }

    /// Decides by leases, and asks the store for what they do not have.
    pub(crate) async fn ask_leases(
        &self,
        leases: &Leases,
        keys: &Keys<'_>,
        cost: Cost,
        charge: Charge,
    ) -> Result<PolicyDecision<'_>, StoreError> {
        let taking = leases.take(keys, cost);
        let is_quiet = |level: &lease::Level| matches!(level.got, Got::Spent(it) if !it.is_half);
        if !taking.levels.iter().all(is_quiet) {
            self.tell_local(leases, keys);
        }
        let levels = || keys.iter().zip(&taking.levels);
        let is_missing = |level: &lease::Level| matches!(level.got, Got::Missing(_));
        // A refusal that is counted has to reach the store.
        if charge == Charge::Admitted {
            let refused = levels().find_map(|(key, level)| match level.got {
                Got::Refused(refused) => Some((key, refused)),
                Got::Spent(_) | Got::Missing(_) | Got::Cold => None,
            });
            if let Some((key, refused)) = refused {
                return Ok(self.refused(&key, cost, &refused, Source::Lease));
            }
        }
        let is_left = |level: &lease::Level| !matches!(level.got, Got::Spent(_));
        let mut left = levels().filter(|(_, level)| is_left(level));
        let Some((first, level)) = left.next() else {
            return Ok(self.admitted(keys, cost, taking, &[]));
        };
        let is_alone = left.next().is_none();
        if is_alone && is_missing(level) && charge == Charge::Admitted {
            let asked = Instant::now();
            let answer = leases.ask(level, &first, cost).await.transpose();
            if let Err(error) = &answer
                && !error.kind().is_about_a_key()
            {
                // Only a message was sent, and messages are not counted as checks.
                let key = first.stored(self.store.prefix());
                self.store.check_unanswered(&key, asked).await;
            }
            match answer? {
                Some(Answer::Refused(refused)) => {
                    return Ok(self.refused(&first, cost, &refused, Source::Store));
                }
                Some(Answer::Spent(spent, _)) => {
                    let outcome = leased(&spent, cost);
                    let asked = [(outcome, spent.at_us, Source::Lease)];
                    return Ok(self.admitted(keys, cost, taking, &asked));
                }
                Some(Answer::Admitted {
                    at_us,
                    era_us,
                    outcome,
                }) => {
                    let mark = era_us;
                    let outcome = LevelOutcome {
                        outcome,
                        cost,
                        mark,
                    };
                    if let Some(local) = &self.local {
                        let is_asked = |index: usize| {
                            let level = taking.levels.get(index);
                            level.is_some_and(is_missing)
                        };
                        local::charge(local, &keys.only(is_asked), cost);
                    }
                    let asked = [(outcome, at_us, Source::Store)];
                    return Ok(self.admitted(keys, cost, taking, &asked));
                }
                // Not worth a lease, or no room for the key here: as in the mode `exact`.
                None => {}
            }
        }
        self.ask_the_rest(leases, keys, cost, charge, taking).await
    }

    /// Several levels have no lease, or are not worth one: the store decides them in one
    /// step, as in the mode `exact`.
    async fn ask_the_rest(
        &self,
        leases: &Leases,
        keys: &Keys<'_>,
        cost: Cost,
        charge: Charge,
        taking: Taking<'_>,
    ) -> Result<PolicyDecision<'_>, StoreError> {
        let is_left = |index: usize| {
            let level = taking.levels.get(index);
            level.is_none_or(|level| !matches!(level.got, Got::Spent(_)))
        };
        let only;
        let rest = match taking
            .levels
            .iter()
            .any(|it| matches!(it.got, Got::Spent(_)))
        {
            true => {
                only = keys.only(is_left);
                &only
            }
            false => keys,
        };
        if let Some(refused) = self.refused_before(rest, cost) {
            return Ok(refused);
        }
        for (key, level) in keys.iter().zip(&taking.levels) {
            // One that is alone has been asked for with a lease, unless refusals count.
            let is_new = taking.levels.len() > 1 || charge == Charge::Always;
            if matches!(level.got, Got::Missing(_)) && is_new {
                leases.want(level, &key, cost);
            }
        }
        let decision = self.ask_store(rest, cost, charge).await?;
        let is_whole = taking
            .levels
            .iter()
            .all(|it| !matches!(it.got, Got::Spent(_)));
        let Some(receipt) = decision.receipt().filter(|_| !is_whole) else {
            return Ok(PolicyDecision::from_store(&self.policy, rest, decision));
        };
        let (at_us, levels) = (decision.decided_at_us(), decision.levels().iter());
        let asked: SmallVec<[(LevelOutcome, u64, Source); 2]> = levels
            .zip(receipt.charges())
            .map(|(level, (cost, mark))| {
                let outcome = level.outcome();
                let level = LevelOutcome {
                    outcome,
                    cost,
                    mark,
                };
                (level, at_us, Source::Store)
            })
            .collect();
        Ok(self.admitted(keys, cost, taking, &asked))
    }

    /// Every level has given what was asked for: those with leases, and `asked` in the
    /// places of the others.
    fn admitted(
        &self,
        keys: &Keys<'_>,
        cost: Cost,
        taking: Taking<'_>,
        asked: &[(LevelOutcome, u64, Source)],
    ) -> PolicyDecision<'_> {
        let mut asked = asked.iter();
        let (mut at_us, mut source) = (0, Source::Store);
        let mut outcomes: SmallVec<[LevelOutcome; 2]> = SmallVec::new();
        for level in &taking.levels {
            let (outcome, level_at_us, level_source) = match (level.got, asked.len()) {
                (Got::Spent(spent), _) => (leased(&spent, cost), spent.at_us, Source::Lease),
                (_, 0) => continue,
                _ => match asked.next() {
                    Some(asked) => *asked,
                    None => continue,
                },
            };
            at_us = at_us.max(level_at_us);
            if level_source == Source::Lease {
                source = Source::Lease;
            }
            outcomes.push(outcome);
        }
        taking.keep();
        let receipt = Some(Receipt::fresh_id());
        let decision = Decision::from_store(outcomes, at_us, None, source, receipt);
        PolicyDecision::from_store(&self.policy, keys, decision)
    }

    /// Charges the local limiter with what was spent of leases since it was last told: when
    /// the store is about to be asked. So it knows everything before it has to decide, and
    /// checks that a lease decides do not pay for it.
    #[cold]
    fn tell_local(&self, leases: &Leases, keys: &Keys<'_>) {
        let Some(local) = &self.local else {
            return;
        };
        for (index, key) in keys.iter().enumerate() {
            if let Some(spent) = leases.newly_spent(&key) {
                local::charge(local, &keys.only(|level| level == index), spent);
            }
        }
    }

    /// One level refuses, and is the only one that is told of.
    fn refused(
        &self,
        key: &LevelKey<'_>,
        cost: Cost,
        refused: &Refused,
        source: Source,
    ) -> PolicyDecision<'_> {
        let level = LevelOutcome {
            outcome: refused.outcome,
            cost,
            mark: 0,
        };
        let decision = Decision::from_store([level], refused.at_us, Some(0), source, None);
        PolicyDecision::of_levels(&self.policy, [*key], decision)
    }

    /// Gives back tokens of leases that are open, and has the store give back the rest. Says
    /// whether it is the first time.
    pub(crate) async fn refund_leases(
        &self,
        leases: &Leases,
        keys: &Keys<'_>,
        receipt: &Receipt,
    ) -> Result<bool, StoreError> {
        let open = leases.open_leases(keys, receipt);
        let at_store = |level: usize| open.get(level).is_none_or(Option::is_none);
        let is_paid = self.refund_store(keys, receipt, "", at_store).await?;
        if is_paid {
            let put_back = |(fingerprint, nonce, cost)| leases.put_back(fingerprint, nonce, cost);
            let closed = open.iter().map(|open| !open.is_none_or(put_back));
            let closed: SmallVec<[bool; 2]> = closed.collect();
            // A lease that was closed meanwhile has told the store what was spent.
            if closed.contains(&true) {
                let is_closed = |level: usize| closed.get(level) == Some(&true);
                self.refund_store(keys, receipt, "+", is_closed).await?;
            }
        }
        leases.refunded(keys);
        Ok(is_paid)
    }

    /// Has the store give back some of the levels of a receipt. Says whether it is the first
    /// time for this part of it.
    async fn refund_store(
        &self,
        keys: &Keys<'_>,
        receipt: &Receipt,
        part: &str,
        at_store: impl Fn(usize) -> bool,
    ) -> Result<bool, StoreError> {
        let mut decided_at_us = receipt.decided_at_us();
        let mut charges: SmallVec<[(Cost, u64); 2]> = SmallVec::new();
        for (level, (cost, mark)) in receipt.charges().enumerate() {
            let (era_us, is_leased) = lease::era(mark);
            // No charge of the store has the mark 0: this level is not given back there.
            charges.push((cost, if at_store(level) { era_us } else { 0 }));
            if is_leased && at_store(level) {
                // The lease was granted then, or later.
                decided_at_us = receipt
                    .decided_at_us()
                    .saturating_sub(lease::message::TERM_US);
            }
        }
        let store = &self.store;
        store
            .refund(keys, receipt, part, decided_at_us, &charges)
            .await
    }
}

/// A level that was spent from a lease.
fn leased(spent: &Spent, cost: Cost) -> LevelOutcome {
    LevelOutcome {
        outcome: spent.outcome,
        cost,
        mark: lease::mark(spent),
    }
}
