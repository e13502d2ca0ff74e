//! The table of algorithms: one line per algorithm, from which everything is made that
//! has to know all of them. A limit's algorithm is looked up here and nowhere else.

use std::fmt;

use super::{
    Block, Compact, Counter, FixedWindow, Outcome, Packed, PastCharge, SlidingLog, SlidingWindow,
    TokenBucket,
};
use crate::cost::Cost;
use crate::limit::Limit;

/// Makes the enums and their verbs. `compact` algorithms keep their state in an entry
/// of the in-memory table, `other` ones elsewhere or nowhere.
macro_rules! algorithms {
    (
        compact {
            $($(#[$compact_doc:meta])* $compact:ident = $compact_name:literal,)+
        }
        other { $($(#[$other_doc:meta])* $other:ident = $other_name:literal,)+ }
    ) => {
        /// What counts the requests.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Algorithm {
            $($(#[$compact_doc])* $compact,)+
            $($(#[$other_doc])* $other,)+
        }

        impl Algorithm {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$compact,)+ $(Self::$other,)+];

            /// Its name, as in a config file.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$compact => $compact_name,)+
                    $(Self::$other => $other_name,)+
                }
            }
        }

        /// A limit, taken apart by its algorithm.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Kind {
            $($(#[$compact_doc])* $compact($compact),)+
            $($(#[$other_doc])* $other($other),)+
        }

        /// What is counted for a key, whatever the algorithm. Under a limit of another
        /// algorithm it says nothing, and the key counts as new.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum State {
            $($(#[$compact_doc])* $compact(<$compact as Counter>::State),)+
            $($(#[$other_doc])* $other(<$other as Counter>::State),)+
        }

        impl State {
            /// The instant of the state.
            #[must_use]
            pub fn last_us(&self) -> u64 {
                match self {
                    $(Self::$compact(state) => $compact::last_us(state),)+
                    $(Self::$other(state) => $other::last_us(state),)+
                }
            }

            /// The same state on a clock that reads another time now.
            #[must_use]
            pub fn moved_to(self, last_us: u64) -> Self {
                match self {
                    $(Self::$compact(state) => {
                        Self::$compact($compact::moved_to(state, last_us))
                    })+
                    $(Self::$other(state) => Self::$other($other::moved_to(state, last_us)),)+
                }
            }
        }

        /// The verbs of [`Counter`], for whatever algorithm the limit has.
        impl Limit {
            /// What counts the requests.
            #[must_use]
            pub const fn algorithm(&self) -> Algorithm {
                match self.kind() {
                    $(Kind::$compact(_) => Algorithm::$compact,)+
                    $(Kind::$other(_) => Algorithm::$other,)+
                }
            }

            /// [`Counter::new_state`].
            #[must_use]
            pub fn new_state(&self, now_us: u64) -> State {
                match self.kind() {
                    $(Kind::$compact(limit) => {
                        State::$compact(limit.new_state(now_us))
                    })+
                    $(Kind::$other(limit) => State::$other(limit.new_state(now_us)),)+
                }
            }

            /// [`Counter::at`].
            #[must_use]
            pub fn at(&self, state: State, now_us: u64) -> State {
                match (self.kind(), state) {
                    $((Kind::$compact(limit), State::$compact(state)) => {
                        State::$compact(limit.at(state, now_us))
                    })+
                    $((Kind::$other(limit), State::$other(state)) => {
                        State::$other(limit.at(state, now_us))
                    })+
                    _ => self.new_state(now_us),
                }
            }

            /// [`Counter::admits`].
            #[must_use]
            pub fn admits(&self, state: &State, cost: Cost) -> bool {
                match (self.kind(), state) {
                    $((Kind::$compact(limit), State::$compact(state)) => {
                        limit.admits(state, cost)
                    })+
                    $((Kind::$other(limit), State::$other(state)) => limit.admits(state, cost),)+
                    _ => self.admits(&self.new_state(state.last_us()), cost),
                }
            }

            /// [`Counter::charge`].
            #[must_use]
            pub fn charge(&self, state: State, cost: Cost) -> State {
                match (self.kind(), state) {
                    $((Kind::$compact(limit), State::$compact(state)) => {
                        State::$compact(limit.charge(state, cost))
                    })+
                    $((Kind::$other(limit), State::$other(state)) => {
                        State::$other(limit.charge(state, cost))
                    })+
                    _ => self.charge(self.new_state(state.last_us()), cost),
                }
            }

            /// [`Counter::saturate`].
            #[must_use]
            pub fn saturate(&self, state: State, cost: Cost) -> State {
                match (self.kind(), state) {
                    $((Kind::$compact(limit), State::$compact(state)) => {
                        State::$compact(limit.saturate(state, cost))
                    })+
                    $((Kind::$other(limit), State::$other(state)) => {
                        State::$other(limit.saturate(state, cost))
                    })+
                    _ => self.saturate(self.new_state(state.last_us()), cost),
                }
            }

            /// [`Counter::refund`].
            #[must_use]
            pub fn refund(&self, state: State, charge: PastCharge) -> State {
                match (self.kind(), state) {
                    $((Kind::$compact(limit), State::$compact(state)) => {
                        State::$compact(limit.refund(state, charge))
                    })+
                    $((Kind::$other(limit), State::$other(state)) => {
                        State::$other(limit.refund(state, charge))
                    })+
                    _ => self.new_state(state.last_us()),
                }
            }

            /// [`Counter::outcome`].
            #[must_use]
            pub fn outcome(&self, state: &State, cost: Cost, admitted: bool) -> Outcome {
                match (self.kind(), state) {
                    $((Kind::$compact(limit), State::$compact(state)) => {
                        limit.outcome(state, cost, admitted)
                    })+
                    $((Kind::$other(limit), State::$other(state)) => {
                        limit.outcome(state, cost, admitted)
                    })+
                    _ => self.outcome(&self.new_state(state.last_us()), cost, admitted),
                }
            }

            /// [`Counter::counts_for_us`].
            #[must_use]
            pub fn counts_for_us(&self, cost: Cost) -> u64 {
                match self.kind() {
                    $(Kind::$compact(limit) => limit.counts_for_us(cost),)+
                    $(Kind::$other(limit) => limit.counts_for_us(cost),)+
                }
            }

            /// [`Counter::mark_us`].
            #[must_use]
            pub fn mark_us(&self, state: &State) -> u64 {
                match (self.kind(), state) {
                    $((Kind::$compact(limit), State::$compact(state)) => {
                        limit.mark_us(state)
                    })+
                    $((Kind::$other(limit), State::$other(state)) => limit.mark_us(state),)+
                    _ => 0,
                }
            }

            /// [`Counter::counts_like`]: never, where the algorithm is another one.
            #[must_use]
            pub fn counts_like(&self, old: &Self) -> bool {
                match (self.kind(), old.kind()) {
                    $((Kind::$compact(limit), Kind::$compact(old)) => {
                        limit.counts_like(old)
                    })+
                    $((Kind::$other(limit), Kind::$other(old)) => limit.counts_like(old),)+
                    _ => false,
                }
            }

            /// [`Counter::adopt`]: another algorithm starts anew.
            #[must_use]
            pub fn adopt(&self, old: &Self, state: State, now_us: u64) -> State {
                match (self.kind(), old.kind(), state) {
                    $((Kind::$compact(limit), Kind::$compact(old), State::$compact(state)) => {
                        State::$compact(limit.adopt(old, state, now_us))
                    })+
                    $((Kind::$other(limit), Kind::$other(old), State::$other(state)) => {
                        State::$other(limit.adopt(old, state, now_us))
                    })+
                    _ => self.new_state(now_us),
                }
            }

            /// [`Compact::pack`]; `None` for a state that is kept elsewhere.
            pub(crate) fn pack(&self, state: &State) -> Option<Packed> {
                match (self.kind(), state) {
                    $((Kind::$compact(limit), State::$compact(state)) => {
                        Some(limit.pack(state))
                    })+
                    _ => None,
                }
            }

            /// [`Compact::unpack`]; `None` for a state that is kept elsewhere.
            pub(crate) fn unpack(&self, packed: Packed) -> Option<State> {
                match self.kind() {
                    $(Kind::$compact(limit) => {
                        Some(State::$compact(limit.unpack(packed)))
                    })+
                    $(Kind::$other(_) => None,)+
                }
            }
        }

        /// Runs generic code on the limit inside a [`Kind`] where it is [`Compact`].
        macro_rules! each_compact {
            ($kind:expr, $limit:ident => $body:expr, _ => $other_body:expr) => {
                match $kind {
                    $($crate::algorithm::Kind::$compact($limit) => $body,)+
                    $($crate::algorithm::Kind::$other(_) => $other_body,)+
                }
            };
        }
        pub(crate) use each_compact;
    };
}

algorithms! {
    compact {
        /// A bucket that refills continuously ([`TokenBucket`]).
        TokenBucket = "token_bucket",
        /// One counter per window ([`FixedWindow`]).
        FixedWindow = "fixed_window",
        /// Two counters, the older one fading out ([`SlidingWindow`]).
        SlidingWindow = "sliding_window",
    }
    other {
        /// Every admitted event of the last window ([`SlidingLog`]).
        SlidingLog = "sliding_log",
        /// Nothing is counted: everything is refused ([`Block`]).
        Block = "block",
    }
}

#[expect(
    clippy::derivable_impls,
    reason = "the attribute has no place in the table"
)]
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
