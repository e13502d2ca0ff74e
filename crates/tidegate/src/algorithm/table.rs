//! The table of algorithms: one line per algorithm, from which everything is made that
//! has to know all of them. A limit's algorithm is looked up here and nowhere else.

use std::fmt;

use super::{
    Compact, Counter, LeaseTerms, Numbers, Outcome, Packed, Parcel, PastCharge, Profile, Snapshot,
};
#[cfg(feature = "audit")]
use crate::audit::{Nodes, Rule};
use crate::cost::Cost;
use crate::error::LimitError;
use crate::limit::{Limit, LimitSpec};

/// Hands the table to a macro: a line per algorithm, with its module. `compact` ones keep
/// their state in an entry of the in-memory table, `other` ones elsewhere or nowhere.
macro_rules! table {
    ($with:ident) => {
        $with! {
            compact {
                token_bucket::TokenBucket,
                fixed_window::FixedWindow,
                sliding_window::SlidingWindow,
            }
            other {
                sliding_log::SlidingLog,
                block::Block,
            }
        }
    };
}
pub(super) use table;

/// Makes the enums, and what looks into them.
macro_rules! algorithms {
    (
        compact { $($compact_module:ident::$compact:ident,)+ }
        other { $($other_module:ident::$other:ident,)+ }
    ) => {
        $(use super::$compact_module::$compact;)+
        $(use super::$other_module::$other;)+

        algorithms! { @all $($compact),+, $($other),+ }

        /// Runs generic code on the limit inside a [`Kind`] where it is [`Compact`].
        macro_rules! each_compact {
            ($kind:expr, $limit:ident => $body:expr, _ => $other_body:expr) => {
                match $kind {
                    $($crate::algorithm::Kind::$compact($limit) => $body,)+
                    $($crate::algorithm::Kind::$other(_) => $other_body,)+
                }
            };
        }
    };
    (@all $($name:ident),+) => {
        /// What counts the requests.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Algorithm {
            $(#[doc = concat!("[`", stringify!($name), "`].")] $name,)+
        }

        impl Algorithm {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$name),+];

            /// What it is called, and what it can do.
            pub const fn profile(self) -> &'static Profile {
                match self {
                    $(Self::$name => &<$name as Counter>::PROFILE,)+
                }
            }
        }

        /// A limit, taken apart by its algorithm.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Kind {
            $(#[doc = concat!("[`", stringify!($name), "`].")] $name($name),)+
        }

        impl Kind {
            pub(crate) const fn new(spec: LimitSpec) -> Result<Self, LimitError> {
                match spec.algorithm {
                    $(Algorithm::$name => match $name::from_spec(spec) {
                        Ok(limit) => Ok(Self::$name(limit)),
                        Err(error) => Err(error),
                    },)+
                }
            }

            pub(crate) const fn spec(&self) -> Option<LimitSpec> {
                match self {
                    $(Self::$name(limit) => match limit.spec() {
                        Some(spec) => Some(LimitSpec {
                            algorithm: Algorithm::$name,
                            ..spec
                        }),
                        None => None,
                    },)+
                }
            }

            pub(crate) const fn algorithm(&self) -> Algorithm {
                match self {
                    $(Self::$name(_) => Algorithm::$name,)+
                }
            }
        }

        /// What is counted for a key, whatever the algorithm. Under a limit of another
        /// algorithm it says nothing, and the key counts as new.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[must_use]
        pub enum State {
            $(#[doc = concat!("Of a [`", stringify!($name), "`].")]
            $name(<$name as Counter>::State),)+
        }

        impl State {
            /// The instant of the state.
            pub fn last_us(&self) -> u64 {
                match self {
                    $(Self::$name(state) => state.last_us,)+
                }
            }

            /// The same state on a clock that reads another time now.
            pub fn moved_to(mut self, last_us: u64) -> Self {
                match &mut self {
                    $(Self::$name(state) => state.last_us = last_us,)+
                }
                self
            }

            /// [`Counter::emptied`].
            pub fn emptied(self) -> Self {
                match self {
                    $(Self::$name(state) => Self::$name($name::emptied(state)),)+
                }
            }

            /// [`Counter::is_forgotten`].
            pub fn is_forgotten(&self, cost: u64) -> bool {
                match self {
                    $(Self::$name(own) => $name::is_forgotten(own, cost),)+
                }
            }
        }

        $(impl Member for $name {
            fn wrap(state: Self::State) -> State {
                State::$name(state)
            }

            fn kind(self) -> Kind {
                Kind::$name(self)
            }

            fn state_of(state: State) -> Option<Self::State> {
                let State::$name(state) = state else {
                    return None;
                };
                Some(state)
            }

            fn limit_of(kind: &Kind) -> Option<&Self> {
                let Kind::$name(limit) = kind else {
                    return None;
                };
                Some(limit)
            }
        })+

        $(impl Snapshot for <$name as Counter>::State {
            #[inline]
            fn last_us(&self) -> u64 {
                self.last_us
            }
        })+

        /// Runs generic code on the limit inside a [`Kind`].
        macro_rules! each {
            ($kind:expr, $limit:ident => $body:expr) => {
                match $kind {
                    $($crate::algorithm::Kind::$name($limit) => $body,)+
                }
            };
        }
    };
}

