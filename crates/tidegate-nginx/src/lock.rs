//! The lock of a part of a zone, in memory that the workers share. It knows its owner: a
//! worker that waits for a lock whose owner was killed takes it over, and the zone learns that
//! the dead worker may have left a write half done.
//!
//! An owner is a process id and the time that process started, because the system gives ids
//! out again.

use std::fs;
use std::hint;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::thread;

use lock_api::{GuardNoSend, Mutex, RawMutex};
use tidegate::zone::ZoneLock;

/// Pauses between two looks: about a microsecond.
const PAUSES: u32 = 64;

/// Looks between two questions whether the owner still lives: some tenths of a millisecond,
/// where a lock is held for some tens of nanoseconds. On a busy machine each look lets others
/// run for milliseconds, so there are few.
const LOOKS: u32 = 100;

/// This process. Processes that are forked set it anew.
static THIS: AtomicU64 = AtomicU64::new(0);

/// A lock that outlives its owner.
pub(crate) struct OwnedLock {
    /// 0 when nobody has it.
    owner: AtomicU64,
    abandoned: AtomicBool,
}

/// Has locks know this process by its own name: to be called first in every process.
pub(crate) fn identify() {
    let id = std::process::id();
    let started = Running::of(id).map_or(0, |running| running.started);
    THIS.store(owner(id, started), Relaxed);
}

/// An owner, never 0.
fn owner(id: u32, started: u64) -> u64 {
    u64::from(id) << 32 | started & u64::from(u32::MAX)
}

// SAFETY: `owner` goes from 0 to a process by one atomic exchange that succeeds for one of all
// who try, and back to 0 only by `unlock`, or to another process once its owner is dead.
unsafe impl RawMutex for OwnedLock {
    const INIT: Self = Self {
        owner: AtomicU64::new(0),
        abandoned: AtomicBool::new(false),
    };

    type GuardMarker = GuardNoSend;

    #[inline]
    fn lock(&self) {
        if !self.try_lock() {
            self.wait();
        }
    }

    #[inline]
    fn try_lock(&self) -> bool {
        let this = THIS.load(Relaxed);
        let taken = self.owner.compare_exchange(0, this, Acquire, Relaxed);
        taken.is_ok()
    }

    #[inline]
    unsafe fn unlock(&self) {
        self.owner.store(0, Release);
    }
}

impl ZoneLock for OwnedLock {
    #[inline]
    fn take_abandoned<T>(mutex: &Mutex<Self, T>) -> bool {
        // SAFETY: it is only looked at, never locked or unlocked.
        let lock = unsafe { mutex.raw() };
        lock.abandoned.load(Relaxed) && lock.abandoned.swap(false, Relaxed)
    }
}

impl OwnedLock {
    #[cold]
    fn wait(&self) {
        loop {
            for _ in 0..LOOKS {
                for _ in 0..PAUSES {
                    hint::spin_loop();
                }
                if self.owner.load(Relaxed) == 0 && self.try_lock() {
                    return;
                }
                thread::yield_now();
            }
            let owner = self.owner.load(Relaxed);
            if owner != 0 && is_dead(owner) && self.take_over(owner) {
                return;
            }
        }
    }

    /// Of all who wait, one takes it over.
    fn take_over(&self, dead: u64) -> bool {
        let this = THIS.load(Relaxed);
        let taken = self.owner.compare_exchange(dead, this, Acquire, Relaxed);
        if taken.is_ok() {
            self.abandoned.store(true, Relaxed);
        }
        taken.is_ok()
    }
}

/// What the system says of a process.
struct Running {
    started: u64,
    /// It has ended, and nobody has asked how.
    is_ended: bool,
}

impl Running {
    fn of(id: u32) -> Option<Self> {
        let stat = fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
        // The name, in parentheses, may hold anything.
        let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
        let state = fields.next()?;
        Some(Self {
            is_ended: matches!(state, "Z" | "X"),
            started: fields.nth(18)?.parse().ok()?,
        })
    }
}

/// Whether an owner is gone for certain.
fn is_dead(dead: u64) -> bool {
    let Ok(id) = u32::try_from(dead >> 32) else {
        return false;
    };
    match Running::of(id) {
        Some(running) => running.is_ended || owner(id, running.started) != dead,
        // No such process, where processes can be seen at all.
        None => {
            let raw = i32::try_from(id).ok();
            let id = raw.and_then(rustix::process::Pid::from_raw);
            let answer = id.map(rustix::process::test_kill_process);
            answer == Some(Err(rustix::io::Errno::SRCH))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};
    use std::sync::atomic::AtomicU32;
    use std::time::{Duration, Instant};

    use super::*;

    type Locked = Mutex<OwnedLock, u32>;

    /// A lock that this owner holds.
    fn held_by(owner: u64) -> Locked {
        let lock = Locked::new(7);
        // SAFETY: nobody locks or unlocks it meanwhile.
        unsafe { lock.raw() }.owner.store(owner, Relaxed);
        lock
    }

    /// A process that waits until it is killed.
    fn process() -> (std::process::Child, u64) {
        let child = Command::new("sleep")
            .arg("60")
            .stdout(Stdio::null())
            .spawn();
        let child = child.expect("`sleep`");
        let running = Running::of(child.id()).expect("a process that runs");
        let owner = owner(child.id(), running.started);
        (child, owner)
    }

    #[test]
    fn lock_excludes_others() {
        identify();
        let (lock, inside) = (Locked::new(0), AtomicU32::new(0));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..10_000 {
                        let mut number = lock.lock();
                        assert_eq!(inside.fetch_add(1, Relaxed), 0);
                        *number += 1;
                        inside.fetch_sub(1, Relaxed);
                    }
                });
            }
        });
        assert_eq!(*lock.lock(), 40_000);
        assert!(!OwnedLock::take_abandoned(&lock));
    }

    #[test]
    fn lock_of_a_killed_process_is_taken_over_and_says_so_once() {
        identify();
        let (mut child, owner) = process();
        let lock = held_by(owner);
        assert!(lock.try_lock().is_none());
        assert!(!is_dead(owner), "it still runs");
        child.kill().expect("a child of ours");
        // Nobody has asked how it ended, so the system still knows it.
        let start = Instant::now();
        assert_eq!(*lock.lock(), 7);
        assert!(start.elapsed() < Duration::from_secs(30));
        assert!(OwnedLock::take_abandoned(&lock));
        assert!(!OwnedLock::take_abandoned(&lock));
        child.wait().expect("a child of ours");
        assert!(is_dead(owner));
        assert_eq!(*held_by(owner).lock(), 7);
    }

    #[test]
    fn process_with_the_id_of_a_dead_one_is_another() {
        identify();
        let (mut child, owner) = process();
        assert!(is_dead(owner + 1), "that one started at another time");
        assert!(!is_dead(owner));
        child.kill().expect("a child of ours");
        child.wait().expect("a child of ours");
    }
}
