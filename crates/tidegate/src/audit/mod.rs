//! Verifies from recorded decisions that a limit held.
//!
//! The algorithms promise bounds on what is admitted in any interval. An audit does not
//! depend on how they work: it checks *every* interval of a record and reports the one
//! in which too much was admitted, if there is one.
//!
//! ```
//! use tidegate::audit::{Audit, Record};
//! use tidegate::{Cost, Limit, Limiter};
//!
//! let limit = Limit::per_second(5).burst(10);
//! let limiter = Limiter::in_memory(limit);
//! let mut audit = Audit::new(limit);
//! for _ in 0..100 {
//!     let decision = limiter.check("user:42");
//!     audit.push(&Record::of("user:42", Cost::ONE, &decision));
//! }
//! let verdict = audit.verdict();
//! assert!(verdict.held());
//!
//! // One more than the limiter admitted.
//! let nearest = verdict.tightest.expect("some were admitted");
//! audit.push(&Record::admitted("user:42", nearest.to_us, Cost::ONE));
//! let broken = audit.verdict().broken.expect("eleven, where at most ten are allowed");
//! assert_eq!((broken.admitted, broken.bound), (11, 10));
//! ```
//!
//! # Bounds
//!
//! With `N` requests per window `W` and a burst `B`, for each key:
//!
//! | algorithm | promise | what is checked |
//! | --- | --- | --- |
//! | token bucket | `B + N*t/W` in any closed interval of length `t` | all pairs of instants, by the largest possible remaining debt |
//! | strict token bucket | `B + (N - B)*t/W`, which is `N` in any `W` | the same |
//! | fixed window | `N` per window | epoch-aligned windows, or windows that open with the first request after the previous one |
//! | sliding window | `N` per aligned window, below `2N` in any `[t, t+W)` | both |
//! | sliding log | `N` in any `[t, t+W)` | windows that end with each request |
//! | block | nothing | |
//!
//! All arithmetic uses integers and rounds nothing, so a single request too many is found.
//! Times are [`decided_at_us`](crate::Decision::decided_at_us), on the store's clock.
//! Decisions made without the store ([`Source::Local`], [`Source::ErrorPolicy`]) are outside
//! the bound and only counted.
//!
//! - Each time a store loses its state, it may admit one more `B` (or `N`):
//!   [`Audit::allow_losses`].
//! - Nodes in mode `background` may admit more, by a formula: [`Audit::background`].
//! - The same bounds apply to a record that lacks requests, but windows that open with the
//!   first request cannot be determined from it: [`Audit::partial`].
//!
//! # Cost
//!
//! Records can be in any order; they are sorted by key and time, and read once. An admitted
//! record takes 16 bytes, and as much again for the key with the most records; each key
//! takes its own bytes plus about 40.

mod background;
mod keys;
mod rule;
mod verdict;

mod debt;
mod opened;
mod windows;

use crate::cost::Cost;
use crate::decision::{Decision, Source};
use crate::limit::Limit;
pub use background::Background;
use keys::KeyTable;
pub use rule::most_in;
pub(crate) use rule::{Nodes, Refill, Rule, Window};
use verdict::Found;
pub use verdict::{Stretch, Verdict};

/// A recorded decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record<'a> {
    /// The key.
    pub key: &'a [u8],
    /// The time of the decision, in microseconds on the store's clock.
    pub at_us: u64,
    /// The cost.
    pub cost: Cost,
    /// What made the decision.
    pub source: Source,
    /// Whether it was admitted.
    pub allowed: bool,
}

impl<'a> Record<'a> {
    /// The record of a decision.
    pub fn of<K: AsRef<[u8]> + ?Sized>(key: &'a K, cost: Cost, decision: &Decision) -> Self {
        Self {
            key: key.as_ref(),
            at_us: decision.decided_at_us(),
            cost,
            source: decision.source(),
            allowed: decision.allowed(),
        }
    }

    /// A request that the store admitted.
    pub fn admitted<K: AsRef<[u8]> + ?Sized>(key: &'a K, at_us: u64, cost: Cost) -> Self {
        Self {
            key: key.as_ref(),
            at_us,
            cost,
            source: Source::Store,
            allowed: true,
        }
    }

    /// Whether the bound applies to it.
    fn is_bound(&self) -> bool {
        !matches!(self.source, Source::Local | Source::ErrorPolicy)
    }
}

/// Collects the decisions of one limit, and judges them.
#[derive(Debug, Clone)]
pub struct Audit {
    limit: Limit,
    losses: u32,
    background: Option<Background>,
    partial: bool,
    keys: KeyTable,
    /// Admitted and refunded requests.
    admitted: Vec<Packed>,
    refunds: Vec<Packed>,
    refused: u64,
    outside: u64,
}

/// All costs of a key at one instant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Event {
    at_us: u64,
    cost: u64,
}

/// A record in sixteen bytes that sort by key, then by time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Packed(u128);

impl Packed {
    fn new(key: u32, at_us: u64, cost: Cost) -> Self {
        Self(u128::from(key) << 96 | u128::from(at_us) << 32 | u128::from(cost.get()))
    }

