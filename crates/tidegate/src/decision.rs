//! The answer to a check, with all its numbers.

use std::cell::Cell;
use std::hash::{BuildHasher, RandomState};
use std::num::NonZeroU64;
use std::time::Duration;

use smallvec::SmallVec;

use crate::algorithm::Outcome;
use crate::cost::Cost;

/// Who answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Source {
    /// The store that keeps the counts: exact.
    Store,
    /// This node, by tokens that it took out of the store before: as exact as the store,
    /// but its numbers are estimates.
    Lease,
    /// The store, a moment ago: its refusal still holds.
    RefusalMemory,
    /// This node, by its own count and what it last heard from the store: its numbers
    /// are estimates.
    Background,
    /// A limiter of this process, because the store could not.
    Local,
    /// Nobody: the store could not, and the policy says what to do then.
    ErrorPolicy,
}

impl Source {
    /// All of them, for those who count.
    pub const ALL: [Self; 6] = [
        Self::Store,
        Self::Lease,
        Self::RefusalMemory,
        Self::Background,
        Self::Local,
        Self::ErrorPolicy,
    ];

    /// Its name, as in answers and metrics.
    #[must_use]
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

/// What one level of a check came to, for those who write a store.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LevelOutcome {
    /// The numbers to report.
    pub outcome: Outcome,
    /// The cost of the check.
    pub cost: Cost,
    /// What the store will know the charge by when it is given back.
    pub mark: u64,
}

/// May it go on, and the numbers behind the answer.
///
/// The numbers at the top are those of one level: the first that refused, or,
/// when allowed, the one with the least remaining. They are as they stand *after*
/// the check.
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
#[must_use = "the decision says whether the request may go on"]
pub struct Decision {
    pub(crate) levels: Levels,
    pub(crate) decided_at_us: u64,
    pub(crate) denied_by: Option<u32>,
    pub(crate) source: Source,
    /// The id of the receipt for what was charged.
    pub(crate) receipt: Option<NonZeroU64>,
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
                ..
            } = *decision;
            (decided_at_us, denied_by, source, receipt.is_some())
        };
        says(self) == says(other) && self.levels == other.levels
    }
}

/// What one level says about a check.
#[derive(Debug, Clone, Copy)]
pub struct LevelDecision {
    pub(crate) outcome: Outcome,
    pub(crate) charge: Charged,
}

impl LevelDecision {
    /// Before anything is known.
    pub(crate) const BLANK: Self = Self {
        outcome: Outcome::BLOCKED,
        charge: Charged {
            cost: Cost::ONE,
            limit: 0,
            print: 0,
            era: 0,
            mark_us: 0,
        },
    };
}

/// What a store remembers a charge by is its own business.
impl PartialEq for LevelDecision {
    fn eq(&self, other: &Self) -> bool {
        self.outcome == other.outcome
    }
}

/// The levels of a decision, in the order of the check: one or two without
/// allocating.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Levels {
    One([LevelDecision; 1]),
    Two([LevelDecision; 2]),
    Any(Box<[LevelDecision]>),
    /// Nobody counted: refused because the store could not be asked. It may be in so
    /// many microseconds.
    Unavailable(u64),
}

impl Levels {
    #[inline]
    pub(crate) fn from_slice(levels: &[LevelDecision]) -> Self {
        match levels {
            [level] => Self::One([*level]),
            [first, second] => Self::Two([*first, *second]),
            levels => Self::Any(levels.into()),
        }
    }

    pub(crate) fn as_slice(&self) -> &[LevelDecision] {
        match self {
            Self::One(levels) => levels,
            Self::Two(levels) => levels,
            Self::Any(levels) => levels,
            Self::Unavailable(_) => &[],
        }
    }
}

impl<I: Iterator<Item = LevelDecision>> From<I> for Levels {
    fn from(mut levels: I) -> Self {
        let Some(first) = levels.next() else {
            return Self::Any(Box::default());
        };
        let Some(second) = levels.next() else {
            return Self::One([first]);
        };
        match levels.next() {
            None => Self::Two([first, second]),
            third => Self::Any(
                [first, second]
                    .into_iter()
                    .chain(third)
                    .chain(levels)
                    .collect(),
            ),
        }
    }
}

