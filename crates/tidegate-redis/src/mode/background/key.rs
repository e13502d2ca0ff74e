//! One key of a policy in mode `background`: the store's last known state, and the charges
//! that the store does not know yet. A state machine without its own clock.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use tidegate::algorithm::{Outcome, State};
use tidegate::{Cost, Limit};

use super::unsent::{Parcel, Unsent, give_back, shifted};
use super::{Clock, heard};
use crate::error::{ErrorKind, StoreError};
use crate::node::{self, Why, offset};
use crate::script::Task;
use crate::store::RedisStore;

/// How long the store may take to hear of something. Nobody waits for it, and what is
/// given up too early may be counted twice; but no connection is silent for longer.
const PATIENCE: Duration = Duration::from_secs(1);

/// Refunds of a key between two parcels. One more is refused.
const REFUNDS: usize = 256;

/// The bit that tells numbers of parcels from marks of the store, which are times.
const PARCELS: u64 = 1 << 60;

/// Whether the mark of a charge is the number of a parcel: a node has charged it.
pub(super) fn is_parcel(mark: u64) -> bool {
    mark >> PARCELS.trailing_zeros() == 1
}

#[derive(Debug)]
pub(crate) struct Key {
    limit: Limit,
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
    in_flight: Option<InFlight>,
    /// The last parcel, by its number: a charge can be given back while none has left
    /// since. The first number stands for no parcel.
    pub(super) last_parcel: u64,
    /// Receipts that were refunded since that parcel has left.
    refunded: Vec<u64>,
    /// Whether anybody has asked since the last parcel left.
    asked: bool,
}

/// A parcel on its way.
#[derive(Debug, Clone, Copy)]
struct InFlight {
    sent_at_us: u64,
    limit: Limit,
    /// On its own, it has the pending charges, too: if it does not arrive, they are one.
    unsent: Unsent,
}

impl Key {
    /// By a clock that may be the store's.
    pub(super) fn new(limit: Limit, offset_us: i64, at_us: u64) -> Self {
        let now_us = at_us.saturating_add_signed(offset_us);
        let local = limit.new_state(now_us);
        Self {
            limit,
            offset_us,
            read_us: 0,
            heard: false,
            local,
            fresh_at_us: now_us,
            pending: Unsent::none(&local),
            opened_after: None,
            in_flight: None,
            last_parcel: PARCELS | now_us,
            refunded: Vec::new(),
            asked: false,
        }
    }

    /// The store's time, as far as it is known here: not later than it is.
    pub(super) fn now_us(&self, at_us: u64) -> u64 {
        at_us
            .saturating_add_signed(self.offset_us)
            .max(self.read_us)
    }

    /// Brings it to this instant, under this limit.
    pub(super) fn tick(&mut self, limit: &Limit, at_us: u64) {
        let now_us = self.now_us(at_us);
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
        if let Some(InFlight { unsent, .. }) = &mut self.in_flight {
            unsent.own = change(unsent.own);
        }
    }

    pub(super) fn admits(&self, cost: Cost) -> bool {
        self.limit.admits(&self.local, cost)
    }

    /// The store has admitted this.
    pub(super) fn admitted(&mut self, cost: Cost) {
        self.local = self.limit.charge(self.local, cost);
    }

    pub(super) fn charge(&mut self, cost: Cost) {
        if self.local.emptied() == self.local {
            self.opened_after = Some(self.last_parcel);
        }
        self.local = self.limit.charge(self.local, cost);
        self.pending.charge(&self.limit, cost, &self.local);
        if let Some(InFlight { unsent, .. }) = &mut self.in_flight {
            unsent.charge_own(&self.limit, cost, &self.local);
        }
    }

    /// Somebody has asked, and is told these numbers.
    pub(super) fn outcome(&mut self, cost: Cost, admitted: bool) -> Outcome {
        self.asked = true;
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
        self.local = give_back(&self.limit, self.local, cost, charged_at_us);
        self.pending.give_back(&self.limit, cost, charged_at_us);
        if let Some(InFlight { unsent, .. }) = &mut self.in_flight {
            unsent.own = give_back(&self.limit, unsent.own, cost, charged_at_us);
        }
        true
    }

    fn take_in_flight(&mut self, number: u64) -> Option<InFlight> {
        self.in_flight.take_if(|_| self.last_parcel == number)
    }
}

