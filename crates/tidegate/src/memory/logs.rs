//! The logs of a shard: rings of records, beside the buckets, each owned by one entry.
//!
//! A ring grows and shrinks by copying to another; the bytes of all rings of a store
//! have a bound, and keys that own logs make room for one another at it.

use std::mem;
use std::sync::atomic::Ordering::Relaxed;

use super::bounds::{Bounds, WhenFull};
use super::bucket::{LOG_BIT, LimitId, Packed, SLOTS};
use super::fingerprint::Fingerprint;
use super::region::{LogId, Region};
use super::shard::{Place, Shard};
use super::view::LogRef;
use crate::algorithm::{LogHeader, LogRecord};

/// The smallest ring of a log, and the size from which rings shrink again.
const MIN_RING: u32 = 4;
const SHRINK_FROM: u32 = 64;

impl<M: Region> Shard<M> {
    /// The log a state owns, if its limit keeps one.
    pub(super) fn owned_log(&self, limit: LimitId, state: Packed) -> Option<(LogId, LogRef<'_>)> {
        let log = owned_log(limit, state)?;
        Some((log, self.log(log)))
    }

    /// Notes in a key's entry that its log has another number now.
    pub(super) fn move_log(&mut self, print: Fingerprint, log: LogId) {
        if let Some(place) = self.find(print) {
            let (limit, state) = self.read(place);
            let state = Packed {
                extra: u64::from(log),
                ..state
            };
            self.write(place, print, limit, state);
        }
    }

    pub(super) fn log(&self, id: LogId) -> LogRef<'_> {
        self.region.log(id)
    }

    pub(super) fn log_mut(&mut self, id: LogId) -> (&mut LogHeader, &mut [LogRecord]) {
        self.region.log_mut(id)
    }

    /// A log like `log` (or a new one) with room for `needed` records, of at
    /// most `max`: the same one if it fits. `None` when the bound on bytes does
    /// not allow it.
    pub(super) fn fit_log(
        &mut self,
        log: Option<LogId>,
        needed: u32,
        max: u32,
        bounds: &Bounds,
    ) -> Option<LogId> {
        let (held, len) = log.map_or((0, 0), |log| {
            let (header, records) = self.log(log);
            (ring_len(records), header.len)
        });
        let wanted = if needed > held {
            held.saturating_mul(2).max(MIN_RING).min(max).max(needed)
        } else if held > SHRINK_FROM && needed <= held / 4 && len <= held / 2 {
            held / 2
        } else {
            return log;
        };
        let take = |records| {
            bounds
                .take_log_bytes(ring_bytes(records))
                .then_some(records)
        };
        // Where bytes are short, as few as will do; and a ring that is merely too
        // large stays as it is.
        let least = needed.max(len);
        let least = Some(least).filter(|_| needed > held);
        let Some(wanted) = take(wanted).or_else(|| take(least?)) else {
            return log.filter(|_| needed <= held);
        };
        let Some(new) = self.region.open_log(wanted) else {
            bounds.log_bytes.give_back(ring_bytes(wanted));
            return log.filter(|_| needed <= held);
        };
        self.logs += 1;
        if let Some(log) = log {
            self.copy_log(log, new);
            self.close_log(log, bounds);
        }
        Some(new)
    }

    fn copy_log(&mut self, from: LogId, to: LogId) {
        let (header, records) = self.log(from);
        let mut header = *header;
        let head = header.head as usize;
        let live: Vec<LogRecord> = records[head..]
            .iter()
            .chain(&records[..head])
            .take(header.len as usize)
            .copied()
            .collect();
        header.head = 0;
        let (new_header, new_records) = self.log_mut(to);
        new_records[..live.len()].copy_from_slice(&live);
        *new_header = header;
    }

    pub(super) fn close_log(&mut self, log: LogId, bounds: &Bounds) {
        bounds
            .log_bytes
            .give_back(ring_bytes(ring_len(self.log(log).1)));
        self.region.close_log(log);
        self.logs -= 1;
    }

    /// Drops keys that own logs until `bytes` are freed: those as good as new,
    /// and, where that is allowed, those nearest to it. Returns the bytes freed.
    #[cold]
    pub(super) fn reclaim_logs(
        &mut self,
        bytes: usize,
        now_us: u64,
        bounds: &Bounds,
        pinned: &[Fingerprint],
    ) -> usize {
        if self.logs == 0 {
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
                    (
                        entry.fresh_at_us(slot),
                        (bucket, slot),
                        ring_bytes(ring_len(self.log(log).1)),
                    )
                })
            })
            .collect();
        owners.sort_unstable();
        let mut freed = 0;
        for (fresh_at_us, owner, ring) in owners {
            let in_use = fresh_at_us > now_us;
            if freed >= bytes || (in_use && bounds.when_full == WhenFull::Deny) {
                break;
            }
            bounds.evicted.fetch_add(u64::from(in_use), Relaxed);
            self.remove(owner, bounds);
            freed += ring;
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

/// What a ring costs of the bound on bytes.
pub(super) fn ring_bytes(records: u32) -> usize {
    records as usize * mem::size_of::<LogRecord>() + mem::size_of::<(LogHeader, Box<[LogRecord]>)>()
}

fn ring_len(records: &[LogRecord]) -> u32 {
    u32::try_from(records.len()).unwrap_or(u32::MAX)
}
