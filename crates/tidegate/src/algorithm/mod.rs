//! The algorithms as pure arithmetic: they take a state, a cost and an instant, and return a
//! state and an [`Outcome`].
//!
//! Nothing here reads a clock or takes a lock, and only a [`Log`] allocates. Every
//! number is an integer, every instant a count of microseconds since the Unix epoch,
//! and no step needs a product that a double could not hold where a script has to do
//! the same: a store that decides elsewhere (in Lua, for example) agrees number for
//! number.
//!
//! Each algorithm is a limit's numbers that implement [`Counter`]. A store that knows
//! the algorithm calls the trait; one that does not calls the same verbs on
//! [`Limit`](crate::Limit) with a [`State`], which `table.rs` dispatches: the only
//! place in the workspace that does.
//!
//! An algorithm owns everything about itself. To add one, write `NAME.rs` and `NAME.lua`
//! in this folder and a line in `table.rs`.

mod log;
mod remote;
mod table;

use std::fmt::Debug;
use std::hash::Hash;

pub use log::{Log, LogView};
pub use remote::{FULL_KEPT, LeaseTerms, Numbers, Parcel};
pub(crate) use table::each_compact;
pub use table::{Algorithm, Kind, State};

/// Declares the module of each algorithm.
macro_rules! modules {
    ($($group:ident { $($module:ident::$name:ident,)+ })+) => {
        $($(
            mod $module;
            pub use $module::*;
        )+)+
    };
}
table::table!(modules);

#[cfg(feature = "audit")]
use crate::audit::{Nodes, Rule};
use crate::cost::Cost;

/// The latest instant the arithmetic is made for, in microseconds: the year
/// 2112. Clocks that read later are read as this.
pub const MAX_NOW_US: u64 = (1 << 52) - 1;

