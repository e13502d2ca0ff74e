//! What a node has admitted on its own, how it travels, and what a count is after it has
//! arrived: the script `flush.lua` does the same, number for number.
//!
//! A window's charges are worth what they come to in the window. A bucket's drain, and
//! it matters when they were made: charges `C` that would have left the debt `own` in a
//! bucket of their own leave, in a bucket that had the debt `d` so long ago,
//!
//! ```text
//! max(d + C - elapsed, own)
//! ```
//!
//! The first is what is left if the bucket was never full in between, and the second if
//! it was full at some time: then only what was charged after that counts, and `own` is
//! the most of that which any such time leaves.

use std::time::Duration;

use smallvec::{SmallVec, smallvec};
use tidegate::algorithm::{Counter, SlidingLogState, Span, State, TokenBucket};
use tidegate::{Align, Cost, Kind, Limit};

use crate::call::pack;
use crate::count;

/// How long the store keeps a bucket that is full. A node that has not been able to tell
/// the store anything for longer than this may be credited with too long a time in which
/// nobody else charged anything.
pub(crate) const KEPT: Duration = Duration::from_secs(10);

/// The most a sliding window counts in one of its windows, and a log in all.
const MAX_SLIDING: u32 = (1 << 30) - 1;
const MAX_LOG: u32 = 16_000_000;

/// The longest debt: a century.
const MAX_DEBT_US: u64 = 3_155_760_000_000_000;

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
            own: emptied(at),
            cost: 0,
        }
    }

    pub(crate) fn is_none(&self) -> bool {
        match self.own {
            State::FixedWindow(state) => state.count == 0,
            State::SlidingWindow(state) => state.cur == 0 && state.prev == 0,
            State::SlidingLog(log) => log.used == 0,
            State::TokenBucket(_) => self.cost == 0,
            State::Block(_) => true,
        }
    }

    /// Another charge, to a count that has it already.
    pub(crate) fn charge(&mut self, limit: &Limit, cost: Cost, to: &State) {
        self.charge_own(limit, cost, to);
        self.cost = self.cost.saturating_add(cost.get().into());
    }

    /// The same of one that is counted in another place: it goes where that count is.
    pub(crate) fn charge_own(&mut self, limit: &Limit, cost: Cost, to: &State) {
        // Of a look on its way, `own` is all there is: `cost` stays with what is pending.
        let is_empty = match self.own {
            State::TokenBucket(own) => own.debt == Span::default(),
            _ => self.is_none(),
        };
        if is_empty {
            self.own = emptied(to);
        }
        self.own = limit.charge(self.own, cost);
        if let (State::FixedWindow(own), State::FixedWindow(to)) = (&mut self.own, to) {
            own.left_us = to.left_us;
        }
    }

    /// A charge is given back before anybody was told of it.
    pub(crate) fn give_back(&mut self, limit: &Limit, cost: Cost, charged_at_us: u64) {
        self.own = count::give_back(limit, self.own, cost, charged_at_us);
        self.cost = self.cost.saturating_sub(cost.get().into());
    }
}

impl Parcel {
    /// What the script is given.
    pub(crate) fn argument(&self) -> Vec<u8> {
        let mut argument = pack(&self.limit, Cost::ONE).unwrap_or_default();
        let numbers: SmallVec<[u64; 8]> = match (self.unsent.own, self.limit.kind()) {
            (State::TokenBucket(own), Kind::TokenBucket(bucket)) => {
                let price = span(bucket, parts_of(bucket, self.unsent.cost));
                let kept = u64::try_from(KEPT.as_micros()).unwrap_or(0);
                smallvec![
                    self.unsent.cost,
                    price.us,
                    price.parts.into(),
                    own.debt.us,
                    own.debt.parts.into(),
                    self.idle_us,
                    kept,
                ]
            }
            (State::FixedWindow(own), _) => {
                smallvec![own.count.into(), own.left_us, self.is_opened_here.into()]
            }
            (State::SlidingWindow(own), _) => {
                let cost = u64::from(own.cur) + u64::from(own.prev);
                smallvec![cost, own.prev.into(), self.elapsed_us(own.elapsed_us)]
            }
            (State::SlidingLog(own), _) => smallvec![own.used.into()],
            _ => smallvec![0],
        };
        for number in numbers {
            // More than Lua can count exactly makes no difference.
            let bytes = number.min(1 << 53).to_le_bytes();
            argument.extend_from_slice(&bytes[..7]);
        }
        argument
    }

