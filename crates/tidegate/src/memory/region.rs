//! The memory a shard lives in.
//!
//! Entries are plain integers without pointers, reached through this trait as one
//! slice of buckets. [`Heap`] grows as it is needed; [`Fixed`] is an array without a pointer
//! in it, which several processes can map (`zone.rs`). Logs and notes about receipts are
//! optional: a region of a fixed size has no room for them, so limits that need a log are
//! refused there, and so are refunds of receipts.

use super::bucket::Bucket;
use super::notes::Notes;
use crate::algorithm::Log;

/// The number of a log in its region.
pub(crate) type LogId = u32;

/// Memory for the buckets and logs of one shard.
pub(crate) trait Region {
    /// Whether the buckets can be replaced by more or fewer.
    const GROWS: bool;

    fn buckets(&self) -> &[Bucket];
    fn buckets_mut(&mut self) -> &mut [Bucket];
    /// Only where the region [`GROWS`](Self::GROWS).
    fn replace(&mut self, buckets: Box<[Bucket]>);

    /// Whether there are any logs.
    fn has_logs(&self) -> bool;
    fn log(&self, id: LogId) -> &Log;
    fn log_mut(&mut self, id: LogId) -> &mut Log;
    /// An empty log, if there is memory for it.
    fn open_log(&mut self) -> Option<LogId>;
    /// Gives the log to the caller, who frees it when no lock is held.
    fn close_log(&mut self, id: LogId) -> Log;

    fn notes(&self) -> Option<&Notes>;
    /// The notes, if there is memory for them.
    fn notes_mut(&mut self) -> Option<&mut Notes>;

    /// Keeps a log until somebody can free it.
    fn discard(&mut self, log: Log);
    /// Logs that were closed and are to be freed without a lock.
    fn take_discarded(&mut self) -> Vec<Log>;
}

/// Memory from the allocator.
#[derive(Default)]
pub(crate) struct Heap {
    buckets: Box<[Bucket]>,
    /// Behind a box: most shards have none, and a shard fits a cache line.
    rare: Option<Box<Rare>>,
}

#[derive(Default)]
struct Rare {
    logs: Vec<Log>,
    closed: Vec<LogId>,
    discarded: Vec<Log>,
    notes: Notes,
}

impl Heap {
    fn rare(&mut self) -> &mut Rare {
        self.rare.get_or_insert_default()
    }
}

impl Region for Heap {
    const GROWS: bool = true;

    #[inline]
    fn buckets(&self) -> &[Bucket] {
        &self.buckets
    }

    #[inline]
    fn buckets_mut(&mut self) -> &mut [Bucket] {
        &mut self.buckets
    }

    fn replace(&mut self, buckets: Box<[Bucket]>) {
        self.buckets = buckets;
    }

    fn has_logs(&self) -> bool {
        let rare = self.rare.as_ref();
        rare.is_some_and(|rare| rare.logs.len() > rare.closed.len())
    }

    fn log(&self, id: LogId) -> &Log {
        let rare = self.rare.as_ref().expect("an id comes from `open_log`");
        &rare.logs[id as usize]
    }

    fn log_mut(&mut self, id: LogId) -> &mut Log {
        &mut self.rare().logs[id as usize]
    }

    fn open_log(&mut self) -> Option<LogId> {
        let rare = self.rare();
        if let Some(id) = rare.closed.pop() {
            return Some(id);
        }
        let id = LogId::try_from(rare.logs.len()).ok()?;
        rare.logs.push(Log::default());
        Some(id)
    }

    fn close_log(&mut self, id: LogId) -> Log {
        let rare = self.rare();
        let log = std::mem::take(&mut rare.logs[id as usize]);
        rare.closed.push(id);
        if rare.closed.len() == rare.logs.len() {
            (rare.logs, rare.closed) = Default::default();
        }
        log
    }

    fn notes(&self) -> Option<&Notes> {
        self.rare.as_ref().map(|rare| &rare.notes)
    }

    fn notes_mut(&mut self) -> Option<&mut Notes> {
        Some(&mut self.rare().notes)
    }

    fn discard(&mut self, log: Log) {
        self.rare().discarded.push(log);
    }

    fn take_discarded(&mut self) -> Vec<Log> {
        match &mut self.rare {
            Some(rare) => std::mem::take(&mut rare.discarded),
            None => Vec::new(),
        }
    }
}

/// An array of buckets, without a pointer in it.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Fixed<const BUCKETS: usize> {
    buckets: [Bucket; BUCKETS],
}

impl<const BUCKETS: usize> Default for Fixed<BUCKETS> {
    fn default() -> Self {
        Self {
            buckets: [Bucket::EMPTY; BUCKETS],
        }
    }
}

impl<const BUCKETS: usize> Region for Fixed<BUCKETS> {
    const GROWS: bool = false;

    #[inline]
    fn buckets(&self) -> &[Bucket] {
        &self.buckets
    }

    #[inline]
    fn buckets_mut(&mut self) -> &mut [Bucket] {
        &mut self.buckets
    }

    fn replace(&mut self, _: Box<[Bucket]>) {
        unreachable!("this region does not grow");
    }

    fn has_logs(&self) -> bool {
        false
    }

    fn log(&self, _: LogId) -> &Log {
        unreachable!("this region has no logs");
    }

    fn log_mut(&mut self, _: LogId) -> &mut Log {
        unreachable!("this region has no logs");
    }

    fn open_log(&mut self) -> Option<LogId> {
        None
    }

    fn close_log(&mut self, _: LogId) -> Log {
        unreachable!("this region has no logs");
    }

    fn notes(&self) -> Option<&Notes> {
        None
    }

    fn notes_mut(&mut self) -> Option<&mut Notes> {
        None
    }

    fn discard(&mut self, _: Log) {}

    fn take_discarded(&mut self) -> Vec<Log> {
        Vec::new()
    }
}
