//! What is out on lease, and what that does to the numbers of a key.

use smallvec::SmallVec;
use tidegate::algorithm::{Numbers, Outcome, State};
use tidegate::{Cost, Limit};

use crate::script::unpack;

/// Tokens of a key that nodes have taken and not accounted for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) struct Out {
    pub(crate) tokens: u32,
    pub(crate) leases: u32,
    /// Until the last of the leases ends.
    pub(crate) last_us: u64,
}

impl Out {
    pub(crate) fn read(numbers: &mut Numbers<'_>) -> Option<Self> {
        Some(Self {
            tokens: numbers.next_u32()?,
            leases: numbers.next_u32()?,
            last_us: numbers.next()?,
        })
    }

    /// What follows the numbers of so many levels that can lease, if anything of one of
    /// them is out.
    pub(crate) fn after(bytes: &[u8], levels: usize) -> Option<SmallVec<[Self; 2]>> {
        let levels_of = bytes.chunks(13).map(|level| {
            let (numbers, _) = unpack(&[4, 2, 7], level)?;
            Self::read(&mut Numbers::new(&numbers))
        });
        let outs: Option<SmallVec<[Self; 2]>> = levels_of.collect();
        outs.filter(|outs| outs.is_empty() || outs.len() == levels)
    }

    /// A count with all that is out in it, as if it were used.
    pub(crate) fn on(&self, limit: &Limit, used: State) -> State {
        match self.tokens {
            0 => used,
            tokens => limit.with_leased(used, tokens),
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
        self.waited_for(outcome, limit, used, admitted)
    }

    /// Numbers that count what is out as used, with the time that leases may take to end.
    pub(crate) fn waited_for(
        &self,
        mut outcome: Outcome,
        limit: &Limit,
        used: &State,
        admitted: bool,
    ) -> Outcome {
        if self.tokens == 0 {
            return outcome;
        }
        if limit.lease_terms().token_us.is_none() {
            outcome.reset_after_us = outcome.reset_after_us.max(self.last_us);
            return outcome;
        }
        // What is used comes back token by token; what is out, once its lease has ended.
        let drains_us = limit.reset_after_us(used);
        outcome.reset_after_us += self.last_us;
        if outcome.retry_after_us.is_some_and(|it| it > drains_us) && !admitted {
            outcome.retry_after_us = outcome.retry_after_us.map(|it| it + self.last_us);
        }
        outcome
    }
}
