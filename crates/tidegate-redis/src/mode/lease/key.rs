//! One key of a policy that leases, on this node: its leases, the one request that is on
//! its way, who waits for it, and how much is asked for here. A state machine without a
//! clock, a network or randomness of its own: production, the simulator and the explorer
//! drive the same one.
//!
//! A token is spent without a lock. Everything else has the key for itself.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use smallvec::SmallVec;
use tidegate::algorithm::{Outcome, State};
use tidegate::{Cost, Limit};

use super::LeaseStats;
use super::message::{
    Grant, MOST_TOKENS, Message, RUNS, Reply, Run, SETTLES, Settle, TERM_US, size,
};
use super::out::Out;
use super::tokens::{Facts, HeldLease, Spent, Tokens};
use crate::lane::QUEUE;
use crate::node::{Why, offset};

/// The longest horizon.
const HORIZON_US: u64 = 100_000;

/// Below so many tokens per horizon, a key is asked for as in the mode `exact`.
pub(crate) const FEW: f64 = 4.0;

/// Checks of one message.
const CHECKS: usize = 1_000;

/// Leases that are closed and not accounted for. Of one more, the store keeps the rest.
const CLOSED: usize = 64;

/// The longest that this node refuses by what it has heard.
const REFUSED_US: u64 = 1_000_000;

/// A key. `W` is who waits for an answer about it.
#[derive(Debug)]
pub(crate) struct Key<W> {
    pub(crate) limit: Limit,
    horizon_us: u64,
    /// The oldest first, which is spent first.
    held: SmallVec<[HeldLease; 2]>,
    /// The cost asked here since it was last counted, but for what leases had; when that
    /// was, and what it came to, older cost being worth less.
    asked: AtomicU64,
    counted_at_us: u64,
    demand: f64,
    /// What leases had of that, since somebody [asked](Self::newly_spent).
    spent: u64,
    request: Option<InFlight<W>>,
    waiting: VecDeque<(Cost, W)>,
    closed: Vec<Closed>,
    no_grant_until_us: u64,
    refusal: Option<Refusal>,
    /// When a charge was last given back. The store may have answered what was asked before
    /// that without knowing of it.
    refunded_at_us: u64,
    /// What has become of its leases so far.
    pub(crate) stats: LeaseStats,
}

/// A message on its way.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone))]
struct InFlight<W> {
    id: u64,
    /// Before it was handed over for the first time.
    sent_at_us: u64,
    want: Option<u32>,
    settled: SmallVec<[u64; SETTLES]>,
    /// Who asks, by runs.
    asks: SmallVec<[(Cost, Vec<W>); 1]>,
}

/// A lease that nobody spends any more, and of which the store may not know.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Closed {
    nonce: u64,
    tokens: u32,
    spent: u32,
    until_us: u64,
}

/// What the store has refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Refusal {
    /// This cost and larger ones.
    cost: Cost,
    until_us: u64,
    used: State,
    out: Out,
    offset_us: i64,
}

/// A refusal, told now.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Refused {
    pub(crate) at_us: u64,
    pub(crate) outcome: Outcome,
}

/// What a waiter is told.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Answer {
    /// Admitted by the store: what was used before it, what is out, and the era.
    Admitted {
        at_us: u64,
        era_us: u64,
        outcome: Outcome,
    },
    /// Served from a lease that has just come, at this cost.
    Spent(Spent, Cost),
    Refused(Refused),
}

impl Refusal {
    /// Refuses this cost, if that is meant.
    fn refuses(&self, limit: &Limit, cost: Cost, now_us: u64) -> Option<Refused> {
        if cost < self.cost || now_us >= self.until_us {
            return None;
        }
        let at_us = now_us.saturating_add_signed(self.offset_us);
        let then_us = self.used.last_us();
        let used = limit.at(self.used, at_us.max(then_us));
        let elapsed_us = at_us.saturating_sub(then_us);
        let out = Out {
            last_us: self.out.last_us.saturating_sub(elapsed_us),
            ..self.out
        };
        let mut outcome = out.outcome(limit, &used, cost, false);
        // It may fit by now: somebody asks for it again when this ends.
        let until_us = self.until_us - now_us;
        outcome.retry_after_us = outcome.retry_after_us.map(|it| match it {
            0 => until_us,
            it => it,
        });
        Some(Refused { at_us, outcome })
    }
}

