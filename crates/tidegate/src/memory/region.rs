//! The memory a shard lives in.
//!
//! Everything a shard keeps is plain integers without pointers, reached through
//! this trait: buckets in one slice, logs by number. [`Heap`] grows as it is
//! needed; memory of a fixed size that several processes map can stand in its
//! place, and a test at the end of `shard.rs` runs a shard in one.

use super::bucket::Bucket;
use crate::algorithm::{LogHeader, LogRecord};

/// The number of a log in its region.
pub(super) type LogId = u32;

/// Memory for the buckets and logs of one shard.
pub(super) trait Region {
    /// Whether the buckets can be replaced by more or fewer.
    const GROWS: bool;

    fn buckets(&self) -> &[Bucket];
    fn buckets_mut(&mut self) -> &mut [Bucket];
    /// Only where the region [`GROWS`](Self::GROWS).
    fn replace(&mut self, buckets: Box<[Bucket]>);

    fn log(&self, id: LogId) -> (&LogHeader, &[LogRecord]);
    fn log_mut(&mut self, id: LogId) -> (&mut LogHeader, &mut [LogRecord]);
    /// An empty log with room for exactly so many records, if there is memory
    /// for it.
    fn open_log(&mut self, records: u32) -> Option<LogId>;
    fn close_log(&mut self, id: LogId);
}

/// Memory from the allocator.
#[derive(Default)]
pub(crate) struct Heap {
    buckets: Box<[Bucket]>,
    /// Behind a box: most shards have none, and a shard fits a cache line.
    logs: Option<Box<Logs>>,
}

#[derive(Default)]
struct Logs {
    rings: Vec<(LogHeader, Box<[LogRecord]>)>,
    closed: Vec<LogId>,
}

impl Region for Heap {
    const GROWS: bool = true;

    fn buckets(&self) -> &[Bucket] {
        &self.buckets
    }

    fn buckets_mut(&mut self) -> &mut [Bucket] {
        &mut self.buckets
    }

    fn replace(&mut self, buckets: Box<[Bucket]>) {
        self.buckets = buckets;
    }

    fn log(&self, id: LogId) -> (&LogHeader, &[LogRecord]) {
        let logs = self.logs.as_ref().expect("an id comes from `open_log`");
        let (header, records) = &logs.rings[id as usize];
        (header, records)
    }

    fn log_mut(&mut self, id: LogId) -> (&mut LogHeader, &mut [LogRecord]) {
        let logs = self.logs.as_mut().expect("an id comes from `open_log`");
        let (header, records) = &mut logs.rings[id as usize];
        (header, records)
    }

    fn open_log(&mut self, records: u32) -> Option<LogId> {
        let logs = self.logs.get_or_insert_default();
        let ring = (
            LogHeader::default(),
            vec![LogRecord::default(); records as usize].into_boxed_slice(),
        );
        if let Some(id) = logs.closed.pop() {
            logs.rings[id as usize] = ring;
            return Some(id);
        }
        let id = LogId::try_from(logs.rings.len()).ok()?;
        logs.rings.push(ring);
        Some(id)
    }

    fn close_log(&mut self, id: LogId) {
        let logs = self.logs.as_mut().expect("an id comes from `open_log`");
        logs.rings[id as usize] = Default::default();
        logs.closed.push(id);
        if logs.closed.len() == logs.rings.len() {
            self.logs = None;
        }
    }
}