table!(algorithms);
pub(crate) use each_compact;

/// How the values of an algorithm become those of any algorithm, and back.
trait Member: Counter {
    fn wrap(state: Self::State) -> State;
    fn kind(self) -> Kind;
    fn state_of(state: State) -> Option<Self::State>;
    fn limit_of(kind: &Kind) -> Option<&Self>;
}

fn wrap<C: Member>(_: &C, state: C::State) -> State {
    C::wrap(state)
}

/// The state as one of this limit's algorithm. One of another algorithm says nothing: the
/// key counts as new.
fn own<C: Member>(limit: &C, state: State) -> C::State {
    C::state_of(state).unwrap_or_else(|| limit.new_state(state.last_us()))
}

/// The other limit, if it has the algorithm of this one.
fn alike<'l, C: Member>(_: &C, other: &'l Limit) -> Option<&'l C> {
    C::limit_of(other.kind())
}

impl Algorithm {
    /// All that count something: all but [`Block`].
    pub fn counting() -> impl Iterator<Item = Self> + Clone {
        let all = Self::ALL.iter().copied();
        all.filter(|algorithm| algorithm.profile().counts)
    }

    /// The names of those that count something and have this in their profile.
    pub fn names(has: impl Fn(&Profile) -> bool) -> Vec<&'static str> {
        let profiles = Self::counting().map(Self::profile);
        let having = profiles.filter(|profile| has(profile));
        having.map(|profile| profile.name).collect()
    }

    /// Its name, as in a config file.
    pub const fn as_str(self) -> &'static str {
        self.profile().name
    }
}

