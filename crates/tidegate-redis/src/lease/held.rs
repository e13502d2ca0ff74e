//! A lease that this node holds: tokens that were taken out of the store, and may be spent
//! here until its time is up.
//!
//! What was spent is one atomic word, so that a token is spent under a shared lock. The
//! clock is read first and the token taken afterwards: a thread that is stopped between the
//! two reports a decision late, but never spends a token late.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use tidegate::Cost;
use tidegate::algorithm::{Outcome, Used};

/// A lease. It is closed by taking it out of its [key](super::key::Key), which nobody else
/// may use meanwhile: from then on what was spent is final.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) nonce: u64,
    pub(super) tokens: u32,
    /// When it was asked for, and until when it may be spent, on this node's clock.
    pub(super) asked_at_us: u64,
    pub(super) valid_until_us: u64,
    pub(super) facts: Facts,
    spent: AtomicU32,
    /// What was spent when it was last looked at, and since when that has not changed.
    seen: (u32, u64),
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

impl Clone for Held {
    fn clone(&self) -> Self {
        Self {
            spent: AtomicU32::new(self.spent()),
            ..*self
        }
    }
}

impl Held {
    pub(super) fn new(
        (nonce, tokens): (u64, u32),
        asked_at_us: u64,
        valid_until_us: u64,
        facts: Facts,
        now_us: u64,
    ) -> Self {
        Self {
            nonce,
            tokens,
            asked_at_us,
            valid_until_us,
            facts,
            spent: AtomicU32::new(0),
            seen: (0, now_us),
        }
    }

    pub(super) fn spent(&self) -> u32 {
        self.spent.load(Relaxed)
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

    /// Whether nothing was spent of it for so long.
    pub(super) fn is_idle(&mut self, now_us: u64, for_us: u64) -> bool {
        let spent = self.spent();
        if self.seen.0 != spent {
            self.seen = (spent, now_us);
        }
        now_us.saturating_sub(self.seen.1) >= for_us
    }

    /// Takes tokens, at a time that was read before.
    #[inline]
    pub(super) fn spend(&self, cost: Cost, now_us: u64) -> Option<Spent> {
        if now_us >= self.valid_until_us {
            return None;
        }
        let take = |spent: u32| {
            let spent = spent.checked_add(cost.get())?;
            (spent <= self.tokens).then_some(spent)
        };
        let before = self.spent.fetch_update(Relaxed, Relaxed, take).ok()?;
        Some(self.told(before + cost.get(), now_us))
    }

    /// Puts tokens back that were not used after all.
    pub(super) fn put_back(&self, cost: Cost) -> bool {
        let less = |spent: u32| spent.checked_sub(cost.get());
        self.spent.fetch_update(Relaxed, Relaxed, less).is_ok()
    }

    #[inline]
    fn told(&self, spent: u32, now_us: u64) -> Spent {
        let Facts { limit, .. } = self.facts;
        let used = self.facts.used.saturating_add(spent).min(limit);
        let reset_after_us = match self.facts.ends_at_us {
            Some(ends_at_us) => ends_at_us.saturating_sub(now_us),
            None => self.facts.drains_us + u64::from(spent) * self.facts.token_us,
        };
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
            is_half: self.tokens - spent <= self.tokens / 2,
        }
    }
}