#[cfg(test)]
impl<W: Clone> Clone for Key<W> {
    fn clone(&self) -> Self {
        Self {
            held: self.held.clone(),
            asked: AtomicU64::new(self.asked.load(Relaxed)),
            request: self.request.clone(),
            waiting: self.waiting.clone(),
            closed: self.closed.clone(),
            ..*self
        }
    }
}

impl<W> Key<W> {
    pub(crate) fn new(limit: Limit, now_us: u64) -> Self {
        Self {
            limit,
            horizon_us: horizon_us(&limit),
            held: SmallVec::new(),
            asked: AtomicU64::new(0),
            counted_at_us: now_us,
            demand: 0.0,
            spent: 0,
            request: None,
            waiting: VecDeque::new(),
            closed: Vec::new(),
            no_grant_until_us: 0,
            refusal: None,
            refunded_at_us: 0,
            stats: LeaseStats::default(),
        }
    }

    /// The same for a key that was asked for before, by this much.
    pub(crate) fn with_demand(limit: Limit, now_us: u64, demand: f64) -> Self {
        Self {
            demand,
            ..Self::new(limit, now_us)
        }
    }

    /// Somebody asks for so much here that no lease has, whatever comes of it.
    #[inline]
    pub(crate) fn note(&self, cost: Cost) {
        self.asked.fetch_add(cost.get().into(), Relaxed);
    }

    /// Takes tokens of a lease, at a time that was read before. Says in `is_half` whether
    /// a message should leave now.
    #[inline]
    pub(crate) fn spend(&self, cost: Cost, now_us: u64) -> Option<Spent> {
        self.spend_lease(cost, now_us).map(|(spent, _)| spent)
    }

    /// The same, with the lease.
    #[inline]
    pub(crate) fn spend_lease(&self, cost: Cost, now_us: u64) -> Option<(Spent, &Arc<Tokens>)> {
        let mut leases = self.held.iter().map(|held| &held.lease);
        leases.find_map(|lease| Some((lease.spend(cost, now_us)?, lease)))
    }

    /// Says to the leases when the next one may be asked for: the newest one says so when
    /// it is half spent.
    fn set_quiet(&self) {
        let until_us = match self.request {
            Some(_) => u64::MAX,
            None => self.no_grant_until_us,
        };
        if let [older @ .., newest] = &self.held[..] {
            for held in older {
                held.lease.set_quiet_until(u64::MAX);
            }
            let until_us = if older.is_empty() { until_us } else { u64::MAX };
            newest.lease.set_quiet_until(until_us);
        }
    }

    /// Puts tokens of a lease back that is still open. In any other case they stay spent.
    pub(crate) fn put_back(&self, nonce: u64, cost: Cost) -> bool {
        let mut leases = self.held.iter().map(|held| &held.lease);
        leases.any(|lease| lease.nonce == nonce && lease.put_back(cost))
    }

    /// The open lease that a receipt is of.
    pub(crate) fn open_lease(&self, is_meant: impl Fn(&Tokens) -> bool) -> Option<u64> {
        let mut leases = self.held.iter().map(|held| &*held.lease);
        leases.find(|lease| is_meant(lease)).map(|it| it.nonce)
    }

    /// Refuses what the store would refuse, as far as this node has heard. Only for what
    /// could not be [spent](Self::spend).
    pub(crate) fn refuses(&self, cost: Cost, now_us: u64) -> Option<Refused> {
        let refusal = self.refusal.as_ref()?;
        let refused = refusal.refuses(&self.limit, cost, now_us)?;
        self.is_empty(now_us).then_some(refused)
    }

    /// Whether none of its leases has tokens.
    fn is_empty(&self, now_us: u64) -> bool {
        self.held.iter().all(|held| held.lease.is_over(now_us))
    }

    /// Somebody waits for an answer of the store.
    pub(crate) fn wait(&mut self, cost: Cost, who: W) {
        self.waiting.push_back((cost, who));
    }

