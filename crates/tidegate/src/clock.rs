//! Clocks.
//!
//! Time is a count of microseconds since the Unix epoch. In production it is the wall clock
//! read once, plus the time that has passed since (`monotonic.rs`), which does not step when
//! the wall clock is set. In tests, the test sets the time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::algorithm::MAX_NOW_US;
use crate::monotonic;

/// A clock to decide by. The store reads it while it holds the keys it changes, so a
/// clock that several threads move still gives each key its times in order.
pub trait Clock: Send + Sync {
    /// Microseconds since the Unix epoch. May step either way.
    fn now_us(&self) -> u64;

    /// Waits, for [`Limiter::until_ready`](crate::Limiter::until_ready).
    fn sleep(&self, duration: Duration) {
        std::thread::sleep(duration);
    }
}

/// A clock for tests that moves only when the test moves it. Clones show the same time.
///
/// ```
/// use std::time::Duration;
/// use tidegate::{Limit, Limiter, ManualClock, MemoryStore};
///
/// let clock = ManualClock::at_us(0);
/// let store = MemoryStore::builder().clock(clock.clone()).build();
/// let limiter = Limiter::over(&store, Limit::per_second(1))?;
/// assert!(limiter.check("a").allowed());
/// assert!(!limiter.check("a").allowed());
/// clock.advance(Duration::from_secs(1));
/// assert!(limiter.check("a").allowed());
/// # Ok::<(), tidegate::TooManyLimits>(())
/// ```
#[derive(Debug, Clone, Default)]
pub struct ManualClock(Arc<AtomicU64>);

impl ManualClock {
    /// A clock that shows this instant.
    pub fn at_us(now_us: u64) -> Self {
        Self(Arc::new(AtomicU64::new(now_us)))
    }

    /// Moves the clock forward.
    pub fn advance(&self, by: Duration) {
        let now_us = |now_us: u64| now_us.saturating_add(micros(by));
        self.0.update(Ordering::Relaxed, Ordering::Relaxed, now_us);
    }

    /// Sets the clock, forward or back.
    pub fn set_us(&self, now_us: u64) {
        self.0.store(now_us, Ordering::Relaxed);
    }
}

impl Clock for ManualClock {
    fn now_us(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Sleeping moves this clock, since nothing else does.
    fn sleep(&self, duration: Duration) {
        self.advance(duration);
    }
}

/// The clock of a store.
pub(crate) enum TimeSource {
    /// The system clock: Unix time when monotonic time was zero.
    System { epoch_us: u64 },
    /// A custom clock.
    Injected(Arc<dyn Clock>),
}

impl TimeSource {
    pub(crate) fn system() -> Self {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH);
        let wall_us = micros(wall.unwrap_or_default());
        Self::System {
            epoch_us: wall_us.saturating_sub(monotonic::now_us()),
        }
    }

    /// Whether readings decrease only by what threads disagree about, so that one taken
    /// before a lock is waited for can be used after it.
    pub(crate) fn is_monotonic(&self) -> bool {
        matches!(self, Self::System { .. })
    }

    pub(crate) fn now_us(&self) -> u64 {
        match self {
            Self::System { epoch_us } => (epoch_us + monotonic::now_us()).min(MAX_NOW_US),
            Self::Injected(clock) => clock.now_us().min(MAX_NOW_US),
        }
    }

    pub(crate) fn sleep(&self, duration: Duration) {
        match self {
            Self::System { .. } => std::thread::sleep(duration),
            Self::Injected(clock) => clock.sleep(duration),
        }
    }
}

/// Whole microseconds.
pub(crate) fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
