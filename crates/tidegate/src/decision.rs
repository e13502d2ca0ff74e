//! The answer to a check, with all its numbers.

use std::cell::Cell;
use std::hash::{BuildHasher, RandomState};
use std::num::NonZeroU64;
use std::time::Duration;

use smallvec::SmallVec;

use crate::algorithm::Outcome;
use crate::clock::micros;
use crate::cost::Cost;

/// What made the decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Source {
    /// The store that keeps the counters. Exact.
    Store,
    /// This node, with tokens that it took out of the store earlier. The limit holds as
    /// with the store, but the numbers are estimates.
    Lease,
    /// The store refused this key a moment ago, and the refusal still holds.
    RefusalMemory,
    /// This node, from its own count and the last total it read from the store. The numbers
    /// are estimates.
    Background,
    /// A limiter in this process, because the store failed.
    Local,
    /// The policy's `on_error`, because the store failed. Nothing was counted.
    ErrorPolicy,
}

impl Source {
    /// All sources, for example to count decisions by source.
    pub const ALL: [Self; 6] = [
        Self::Store,
        Self::Lease,
        Self::RefusalMemory,
        Self::Background,
        Self::Local,
        Self::ErrorPolicy,
    ];

    /// The name in responses and metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Store => "store",
            Self::Lease => "lease",
            Self::RefusalMemory => "refusal_memory",
            Self::Background => "background",
            Self::Local => "local",
            Self::ErrorPolicy => "error_policy",
        }
    }
}

/// The outcome of one level of a check, for authors of stores.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LevelOutcome {
    /// The numbers to report.
    pub outcome: Outcome,
    /// The cost of the check.
    pub cost: Cost,
    /// How the store identifies the charge in a refund.
    pub mark: u64,
}

impl LevelOutcome {
    /// The outcome of a level whose charge has this mark; 0 for one that was not charged.
    #[inline]
    pub const fn new(outcome: Outcome, cost: Cost, mark: u64) -> Self {
        Self {
            outcome,
            cost,
            mark,
        }
    }
}

/// Whether a request may proceed, and the numbers behind the decision.
///
/// The numbers describe one level: the first that refused or, if all admitted, the one
/// with the least remaining. They describe the state *after* the check.
///
/// ```
/// use std::time::Duration;
/// use tidegate::{Limit, Limiter};
///
/// let limiter = Limiter::in_memory(Limit::per_minute(2));
/// let decision = limiter.check("203.0.113.7");
/// assert!(decision.allowed());
/// assert_eq!((decision.limit(), decision.remaining()), (2, 1));
///
/// limiter.check("203.0.113.7");
/// let decision = limiter.check("203.0.113.7");
/// assert!(!decision.allowed());
/// let wait = decision.retry_after().expect("waiting helps here");
/// assert!(wait <= Duration::from_secs(30));
/// ```
#[derive(Debug, Clone)]
#[must_use = "the decision says whether the request may proceed"]
pub struct Decision {
    pub(crate) levels: Levels,
    pub(crate) decided_at_us: u64,
    pub(crate) denied_by: Option<u32>,
    pub(crate) source: Source,
    /// The id of the receipt for what was charged.
    pub(crate) receipt: Option<NonZeroU64>,
    /// Nothing was counted: refused because the store is unavailable. The microseconds until
    /// the next probe.
    pub(crate) unavailable_us: Option<NonZeroU64>,
}

/// Two decisions are equal when their numbers and outcome are equal.
impl PartialEq for Decision {
    fn eq(&self, other: &Self) -> bool {
        let says = |decision: &Self| {
            let Self {
                decided_at_us,
                denied_by,
                source,
                receipt,
                unavailable_us,
                ..
            } = *decision;
            let charged = receipt.is_some();
            (decided_at_us, denied_by, source, charged, unavailable_us)
        };
        says(self) == says(other) && self.levels == other.levels
    }
}

/// One level's numbers.
#[derive(Debug, Clone, Copy)]
pub struct LevelDecision {
    pub(crate) outcome: Outcome,
    pub(crate) charge: Charged,
    pub(crate) on_lease: OnLease,
}

/// What nodes have taken out of a shared store, to spend it without asking.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct OnLease {
    /// Requests of cost 1. The numbers of the level count them as used.
    pub tokens: u32,
    /// In how many leases: a node has at most two of a key that it spends.
    pub leases: u32,
}

