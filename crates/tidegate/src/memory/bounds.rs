//! How much a store may hold, and how much it does.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};

/// What to do with a new key when the store is full of keys in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WhenFull {
    /// Forget the key whose quota is full again soonest.
    #[default]
    Evict,
    /// Refuse the new key.
    Deny,
}

/// What a store holds, and what its bounds have cost so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Stats {
    /// Keys held now.
    pub keys: usize,
    /// Bytes of log records held now.
    pub log_bytes: usize,
    /// Keys in use that were forgotten to make room ([`WhenFull::Evict`]).
    pub evicted: u64,
    /// Checks that were refused for want of room ([`WhenFull::Deny`], or a log
    /// for which no room could be made).
    pub denied_full: u64,
}

/// The store is full; a slot frees up in `retry_after_us`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Full {
    pub(super) retry_after_us: u64,
}

/// The bounds and counters all shards of a store share. Touched when a key comes
/// or goes, not by checks of keys that are there.
pub(super) struct Bounds {
    max_keys: AtomicUsize,
    pub(super) max_log_bytes: usize,
    denies: AtomicBool,
    pub(super) keys: Quota,
    pub(super) log_bytes: Quota,
    /// Refunds that are remembered.
    pub(super) refunds: Quota,
    pub(super) evicted: AtomicU64,
    pub(super) denied_full: AtomicU64,
}

/// An amount that is taken and given back, never above its maximum.
#[derive(Debug, Default)]
pub(super) struct Quota(AtomicUsize);

impl Quota {
    pub(super) fn take(&self, amount: usize, max: usize) -> bool {
        self.0
            .fetch_update(Relaxed, Relaxed, |held| {
                held.checked_add(amount).filter(|&held| held <= max)
            })
            .is_ok()
    }

    pub(super) fn give_back(&self, amount: usize) {
        self.0.fetch_sub(amount, Relaxed);
    }

    pub(super) fn held(&self) -> usize {
        self.0.load(Relaxed)
    }
}

impl Bounds {
    pub(super) fn new(max_keys: usize, max_log_bytes: usize, when_full: WhenFull) -> Self {
        Self {
            max_keys: AtomicUsize::new(max_keys),
            max_log_bytes,
            denies: AtomicBool::new(when_full == WhenFull::Deny),
            keys: Quota::default(),
            log_bytes: Quota::default(),
            refunds: Quota::default(),
            evicted: AtomicU64::new(0),
            denied_full: AtomicU64::new(0),
        }
    }

    pub(super) fn max_keys(&self) -> usize {
        self.max_keys.load(Relaxed)
    }

    /// The most refunds that are remembered at once.
    pub(super) fn max_refunds(&self) -> usize {
        self.max_keys().saturating_add(1 << 16)
    }

    pub(super) fn when_full(&self) -> WhenFull {
        match self.denies.load(Relaxed) {
            true => WhenFull::Deny,
            false => WhenFull::Evict,
        }
    }

    pub(super) fn change(&self, max_keys: usize, when_full: WhenFull) {
        self.max_keys.store(max_keys, Relaxed);
        self.denies.store(when_full == WhenFull::Deny, Relaxed);
    }

    /// Whether there is no room for one more key.
    pub(super) fn is_full(&self) -> bool {
        self.keys.held() >= self.max_keys()
    }

    pub(super) fn take_key(&self) -> bool {
        self.keys.take(1, self.max_keys())
    }

    pub(super) fn take_log_bytes(&self, bytes: usize) -> bool {
        self.log_bytes.take(bytes, self.max_log_bytes)
    }

    pub(super) fn stats(&self) -> Stats {
        Stats {
            keys: self.keys.held(),
            log_bytes: self.log_bytes.held(),
            evicted: self.evicted.load(Relaxed),
            denied_full: self.denied_full.load(Relaxed),
        }
    }
}