/// What a level remembers of a charge, to be able to give it back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Charged {
    pub(crate) cost: Cost,
    /// The limit it was charged under, as the store numbers them.
    pub(crate) limit: u32,
    /// A part of the key's hash.
    pub(crate) print: u32,
    /// How often receipts of keys near this one had become void.
    pub(crate) era: u32,
    /// Which window, or which event, it went to.
    pub(crate) mark_us: u64,
}

/// Proof of a charge: what [`Limiter::refund`](crate::Limiter::refund) needs to
/// give it back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Receipt {
    pub(crate) id: NonZeroU64,
    pub(crate) decided_at_us: u64,
    pub(crate) levels: SmallVec<[Charged; 2]>,
}

impl Decision {
    /// A decision of another store than the one in memory. `receipt` is the
    /// [id](Receipt::fresh_id) of the receipt for what was charged, if anything was.
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
        });
        Self {
            levels: Levels::from(levels),
            decided_at_us,
            denied_by: denied_by.and_then(|index| u32::try_from(index).ok()),
            source,
            receipt: receipt.and_then(NonZeroU64::new),
        }
    }

    /// A refusal because the store could not be asked, under `on_error = "deny"`. It is
    /// no quota: it has no levels and no numbers, and `retry_after` is when the store is
    /// asked again.
    pub fn unavailable(retry_after: Duration, decided_at_us: u64) -> Self {
        let wait_us = u64::try_from(retry_after.as_micros()).unwrap_or(u64::MAX);
        Self {
            levels: Levels::Unavailable(wait_us.max(1)),
            decided_at_us,
            denied_by: Some(0),
            source: Source::ErrorPolicy,
            receipt: None,
        }
    }

    /// Whether it was refused because the store could not be asked, and not because a
    /// quota is used up.
    #[must_use]
    pub fn is_unavailable(&self) -> bool {
        matches!(self.levels, Levels::Unavailable(_))
    }

    /// The same decision, told to come from somebody else: there is no receipt for
    /// what the store has not charged.
    pub fn with_source(self, source: Source) -> Self {
        Self {
            receipt: self.receipt.filter(|_| source == Source::Store),
            source,
            ..self
        }
    }

    /// Whether the request may go on.
    #[must_use]
    pub fn allowed(&self) -> bool {
        self.denied_by.is_none()
    }

    /// The requests per window, or the size of a token bucket. `u32::MAX` when nothing
    /// is counted, and 0 when the store is [unavailable](Self::is_unavailable).
    #[must_use]
    pub fn limit(&self) -> u32 {
        let uncounted = self.uncounted();
        self.reported().map_or(uncounted, LevelDecision::limit)
    }

    /// Requests of cost 1 that would still be admitted now; never above
    /// [`limit`](Self::limit).
    #[must_use]
    pub fn remaining(&self) -> u32 {
        let uncounted = self.uncounted();
        self.reported().map_or(uncounted, LevelDecision::remaining)
    }

    /// What stands for a number that no level has.
    fn uncounted(&self) -> u32 {
        match self.levels {
            Levels::Unavailable(_) => 0,
            _ => u32::MAX,
        }
    }

    /// Usage now: tokens used, requests counted, or the sliding estimate.
    #[must_use]
    pub fn rate(&self) -> f64 {
        self.reported().map_or(0.0, LevelDecision::rate)
    }

    /// How long to wait before the same cost is admitted, if nobody else comes:
    /// exactly so long, and not a microsecond less. Zero when allowed, `None`
    /// when waiting will never help. (When a full store has no room for a new key, it
    /// is when there may be.)
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        if self.allowed() {
            return Some(Duration::ZERO);
        }
        if let Levels::Unavailable(wait_us) = self.levels {
            return Some(Duration::from_micros(wait_us));
        }
        // The longest of those that refuse: each of them only frees with time.
        self.levels()
            .iter()
            .try_fold(0, |longest, level| {
                level.outcome.retry_after_us.map(|wait| wait.max(longest))
            })
            .map(Duration::from_micros)
    }

    /// How long until the key is as good as new.
    #[must_use]
    pub fn reset_after(&self) -> Duration {
        self.reported()
            .map_or(Duration::ZERO, LevelDecision::reset_after)
    }

    /// The index, in the order of the check, of the first level that refused. None when
    /// the store is [unavailable](Self::is_unavailable): then no level did.
    #[must_use]
    pub fn denied_by(&self) -> Option<usize> {
        let denied_by = self.denied_by.filter(|_| !self.is_unavailable());
        denied_by.map(|index| index as usize)
    }

    /// Who answered.
    #[must_use]
    pub fn source(&self) -> Source {
        self.source
    }

    /// When it was decided on the store's clock, in microseconds since the Unix
    /// epoch.
    #[must_use]
    pub fn decided_at_us(&self) -> u64 {
        self.decided_at_us
    }

    /// Every level's numbers, in the order of the check.
    #[must_use]
    pub fn levels(&self) -> &[LevelDecision] {
        self.levels.as_slice()
    }

    /// What to hand in for a refund: of an allowed check that was charged.
    #[must_use]
    pub fn receipt(&self) -> Option<Receipt> {
        self.receipt.map(|id| Receipt {
            id,
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
    /// The numbers, for those who write a store.
    #[must_use]
    pub fn outcome(&self) -> Outcome {
        self.outcome
    }

    /// The requests per window, or the size of a token bucket.
    #[must_use]
    pub fn limit(&self) -> u32 {
        self.outcome.limit
    }

    /// Requests of cost 1 this level would still admit now.
    #[must_use]
    pub fn remaining(&self) -> u32 {
        self.outcome.remaining()
    }

    /// Usage now: tokens used, requests counted, or the sliding estimate.
    #[must_use]
    pub fn rate(&self) -> f64 {
        self.outcome.rate()
    }

    /// How long until this level admits the same cost; `None` is never, zero
    /// when this level does not refuse.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        self.outcome.retry_after_us.map(Duration::from_micros)
    }

    /// How long until this level's key is as good as new.
    #[must_use]
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
    #[must_use]
    #[inline]
    pub fn fresh_id() -> u64 {
        fresh_id().get()
    }

    /// What tells it from every other receipt: a store remembers it by this once it
    /// was refunded.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.id.get()
    }

    /// When the charge was decided on the store's clock, in microseconds since
    /// the Unix epoch.
    #[must_use]
    pub fn decided_at_us(&self) -> u64 {
        self.decided_at_us
    }

    /// Each level's cost and mark, in the order of the check.
    pub fn charges(&self) -> impl ExactSizeIterator<Item = (Cost, u64)> {
        self.levels
            .iter()
            .map(|charged| (charged.cost, charged.mark_us))
    }

    /// The receipt as bytes, for those who hand it out of the process.
    #[must_use]
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
            bytes.extend(charged.cost.get().to_le_bytes());
            bytes.extend(charged.limit.to_le_bytes());
            bytes.extend(charged.print.to_le_bytes());
            bytes.extend(charged.era.to_le_bytes());
            bytes.extend(charged.mark_us.to_le_bytes());
        }
    }

    /// What [`to_bytes`](Self::to_bytes) has made; `None` for anything else.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (id, rest) = bytes.split_first_chunk()?;
        let (decided_at_us, mut rest) = rest.split_first_chunk()?;
        let mut levels = SmallVec::new();
        while !rest.is_empty() {
            let (cost, more) = rest.split_first_chunk()?;
            let (limit, more) = more.split_first_chunk()?;
            let (print, more) = more.split_first_chunk()?;
            let (era, more) = more.split_first_chunk()?;
            let (mark_us, more) = more.split_first_chunk()?;
            levels.push(Charged {
                cost: Cost::new(u32::from_le_bytes(*cost).into()).ok()?,
                limit: u32::from_le_bytes(*limit),
                print: u32::from_le_bytes(*print),
                era: u32::from_le_bytes(*era),
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

#[inline]
pub(crate) fn fresh_id() -> NonZeroU64 {
    LAST_ID.with(|last| {
        let id = match last.get() {
            0 => RandomState::new().hash_one(0),
            last => last.wrapping_add(1),
        };
        let id = NonZeroU64::new(id).unwrap_or(NonZeroU64::MIN);
        last.set(id.get());
        id
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Limit, Limiter};

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
