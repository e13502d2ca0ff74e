//! What is counted for one key under one limit, in the terms of the limit's algorithm:
//! the numbers that a script replies with, and the arithmetic on them.

use tidegate::algorithm::{
    FixedWindowState, Outcome, SlidingLog, SlidingWindowState, Span, TokenBucketState, Used,
};
use tidegate::{Cost, Kind, Limit};

use crate::call::{BadReply, Numbers};

/// A key's count at an instant. It says nothing under a limit of another algorithm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Count {
    TokenBucket(TokenBucketState),
    FixedWindow(FixedWindowState),
    SlidingWindow(SlidingWindowState),
    SlidingLog(LogCount),
    Block,
}

/// What a script tells of a log: the events themselves stay where they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LogCount {
    pub(crate) used: u32,
    pub(crate) reset_after_us: u64,
    /// For a cost that is refused after all that are admitted.
    pub(crate) retry_after_us: u64,
    pub(crate) last_us: u64,
}

impl Count {
    /// Of a key that nothing is known of.
    pub(crate) fn new(limit: &Limit, now_us: u64) -> Self {
        match limit.kind() {
            Kind::TokenBucket(limit) => Self::TokenBucket(limit.new_state(now_us)),
            Kind::FixedWindow(limit) => Self::FixedWindow(limit.new_state(now_us)),
            Kind::SlidingWindow(limit) => Self::SlidingWindow(limit.new_state(now_us)),
            Kind::SlidingLog(_) => Self::SlidingLog(LogCount {
                used: 0,
                reset_after_us: 0,
                retry_after_us: 0,
                last_us: now_us,
            }),
            Kind::Block => Self::Block,
        }
    }

    /// From a script's reply, with the mark of a charge.
    pub(crate) fn read(
        limit: &Limit,
        now_us: u64,
        numbers: &mut Numbers<'_>,
    ) -> Result<(Self, u64), BadReply> {
        let count = match limit.kind() {
            Kind::TokenBucket(_) => Self::TokenBucket(TokenBucketState {
                debt: Span {
                    us: numbers.next()?,
                    parts: numbers.next_u32()?,
                },
                last_us: now_us,
            }),
            Kind::FixedWindow(_) => Self::FixedWindow(FixedWindowState {
                count: numbers.next_u32()?,
                left_us: numbers.next()?,
                last_us: now_us,
            }),
            Kind::SlidingWindow(limit) => {
                let state = SlidingWindowState {
                    prev: numbers.next_u32()?,
                    cur: numbers.next_u32()?,
                    elapsed_us: numbers.next()?,
                    last_us: now_us,
                };
                if state.elapsed_us >= limit.rate().window_us() {
                    return Err(BadReply);
                }
                Self::SlidingWindow(state)
            }
            Kind::SlidingLog(_) => Self::SlidingLog(LogCount {
                used: numbers.next_u32()?,
                reset_after_us: numbers.next()?,
                retry_after_us: numbers.next()?,
                last_us: now_us,
            }),
            Kind::Block => return Ok((Self::Block, 0)),
        };
        Ok((count, numbers.next()?))
    }

    /// The count at a later instant.
    pub(crate) fn at(self, limit: &Limit, now_us: u64) -> Self {
        match (limit.kind(), self) {
            (Kind::TokenBucket(limit), Self::TokenBucket(state)) => {
                Self::TokenBucket(limit.at(state, now_us))
            }
            (Kind::FixedWindow(limit), Self::FixedWindow(state)) => {
                Self::FixedWindow(limit.at(state, now_us))
            }
            (Kind::SlidingWindow(limit), Self::SlidingWindow(state)) => {
                Self::SlidingWindow(limit.at(state, now_us))
            }
            (Kind::SlidingLog(_), Self::SlidingLog(log)) => Self::SlidingLog(log.at(now_us)),
            _ => Self::new(limit, now_us),
        }
    }

    /// The count under another limit, at this instant: another algorithm starts anew.
    pub(crate) fn adopt(self, old: &Limit, new: &Limit, now_us: u64) -> Self {
        match (old.kind(), new.kind(), self) {
            (Kind::TokenBucket(old), Kind::TokenBucket(new), Self::TokenBucket(state)) => {
                match new.counts_like(old) {
                    true => self,
                    false => Self::TokenBucket(new.adopt(old, state)),
                }
            }
            (Kind::FixedWindow(old), Kind::FixedWindow(new), Self::FixedWindow(state)) => {
                Self::FixedWindow(new.adopt(old, state))
            }
            (Kind::SlidingWindow(old), Kind::SlidingWindow(new), Self::SlidingWindow(state)) => {
                Self::SlidingWindow(new.adopt(old, state, now_us))
            }
            (Kind::SlidingLog(_), Kind::SlidingLog(_), Self::SlidingLog(_)) => self,
            _ => Self::new(new, now_us),
        }
    }

    /// The same count on a clock that reads so much later.
    pub(crate) fn shifted(mut self, by_us: i64) -> Self {
        match &mut self {
            Self::TokenBucket(TokenBucketState { last_us, .. })
            | Self::FixedWindow(FixedWindowState { last_us, .. })
            | Self::SlidingWindow(SlidingWindowState { last_us, .. })
            | Self::SlidingLog(LogCount { last_us, .. }) => {
                *last_us = last_us.saturating_add_signed(by_us);
            }
            Self::Block => {}
        }
        self
    }

