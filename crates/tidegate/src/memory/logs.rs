//! The logs of a shard, beside the buckets, each owned by one entry. The bytes of all
//! logs of a store have a bound, and keys that own logs make room for one another at it.

use std::sync::atomic::Ordering::Relaxed;

use super::bounds::{Bounds, WhenFull};
use super::bucket::{LOG_BIT, LimitId, SLOTS};
use super::fingerprint::Fingerprint;
use super::region::{LogId, Region};
use super::shard::{Place, Shard};
use crate::algorithm::{Log, Packed};

impl<M: Region> Shard<M> {
    pub(super) fn log(&self, id: LogId) -> &Log {
        self.region.log(id)
    }

    pub(super) fn log_mut(&mut self, id: LogId) -> &mut Log {
        self.region.log_mut(id)
    }

    /// A new log, whose bytes the caller has taken.
    pub(super) fn open_log(&mut self) -> Option<LogId> {
        self.region.open_log()
    }

    /// Closes a log; it is freed once the lock is released.
    pub(super) fn close_log(&mut self, id: LogId, bounds: &Bounds) {
        let log = self.region.close_log(id);
        bounds.log_bytes.give_back(log.bytes());
        self.region.discard(log);
    }

    /// Drops keys that own logs until `bytes` are freed: first those whose quota is
    /// full, then, where that is allowed, those nearest to it. Returns the bytes freed.
    #[cold]
    pub(super) fn reclaim_logs(
        &mut self,
        bytes: usize,
        now_us: u64,
        bounds: &Bounds,
        pinned: &[Fingerprint],
    ) -> usize {
        if !self.region.has_logs() {
            return 0;
        }
        let buckets = self.region.buckets();
        let mut owners: Vec<(u64, Place, usize)> = (0..buckets.len())
            .flat_map(|bucket| (0..SLOTS).map(move |slot| (bucket, slot)))
            .filter_map(|(bucket, slot)| {
                let entry = &buckets[bucket];
                let log = owned_log(entry.limit(slot), entry.read(slot))?;
                let free = !entry.is_empty(slot) && !pinned.contains(&entry.fingerprint(slot));
                free.then(|| {
                    let bytes = self.log(log).bytes();
                    (entry.fresh_at_us(slot), (bucket, slot), bytes)
                })
            })
            .collect();
        owners.sort_unstable();
        let mut freed = 0;
        for (fresh_at_us, owner, log_bytes) in owners {
            let in_use = fresh_at_us > now_us;
            if freed >= bytes || (in_use && bounds.when_full() == WhenFull::Deny) {
                break;
            }
            bounds.evicted.fetch_add(u64::from(in_use), Relaxed);
            self.remove(owner, bounds);
            freed += log_bytes;
        }
        freed
    }
}

/// The number of the log a state owns, if its limit keeps one.
pub(super) fn owned_log(limit: LimitId, state: Packed) -> Option<LogId> {
    if limit & LOG_BIT == 0 {
        return None;
    }
    LogId::try_from(state.extra).ok()
}