impl OnLease {
    /// Nothing.
    pub(crate) const NONE: Self = Self {
        tokens: 0,
        leases: 0,
    };
}

/// How a store identifies a charge does not matter for equality.
impl PartialEq for LevelDecision {
    fn eq(&self, other: &Self) -> bool {
        self.outcome == other.outcome
    }
}

/// The levels of a decision, in the order of the check: one or two without allocating.
pub(crate) type Levels = SmallVec<[LevelDecision; 2]>;

/// What a level needs to know about a charge to refund it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Charged {
    pub(crate) cost: Cost,
    /// The store's number of the limit it was charged under.
    pub(crate) limit: u32,
    /// A part of the key's hash.
    pub(crate) print: u32,
    /// A generation number: how often receipts of nearby keys were voided before.
    pub(crate) era: u32,
    /// The window or the event that was charged.
    pub(crate) mark_us: u64,
}

/// Proof of a charge. Pass it to [`Limiter::refund`](crate::Limiter::refund) to give the
/// charge back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Receipt {
    pub(crate) id: NonZeroU64,
    pub(crate) decided_at_us: u64,
    pub(crate) levels: SmallVec<[Charged; 2]>,
}

impl Decision {
    /// A decision of the store at this instant, about no level yet.
    #[inline]
    pub(crate) fn at(decided_at_us: u64) -> Self {
        Self {
            levels: Levels::new(),
            decided_at_us,
            denied_by: None,
            source: Source::Store,
            receipt: None,
            unavailable_us: None,
        }
    }

    /// A decision of a store other than the memory store. `receipt` is the
    /// [id](Receipt::fresh_id) of the receipt, if anything was charged.
    pub fn from_store(
        levels: impl IntoIterator<Item = LevelOutcome>,
        decided_at_us: u64,
        denied_by: Option<usize>,
        source: Source,
        receipt: Option<u64>,
    ) -> Self {
        let levels = levels.into_iter().map(|level| LevelDecision {
            outcome: level.outcome,
            charge: Charged {
                cost: level.cost,
                limit: 0,
                print: 0,
                era: 0,
                mark_us: level.mark,
            },
            on_lease: OnLease::NONE,
        });
        Self {
            levels: levels.collect(),
            denied_by: denied_by.and_then(|index| u32::try_from(index).ok()),
            source,
            receipt: receipt.and_then(NonZeroU64::new),
            ..Self::at(decided_at_us)
        }
    }

    /// A refusal under `on_error = "deny"` because the store is unavailable. No quota is
    /// used up: it has no levels and no numbers, and `retry_after` is the time until the
    /// next probe of the store.
    pub fn unavailable(retry_after: Duration, decided_at_us: u64) -> Self {
        Self {
            denied_by: Some(0),
            source: Source::ErrorPolicy,
            unavailable_us: NonZeroU64::new(micros(retry_after).max(1)),
            ..Self::at(decided_at_us)
        }
    }

    /// Whether the request was refused because the store is unavailable, and not because a
    /// quota is used up.
    pub fn is_unavailable(&self) -> bool {
        self.unavailable_us.is_some()
    }

    /// The same decision with another source, and without a receipt, because the store has
    /// not charged it.
    pub fn with_source(self, source: Source) -> Self {
        Self {
            receipt: self.receipt.filter(|_| source == Source::Store),
            source,
            ..self
        }
    }

    /// The same decision, with what is on lease of each level, in the order of the check.
    pub fn with_leases(mut self, on_lease: impl IntoIterator<Item = OnLease>) -> Self {
        for (level, on_lease) in self.levels.iter_mut().zip(on_lease) {
            level.on_lease = on_lease;
        }
        self
    }

    /// Whether the request may proceed.
    pub fn allowed(&self) -> bool {
        self.denied_by.is_none()
    }

    /// Requests per window, or the capacity of a token bucket. `u32::MAX` if nothing is
    /// counted, and 0 if the store is [unavailable](Self::is_unavailable).
    pub fn limit(&self) -> u32 {
        let uncounted = self.uncounted();
        self.reported().map_or(uncounted, LevelDecision::limit)
    }

    /// How many requests of cost 1 would still be admitted now; never above
    /// [`limit`](Self::limit).
    pub fn remaining(&self) -> u32 {
        let uncounted = self.uncounted();
        self.reported().map_or(uncounted, LevelDecision::remaining)
    }