impl Default for Algorithm {
    fn default() -> Self {
        Self::TokenBucket
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The verbs of [`Counter`], for whatever algorithm the limit has.
impl Limit {
    /// What counts the requests.
    pub const fn algorithm(&self) -> Algorithm {
        self.kind().algorithm()
    }

    /// [`Counter::new_state`].
    pub fn new_state(&self, now_us: u64) -> State {
        each!(self.kind(), it => wrap(it, it.new_state(now_us)))
    }

    /// [`Counter::at`].
    pub fn at(&self, state: State, now_us: u64) -> State {
        each!(self.kind(), it => wrap(it, it.at(own(it, state), now_us)))
    }

    /// [`Counter::admits`].
    pub fn admits(&self, state: &State, cost: Cost) -> bool {
        each!(self.kind(), it => it.admits(&own(it, *state), cost))
    }

    /// [`Counter::charge`].
    pub fn charge(&self, state: State, cost: Cost) -> State {
        each!(self.kind(), it => wrap(it, it.charge(own(it, state), cost)))
    }

    /// [`Counter::saturate`].
    pub fn saturate(&self, state: State, cost: Cost) -> State {
        each!(self.kind(), it => wrap(it, it.saturate(own(it, state), cost)))
    }

    /// [`Counter::refund`].
    pub fn refund(&self, state: State, charge: PastCharge) -> State {
        each!(self.kind(), it => wrap(it, it.refund(own(it, state), charge)))
    }

    /// [`Counter::outcome`].
    pub fn outcome(&self, state: &State, cost: Cost, admitted: bool) -> Outcome {
        each!(self.kind(), it => it.outcome(&own(it, *state), cost, admitted))
    }

    /// How long until the key's quota is full again.
    pub fn reset_after_us(&self, state: &State) -> u64 {
        self.outcome(state, Cost::ONE, true).reset_after_us
    }

    /// [`Counter::counts_for_us`].
    pub fn counts_for_us(&self, cost: Cost) -> u64 {
        each!(self.kind(), it => it.counts_for_us(cost))
    }

    /// [`Counter::mark_us`].
    pub fn mark_us(&self, state: &State) -> u64 {
        each!(self.kind(), it => it.mark_us(&own(it, *state)))
    }

    /// [`Counter::counts_like`]: never, where the algorithm is another one.
    pub fn counts_like(&self, old: &Self) -> bool {
        each!(self.kind(), it => alike(it, old).is_some_and(|old| it.counts_like(old)))
    }

    /// [`Counter::adopt`]: another algorithm starts anew.
    pub fn adopt(&self, old: &Self, state: State, now_us: u64) -> State {
        each!(self.kind(), it => match alike(it, old) {
            Some(old) => wrap(it, it.adopt(old, own(it, state), now_us)),
            None => self.new_state(now_us),
        })
    }

    /// [`Counter::rules`].
    #[cfg(feature = "audit")]
    pub(crate) fn rules(&self, nodes: &Nodes<'_>) -> Vec<Rule> {
        each!(self.kind(), it => it.rules(nodes))
    }

    /// [`Counter::numbered`].
    pub(crate) fn numbered(&self) -> Self {
        Self::from_kind(each!(self.kind(), it => it.numbered().kind()))
    }

    /// [`Compact::pack`]; `None` for a state that is kept elsewhere.
    pub(crate) fn pack(&self, state: &State) -> Option<Packed> {
        each_compact!(self.kind(), it => Some(it.pack(&own(it, *state))), _ => None)
    }

    /// [`Compact::unpack`]; `None` for a state that is kept elsewhere.
    pub(crate) fn unpack(&self, packed: Packed) -> Option<State> {
        each_compact!(self.kind(), it => Some(wrap(it, it.unpack(packed))), _ => None)
    }
}

/// What the nodes of a store shared by many need.
impl Limit {
    /// [`Counter::write_limit`].
    pub fn write_limit(&self, cost: Cost, out: &mut Vec<u8>) {
        each!(self.kind(), it => it.write_limit(cost, out));
    }

    /// [`Counter::read_state`].
    pub fn read_state(&self, now_us: u64, numbers: &mut Numbers<'_>) -> Option<(State, u64)> {
        each!(self.kind(), it => {
            let (state, mark) = it.read_state(now_us, numbers)?;
            Some((wrap(it, state), mark))
        })
    }

    /// [`Counter::lease_terms`].
    pub fn lease_terms(&self) -> LeaseTerms {
        each!(self.kind(), it => it.lease_terms())
    }

    /// [`Counter::write_price`].
    pub fn write_price(&self, cost: Cost, out: &mut Vec<u8>) {
        each!(self.kind(), it => it.write_price(cost, out));
    }

    /// [`Counter::with_leased`].
    pub fn with_leased(&self, state: State, tokens: u32) -> State {
        each!(self.kind(), it => wrap(it, it.with_leased(own(it, state), tokens)))
    }

    /// [`Counter::charge_own`].
    pub fn charge_own(&self, mine: State, cost: Cost, with_it: &State) -> State {
        each!(self.kind(), it => {
            wrap(it, it.charge_own(own(it, mine), cost, &own(it, *with_it)))
        })
    }

    /// [`Counter::mark_at`].
    pub fn mark_at(&self, state: &State, charged_at_us: u64) -> u64 {
        each!(self.kind(), it => it.mark_at(&own(it, *state), charged_at_us))
    }

    /// [`Counter::write_parcel`].
    pub fn write_parcel(&self, mine: &State, parcel: &Parcel, out: &mut Vec<u8>) {
        each!(self.kind(), it => it.write_parcel(&own(it, *mine), parcel, out));
    }

    /// [`Counter::arrive`], from what the store had before.
    pub fn arrive(
        &self,
        before: Option<State>,
        mine: &State,
        parcel: &Parcel,
        now_us: u64,
    ) -> State {
        let state = before.map_or_else(|| self.new_state(now_us), |it| self.at(it, now_us));
        if mine.is_forgotten(parcel.cost) {
            return state;
        }
        let full_at_us = before.map(|it| it.last_us() + self.reset_after_us(&it));
        let parcel = Parcel {
            idle_us: full_at_us.map_or(parcel.idle_us, |it| now_us.saturating_sub(it)),
            ..*parcel
        };
        each!(self.kind(), it => {
            wrap(it, it.arrive(own(it, state), &own(it, *mine), &parcel))
        })
    }

    /// [`Counter::write_give_back`].
    pub fn write_give_back(&self, cost: Cost, out: &mut Vec<u8>) {
        each!(self.kind(), it => it.write_give_back(cost, out));
    }
}
