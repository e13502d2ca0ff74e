//! What is out on lease, and what that does to the numbers of a key.

use smallvec::SmallVec;
use tidegate::algorithm::{Outcome, Span, State, TokenBucket};
use tidegate::{Cost, Kind, Limit};

use crate::call::{BadReply, Numbers};

/// The longest debt that the scripts count: more than any bucket holds.
const MAX_US: u64 = 1 << 52;

/// Tokens of a key that nodes have taken and not accounted for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) struct Out {
    pub(crate) tokens: u32,
    pub(crate) leases: u32,
    /// Until the last of the leases ends.
    pub(crate) last_us: u64,
}

impl Out {
    pub(crate) fn read(numbers: &mut Numbers<'_>) -> Result<Self, BadReply> {
        Ok(Self {
            tokens: numbers.next_u32()?,
            leases: numbers.next_u32()?,
            last_us: numbers.next()?,
        })
    }

    /// What follows the numbers of so many levels that can lease, if anything of one of
    /// them is out.
    pub(crate) fn after(bytes: &[u8], levels: usize) -> Option<SmallVec<[Self; 2]>> {
        if bytes.is_empty() {
            return Some(SmallVec::new());
        }
        let (levels_of, []) = bytes.as_chunks::<13>() else {
            return None;
        };
        let outs = levels_of.iter().map(|level| {
            let number = |from: usize, to: usize| {
                let bytes = level[from..to].iter().rev();
                bytes.fold(0, |number, byte| number << 8 | u64::from(*byte))
            };
            Some(Self {
                tokens: u32::try_from(number(0, 4)).ok()?,
                leases: u32::try_from(number(4, 6)).ok()?,
                last_us: number(6, 13),
            })
        });
        let outs: Option<SmallVec<[Self; 2]>> = outs.collect();
        outs.filter(|outs| outs.len() == levels)
    }

    /// A count with all that is out in it, as if it were used.
    pub(crate) fn on(&self, limit: &Limit, used: State) -> State {
        if self.tokens == 0 {
            return used;
        }
        match (used, limit.kind()) {
            (State::TokenBucket(mut state), Kind::TokenBucket(bucket)) => {
                state.debt = charged(bucket, state.debt, self.tokens);
                State::TokenBucket(state)
            }
            (State::FixedWindow(mut state), _) => {
                state.count = state.count.saturating_add(self.tokens);
                state.left_us = state.left_us.max(1);
                State::FixedWindow(state)
            }
            (used, _) => used,
        }
    }

    /// The numbers of a key, given what is used of it. Where only leases that end can
    /// help, it is not known when they do: when the last one does.
    pub(crate) fn outcome(
        &self,
        limit: &Limit,
        used: &State,
        cost: Cost,
        admitted: bool,
    ) -> Outcome {
        let outcome = limit.outcome(&self.on(limit, *used), cost, admitted);
        self.waited_for(outcome, used, admitted)
    }

    /// Numbers that count what is out as used, with the time that leases may take to end.
    pub(crate) fn waited_for(&self, mut outcome: Outcome, used: &State, admitted: bool) -> Outcome {
        if self.tokens == 0 {
            return outcome;
        }
        match used {
            State::TokenBucket(state) => {
                let drains_us = state.debt.us + u64::from(state.debt.parts > 0);
                outcome.reset_after_us += self.last_us;
                if outcome.retry_after_us.is_some_and(|it| it > drains_us) && !admitted {
                    outcome.retry_after_us = outcome.retry_after_us.map(|it| it + self.last_us);
                }
            }
            _ => outcome.reset_after_us = outcome.reset_after_us.max(self.last_us),
        }
        outcome
    }
}

/// A debt with so many tokens more, as the scripts count it.
pub(crate) fn charged(bucket: &TokenBucket, debt: Span, tokens: u32) -> Span {
    let per_us = u128::from(bucket.parts_per_us());
    let parts = u128::from(debt.us) * per_us
        + u128::from(debt.parts)
        + u128::from(tokens) * u128::from(bucket.token_parts());
    match u64::try_from(parts / per_us) {
        Ok(us) if us < MAX_US => Span {
            us,
            parts: u32::try_from(parts % per_us).unwrap_or(0),
        },
        _ => Span {
            us: MAX_US,
            parts: 0,
        },
    }
}