    /// What a key comes to when it gets there, from what the store had of it.
    pub(crate) fn arrive(&self, before: Option<State>, now_us: u64) -> State {
        let limit = &self.limit;
        let new = || limit.new_state(now_us);
        let mut count = before.map_or_else(new, |state| limit.at(state, now_us));
        if self.unsent.is_none() {
            return count;
        }
        match (&mut count, self.unsent.own, limit.kind()) {
            (State::TokenBucket(state), State::TokenBucket(own), Kind::TokenBucket(bucket)) => {
                let idle_us = match before {
                    Some(State::TokenBucket(before)) => {
                        let full_at = before.last_us + before.debt.us;
                        now_us.saturating_sub(full_at + u64::from(before.debt.parts > 0))
                    }
                    _ => self.idle_us,
                };
                let mut debt = parts(bucket, state.debt) + parts_of(bucket, self.unsent.cost);
                if state.debt == Span::default() {
                    let drained = u128::from(idle_us) * u128::from(bucket.parts_per_us());
                    debt = debt.saturating_sub(drained);
                }
                state.debt = span(bucket, debt.max(parts(bucket, own.debt)));
            }
            (State::FixedWindow(state), State::FixedWindow(own), Kind::FixedWindow(window)) => {
                let is_new = state.count == 0;
                match window.align() {
                    // Of two windows, the later end.
                    Align::First if is_new || self.is_opened_here => {
                        let own_left = own.left_us.clamp(1, window.rate().window_us());
                        state.left_us = state.left_us.max(own_left);
                    }
                    Align::Epoch if is_new => {
                        state.left_us = window.charge(*state, Cost::ONE).left_us;
                    }
                    _ => {}
                }
                state.count = state.count.saturating_add(own.count);
            }
            (State::SlidingWindow(state), State::SlidingWindow(own), Kind::SlidingWindow(it)) => {
                let (mut last, mut this) = (own.prev, own.cur);
                let behind = self.elapsed_us(own.elapsed_us);
                let behind = behind.saturating_sub(state.elapsed_us);
                if 2 * behind > it.rate().window_us() {
                    (last, this) = (this, 0);
                }
                state.prev = state.prev.saturating_add(last).min(MAX_SLIDING);
                state.cur = state.cur.saturating_add(this).min(MAX_SLIDING);
            }
            (State::SlidingLog(log), State::SlidingLog(own), Kind::SlidingLog(limit)) => {
                let added = own.used.min(MAX_LOG.saturating_sub(log.used));
                if let Ok(added) = Cost::new(added.into()) {
                    *log = limit.charge(*log, added);
                }
            }
            // Counts of another algorithm say nothing. Every algorithm is named, so that a
            // new one cannot lose its charges here.
            (
                _,
                _,
                Kind::TokenBucket(_)
                | Kind::FixedWindow(_)
                | Kind::SlidingWindow(_)
                | Kind::SlidingLog(_)
                | Kind::Block(_),
            ) => {}
        }
        count
    }

    /// How much of its window has elapsed: by a clock that is not the store's, nobody
    /// knows.
    fn elapsed_us(&self, elapsed_us: u64) -> u64 {
        match self.on_time {
            true => elapsed_us,
            false => 0,
        }
    }
}

/// A cost, in the parts of a bucket.
fn parts_of(bucket: &TokenBucket, cost: u64) -> u128 {
    u128::from(cost) * u128::from(bucket.token_parts())
}

fn parts(bucket: &TokenBucket, span: Span) -> u128 {
    u128::from(span.us) * u128::from(bucket.parts_per_us()) + u128::from(span.parts)
}

/// The span of so many parts, at most a century.
fn span(bucket: &TokenBucket, parts: u128) -> Span {
    let per_us = u128::from(bucket.parts_per_us());
    let us = u64::try_from(parts / per_us).unwrap_or(u64::MAX);
    if us >= MAX_DEBT_US {
        return Span {
            us: MAX_DEBT_US,
            parts: 0,
        };
    }
    Span {
        us,
        parts: u32::try_from(parts % per_us).unwrap_or(0),
    }
}

/// The state with nothing counted, at the same place in time.
fn emptied(state: &State) -> State {
    match *state {
        State::TokenBucket(mut state) => {
            state.debt = Span::default();
            State::TokenBucket(state)
        }
        State::FixedWindow(mut state) => {
            state.count = 0;
            State::FixedWindow(state)
        }
        State::SlidingWindow(mut state) => {
            (state.prev, state.cur) = (0, 0);
            State::SlidingWindow(state)
        }
        State::SlidingLog(log) => State::SlidingLog(SlidingLogState { used: 0, ..log }),
        State::Block(last_us) => State::Block(last_us),
    }
}