    /// The value of a number that no level provides.
    fn uncounted(&self) -> u32 {
        if self.is_unavailable() { 0 } else { u32::MAX }
    }

    /// Current usage: tokens used, requests counted, or the sliding estimate.
    pub fn rate(&self) -> f64 {
        self.reported().map_or(0.0, LevelDecision::rate)
    }

    /// How long to wait until the same cost is admitted, if no other request arrives. Exact
    /// to the microsecond. Zero if allowed, `None` if waiting never helps. (If a full store
    /// has no room for a new key, the time until a slot may free up.)
    pub fn retry_after(&self) -> Option<Duration> {
        if self.allowed() {
            return Some(Duration::ZERO);
        }
        if let Some(wait_us) = self.unavailable_us {
            return Some(Duration::from_micros(wait_us.get()));
        }
        // The longest of those that refuse: each of them only frees with time.
        self.levels()
            .iter()
            .try_fold(0, |longest, level| {
                level.outcome.retry_after_us.map(|wait| wait.max(longest))
            })
            .map(Duration::from_micros)
    }

    /// How long until the key's quota is full again.
    pub fn reset_after(&self) -> Duration {
        self.reported()
            .map_or(Duration::ZERO, LevelDecision::reset_after)
    }

    /// The index of the first level that refused, in the order of the check. `None` if no
    /// level refused, or if the store is [unavailable](Self::is_unavailable).
    pub fn denied_by(&self) -> Option<usize> {
        let denied_by = self.denied_by.filter(|_| !self.is_unavailable());
        denied_by.map(|index| index as usize)
    }

    /// What made the decision.
    pub fn source(&self) -> Source {
        self.source
    }

    /// The time of the decision on the store's clock, in microseconds since the Unix
    /// epoch.
    pub fn decided_at_us(&self) -> u64 {
        self.decided_at_us
    }

    /// Every level's numbers, in the order of the check.
    pub fn levels(&self) -> &[LevelDecision] {
        &self.levels
    }

    /// The receipt for a refund, if the check was allowed and charged.
    pub fn receipt(&self) -> Option<Receipt> {
        self.receipt.map(|id| Receipt {
            id: id_at(id, self.decided_at_us),
            decided_at_us: self.decided_at_us,
            levels: self.levels().iter().map(|level| level.charge).collect(),
        })
    }

    fn reported(&self) -> Option<&LevelDecision> {
        self.levels().get(self.reported_index()?)
    }

    pub(crate) fn reported_index(&self) -> Option<usize> {
        if let [_] = self.levels() {
            return Some(0);
        }
        let levels = self.levels().iter().enumerate();
        self.denied_by().or_else(|| {
            levels
                .min_by_key(|(_, level)| level.outcome.remaining())
                .map(|(index, _)| index)
        })
    }
}

impl LevelDecision {
    /// The numbers, for authors of stores.
    pub fn outcome(&self) -> Outcome {
        self.outcome
    }

    /// Requests per window, or the capacity of a token bucket.
    pub fn limit(&self) -> u32 {
        self.outcome.limit
    }

    /// How many requests of cost 1 this level would still admit now.
    pub fn remaining(&self) -> u32 {
        self.outcome.remaining()
    }

    /// Current usage: tokens used, requests counted, or the sliding estimate.
    pub fn rate(&self) -> f64 {
        self.outcome.rate()
    }

    /// What nodes have taken out of the store on lease, as of a look at a shared store: a
    /// look by `peek` or `explain`. Nothing in any other decision.
    pub fn on_lease(&self) -> OnLease {
        self.on_lease
    }

    /// How long until this level admits the same cost: zero if it does not refuse, `None`
    /// if waiting never helps.
    pub fn retry_after(&self) -> Option<Duration> {
        self.outcome.retry_after_us.map(Duration::from_micros)
    }

    /// How long until the quota of this level's key is full again.
    pub fn reset_after(&self) -> Duration {
        Duration::from_micros(self.outcome.reset_after_us)
    }
}

thread_local! {
    static LAST_ID: Cell<u64> = const { Cell::new(0) };
}

impl Receipt {
    /// An id for the receipt of one charge. Ids of a thread count up from a random
    /// number, so no two charges share one, on this machine or another.
    #[inline]
    pub fn fresh_id() -> u64 {
        fresh_id().get()
    }

