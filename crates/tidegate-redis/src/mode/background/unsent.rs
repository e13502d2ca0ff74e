//! What a node has admitted on its own and how it travels. What it comes to when it
//! arrives, each algorithm knows: the script `flush.lua` does the same, number for number.

use tidegate::algorithm::{self, PastCharge, State};
use tidegate::{Cost, Limit};

/// Charges of a key that the store has not been told of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Unsent {
    /// They alone, as if nobody else had charged anything.
    pub(crate) own: State,
    /// All of them; what counts of them gets less with time.
    pub(crate) cost: u64,
}

/// Charges on their way to the store. None is a look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Parcel {
    pub(crate) limit: Limit,
    pub(crate) unsent: Unsent,
    /// How long the key's quota has been full without them, as far as the node knows.
    pub(crate) idle_us: u64,
    /// Whether the node has the store's clock.
    pub(crate) on_time: bool,
    /// Whether their window was opened by the node: the store may have another one.
    pub(crate) is_opened_here: bool,
}

impl Unsent {
    /// Nothing, at the place in time of this count.
    pub(crate) fn none(at: &State) -> Self {
        Self {
            own: at.emptied(),
            cost: 0,
        }
    }

    pub(crate) fn is_none(&self) -> bool {
        self.own.is_forgotten(self.cost)
    }

    /// Another charge, to a count that has it already.
    pub(crate) fn charge(&mut self, limit: &Limit, cost: Cost, to: &State) {
        self.charge_own(limit, cost, to);
        self.cost = self.cost.saturating_add(cost.get().into());
    }

    /// The same of one that is counted in another place: it goes where that count is.
    pub(crate) fn charge_own(&mut self, limit: &Limit, cost: Cost, to: &State) {
        self.own = limit.charge_own(self.own, cost, to);
    }

    /// A charge is given back before anybody was told of it.
    pub(crate) fn give_back(&mut self, limit: &Limit, cost: Cost, charged_at_us: u64) {
        self.own = give_back(limit, self.own, cost, charged_at_us);
        self.cost = self.cost.saturating_sub(cost.get().into());
    }
}

impl Parcel {
    /// What the script is given.
    pub(crate) fn argument(&self) -> Vec<u8> {
        let mut argument = Vec::with_capacity(96);
        self.limit.write_limit(Cost::ONE, &mut argument);
        let own = &self.unsent.own;
        self.limit.write_parcel(own, &self.told(), &mut argument);
        argument
    }

    /// What a key comes to when it gets there, from what the store had of it.
    pub(crate) fn arrive(&self, before: Option<State>, now_us: u64) -> State {
        let own = &self.unsent.own;
        self.limit.arrive(before, own, &self.told(), now_us)
    }

    fn told(&self) -> algorithm::Parcel {
        algorithm::Parcel {
            cost: self.unsent.cost,
            idle_us: self.idle_us,
            on_time: self.on_time,
            is_opened_here: self.is_opened_here,
        }
    }
}

/// The same state on a clock that reads later by this much.
pub(super) fn shifted(state: State, by_us: i64) -> State {
    state.moved_to(state.last_us().saturating_add_signed(by_us))
}

/// The state after giving back a charge that no other node knows of. All that is known
/// of it is when it was made: its window is the one that was open then.
pub(crate) fn give_back(limit: &Limit, state: State, cost: Cost, charged_at_us: u64) -> State {
    let charge = PastCharge {
        cost,
        at_us: charged_at_us,
        mark_us: limit.mark_at(&state, charged_at_us),
    };
    limit.refund(state, charge)
}