    /// Whether no more may wait. Those who came first and have left make room.
    pub(super) fn is_full(&mut self, has_left: impl Fn(&W) -> bool) -> bool {
        let is_full = |waiting: &VecDeque<_>| waiting.len() >= QUEUE;
        if is_full(&self.waiting) {
            let stay = self.waiting.iter().position(|(_, who)| !has_left(who));
            self.waiting.drain(..stay.unwrap_or(QUEUE));
        }
        is_full(&self.waiting)
    }

    pub(crate) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Waiters that have given up are not asked for.
    pub(crate) fn keep_waiting(&mut self, is_here: impl Fn(&W) -> bool) {
        self.waiting.retain(|(_, who)| is_here(who));
    }

    /// All waiters that are not asked for yet.
    pub(crate) fn take_waiting(&mut self) -> Vec<W> {
        self.waiting.drain(..).map(|(_, who)| who).collect()
    }

    /// The limit is another one. Leases run on.
    pub(crate) fn set_limit(&mut self, limit: &Limit) {
        if self.limit != *limit {
            self.limit = *limit;
            self.horizon_us = horizon_us(limit);
            self.refusal = None;
        }
    }

    /// What was asked here by now. Cost that came since the last time is taken to have
    /// come evenly.
    fn count(&mut self, now_us: u64) {
        let spent = self.held.iter_mut().map(HeldLease::newly_spent);
        let spent: u64 = spent.map(u64::from).sum();
        self.spent += spent;
        let asked = std::mem::take(self.asked.get_mut()) + spent;
        let elapsed_us = now_us.saturating_sub(self.counted_at_us);
        self.counted_at_us = self.counted_at_us.max(now_us);
        #[expect(clippy::cast_precision_loss, reason = "an estimate")]
        let asked = asked as f64;
        let horizons = horizons(elapsed_us, self.horizon_us);
        if horizons < 1e-6 {
            self.demand += asked;
            return;
        }
        let kept = (-horizons).exp();
        self.demand = self.demand * kept + asked * (1.0 - kept) / horizons;
    }

    /// What was spent of its leases since this was last asked.
    pub(crate) fn newly_spent(&mut self, now_us: u64) -> u64 {
        self.count(now_us);
        std::mem::take(&mut self.spent)
    }

    /// Whether the store is asked for this key as in the mode `exact`: nothing is here or
    /// on its way, and too little is asked for to be worth a lease.
    pub(crate) fn asks_plainly(&mut self, now_us: u64) -> bool {
        self.count(now_us);
        self.demand < FEW && !self.is_active()
    }

    /// The next message, if there is anything to say and none is on its way: with everyone
    /// who waits; with a lease that is wanted if somebody asks, if the last lease is half
    /// spent, or for that reason.
    pub(crate) fn message(
        &mut self,
        now_us: u64,
        why: Why,
        nonce: impl FnOnce() -> u64,
    ) -> Option<Message> {
        let message = self.next_message(now_us, why, nonce);
        self.set_quiet();
        message
    }

    fn next_message(
        &mut self,
        now_us: u64,
        why: Why,
        nonce: impl FnOnce() -> u64,
    ) -> Option<Message> {
        if self.request.is_some() {
            return None;
        }
        self.count(now_us);
        self.close_over(now_us);
        let asks = self.take_asks();
        let is_half = self.held.last().is_some_and(|held| held.lease.is_half());
        let is_wanted = why == Why::Wanted && self.held.is_empty();
        let wants = !asks.is_empty() || is_half || is_wanted;
        let mut want = None;
        if wants && self.held.len() < 2 && now_us >= self.no_grant_until_us {
            match self.demand >= FEW {
                true => want = Some(whole(self.demand)),
                // Not looked at again for every token.
                false => self.no_grant_until_us = now_us + self.horizon_us / 8,
            }
        }
        let settles = self.settles(now_us);
        let is_due = match why {
            Why::Asked | Why::Wanted | Why::Round => self.has_tokens_to_return(),
            Why::Over => !settles.is_empty(),
        };
        if asks.is_empty() && want.is_none() && !is_due {
            return None;
        }
        let id = nonce();
        let message = Message {
            limit: self.limit,
            asks: asks
                .iter()
                .map(|(cost, who)| Run {
                    cost: *cost,
                    count: u32::try_from(who.len()).unwrap_or(u32::MAX),
                })
                .collect(),
            grant: want.map(|want| Grant { nonce: id, want }),
            settles,
        };
        self.stats.messages += 1;
        self.request = Some(InFlight {
            id,
            sent_at_us: now_us,
            want,
            settled: message.settles.iter().map(|it| it.nonce).collect(),
            asks,
        });
        Some(message)
    }

