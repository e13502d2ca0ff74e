//! Where a table lives: its shards, their bounds, and the limits that entries were written
//! under. [`Heaped`] belongs to one process; `zone.rs` has memory that several map.

use lock_api::{Mutex, MutexGuard, RawMutex};

use super::bounds::Bounds;
use super::bucket::LimitId;
use super::limits::Limits;
use super::lock::ShardLock;
use super::region::{Heap, Region};
use super::shard::Shard;
use super::table::Locked;
use crate::limit::Limit;

/// What all users of a table share.
pub(crate) trait Home {
    type Lock: ZoneLock;
    type Region: Region;

    /// How many shards there are, and one of them.
    fn shards(&self) -> usize;
    fn shard(&self, number: usize) -> &Locked<Self::Lock, Self::Region>;
    fn bounds(&self) -> &Bounds;
    /// The limit that an entry was written under.
    fn limit(&self, id: LimitId) -> Option<Limit>;
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
pub(crate) struct Heaped {
    shards: Box<[Locked<ShardLock, Heap>]>,
    bounds: Bounds,
    pub(super) limits: Limits,
}

impl Heaped {
    pub(super) fn new(shards: usize, bounds: Bounds) -> Self {
        Self {
            shards: (0..shards).map(|_| Locked::default()).collect(),
            bounds,
            limits: Limits::default(),
        }
    }
}

impl Home for Heaped {
    type Lock = ShardLock;
    type Region = Heap;

    #[inline]
    fn shards(&self) -> usize {
        self.shards.len()
    }

    #[inline]
    fn shard(&self, number: usize) -> &Locked<ShardLock, Heap> {
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