/// An algorithm with its numbers, as every store uses it.
///
/// A store brings a state to the present with [`at`](Self::at), asks every level
/// whether it [`admits`](Self::admits) the cost, and only then
/// [`charge`](Self::charge)s all of them or none.
pub trait Counter: Copy + Eq + Hash + Debug + 'static {
    /// What is counted for one key, at an instant.
    type State: Snapshot;

    /// What it is called, and what it can do.
    const PROFILE: Profile;

    /// The state of a key that was never charged.
    fn new_state(&self, now_us: u64) -> Self::State;

    /// The state at a later instant. If the clock reads earlier than the state, no
    /// time has passed, and the state moves back with the clock.
    fn at(&self, state: Self::State, now_us: u64) -> Self::State;

    /// Whether this cost fits.
    fn admits(&self, state: &Self::State, cost: Cost) -> bool;

    /// The state after taking an admitted cost.
    fn charge(&self, state: Self::State, cost: Cost) -> Self::State;

    /// [`charge`](Self::charge), if it [`admits`](Self::admits) the cost.
    #[inline]
    fn try_charge(&self, state: Self::State, cost: Cost) -> Option<Self::State> {
        self.admits(&state, cost).then(|| self.charge(state, cost))
    }

    /// The state after counting a *refused* cost (`count_denied`): at most full.
    fn saturate(&self, state: Self::State, cost: Cost) -> Self::State;

    /// The state after giving a charge back, as far as it still counts.
    fn refund(&self, state: Self::State, charge: PastCharge) -> Self::State;

    /// The numbers to report, `cost` being what would be asked for again.
    fn outcome(&self, state: &Self::State, cost: Cost, admitted: bool) -> Outcome;

    /// The longest time that a charge of this cost can make a difference.
    fn counts_for_us(&self, cost: Cost) -> u64;

    /// What a refund recognises a charge by: the window it went to, or its time.
    #[inline]
    fn mark_us(&self, state: &Self::State) -> u64 {
        state.last_us()
    }

    /// Whether a state written under `old` means the same under this limit.
    fn counts_like(&self, old: &Self) -> bool;

    /// A state written under `old`, converted: used requests stay used.
    fn adopt(&self, _old: &Self, state: Self::State, _now_us: u64) -> Self::State {
        state
    }

    /// One check of one level: the state to keep and what to report.
    fn step(&self, state: Self::State, cost: Cost, now_us: u64) -> (Self::State, Outcome) {
        let state = self.at(state, now_us);
        if self.admits(&state, cost) {
            let state = self.charge(state, cost);
            (state, self.outcome(&state, cost, true))
        } else {
            (state, self.outcome(&state, cost, false))
        }
    }

    /// The limit whose number represents this one in a store: itself, unless its states
    /// mean the same under other limits, too.
    fn numbered(&self) -> Self {
        *self
    }

    /// Appends the limit, with the price of this cost, as the section `limit` of the
    /// script unpacks it.
    fn write_limit(&self, cost: Cost, out: &mut Vec<u8>);

    /// The state in a script's reply, as its section `numbers` packs it, and the mark of a
    /// charge now; `None` for numbers that no script replies.
    fn read_state(&self, now_us: u64, numbers: &mut Numbers<'_>) -> Option<(Self::State, u64)>;

    /// What a node needs to know to lease tokens; [`Profile::can_lease`] only.
    fn lease_terms(&self) -> LeaseTerms {
        LeaseTerms::default()
    }

    /// Appends the price of a cost as the section `lease-price` unpacks it.
    fn write_price(&self, _cost: Cost, _out: &mut Vec<u8>) {}

    /// The state with this many tokens that are out on lease, as if they were used.
    fn with_leased(&self, state: Self::State, _tokens: u32) -> Self::State {
        state
    }

    /// The state with nothing counted, at the same place in time.
    fn emptied(state: Self::State) -> Self::State;

    /// Whether charges that only this node knows make no difference any more: `own` is
    /// what they come to by themselves, `cost` what they cost together.
    fn is_forgotten(own: &Self::State, _cost: u64) -> bool {
        Self::emptied(*own) == *own
    }

    /// Another charge to a count of a node's own charges; `with_it` is the count of
    /// everybody's that has it already, and its place in time that of the first charge.
    fn charge_own(&self, own: Self::State, cost: Cost, with_it: &Self::State) -> Self::State {
        let is_empty = Self::emptied(own) == own;
        let before = if is_empty {
            Self::emptied(*with_it)
        } else {
            own
        };
        self.charge(before, cost)
    }

    /// The mark of a charge that was made then, as far as the state tells; 0 for one that
    /// does not count any more.
    fn mark_at(&self, _state: &Self::State, charged_at_us: u64) -> u64 {
        charged_at_us
    }

    /// Appends a parcel as the section `parcel` unpacks it; `own` is what its charges come
    /// to by themselves. [`Profile::in_background`] only.
    fn write_parcel(&self, _own: &Self::State, _parcel: &Parcel, _out: &mut Vec<u8>) {}

    /// What a key comes to when a parcel gets there: what the section `flush` does.
    fn arrive(&self, state: Self::State, _own: &Self::State, _parcel: &Parcel) -> Self::State {
        state
    }

    /// Appends what the section `flush` is given to take a cost off the count, down to
    /// zero; [`Profile::gives_back`] only.
    fn write_give_back(&self, _cost: Cost, _out: &mut Vec<u8>) {}

    /// The rules that an audit holds the limit to.
    #[cfg(feature = "audit")]
    fn rules(&self, nodes: &Nodes<'_>) -> Vec<Rule>;
}

/// A key's count at an instant. `table.rs` implements it for the state of each algorithm.
pub trait Snapshot: Copy + Eq + Debug {
    /// The instant.
    fn last_us(&self) -> u64;
}

/// What is known of an algorithm without the numbers of a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Profile {
    /// Its name, as in a config file.
    pub name: &'static str,
    /// What follows the level in the keys of its counters. Names contain no tilde.
    pub suffix: &'static str,
    /// What the scripts of a store do for it, in sections: see `script.rs` of
    /// `tidegate-redis`.
    pub lua: &'static str,
    /// Whether it has a counter at all.
    pub counts: bool,
    /// The most requests of a limit.
    pub max_requests: u32,
    /// Whether its limits have a `burst` and can be `strict`.
    pub has_burst: bool,
    /// Whether its limits have an `align`.
    pub has_align: bool,
    /// Whether nodes can take tokens ahead of time (the mode `lease`).
    pub can_lease: bool,
    /// Whether nodes can count by themselves and tell later (the mode `background`).
    pub in_background: bool,
    /// Whether a cost can be taken off the current count, whenever it was charged.
    pub gives_back: bool,
}

