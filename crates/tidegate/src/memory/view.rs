//! A level's state as the algorithms see it: taken out of the table, brought to
//! an instant, and packed again.

use super::bucket::{LimitId, Packed};
use super::counter::Counter;
use super::region::LogId;
use super::shard::Place;
use crate::algorithm::{
    FixedWindow, FixedWindowState, LogHeader, LogRecord, LogView, Outcome, SlidingLog,
    SlidingWindow, SlidingWindowState, TokenBucket, TokenBucketState,
};
use crate::cost::Cost;
use crate::limit::{Kind, Limit};

/// A limit with a key's state at the instant of a check.
#[derive(Debug, Clone, Copy)]
pub(super) enum View<'l> {
    TokenBucket(&'l TokenBucket, TokenBucketState),
    FixedWindow(&'l FixedWindow, FixedWindowState),
    SlidingWindow(&'l SlidingWindow, SlidingWindowState),
    SlidingLog(&'l SlidingLog, LogView, Option<LogId>),
    Block,
}

/// A level's key as found in the table, brought to the instant of a check.
#[derive(Clone, Copy)]
pub(super) struct Seen<'l> {
    pub(super) place: Option<Place>,
    /// What is stored there, and the limit it was written under.
    pub(super) stored: Option<(LimitId, Packed)>,
    pub(super) view: View<'l>,
    /// What is stored no longer says what is so: the clock has stepped back, or the
    /// limit has changed to one that counts in another way, since it was written.
    pub(super) outdated: bool,
}

/// The records of a log.
pub(super) type LogRef<'a> = (&'a LogHeader, &'a [LogRecord]);

const NO_LOG: LogRef<'_> = (
    &LogHeader {
        head: 0,
        len: 0,
        before: 0,
        shift_us: 0,
        last_us: 0,
    },
    &[],
);

impl<'l> View<'l> {
    /// A key that is not in the table, or is as good as new. A log it still owns
    /// is used again.
    pub(super) fn new(limit: &'l Limit, log: Option<(LogId, LogRef<'_>)>, now_us: u64) -> Self {
        match limit.kind() {
            Kind::TokenBucket(limit) => Self::TokenBucket(limit, limit.new_state(now_us)),
            Kind::FixedWindow(limit) => Self::FixedWindow(limit, limit.new_state(now_us)),
            Kind::SlidingWindow(limit) => Self::SlidingWindow(limit, limit.new_state(now_us)),
            Kind::SlidingLog(limit) => {
                let header = log.map_or(NO_LOG.0, |(_, (header, _))| header);
                Self::SlidingLog(limit, limit.new_view(header, now_us), log.map(|(id, _)| id))
            }
            Kind::Block => Self::Block,
        }
    }

    /// A key's stored state, written under `old`, brought to this instant under
    /// `limit`. The second value tells whether what is stored is outdated.
    pub(super) fn load(
        limit: &'l Limit,
        old: Option<&Limit>,
        stored: Packed,
        log: Option<(LogId, LogRef<'_>)>,
        now_us: u64,
    ) -> (Self, bool) {
        match (limit.kind(), old.map(Limit::kind)) {
            (Kind::TokenBucket(limit), Some(Kind::TokenBucket(old))) => {
                let state = old.unpack(stored);
                let adopted = if limit.counts_like(old) {
                    state
                } else {
                    limit.adopt(old, state)
                };
                (
                    Self::TokenBucket(limit, limit.at(adopted, now_us)),
                    now_us < state.last_us || !limit.counts_like(old),
                )
            }
            (Kind::FixedWindow(limit), Some(Kind::FixedWindow(old))) => {
                let state = old.unpack(stored);
                let adopted = limit.adopt(old, state);
                (
                    Self::FixedWindow(limit, limit.at(adopted, now_us)),
                    now_us < state.last_us || limit.rate().window_us() != old.rate().window_us(),
                )
            }
            (Kind::SlidingWindow(limit), Some(Kind::SlidingWindow(old))) => {
                let state = old.unpack(stored);
                let adopted = limit.adopt(old, state, now_us);
                (
                    Self::SlidingWindow(limit, limit.at(adopted, now_us)),
                    now_us < state.last_us || limit.rate().window_us() != old.rate().window_us(),
                )
            }
            (Kind::SlidingLog(limit), Some(Kind::SlidingLog(old))) => {
                let (header, records) = log.map_or(NO_LOG, |(_, log)| log);
                let view = limit.at(header, records, now_us);
                (
                    Self::SlidingLog(limit, view, log.map(|(id, _)| id)),
                    now_us < header.last_us || limit.rate().window_us() != old.rate().window_us(),
                )
            }
            // Another algorithm starts anew.
            _ => (Self::new(limit, None, now_us), false),
        }
    }

    pub(super) fn admits(&self, cost: Cost) -> bool {
        match self {
            Self::TokenBucket(limit, state) => limit.admits(state, cost),
            Self::FixedWindow(limit, state) => limit.admits(state, cost),
            Self::SlidingWindow(limit, state) => limit.admits(state, cost),
            Self::SlidingLog(limit, view, _) => limit.admits(view, cost),
            Self::Block => false,
        }
    }

    pub(super) fn charge(self, cost: Cost) -> Self {
        match self {
            Self::TokenBucket(limit, state) => Self::TokenBucket(limit, limit.charge(state, cost)),
            Self::FixedWindow(limit, state) => Self::FixedWindow(limit, limit.charge(state, cost)),
            Self::SlidingWindow(limit, state) => {
                Self::SlidingWindow(limit, limit.charge(state, cost))
            }
            Self::SlidingLog(limit, view, log) => {
                Self::SlidingLog(limit, limit.charge(view, cost.get()), log)
            }
            Self::Block => Self::Block,
        }
    }

    /// Like [`charge`](Self::charge) for a cost that is refused and counted all
    /// the same.
    pub(super) fn saturate(self, cost: Cost) -> Self {
        match self {
            Self::TokenBucket(limit, state) => {
                Self::TokenBucket(limit, limit.saturate(state, cost))
            }
            Self::FixedWindow(limit, state) => {
                Self::FixedWindow(limit, limit.saturate(state, cost))
            }
            Self::SlidingWindow(limit, state) => {
                Self::SlidingWindow(limit, limit.saturate(state, cost))
            }
            Self::SlidingLog(limit, view, log) => match limit.saturated_cost(&view, cost) {
                0 => self,
                cost => Self::SlidingLog(limit, limit.charge(view, cost), log),
            },
            Self::Block => Self::Block,
        }
    }

    pub(super) fn outcome(&self, log: Option<LogRef<'_>>, cost: Cost, admitted: bool) -> Outcome {
        match self {
            Self::TokenBucket(limit, state) => limit.outcome(state, cost, admitted),
            Self::FixedWindow(limit, state) => limit.outcome(state, cost, admitted),
            Self::SlidingWindow(limit, state) => limit.outcome(state, cost, admitted),
            Self::SlidingLog(limit, view, _) => {
                let (header, records) = log.unwrap_or(NO_LOG);
                limit.outcome(header, records, view, cost, admitted)
            }
            Self::Block => Outcome::BLOCKED,
        }
    }

    /// What a refund will remember a charge by: the end of the window, or the
    /// time of the event.
    pub(super) fn mark_us(&self) -> u64 {
        match self {
            Self::TokenBucket(limit, state) => limit.mark_us(state),
            Self::FixedWindow(limit, state) => limit.mark_us(state),
            Self::SlidingWindow(limit, state) => limit.mark_us(state),
            Self::SlidingLog(_, view, _) => view.raw_us(),
            Self::Block => 0,
        }
    }

    /// The state as the table keeps it; `None` for a level that has none.
    pub(super) fn pack(&self) -> Option<Packed> {
        Some(match self {
            Self::TokenBucket(limit, state) => limit.pack(state),
            Self::FixedWindow(limit, state) => limit.pack(state),
            Self::SlidingWindow(limit, state) => limit.pack(state),
            Self::SlidingLog(limit, view, log) => Packed {
                fresh_at_us: view.now_us() + limit.reset_after_us(view),
                data: 0,
                extra: u64::from((*log)?),
            },
            Self::Block => return None,
        })
    }
}
