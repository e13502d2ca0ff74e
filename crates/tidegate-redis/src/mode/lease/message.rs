//! What a node and the store tell each other about the leases of a key: the arguments of
//! `lease.lua` and its reply.

use smallvec::SmallVec;
use tidegate::algorithm::{Numbers, State};
use tidegate::{Cost, Limit};

use super::out::Out;
use crate::script::Script;

/// How long a lease runs, on the store's clock: `T`.
pub(crate) const TERM_US: u64 = 1_000_000;

/// The most tokens of a key that are out.
pub(crate) const MOST_TOKENS: u32 = 1 << 20;

/// Leases that a message returns, and runs of checks that it asks for.
pub(crate) const SETTLES: usize = 2;
pub(crate) const RUNS: usize = 64;

/// One message about one key. The store does it in this order, in one step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Message {
    pub(crate) limit: Limit,
    /// Leases that are returned.
    pub(crate) settles: SmallVec<[Settle; SETTLES]>,
    /// Checks that wait, in the order of their arrival.
    pub(crate) asks: SmallVec<[Run; 2]>,
    /// A lease that is wanted.
    pub(crate) grant: Option<Grant>,
}

/// A lease that is returned, and what was spent of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Settle {
    pub(crate) nonce: u64,
    pub(crate) spent: u32,
}

/// Checks of one cost, one after the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) cost: Cost,
    pub(crate) count: u32,
}

/// A lease of so many tokens, or fewer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Grant {
    pub(crate) nonce: u64,
    pub(crate) want: u32,
}

/// What the store says to a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Reply {
    pub(crate) now_us: u64,
    /// The tokens of the lease that was wanted, and how long it runs.
    pub(crate) given: u32,
    pub(crate) lease_us: u64,
    /// What is used, and since when the key has been counted without a break.
    pub(crate) used: State,
    pub(crate) era_us: u64,
    pub(crate) out: Out,
    /// How many checks of each run are admitted.
    pub(crate) admitted: SmallVec<[u32; 2]>,
}

impl Message {
    /// As the script unpacks it.
    pub(crate) fn argument(&self) -> Vec<u8> {
        let mut argument = Vec::with_capacity(96);
        self.limit.write_limit(Cost::ONE, &mut argument);
        let length = |length: usize| u8::try_from(length).unwrap_or(u8::MAX);
        let grant = self.grant.unwrap_or(Grant { nonce: 0, want: 0 });
        argument.extend_from_slice(&(size(&self.limit) / 2).to_le_bytes());
        argument.push(length(self.settles.len()));
        argument.extend_from_slice(&grant.want.to_le_bytes());
        argument.extend_from_slice(&grant.nonce.to_le_bytes());
        argument.push(length(self.asks.len()));
        for settle in &self.settles {
            argument.extend_from_slice(&settle.nonce.to_le_bytes());
            argument.extend_from_slice(&settle.spent.to_le_bytes());
        }
        for run in &self.asks {
            argument.extend_from_slice(&run.count.to_le_bytes());
            argument.extend_from_slice(&run.cost.get().to_le_bytes());
            self.limit.write_price(run.cost, &mut argument);
        }
        argument
    }
}

impl Reply {
    /// What the script has said to a message of so many runs; `None` for anything else.
    pub(crate) fn read(limit: &Limit, script: &Script, bytes: &[u8], runs: usize) -> Option<Self> {
        let (numbers, rest) = script.numbers_and_rest(bytes)?;
        let mut numbers = Numbers::new(&numbers);
        let now_us = numbers.next()?;
        let given = numbers.next_u32()?;
        let (used, era_us) = limit.read_state(now_us, &mut numbers)?;
        let lease_us = numbers.next()?;
        let out = Out::read(&mut numbers).filter(|_| numbers.is_empty())?;
        let (runs_of, []) = rest.as_chunks::<4>() else {
            return None;
        };
        let admitted: SmallVec<[u32; 2]> =
            runs_of.iter().map(|it| u32::from_le_bytes(*it)).collect();
        (admitted.len() == runs).then_some(Self {
            now_us,
            given,
            lease_us,
            used,
            era_us,
            out,
            admitted,
        })
    }

    /// Whether nothing more could be admitted, as it stands.
    pub(crate) fn is_full(&self, limit: &Limit) -> bool {
        !limit.admits(&self.out.on(limit, self.used), Cost::ONE)
    }
}

/// `B`, or `N` for a window.
pub(crate) fn size(limit: &Limit) -> u32 {
    limit.lease_terms().size
}
