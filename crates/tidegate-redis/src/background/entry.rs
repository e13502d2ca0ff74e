//! One key of a policy in mode `background`: the store's last known state, and the charges
//! that the store does not know yet.

use std::time::Duration;

use tidegate::algorithm::{Outcome, State};
use tidegate::{Cost, Limit};

use super::unsent::{Parcel, Unsent};
use crate::count;

/// Refunds of a key between two parcels. One more is refused.
const REFUNDS: usize = 256;

#[derive(Debug)]
pub(super) struct Entry {
    /// The key in the store.
    pub(super) key: Box<str>,
    pub(super) limit: Limit,
    /// The store's clock, less this node's: not more than it is. And what it read last,
    /// before which it does not go.
    offset_us: i64,
    read_us: u64,
    /// Whether the store has said anything of the key.
    heard: bool,
    /// What decides: all that the store had when it was last heard of, and all that was
    /// admitted here since.
    pub(super) local: State,
    /// When what the store had is gone.
    fresh_at_us: u64,
    pending: Unsent,
    /// After which parcel a window was opened here, which the store has not.
    opened_after: Option<u64>,
    /// What is on its way. On its own, it has the pending charges, too: if it does not
    /// arrive, they are one.
    in_flight: Option<Unsent>,
    /// The last parcel, by its number: a charge can be given back while none has left
    /// since.
    pub(super) last_parcel: u64,
    /// Receipts that were refunded since that parcel has left.
    refunded: Vec<u64>,
    /// Whether anybody has asked since the last parcel left, and whether it waits to be
    /// sent.
    asked: bool,
    queued: bool,
}

impl Entry {
    /// By a clock that may be the store's, after a parcel that was another's.
    pub(super) fn new(
        key: String,
        limit: Limit,
        (offset_us, parcel): (i64, u64),
        now: Duration,
    ) -> Self {
        let now_us = on_clock(now, offset_us);
        let local = limit.new_state(now_us);
        Self {
            key: key.into(),
            limit,
            offset_us,
            read_us: 0,
            heard: false,
            local,
            fresh_at_us: now_us,
            pending: Unsent::none(&local),
            opened_after: None,
            in_flight: None,
            last_parcel: parcel,
            refunded: Vec::new(),
            asked: false,
            queued: false,
        }
    }

    /// The store's time, as far as it is known here: not later than it is.
    pub(super) fn now_us(&self, now: Duration) -> u64 {
        on_clock(now, self.offset_us).max(self.read_us)
    }

    /// Brings it to this instant, under this limit.
    pub(super) fn tick(&mut self, limit: &Limit, now: Duration) {
        let now_us = self.now_us(now);
        self.read_us = now_us;
        if self.limit != *limit {
            let old = std::mem::replace(&mut self.limit, *limit);
            self.each_count(|count| limit.adopt(&old, count, now_us));
        }
        let limit = self.limit;
        self.each_count(|count| limit.at(count, now_us));
    }

    fn each_count(&mut self, change: impl Fn(State) -> State) {
        self.local = change(self.local);
        self.pending.own = change(self.pending.own);
        if let Some(unsent) = &mut self.in_flight {
            unsent.own = change(unsent.own);
        }
    }

    pub(super) fn charge(&mut self, cost: Cost) {
        if let State::FixedWindow(state) = self.local
            && state.count == 0
        {
            self.opened_after = Some(self.last_parcel);
        }
        self.local = self.limit.charge(self.local, cost);
        self.pending.charge(&self.limit, cost, &self.local);
        if let Some(unsent) = &mut self.in_flight {
            unsent.charge_own(&self.limit, cost, &self.local);
        }
    }

    pub(super) fn outcome(&self, cost: Cost, admitted: bool) -> Outcome {
        let mut outcome = self.limit.outcome(&self.local, cost, admitted);
        if outcome.retry_after_us == Some(0) && !admitted {
            // Of a log, it is not known when the next event goes.
            outcome.retry_after_us = Some(outcome.reset_after_us.max(1));
        }
        outcome
    }

    /// Gives back a charge, if no parcel has left since this one: whether it has. Once for
    /// each receipt; one that cannot be remembered is refused.
    pub(super) fn give_back(
        &mut self,
        receipt: u64,
        cost: Cost,
        charged_at_us: u64,
        parcel: u64,
    ) -> bool {
        let is_here = self.last_parcel == parcel && !self.pending.is_none();
        let is_known = self.refunded.contains(&receipt) || self.refunded.len() >= REFUNDS;
        if !is_here || is_known || self.pending.cost < cost.get().into() {
            return false;
        }
        self.refunded.push(receipt);
        self.local = count::give_back(&self.limit, self.local, cost, charged_at_us);
        self.pending.give_back(&self.limit, cost, charged_at_us);
        if let Some(unsent) = &mut self.in_flight {
            unsent.own = count::give_back(&self.limit, unsent.own, cost, charged_at_us);
        }
        true
    }