    /// The number of the request that is on its way.
    pub(crate) fn request(&self) -> Option<u64> {
        self.request.as_ref().map(|request| request.id)
    }

    /// Leases to account for: first those with the most left.
    fn settles(&mut self, now_us: u64) -> SmallVec<[Settle; SETTLES]> {
        self.forget_closed(now_us);
        let settles = self.closed.iter().take(SETTLES);
        let settles = settles.map(|it| Settle {
            nonce: it.nonce,
            spent: it.spent,
        });
        settles.collect()
    }

    /// Those that the store has charged in full by now are not told of any more.
    fn forget_closed(&mut self, now_us: u64) {
        let known = self.closed.len();
        self.closed.retain(|it| now_us < it.until_us);
        self.stats.lapsed += (known - self.closed.len()) as u64;
    }

    fn take_asks(&mut self) -> SmallVec<[(Cost, Vec<W>); 1]> {
        let mut asks: SmallVec<[(Cost, Vec<W>); 1]> = SmallVec::new();
        for (cost, who) in self.waiting.drain(..self.waiting.len().min(CHECKS)) {
            match asks.last_mut().filter(|(last, _)| *last == cost) {
                Some((_, run)) => run.push(who),
                None => asks.push((cost, vec![who])),
            }
        }
        // What does not fit into the message waits on, before all others.
        for (cost, who) in asks.drain(RUNS.min(asks.len())..).rev() {
            who.into_iter()
                .rev()
                .for_each(|who| self.waiting.push_front((cost, who)));
        }
        asks
    }

    /// Closes leases that are spent, or whose time is up.
    fn close_over(&mut self, now_us: u64) {
        self.close_if(|held| held.lease.is_over(now_us));
    }

    fn close_if(&mut self, mut is_meant: impl FnMut(&mut HeldLease) -> bool) {
        let closed = &mut self.closed;
        let asked = self.asked.get_mut();
        self.held.retain(|held| {
            let is_closed = is_meant(held);
            if is_closed {
                let spent = held.lease.close();
                let newly = u64::from(held.newly_spent());
                (*asked, self.spent) = (*asked + newly, self.spent + newly);
                closed.push(Closed {
                    nonce: held.lease.nonce,
                    tokens: held.lease.tokens,
                    spent,
                    until_us: held.asked_at_us + 2 * TERM_US,
                });
            }
            !is_closed
        });
        self.bound_closed();
    }

    /// Those with the most left come first.
    fn bound_closed(&mut self) {
        self.closed
            .sort_by_key(|it| std::cmp::Reverse(it.tokens - it.spent));
        self.stats.lapsed += self.closed.len().saturating_sub(CLOSED) as u64;
        self.closed.truncate(CLOSED);
    }

    /// The store has answered a request. Only the first answer to the one that is on its
    /// way counts. Returns the answer of each caller. Callers that still wait need another message.
    pub(crate) fn answered(&mut self, id: u64, reply: &Reply, now_us: u64) -> Vec<(W, Answer)> {
        let Some(request) = self.request.take_if(|request| request.id == id) else {
            return Vec::new();
        };
        let known = self.closed.len();
        self.closed
            .retain(|it| !request.settled.contains(&it.nonce));
        self.stats.settles += (known - self.closed.len()) as u64;
        if reply.given > 0 {
            let sent_at_us = request.sent_at_us;
            let valid_until_us = sent_at_us + reply.lease_us / 10 * 9;
            self.take_lease((id, sent_at_us), reply, valid_until_us, now_us);
        } else if request.want.is_some() {
            self.no_grant_until_us = request.sent_at_us + self.horizon_us;
        }
        self.learn(&request, reply, now_us);
        self.set_quiet();
        let mut answers = self.tell(request, reply, now_us);
        // Who has come meanwhile is served in order, from what is here.
        while let Some((cost, _)) = self.waiting.front() {
            let cost = *cost;
            let answer = match self.spend(cost, now_us) {
                Some(spent) => Answer::Spent(spent, cost),
                None => match self.refuses(cost, now_us) {
                    Some(refused) => Answer::Refused(refused),
                    None => break,
                },
            };
            answers.extend(self.waiting.pop_front().map(|(_, who)| (who, answer)));
        }
        answers
    }

