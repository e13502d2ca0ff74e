//! The process of a node, and its clock.
//!
//! A process that forks has a copy of its parent's node: were it to spend or return leases, or
//! to report charges, the store would count them twice or not at all.
//!
//! A handler that the C library runs in every forked child raises a number, so that finding
//! out costs a check no more than reading it. A child that the program makes without the C
//! library's `fork` is not seen.

use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// How many forks lie between the start of the program and this process.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// One process of those that come from each other by forking.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Process(u32);

impl Process {
    /// This process, which is told apart from its children from now on.
    pub(super) fn this() -> Self {
        static WATCH: Once = Once::new();
        WATCH.call_once(watch);
        Self(FORKS.load(Relaxed))
    }

    /// Whether it is the one that runs this.
    #[inline]
    pub(super) fn is_this(self) -> bool {
        self.0 == FORKS.load(Relaxed)
    }
}

#[cfg(unix)]
#[expect(unsafe_code, reason = "the C library alone knows of every fork")]
fn watch() {
    extern "C" fn in_child() {
        FORKS.fetch_add(1, Relaxed);
    }
    // SAFETY: a child may do little between fork and exec, but may add to an atomic.
    let error = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    // It fails where no memory is left, and so would the next allocation.
    assert_eq!(error, 0, "no memory for a fork handler");
}

#[cfg(not(unix))]
fn watch() {}

/// Microseconds since some moment in the past, on a clock that never steps. Where the system
/// has such a clock, it counts the time that the machine was suspended.
#[cfg(any(target_os = "linux", target_os = "android"))]
#[inline]
pub(crate) fn now_us() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let (seconds, nanos) = (now.tv_sec.unsigned_abs(), now.tv_nsec.unsigned_abs());
    seconds * 1_000_000 + nanos / 1_000
}

/// Microseconds since the first reading, on a clock that never steps.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(crate) fn now_us() -> u64 {
    use std::sync::OnceLock;
    use std::time::Instant;

    static START: OnceLock<Instant> = OnceLock::new();
    let elapsed = START.get_or_init(Instant::now).elapsed();
    u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX)
}