    /// Somebody asks: whether it has to be put into the queue.
    pub(super) fn ask(&mut self) -> bool {
        self.asked = true;
        self.enqueue()
    }

    fn enqueue(&mut self) -> bool {
        let wanted = self.in_flight.is_none() && !self.queued;
        self.queued |= wanted;
        wanted
    }

    /// Takes what there is to tell. Nothing while a parcel is on its way.
    pub(super) fn send(&mut self, number: u64, now: Duration) -> Option<Parcel> {
        self.queued = false;
        if self.in_flight.is_some() {
            return None;
        }
        let limit = self.limit;
        self.tick(&limit, now);
        let unsent = std::mem::replace(&mut self.pending, Unsent::none(&self.local));
        self.in_flight = Some(unsent);
        self.last_parcel = number;
        self.refunded = Vec::new();
        self.asked = false;
        Some(Parcel {
            limit,
            unsent,
            idle_us: self.now_us(now).saturating_sub(self.fresh_at_us),
            on_time: self.heard,
            is_opened_here: self.opened_after.is_some(),
        })
    }

    /// A parcel that was sent then has arrived, at this time of the store, and left this
    /// count. Says whether the key has to be put into the queue again.
    pub(super) fn arrived(
        &mut self,
        parcel: &Parcel,
        sent: Duration,
        now: Duration,
        (then_us, count): (u64, State),
    ) -> bool {
        self.in_flight = None;
        // What was opened before it left, the store has by now.
        self.opened_after = self.opened_after.filter(|after| *after == self.last_parcel);
        // The store answered before now, and after it was sent.
        let (before, latest) = (self.offset_us, offset(then_us, sent));
        self.offset_us = offset(then_us, now);
        if before > latest || before < self.offset_us {
            // Its clock was thought to be another one, or has stepped.
            self.read_us = 0;
            let shift = self.offset_us.saturating_sub(before);
            self.pending.own = count::shifted(self.pending.own, shift);
        }
        self.heard = true;
        let now_us = self.now_us(now);
        self.pending.own = self.limit.at(self.pending.own, now_us);
        let count = match parcel.limit == self.limit {
            true => count,
            false => self.limit.adopt(&parcel.limit, count, now_us),
        };
        self.fresh_at_us = then_us.saturating_add(count::reset_after_us(&self.limit, &count));
        let rest = Parcel {
            limit: self.limit,
            unsent: self.pending,
            idle_us: 0,
            on_time: true,
            is_opened_here: self.opened_after.is_some(),
        };
        self.local = rest.arrive(Some(count), now_us);
        let more = self.asked || !self.pending.is_none();
        more && self.enqueue()
    }

    /// A parcel has not arrived, or nobody knows: it is sent again, with what has come
    /// since. Says whether the key has to be put into the queue again.
    pub(super) fn failed(&mut self) -> bool {
        let Some(unsent) = self.in_flight.take() else {
            return false;
        };
        let cost = unsent.cost.saturating_add(self.pending.cost);
        self.pending = Unsent { cost, ..unsent };
        let more = self.asked || !self.pending.is_none();
        more && self.enqueue()
    }

    /// Whether nothing is lost with it, now.
    pub(super) fn is_spent(&mut self, now: Duration) -> bool {
        let limit = self.limit;
        self.tick(&limit, now);
        let is_synced = self.in_flight.is_none() && self.pending.is_none();
        is_synced && !self.queued && count::reset_after_us(&limit, &self.local) == 0
    }

    /// Whether the store has been told everything.
    pub(super) fn is_synced(&self) -> bool {
        self.in_flight.is_none_or(|unsent| unsent.is_none()) && self.pending.is_none()
    }

    pub(super) fn offset_us(&self) -> i64 {
        self.offset_us
    }
}

/// A clock that reads `us` at this moment of ours, less ours.
pub(super) fn offset(us: u64, now: Duration) -> i64 {
    let us = i64::try_from(us).unwrap_or(i64::MAX);
    us.saturating_sub(i64::try_from(now.as_micros()).unwrap_or(i64::MAX))
}

pub(super) fn on_clock(now: Duration, offset_us: i64) -> u64 {
    let now_us = u64::try_from(now.as_micros()).unwrap_or(u64::MAX);
    now_us.saturating_add_signed(offset_us)
}