    fn take_lease(
        &mut self,
        (nonce, asked_at_us): (u64, u64),
        reply: &Reply,
        valid_until_us: u64,
        now_us: u64,
    ) {
        self.stats.grants += 1;
        self.stats.granted_tokens += u64::from(reply.given);
        let facts = self.facts(reply, now_us);
        let lease = Tokens::new(nonce, reply.given, valid_until_us, facts);
        self.held.push(HeldLease::new(lease, asked_at_us, now_us));
        self.close_over(now_us);
    }

    /// What is told of tokens of a lease that has just come.
    fn facts(&self, reply: &Reply, now_us: u64) -> Facts {
        let others = Out {
            tokens: reply.out.tokens.saturating_sub(reply.given),
            ..reply.out
        };
        let outcome = others.outcome(&self.limit, &reply.used, Cost::ONE, true);
        let (token_us, ends_at_us) = match self.limit.lease_terms().token_us {
            Some(token_us) => (token_us, None),
            None => (0, Some(now_us + self.limit.reset_after_us(&reply.used))),
        };
        Facts {
            offset_us: offset(reply.now_us, now_us),
            era_us: reply.era_us,
            limit: size(&self.limit),
            used: size(&self.limit).saturating_sub(outcome.remaining()),
            drains_us: outcome.reset_after_us,
            token_us,
            ends_at_us,
        }
    }

    /// What a reply refuses, and anything larger, need not be asked for again for a while.
    fn learn(&mut self, request: &InFlight<W>, reply: &Reply, now_us: u64) {
        if request.sent_at_us < self.refunded_at_us {
            return;
        }
        let runs = request.asks.iter().zip(&reply.admitted);
        let refused = runs.filter(|((_, who), admitted)| (**admitted as usize) < who.len());
        let refused = refused.map(|((cost, _), _)| *cost).min();
        let is_full = reply.is_full(&self.limit);
        let Some(cost) = is_full.then_some(Cost::ONE).or(refused) else {
            return;
        };
        let outcome = reply.out.outcome(&self.limit, &reply.used, cost, false);
        let wait_us = outcome.retry_after_us.unwrap_or(REFUSED_US);
        let until_us = request.sent_at_us + wait_us.max(self.horizon_us).min(REFUSED_US);
        if is_full {
            // There is nothing to be had, however little is left here.
            self.no_grant_until_us = self.no_grant_until_us.max(until_us);
        }
        self.refusal = Some(Refusal {
            cost,
            until_us,
            used: reply.used,
            out: reply.out,
            offset_us: offset(reply.now_us, now_us),
        });
    }

    /// What everybody is told who was asked for.
    fn tell(&self, request: InFlight<W>, reply: &Reply, now_us: u64) -> Vec<(W, Answer)> {
        let at_us = reply.now_us;
        let mut answers = Vec::new();
        for ((cost, who), admitted) in request.asks.into_iter().zip(&reply.admitted) {
            let numbers = reply.out.outcome(&self.limit, &reply.used, cost, true);
            let admitted = usize::try_from(*admitted).unwrap_or(usize::MAX);
            let refused = self.refuses(cost, now_us).map(|it| it.outcome);
            let refused =
                refused.unwrap_or_else(|| reply.out.outcome(&self.limit, &reply.used, cost, false));
            answers.extend(who.into_iter().enumerate().map(|(number, who)| {
                let answer = match number < admitted {
                    true => Answer::Admitted {
                        at_us,
                        era_us: reply.era_us,
                        outcome: numbers,
                    },
                    false => Answer::Refused(Refused {
                        at_us,
                        outcome: refused,
                    }),
                };
                (who, answer)
            }));
        }
        answers
    }

