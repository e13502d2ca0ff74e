//! A lease that this node holds: tokens that were taken out of the store, and may be spent
//! here until its time is up.
//!
//! What was spent is one atomic word, together with whether the lease is closed, so that a
//! token is spent without a lock.
//!
//! The clock is read first and the token taken afterwards: a thread that is stopped between
//! the two reports a decision late, but never spends a token late.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use tidegate::Cost;
use tidegate::algorithm::{Outcome, Used};

use super::message::TERM_US;

/// The bit of the word that says that the lease is closed. A lease has fewer tokens.
const CLOSED: u32 = 1 << 31;

/// Tokens that any thread may spend.
#[derive(Debug)]
pub(crate) struct Tokens {
    pub(crate) nonce: u64,
    pub(super) tokens: u32,
    /// What was spent, and whether it is closed.
    word: AtomicU32,
    /// Until when it may be spent, on this node's clock.
    valid_until_us: u64,
    /// Until when nobody asks for another lease, though this one is half spent.
    quiet_until_us: AtomicU64,
    facts: Facts,
}

/// A lease, and what its [key](super::key::Key) knows of it.
#[derive(Debug)]
pub(super) struct HeldLease {
    /// What any thread spends.
    pub(super) lease: Arc<Tokens>,
    /// When it was asked for.
    pub(super) asked_at_us: u64,
    /// What was spent when it was last looked at, and since when that has not changed.
    seen: (u32, u64),
    /// What was spent and is in the key's demand.
    counted: u32,
}

/// What is told of a token of the lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Facts {
    /// The store's clock, less this node's: not more than it is.
    pub(super) offset_us: i64,
    /// By what the store knows charges of the key.
    pub(super) era_us: u64,
    /// `B`, or `N` for a window, and what of it is used besides this lease.
    pub(super) limit: u32,
    pub(super) used: u32,
    /// How long what is used takes to drain, and a token; a window's end on this node's
    /// clock.
    pub(super) drains_us: u64,
    pub(super) token_us: u64,
    pub(super) ends_at_us: Option<u64>,
}

/// A token that was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Spent {
    pub(crate) nonce: u64,
    /// The time on the store's clock.
    pub(crate) at_us: u64,
    pub(crate) era_us: u64,
    pub(crate) outcome: Outcome,
    /// Whether it is time to ask for another lease.
    pub(crate) is_half: bool,
}

impl Tokens {
    pub(super) fn new(nonce: u64, tokens: u32, valid_until_us: u64, facts: Facts) -> Self {
        Self {
            nonce,
            tokens,
            word: AtomicU32::new(0),
            valid_until_us,
            quiet_until_us: AtomicU64::new(0),
            facts,
        }
    }

    /// Takes tokens, at a time that was read before.
    #[inline]
    pub(crate) fn spend(&self, cost: Cost, now_us: u64) -> Option<Spent> {
        if now_us >= self.valid_until_us {
            return None;
        }
        // The word of a closed lease, read as a number, is more than it has tokens.
        let take = |spent: u32| {
            let spent = spent.checked_add(cost.get())?;
            (spent <= self.tokens).then_some(spent)
        };
        let before = self.word.fetch_update(Relaxed, Relaxed, take).ok()?;
        Some(self.told(before + cost.get(), now_us))
    }

    /// Puts tokens back that were not used after all. Of a closed lease they stay spent.
    pub(super) fn put_back(&self, cost: Cost) -> bool {
        let less = |word: u32| match word & CLOSED {
            0 => word.checked_sub(cost.get()),
            _ => None,
        };
        self.word.fetch_update(Relaxed, Relaxed, less).is_ok()
    }

    /// Whether a token that was spent then, on the store's clock, can be of this lease.
    pub(super) fn may_have_given(&self, era_us: u64, at_us: u64) -> bool {
        // It was asked for then, or later if it ends with a window; but each window is an
        // era of its own.
        let asked_at_us = self.valid_until_us.saturating_sub(TERM_US / 10 * 9);
        let asked_at_us = asked_at_us.saturating_add_signed(self.facts.offset_us);
        era_us == self.facts.era_us && at_us >= asked_at_us
    }

    pub(super) fn spent(&self) -> u32 {
        self.word.load(Relaxed) & !CLOSED
    }

    pub(super) fn left(&self) -> u32 {
        self.tokens - self.spent()
    }

    /// Whether at most half of it is left: then it is time for another one.
    pub(super) fn is_half(&self) -> bool {
        self.left() <= self.tokens / 2
    }

    /// Whether it is of no use any more.
    pub(super) fn is_over(&self, now_us: u64) -> bool {
        self.left() == 0 || now_us >= self.valid_until_us
    }

    /// Until then nobody asks for another lease because of this one.
    pub(super) fn set_quiet_until(&self, us: u64) {
        self.quiet_until_us.store(us, Relaxed);
    }

    /// Nobody spends it any more: what was spent is final.
    pub(super) fn close(&self) -> u32 {
        self.word.fetch_or(CLOSED, Relaxed) & !CLOSED
    }

    #[inline]
    fn told(&self, spent: u32, now_us: u64) -> Spent {
        let Facts { limit, .. } = self.facts;
        let used = self.facts.used.saturating_add(spent).min(limit);
        let reset_after_us = match self.facts.ends_at_us {
            Some(ends_at_us) => ends_at_us.saturating_sub(now_us),
            None => self.facts.drains_us + u64::from(spent) * self.facts.token_us,
        };
        let is_half = self.tokens - spent <= self.tokens / 2;
        Spent {
            nonce: self.nonce,
            at_us: now_us.saturating_add_signed(self.facts.offset_us),
            era_us: self.facts.era_us,
            outcome: Outcome {
                limit,
                used: Used::requests(used),
                retry_after_us: Some(0),
                reset_after_us,
            },
            is_half: is_half && now_us >= self.quiet_until_us.load(Relaxed),
        }
    }
}

impl HeldLease {
    pub(super) fn new(lease: Tokens, asked_at_us: u64, now_us: u64) -> Self {
        Self {
            lease: Arc::new(lease),
            asked_at_us,
            seen: (0, now_us),
            counted: 0,
        }
    }

    /// Whether nothing was spent of it for so long.
    pub(super) fn is_idle(&mut self, now_us: u64, for_us: u64) -> bool {
        let spent = self.lease.spent();
        if self.seen.0 != spent {
            self.seen = (spent, now_us);
        }
        now_us.saturating_sub(self.seen.1) >= for_us
    }

    /// What was spent since this was last asked.
    pub(super) fn newly_spent(&mut self) -> u32 {
        let spent = self.lease.spent();
        let newly = spent.saturating_sub(self.counted);
        self.counted = spent;
        newly
    }
}

/// A lease of its own: for simulations that go on from one state in several ways.
#[cfg(test)]
impl Clone for HeldLease {
    fn clone(&self) -> Self {
        let lease = Tokens {
            word: AtomicU32::new(self.lease.word.load(Relaxed)),
            quiet_until_us: AtomicU64::new(self.lease.quiet_until_us.load(Relaxed)),
            ..*self.lease
        };
        Self {
            lease: Arc::new(lease),
            ..*self
        }
    }
}
