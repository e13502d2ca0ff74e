//! Where a table lives: its shards, their bounds, and the limits that entries were written
//! under. [`HeapHome`] belongs to one process; `zone.rs` has memory that several map.
//!
//! The entries of a shard are plain integers without pointers. On the heap they grow as
//! needed, and logs and notes about receipts lie beside them. An array of entries, which
//! several processes can map, has a fixed size and nothing beside it: limits that need a log
//! are refused there, and so are refunds of receipts.

use lock_api::{Mutex, MutexGuard, RawMutex};

use super::bounds::Bounds;
use super::bucket::{Bucket, LimitId};
use super::limits::Limits;
use super::lock::ShardLock;
use super::logs::Logs;
use super::notes::Notes;
use super::shard::Shard;
use super::table::LockedShard;
use crate::limit::Limit;

/// What all users of a table share.
pub(crate) trait Home {
    type Lock: ZoneLock;
    type Region: Region;

    /// How many shards there are, and one of them.
    fn shards(&self) -> usize;
    fn shard(&self, number: usize) -> &LockedShard<Self::Lock, Self::Region>;
    fn bounds(&self) -> &Bounds;
    /// The limit that an entry was written under.
    fn limit(&self, id: LimitId) -> Option<Limit>;
}

/// The memory of one shard.
pub(crate) trait Region {
    fn buckets(&self) -> &[Bucket];
    fn buckets_mut(&mut self) -> &mut [Bucket];
    /// The buckets, if they can be replaced by more or fewer.
    fn growing(&mut self) -> Option<&mut Box<[Bucket]>>;
    /// What lies beside the entries, if there is any.
    fn side(&self) -> Option<&Side>;
    /// The same, made if there is room for it.
    fn side_mut(&mut self) -> Option<&mut Side>;
}

/// What lies beside the entries of a shard.
#[derive(Default)]
pub(crate) struct Side {
    pub(super) logs: Logs,
    pub(super) notes: Notes,
}

/// A locked shard of a table.
pub(super) type ShardGuard<'t, H> = MutexGuard<'t, <H as Home>::Lock, Shard<<H as Home>::Region>>;

/// The lock of a shard.
///
/// In memory that processes share, the owner of a lock can be killed while it holds it. Such
/// a lock passes to the next process that waits for it, and says so.
pub trait ZoneLock: RawMutex + Sized {
    /// Whether the last owner died with this lock in its hands. Asked once by each new owner,
    /// right after it got the lock.
    fn take_abandoned<T>(mutex: &Mutex<Self, T>) -> bool;
}

/// Threads do not die alone.
impl ZoneLock for ShardLock {
    #[inline(always)]
    fn take_abandoned<T>(_: &Mutex<Self, T>) -> bool {
        false
    }
}

/// The memory of one process.
pub(crate) struct HeapHome {
    shards: Box<[LockedShard<ShardLock, Heap>]>,
    bounds: Bounds,
    pub(super) limits: Limits,
}

impl HeapHome {
    pub(super) fn new(shards: usize, bounds: Bounds) -> Self {
        Self {
            shards: (0..shards).map(|_| LockedShard::default()).collect(),
            bounds,
            limits: Limits::default(),
        }
    }
}

impl Home for HeapHome {
    type Lock = ShardLock;
    type Region = Heap;

    #[inline]
    fn shards(&self) -> usize {
        self.shards.len()
    }

    #[inline]
    fn shard(&self, number: usize) -> &LockedShard<ShardLock, Heap> {
        &self.shards[number]
    }

    #[inline]
    fn bounds(&self) -> &Bounds {
        &self.bounds
    }

    fn limit(&self, id: LimitId) -> Option<Limit> {
        self.limits.get(id)
    }
}

/// Memory from the allocator.
#[derive(Default)]
pub(crate) struct Heap {
    buckets: Box<[Bucket]>,
    /// Behind a box: most shards have none, and a shard fits a cache line.
    side: Option<Box<Side>>,
}

impl Region for Heap {
    #[inline]
    fn buckets(&self) -> &[Bucket] {
        &self.buckets
    }

    #[inline]
    fn buckets_mut(&mut self) -> &mut [Bucket] {
        &mut self.buckets
    }

    fn growing(&mut self) -> Option<&mut Box<[Bucket]>> {
        Some(&mut self.buckets)
    }

    #[inline]
    fn side(&self) -> Option<&Side> {
        self.side.as_deref()
    }

    fn side_mut(&mut self) -> Option<&mut Side> {
        Some(self.side.get_or_insert_default())
    }
}

/// An array of buckets, without a pointer in it.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Fixed<const BUCKETS: usize>([Bucket; BUCKETS]);

impl<const BUCKETS: usize> Default for Fixed<BUCKETS> {
    fn default() -> Self {
        Self([Bucket::EMPTY; BUCKETS])
    }
}

impl<const BUCKETS: usize> Region for Fixed<BUCKETS> {
    #[inline]
    fn buckets(&self) -> &[Bucket] {
        &self.0
    }

    #[inline]
    fn buckets_mut(&mut self) -> &mut [Bucket] {
        &mut self.0
    }

    fn growing(&mut self) -> Option<&mut Box<[Bucket]>> {
        None
    }

    #[inline]
    fn side(&self) -> Option<&Side> {
        None
    }

    fn side_mut(&mut self) -> Option<&mut Side> {
        None
    }
}