    /// A request has failed, or was waited for long enough: its answer does not count any
    /// more. If it may have arrived, its lease is returned unspent. Returns who asked.
    pub(crate) fn failed(&mut self, id: u64, may_have_arrived: bool) -> Vec<W> {
        let Some(request) = self.request.take_if(|request| request.id == id) else {
            return Vec::new();
        };
        if let Some(want) = request.want.filter(|_| may_have_arrived) {
            self.closed.push(Closed {
                nonce: id,
                tokens: want.max(1),
                spent: 0,
                until_us: request.sent_at_us + 2 * TERM_US,
            });
            self.bound_closed();
        }
        self.set_quiet();
        request.asks.into_iter().flat_map(|(_, who)| who).collect()
    }

    /// Every 50 ms: closes leases that are over or idle, and gives up a request that has
    /// not been answered. Returns who asked in that.
    pub(crate) fn sweep(&mut self, now_us: u64) -> Vec<W> {
        self.count(now_us);
        self.close_if(|held| held.lease.is_over(now_us) || held.is_idle(now_us, TERM_US / 2));
        self.set_quiet();
        self.forget_closed(now_us);
        let late = self.request.as_ref();
        let late = late.filter(|request| now_us >= request.sent_at_us + TERM_US / 2);
        match late.map(|request| request.id) {
            Some(id) => self.failed(id, true),
            None => Vec::new(),
        }
    }

    /// Closes everything, to be returned: for the end of a program.
    pub(crate) fn close_all(&mut self) {
        self.close_if(|_| true);
    }

    /// A charge was given back: what the store has refused before, it may admit.
    pub(crate) fn refunded(&mut self, now_us: u64) {
        self.refunded_at_us = now_us;
        self.no_grant_until_us = 0;
        self.refusal = None;
        self.set_quiet();
    }

    /// Forgets its leases without returning them: the key was reset.
    pub(crate) fn forget(&mut self) {
        for held in self.held.drain(..) {
            held.lease.close();
        }
        self.closed.clear();
        self.refusal = None;
    }

    /// Whether somebody waits, or tokens have to be returned. A lease that is spent has
    /// none: it is accounted for with the next message, or by the store when it ends.
    pub(crate) fn has_something_to_say(&self) -> bool {
        !self.waiting.is_empty() || self.has_tokens_to_return()
    }

    fn has_tokens_to_return(&self) -> bool {
        self.closed.iter().any(|it| it.spent < it.tokens)
    }

    /// Whether it has to be looked at again by itself.
    pub(crate) fn is_active(&self) -> bool {
        !self.held.is_empty()
            || self.request.is_some()
            || !self.waiting.is_empty()
            || !self.closed.is_empty()
    }

    /// Whether nothing is lost with it.
    pub(crate) fn is_forgettable(&mut self, now_us: u64) -> bool {
        self.count(now_us);
        let is_refusing = self.refusal.is_some_and(|it| now_us < it.until_us);
        !self.is_active() && !is_refusing && self.demand < 0.1
    }

    /// Tokens that are here to be spent.
    pub(crate) fn tokens(&self) -> u64 {
        let left = self.held.iter().map(|held| held.lease.left());
        left.map(u64::from).sum()
    }

    /// Forgets how much was asked for, so that states of an exploration meet.
    #[cfg(test)]
    pub(crate) fn calm(&mut self, now_us: u64) {
        (self.demand, self.counted_at_us, self.spent) = (0.0, now_us, 0);
        self.asked = AtomicU64::new(0);
        self.stats = LeaseStats::default();
    }
}

/// A time in horizons.
#[expect(clippy::cast_precision_loss, reason = "an estimate")]
pub(crate) fn horizons(elapsed_us: u64, horizon_us: u64) -> f64 {
    elapsed_us as f64 / horizon_us as f64
}

/// `h`: how far ahead a node asks for tokens.
pub(crate) fn horizon_us(limit: &Limit) -> u64 {
    (limit.lease_terms().refill_us / 8).clamp(1, HORIZON_US)
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "at most the tokens of a lease"
)]
fn whole(demand: f64) -> u32 {
    demand.min(f64::from(MOST_TOKENS)) as u32
}