    #[expect(clippy::cast_possible_truncation, reason = "takes the parts out")]
    fn parts(self) -> (u32, u64, u32) {
        ((self.0 >> 96) as u32, (self.0 >> 32) as u64, self.0 as u32)
    }
}

impl Audit {
    /// For decisions under this limit.
    pub fn new(limit: Limit) -> Self {
        Self {
            limit,
            losses: 0,
            background: None,
            partial: false,
            keys: KeyTable::default(),
            admitted: Vec::new(),
            refunds: Vec::new(),
            refused: 0,
            outside: 0,
        }
    }

    /// Allows for this many losses of the store's state. Each allows every key one more
    /// burst (or window).
    #[must_use]
    pub fn allow_losses(mut self, losses: u32) -> Self {
        self.losses = losses;
        self
    }

    /// Applies the bound of mode `background`.
    #[must_use]
    pub fn background(mut self, background: Background) -> Self {
        self.background = Some(background);
        self
    }

    /// Allows for missing requests: the record began while counters were in use, or other
    /// nodes were recorded elsewhere.
    ///
    /// Every bound also holds for a subset of the requests, except for windows that open
    /// with a request, which may have been opened by a missing one. For those, the audit
    /// checks whether there are *any* windows that explain the record. It does the same if
    /// state was lost or requests were refunded.
    #[must_use]
    pub fn partial(mut self, partial: bool) -> Self {
        self.partial = partial;
        self
    }

    /// Adds a decision.
    ///
    /// # Panics
    /// When there are more than four billion keys.
    pub fn push(&mut self, record: &Record<'_>) {
        if !record.allowed {
            self.refused += 1;
        } else if !record.is_bound() {
            self.outside += 1;
        } else {
            let key = self.keys.number(record.key);
            let packed = Packed::new(key, record.at_us, record.cost);
            self.admitted.push(packed);
        }
    }

    /// Adds a refund: the request admitted at this instant no longer counts.
    ///
    /// # Panics
    /// When there are more than four billion keys.
    pub fn refund(&mut self, key: impl AsRef<[u8]>, charged_at_us: u64, cost: Cost) {
        let key = self.keys.number(key.as_ref());
        self.refunds.push(Packed::new(key, charged_at_us, cost));
    }

    /// Adds decisions and judges them.
    pub fn judge<'a>(mut self, records: impl IntoIterator<Item = Record<'a>>) -> Verdict {
        for record in records {
            self.push(&record);
        }
        self.verdict()
    }

    /// The verdict on all records added so far.
    pub fn verdict(&mut self) -> Verdict {
        self.admitted.sort_unstable();
        self.refunds.sort_unstable();
        let is_partial = self.partial || self.losses > 0 || !self.refunds.is_empty();
        let nodes = Nodes {
            background: self.background.as_ref(),
            losses: self.losses,
            is_partial,
        };
        let rules = self.limit.rules(&nodes);
        let mut verdict = Verdict {
            admitted: self.admitted.len() as u64,
            refused: self.refused,
            outside: self.outside,
            ..Verdict::default()
        };
        let mut refunds = &self.refunds[..];
        let mut events = Vec::new();
        for records in self
            .admitted
            .chunk_by(|one, next| one.0 >> 96 == next.0 >> 96)
        {
            let (key, ..) = records[0].parts();
            collect(records, &mut refunds, &mut events);
            verdict.add(self.keys.text(key), judge(&events, &rules));
        }
        verdict
    }
}

/// The events of one key, in order, without what was given back.
fn collect(records: &[Packed], refunds: &mut &[Packed], events: &mut Vec<Event>) {
    events.clear();
    for instant in records.chunk_by(|one, next| one.0 >> 32 == next.0 >> 32) {
        let sum = |records: &[Packed]| -> u64 {
            let costs = records.iter().map(|record| u64::from(record.parts().2));
            costs.fold(0, u64::saturating_add)
        };
        let at = instant[0].0 >> 32;
        let passed = refunds.partition_point(|refund| refund.0 >> 32 < at);
        let found = refunds[passed..].partition_point(|refund| refund.0 >> 32 == at);
        let returned = sum(&refunds[passed..passed + found]);
        *refunds = &refunds[passed + found..];
        let cost = sum(instant).saturating_sub(returned);
        if cost > 0 {
            let (_, at_us, _) = instant[0].parts();
            events.push(Event { at_us, cost });
        }
    }
}

/// The first interval of a key's events that breaks a rule, or else the one closest to the
/// bound.
fn judge(events: &[Event], rules: &[Rule]) -> Found {
    let (mut tightest, mut broken) = (None, None);
    for rule in rules {
        let found = match *rule {
            Rule::Rate(rate) => debt::scan(events, rate),
            Rule::Aligned(window) => windows::aligned(events, window),
            Rule::Any(window) => windows::any(events, window),
            Rule::FromFirst(window) => opened::known(events, window),
            Rule::Partition(window) => opened::unknown(events, window),
        };
        match found {
            Ok(Some(found)) => found.keep_tighter(&mut tightest),
            Ok(None) => None,
            Err(found) => found.keep_earlier(&mut broken),
        };
    }
    broken.map_or(Ok(tightest), Err)
}
