//! Many checks, one after the other, whose entries are fetched together.
//!
//! A check of a key among millions mostly waits for memory: for its shard, then for
//! its bucket. Here the first of these waits is begun for all checks, then the second
//! for all, and only then is each decided. So the waits overlap.

use smallvec::SmallVec;

use super::home::Home;
use super::table::Table;
use super::{Ask, Charge, Check};
use crate::decision::Decision;

/// Checks that are fetched together: more than a processor can wait for at once.
const TOGETHER: usize = 32;

impl<H: Home> Table<H> {
    pub(super) fn decide_each<'c>(
        &self,
        mut checks: impl Iterator<Item = Check<'c>>,
        charge: Charge,
        mut each: impl FnMut(Decision),
    ) {
        let at_us = self.clock_before_locks();
        let mut batch: SmallVec<[Ask<'c>; TOGETHER]> = SmallVec::new();
        loop {
            batch.clear();
            for check in checks.by_ref().take(TOGETHER) {
                let ask = self.ask(&check);
                prefetch(self.locked(ask.print));
                batch.push(ask);
            }
            if batch.is_empty() {
                return;
            }
            for ask in &batch {
                let shard = self.lock(self.shard_number(ask.print));
                for bucket in shard.candidates(ask.print) {
                    bucket.lines().into_iter().for_each(prefetch);
                }
            }
            for ask in &batch {
                each(self.decide_single(*ask, charge, at_us));
            }
        }
    }
}

/// Has the processor fetch the first cache line of a value, without waiting.
#[inline]
fn prefetch<T>(value: &T) {
    #[cfg(target_arch = "x86_64")]
    safe_arch::prefetch_t0(value);
    #[cfg(not(target_arch = "x86_64"))]
    let _ = value;
}