    /// The unique id of the receipt. A store uses it to remember that the receipt was
    /// refunded.
    pub fn id(&self) -> u64 {
        self.id.get()
    }

    /// When the charge was decided on the store's clock, in microseconds since
    /// the Unix epoch.
    pub fn decided_at_us(&self) -> u64 {
        self.decided_at_us
    }

    /// Each level's cost and mark, in the order of the check.
    pub fn charges(&self) -> impl ExactSizeIterator<Item = (Cost, u64)> {
        self.levels
            .iter()
            .map(|charged| (charged.cost, charged.mark_us))
    }

    /// The receipt as bytes, to pass it out of the process.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(16 + 24 * self.levels.len());
        self.write(&mut bytes);
        bytes
    }

    /// Appends [the receipt as bytes](Self::to_bytes).
    pub fn write(&self, bytes: &mut Vec<u8>) {
        bytes.extend(self.id.get().to_le_bytes());
        bytes.extend(self.decided_at_us.to_le_bytes());
        for charged in &self.levels {
            let cost = charged.cost.get();
            for number in [cost, charged.limit, charged.print, charged.era] {
                bytes.extend(number.to_le_bytes());
            }
            bytes.extend(charged.mark_us.to_le_bytes());
        }
    }

    /// Parses the output of [`to_bytes`](Self::to_bytes); `None` for anything else.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (id, rest) = bytes.split_first_chunk()?;
        let (decided_at_us, mut rest) = rest.split_first_chunk()?;
        let mut levels = SmallVec::new();
        while !rest.is_empty() {
            let (numbers, more) = rest.split_first_chunk::<16>()?;
            let (mark_us, more) = more.split_first_chunk()?;
            let number = |index| u32::from_le_bytes(numbers.as_chunks().0[index]);
            levels.push(Charged {
                cost: Cost::new(number(0).into()).ok()?,
                limit: number(1),
                print: number(2),
                era: number(3),
                mark_us: u64::from_le_bytes(*mark_us),
            });
            rest = more;
        }
        Some(Self {
            id: NonZeroU64::new(u64::from_le_bytes(*id))?,
            decided_at_us: u64::from_le_bytes(*decided_at_us),
            levels,
        })
    }
}

/// The id of a receipt: a fork goes on with the ids of its parent, but not at the same time.
/// The factor keeps ids that count up apart from times that do.
fn id_at(id: NonZeroU64, decided_at_us: u64) -> NonZeroU64 {
    let time = decided_at_us.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    NonZeroU64::new(id.get().wrapping_add(time)).unwrap_or(NonZeroU64::MIN)
}

#[inline]
pub(crate) fn fresh_id() -> NonZeroU64 {
    let last = LAST_ID.get();
    let id = if last == 0 { first_id() } else { last };
    let id = NonZeroU64::new(id.wrapping_add(1)).unwrap_or(NonZeroU64::MIN);
    LAST_ID.set(id.get());
    id
}

#[cold]
fn first_id() -> u64 {
    RandomState::new().hash_one(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Limit, Limiter};

    /// R9: a forked process goes on with the ids of its parent.
    #[test]
    fn r9_charges_of_one_id_at_other_times_have_different_receipts() {
        let id = Some(Receipt::fresh_id());
        let receipt = |at_us| Decision::from_store([], at_us, None, Source::Store, id).receipt();
        let [first, second] = [1, 2].map(|at_us| receipt(at_us).expect("a charge").id());
        assert_ne!(first, second);
    }

    #[test]
    fn a_receipt_survives_as_bytes() {
        let limiter = Limiter::in_memory(Limit::per_minute(2));
        let receipt = limiter.check("x").receipt().expect("it was charged");
        let bytes = receipt.to_bytes();
        assert_eq!(Receipt::from_bytes(&bytes), Some(receipt));
        for length in 0..bytes.len() {
            let whole = length == 16;
            assert_eq!(Receipt::from_bytes(&bytes[..length]).is_some(), whole);
        }
        assert_eq!(Receipt::from_bytes(&[0; 16]), None, "an id of zero");
        let free = [&bytes[..16], &[0; 24]].concat();
        assert_eq!(Receipt::from_bytes(&free), None, "a cost of zero");
    }
}