    /// Until it is as good as new, by the microsecond.
    pub(crate) fn reset_after_us(&self, limit: &Limit) -> u64 {
        self.outcome(limit, Cost::ONE, true).reset_after_us
    }

    pub(crate) fn admits(&self, limit: &Limit, cost: Cost) -> bool {
        match (limit.kind(), self) {
            (Kind::TokenBucket(limit), Self::TokenBucket(state)) => limit.admits(state, cost),
            (Kind::FixedWindow(limit), Self::FixedWindow(state)) => limit.admits(state, cost),
            (Kind::SlidingWindow(limit), Self::SlidingWindow(state)) => limit.admits(state, cost),
            (Kind::SlidingLog(limit), Self::SlidingLog(log)) => {
                let left = limit.rate().requests().checked_sub(log.used);
                left.is_some_and(|left| cost.get() <= left)
            }
            _ => false,
        }
    }

    pub(crate) fn charge(&mut self, limit: &Limit, cost: Cost) {
        match (limit.kind(), self) {
            (Kind::TokenBucket(limit), Self::TokenBucket(state)) => {
                *state = limit.charge(*state, cost);
            }
            (Kind::FixedWindow(limit), Self::FixedWindow(state)) => {
                *state = limit.charge(*state, cost);
            }
            (Kind::SlidingWindow(limit), Self::SlidingWindow(state)) => {
                *state = limit.charge(*state, cost);
            }
            (Kind::SlidingLog(limit), Self::SlidingLog(log)) => log.add(limit, cost.get()),
            _ => {}
        }
    }

    /// After a refusal that was counted all the same.
    pub(crate) fn saturate(&mut self, limit: &Limit, cost: Cost) {
        match (limit.kind(), self) {
            (Kind::TokenBucket(limit), Self::TokenBucket(state)) => {
                *state = limit.saturate(*state, cost);
            }
            (Kind::FixedWindow(limit), Self::FixedWindow(state)) => {
                *state = limit.saturate(*state, cost);
            }
            (Kind::SlidingWindow(limit), Self::SlidingWindow(state)) => {
                *state = limit.saturate(*state, cost);
            }
            (Kind::SlidingLog(limit), Self::SlidingLog(log)) => {
                let left = limit.rate().requests().saturating_sub(log.used);
                let added = cost.get().min(left);
                if added > 0 {
                    log.add(limit, added);
                }
            }
            _ => {}
        }
    }

    /// After a charge was given back that nobody else has been told of.
    pub(crate) fn give_back(&mut self, limit: &Limit, cost: Cost, charged_at_us: u64) {
        match (limit.kind(), self) {
            (Kind::TokenBucket(limit), Self::TokenBucket(state)) => {
                *state = limit.refund(*state, cost, charged_at_us);
            }
            (Kind::FixedWindow(limit), Self::FixedWindow(state)) => {
                let end_us = state.last_us + state.left_us;
                if charged_at_us + limit.rate().window_us() >= end_us {
                    *state = limit.refund(*state, cost, end_us);
                }
            }
            (Kind::SlidingWindow(limit), Self::SlidingWindow(state)) => {
                let start_us = state.last_us.saturating_sub(state.elapsed_us);
                let end_us = match charged_at_us >= start_us {
                    true => limit.window_end_us(state),
                    false => start_us,
                };
                if charged_at_us + limit.rate().window_us() >= start_us {
                    *state = limit.refund(*state, cost, end_us);
                }
            }
            (Kind::SlidingLog(limit), Self::SlidingLog(log))
                if charged_at_us + limit.rate().window_us() > log.last_us =>
            {
                log.used = log.used.saturating_sub(cost.get());
            }
            _ => {}
        }
    }

    pub(crate) fn outcome(&self, limit: &Limit, cost: Cost, admitted: bool) -> Outcome {
        match (limit.kind(), self) {
            (Kind::TokenBucket(limit), Self::TokenBucket(state)) => {
                limit.outcome(state, cost, admitted)
            }
            (Kind::FixedWindow(limit), Self::FixedWindow(state)) => {
                limit.outcome(state, cost, admitted)
            }
            (Kind::SlidingWindow(limit), Self::SlidingWindow(state)) => {
                limit.outcome(state, cost, admitted)
            }
            (Kind::SlidingLog(limit), Self::SlidingLog(log)) => log.outcome(limit, cost, admitted),
            _ => Outcome::BLOCKED,
        }
    }
}

impl LogCount {
    /// Nothing is known of the single events: all of them count until the last is gone.
    fn at(self, now_us: u64) -> Self {
        let elapsed = now_us.saturating_sub(self.last_us);
        let reset_after_us = self.reset_after_us.saturating_sub(elapsed);
        Self {
            used: if reset_after_us == 0 { 0 } else { self.used },
            reset_after_us,
            retry_after_us: self.retry_after_us.saturating_sub(elapsed),
            last_us: now_us,
        }
    }

    pub(crate) fn add(&mut self, limit: &SlidingLog, cost: u32) {
        self.used = self.used.saturating_add(cost);
        self.reset_after_us = limit.rate().window_us();
    }

    fn outcome(&self, limit: &SlidingLog, cost: Cost, admitted: bool) -> Outcome {
        let requests = limit.rate().requests();
        Outcome {
            limit: requests,
            used: Used::requests(self.used),
            retry_after_us: if admitted {
                Some(0)
            } else if cost.get() > requests {
                None
            } else {
                Some(self.retry_after_us)
            },
            reset_after_us: self.reset_after_us,
        }
    }
}
