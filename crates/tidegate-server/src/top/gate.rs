//! Which decisions are counted by key: all of them while there are few, and else a random
//! one of `w`, which then counts for `w`.
//!
//! Each worker has gates of its own, so a decision that is not counted costs a load, a
//! comparison and a store in a cache line that no other worker writes to. A worker counts
//! at most about 500 decisions per second of each policy, so the lock and the sketch behind
//! a gate cost the same few hundred microseconds per second under any load.
//!
//! The number of decisions that are left out between two that are counted is geometrically
//! distributed: each decision is counted with probability `1/w`, independent of all others,
//! and no pattern of keys can hide from that. Since such a distribution has no memory, `w`
//! may change at any time without a bias.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// The time in which at most [`MOST`] decisions are counted.
const PERIOD_MS: u64 = 128;

/// Decisions of a worker and a policy that are counted in [`PERIOD_MS`].
const MOST: u32 = 64;

/// The largest weight of a decision.
const MAX_WEIGHT: u32 = 1 << 20;

/// A gate that lets through as many as can be counted. One thread uses it; another one may
/// [`relax`](Self::relax) it.
#[derive(Debug)]
pub(super) struct Gate {
    /// Decisions to leave out before the next that is counted.
    left: AtomicU32,
    /// What that one counts for.
    weight: AtomicU32,
    /// How many were counted in the current period.
    taken: AtomicU32,
    period: AtomicU64,
    random: AtomicU64,
}

impl Gate {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            left: AtomicU32::new(0),
            weight: AtomicU32::new(1),
            taken: AtomicU32::new(0),
            period: AtomicU64::new(0),
            random: AtomicU64::new(seed | 1),
        }
    }

    /// Whether this decision is to be counted.
    #[inline]
    pub(super) fn is_open(&self) -> bool {
        let left = self.left.load(Relaxed);
        if left == 0 {
            return true;
        }
        self.left.store(left - 1, Relaxed);
        false
    }

    /// What a decision counts for that is counted now, and draws how many to leave out.
    pub(super) fn take(&self, now_ms: u64) -> u64 {
        let drawn = self.weight.load(Relaxed);
        let mut weight = self.turn(now_ms, drawn);
        let taken = self.taken.load(Relaxed) + 1;
        self.taken.store(taken, Relaxed);
        if taken >= MOST {
            weight = (weight * 2).min(MAX_WEIGHT);
            self.taken.store(0, Relaxed);
        }
        self.weight.store(weight, Relaxed);
        self.left.store(self.skip(weight), Relaxed);
        drawn.into()
    }

    /// Lets more through where the load has ended that it was closed for.
    pub(super) fn relax(&self, now_ms: u64) {
        let weight = self.weight.load(Relaxed);
        let passed = (now_ms / PERIOD_MS).saturating_sub(self.period.load(Relaxed));
        if weight > 1 && passed > 2 {
            self.period.store(now_ms / PERIOD_MS, Relaxed);
            self.taken.store(0, Relaxed);
            let weight = (weight / 8).max(1);
            self.weight.store(weight, Relaxed);
            self.left.store(self.skip(weight), Relaxed);
        }
    }

    /// The weight for a period that may be a new one.
    fn turn(&self, now_ms: u64, weight: u32) -> u32 {
        let period = now_ms / PERIOD_MS;
        if period == self.period.load(Relaxed) {
            return weight;
        }
        self.period.store(period, Relaxed);
        match self.taken.swap(0, Relaxed) < MOST / 4 {
            true => (weight / 2).max(1),
            false => weight,
        }
    }

    /// How many to leave out, where one of `weight` is counted.
    fn skip(&self, weight: u32) -> u32 {
        if weight == 1 {
            return 0;
        }
        let mut bits = self.random.load(Relaxed);
        bits ^= bits << 13;
        bits ^= bits >> 7;
        bits ^= bits << 17;
        self.random.store(bits, Relaxed);
        // 53 random bits, and never 0.
        let uniform = ((bits >> 11) as f64 + 0.5) / (1_u64 << 53) as f64;
        let skipped = uniform.ln() / (-1.0 / f64::from(weight)).ln_1p();
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a conversion of floats saturates, and this one is positive"
        )]
        let skipped = skipped as u32;
        skipped
    }
}