impl Profile {
    /// An algorithm without options, which works in every mode but `lease`.
    pub const fn new(name: &'static str, suffix: &'static str, lua: &'static str) -> Self {
        Self {
            name,
            suffix,
            lua,
            counts: true,
            max_requests: u32::MAX,
            has_burst: false,
            has_align: false,
            can_lease: false,
            in_background: true,
            gives_back: false,
        }
    }
}

/// A [`Counter`] whose state fits into one entry of the in-memory table.
pub trait Compact: Counter {
    /// The state as the table keeps it.
    fn pack(&self, state: &Self::State) -> Packed;

    /// The state that was packed under this same limit.
    fn unpack(&self, packed: Packed) -> Self::State;
}

/// A state in 157 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packed {
    /// When the key is indistinguishable from one that was never charged; 53 bits.
    pub fresh_at_us: u64,
    /// What the algorithm needs to know.
    pub data: u64,
    /// 40 more bits of that.
    pub extra: u64,
}

/// A charge to refund.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PastCharge {
    /// Its cost.
    pub cost: Cost,
    /// When it was made.
    pub at_us: u64,
    /// Its [mark](Counter::mark_us).
    pub mark_us: u64,
}

/// The numbers one level reports, as they stand after the check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outcome {
    /// Requests per window, or the capacity of a token bucket.
    pub limit: u32,
    /// Current usage.
    pub used: Used,
    /// Until the same cost would be admitted if no other request arrives: 0 when it is
    /// admitted now, `None` when it never will be.
    pub retry_after_us: Option<u64>,
    /// Until the key's quota is full again.
    pub reset_after_us: u64,
}

/// An exact number of requests: `parts / per_request`. Kept as a fraction because
/// most callers only need to know whether the request may proceed, and a division would be
/// the most expensive step of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Used {
    /// How many parts are used.
    pub parts: u128,
    /// How many parts make a request.
    pub per_request: u64,
}

impl Outcome {
    /// The outcome of a limit that refuses everything.
    pub const BLOCKED: Self = Self {
        limit: 0,
        used: Used::requests(0),
        retry_after_us: None,
        reset_after_us: 0,
    };

    /// Requests of cost 1 that would still be admitted at this instant.
    pub fn remaining(&self) -> u32 {
        self.limit.saturating_sub(self.used.ceil())
    }

    /// Current usage: tokens used, requests counted, or the sliding estimate.
    pub fn rate(&self) -> f64 {
        self.used.to_f64()
    }
}

impl Used {
    /// A whole number of requests.
    pub const fn requests(count: u32) -> Self {
        Self {
            parts: count as u128,
            per_request: 1,
        }
    }

    /// Whole requests that cover it.
    pub fn ceil(self) -> u32 {
        // Dividing 128 bits takes several times as long as dividing 64.
        let requests = match u64::try_from(self.parts) {
            Ok(parts) => u128::from(parts.div_ceil(self.per_request)),
            Err(_) => self.parts.div_ceil(u128::from(self.per_request)),
        };
        u32::try_from(requests).unwrap_or(u32::MAX)
    }

    /// The nearest floating-point number.
    #[expect(
        clippy::cast_precision_loss,
        reason = "a figure to read, not to decide by"
    )]
    pub fn to_f64(self) -> f64 {
        self.parts as f64 / self.per_request as f64
    }
}

/// `a * b / c`, rounded down. The quotient must fit, as it does where `a <= c`
/// or `b <= c`.
pub(crate) fn mul_div(a: u64, b: u64, c: u64) -> u64 {
    if let Some(product) = a.checked_mul(b) {
        return product / c;
    }
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the caller's quotient fits"
    )]
    let quotient = (u128::from(a) * u128::from(b) / u128::from(c)) as u64;
    quotient
}
