//! The key a shard refused twice in a row, for everyone to read without a lock.
//!
//! Traffic above a limit mostly asks for the same few keys and is refused, which
//! changes nothing: a copy of the key's entry is enough to say so, with all the
//! numbers. Threads that read the same copy do not slow each other down, as threads
//! that take the same lock do.
//!
//! The copy is a sequence lock. Its version is odd while it is being written, so a
//! reader that finds the same even version before and after has read one entry and
//! not parts of two. Only the holder of the shard's lock writes it, and a holder that
//! changes the key's entry drops it before giving the lock back.

#[cfg(loom)]
use loom::sync::atomic::{AtomicU64, fence};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicU64, fence};

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use super::bucket::LimitId;
use super::fingerprint::Fingerprint;
use crate::algorithm::Packed;

/// A copy of one entry. The first word tells cheaply that it is of another key, and
/// is 0 when there is none.
#[derive(Default)]
#[repr(C)]
pub(super) struct LastRefusal {
    low: AtomicU64,
    version: AtomicU64,
    high_and_limit: AtomicU64,
    fresh_at_us: AtomicU64,
    data: AtomicU64,
    extra: AtomicU64,
}

impl LastRefusal {
    /// The state of this key under this limit, if that is what was refused last.
    #[inline]
    pub(super) fn get(&self, print: Fingerprint, limit: LimitId) -> Option<Packed> {
        if self.low.load(Relaxed) != print.low {
            return None;
        }
        let version = self.version.load(Acquire);
        let low = self.low.load(Relaxed);
        let high_and_limit = self.high_and_limit.load(Relaxed);
        let state = Packed {
            fresh_at_us: self.fresh_at_us.load(Relaxed),
            data: self.data.load(Relaxed),
            extra: self.extra.load(Relaxed),
        };
        // The loads above stay above this fence, the one below stays below.
        fence(Acquire);
        let whole = version.is_multiple_of(2) && self.version.load(Relaxed) == version;
        let same = low == print.low && high_and_limit == join(print, limit);
        (whole && same).then_some(state)
    }

    /// Copies the entry of a key that is refused. Only under the shard's lock.
    pub(super) fn set(&self, print: Fingerprint, limit: LimitId, state: Packed) {
        self.write(|| {
            self.low.store(print.low, Relaxed);
            self.high_and_limit.store(join(print, limit), Relaxed);
            self.fresh_at_us.store(state.fresh_at_us, Relaxed);
            self.data.store(state.data, Relaxed);
            self.extra.store(state.extra, Relaxed);
        });
    }

    /// Drops the copy if it is of this key, whose entry changes. Only
    /// under the shard's lock.
    #[inline]
    pub(super) fn forget(&self, print: Fingerprint) {
        if self.low.load(Relaxed) == print.low {
            self.write(|| self.low.store(0, Relaxed));
        }
    }

    /// Drops the copy, though one who wrote it may have stopped halfway. Only under the
    /// shard's lock.
    #[cold]
    pub(super) fn wipe(&self) {
        let odd = self.version.load(Relaxed) | 1;
        self.version.store(odd, Relaxed);
        fence(Release);
        self.low.store(0, Relaxed);
        self.version.store(odd.wrapping_add(1), Release);
    }

    fn write(&self, store: impl FnOnce()) {
        let version = self.version.load(Relaxed);
        self.version.store(version.wrapping_add(1), Relaxed);
        // No store below may be seen before the odd version.
        fence(Release);
        store();
        self.version.store(version.wrapping_add(2), Release);
    }
}

fn join(print: Fingerprint, limit: LimitId) -> u64 {
    u64::from(print.high) << 16 | u64::from(limit)
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::sync::{Arc, Mutex};
    use loom::thread;

    use super::*;

    const PRINT: Fingerprint = Fingerprint { low: 7, high: 3 };
    const OTHER: Fingerprint = Fingerprint { low: 9, high: 3 };

    /// An entry whose parts belong together.
    fn entry(number: u64) -> Packed {
        Packed {
            fresh_at_us: number,
            data: number,
            extra: number,
        }
    }

    /// One reader beside one writer: the shard's lock admits no second.
    fn check(write: fn(&LastRefusal, u64)) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(move || {
            let last = Arc::new(LastRefusal::default());
            last.set(PRINT, 1, entry(0));
            let writer = {
                let last = Arc::clone(&last);
                thread::spawn(move || (1..=2).for_each(|number| write(&last, number)))
            };
            if let Some(state) = last.get(PRINT, 1) {
                assert_eq!(state, entry(state.data));
            }
            writer.join().unwrap();
        });
    }

    #[test]
    fn loom_a_reader_never_sees_parts_of_two_entries() {
        check(|last, number| last.set(PRINT, 1, entry(number)));
    }

    #[test]
    fn loom_a_reader_never_takes_another_keys_entry_for_its_own() {
        check(|last, number| {
            last.set(if number == 1 { OTHER } else { PRINT }, 1, entry(number));
            last.forget(OTHER);
        });
    }

    #[test]
    fn loom_forgotten_refusal_is_not_seen_later() {
        loom::model(|| {
            let shared = Arc::new((LastRefusal::default(), Mutex::new(false)));
            shared.0.set(PRINT, 1, entry(0));
            let writer = {
                let shared = Arc::clone(&shared);
                thread::spawn(move || {
                    let mut forgotten = shared.1.lock().unwrap();
                    shared.0.forget(PRINT);
                    *forgotten = true;
                })
            };
            let forgotten = *shared.1.lock().unwrap();
            let seen = shared.0.get(PRINT, 1);
            assert!(!forgotten || seen.is_none());
            writer.join().unwrap();
        });
    }
}