impl node::Key for Key {
    type Message = Parcel;
    /// The store's time, and what the key comes to.
    type Reply = (u64, State);
    type Shared = Clock;

    async fn send(
        store: &RedisStore,
        stored: &str,
        parcel: &Parcel,
    ) -> Result<(u64, State), StoreError> {
        let script = store.0.scripts.get(Task::Flush, [&parcel.limit]);
        let within = PATIENCE.max(store.0.timeout);
        let (key, argument) = (stored.to_owned(), parcel.argument());
        // The node sends again what did not arrive.
        let sent = store.message(&script, key, argument, within, false);
        let reply = sent.await?;
        let numbers = script.numbers(&reply);
        let heard = numbers.and_then(|numbers| heard(&parcel.limit, &numbers));
        heard.ok_or_else(|| StoreError::new(ErrorKind::Script, "no count"))
    }

    fn message(&mut self, _: Why, at_us: u64) -> Option<(u64, Parcel)> {
        if self.in_flight.is_some() || !self.is_active() {
            return None;
        }
        let limit = self.limit;
        self.tick(&limit, at_us);
        let unsent = std::mem::replace(&mut self.pending, Unsent::none(&self.local));
        self.in_flight = Some(InFlight {
            sent_at_us: at_us,
            limit,
            unsent,
        });
        let now_us = self.now_us(at_us);
        // Each is another one, and no other node has the same.
        self.last_parcel = (PARCELS | now_us).max(self.last_parcel + 1);
        self.refunded = Vec::new();
        self.asked = false;
        let parcel = Parcel {
            limit,
            unsent,
            idle_us: now_us.saturating_sub(self.fresh_at_us),
            on_time: self.heard,
            is_opened_here: self.opened_after.is_some(),
        };
        Some((self.last_parcel, parcel))
    }

    /// What has come since is told in the next round.
    fn answered(
        &mut self,
        clock: &Clock,
        number: u64,
        (then_us, count): (u64, State),
        at_us: u64,
    ) -> bool {
        let Some(sent) = self.take_in_flight(number) else {
            return false;
        };
        // What was opened before it left, the store has by now.
        self.opened_after = self.opened_after.filter(|after| *after == self.last_parcel);
        // The store answered before now, and after it was sent.
        let (before, latest) = (self.offset_us, offset(then_us, sent.sent_at_us));
        self.offset_us = offset(then_us, at_us);
        if before > latest || before < self.offset_us {
            // Its clock was thought to be another one, or has stepped.
            self.read_us = 0;
            let shift = self.offset_us.saturating_sub(before);
            self.pending.own = shifted(self.pending.own, shift);
        }
        self.heard = true;
        let now_us = self.now_us(at_us);
        self.pending.own = self.limit.at(self.pending.own, now_us);
        let count = match sent.limit == self.limit {
            true => count,
            false => self.limit.adopt(&sent.limit, count, now_us),
        };
        self.fresh_at_us = then_us.saturating_add(self.limit.reset_after_us(&count));
        let rest = Parcel {
            limit: self.limit,
            unsent: self.pending,
            idle_us: 0,
            on_time: true,
            is_opened_here: self.opened_after.is_some(),
        };
        self.local = rest.arrive(Some(count), now_us);
        clock.0.store(self.offset_us, Relaxed);
        false
    }

    /// Nobody knows whether it has arrived: it is sent again, with what has come since.
    fn failed(&mut self, number: u64, _: &StoreError) {
        if let Some(InFlight { unsent, .. }) = self.take_in_flight(number) {
            let cost = unsent.cost.saturating_add(self.pending.cost);
            self.pending = Unsent { cost, ..unsent };
        }
    }

    fn forget(&mut self, at_us: u64) {
        let last_parcel = self.last_parcel + 1;
        *self = Self::new(self.limit, self.offset_us, at_us);
        self.last_parcel = self.last_parcel.max(last_parcel);
    }

    fn is_active(&self) -> bool {
        self.in_flight.is_some() || self.asked || !self.pending.is_none()
    }

    fn is_idle(&mut self, at_us: u64) -> bool {
        let limit = self.limit;
        self.tick(&limit, at_us);
        limit.reset_after_us(&self.local) == 0
    }

    fn is_told(&self) -> bool {
        self.in_flight.is_none_or(|it| it.unsent.is_none()) && self.pending.is_none()
    }
}
