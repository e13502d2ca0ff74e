//! The lock of a shard: one that spins, because it is held for some tens of
//! nanoseconds, and that works in memory which processes share.

use std::hint;
use std::thread;

use spin::mutex::SpinMutex;
use spin::relax::RelaxStrategy;

/// A shard's lock.
pub(crate) type ShardLock = SpinMutex<(), Patience>;

/// How to wait for it: about a microsecond before every look, which is as long as ten
/// checks take. So the holder of the lock processes several checks with the entry in its
/// cache, instead of the entry going back and forth. Then others may run, among them,
/// perhaps, the one that has the lock.
pub(crate) struct Patience;

/// On most processors a pause takes ten to forty nanoseconds.
const PAUSES: u32 = 64;

impl RelaxStrategy for Patience {
    fn relax() {
        for _ in 0..PAUSES {
            hint::spin_loop();
        }
        thread::yield_now();
    }
}
