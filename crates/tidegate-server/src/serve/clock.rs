//! A coarse clock: one number that the reaper advances, and that every connection reads
//! without asking the system.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use tokio::time::Instant;

/// How long one tick is.
pub(super) const TICK: Duration = Duration::from_millis(250);

/// A time in ticks since the clock was made, from 1: 0 is free for "never".
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ticks(pub(super) u32);

/// The clock.
#[derive(Debug)]
pub(super) struct Clock {
    now: AtomicU32,
    start: Option<Instant>,
}

impl Clock {
    pub(super) fn new() -> Self {
        Self {
            now: AtomicU32::new(1),
            start: Some(Instant::now()),
        }
    }

    /// A clock that stands still until it is advanced.
    #[cfg(test)]
    pub(super) fn manual() -> Self {
        Self {
            now: AtomicU32::new(1),
            start: None,
        }
    }

    #[cfg(test)]
    pub(super) fn advance(&self, time: Duration) {
        self.now.fetch_add(ticks(time), Relaxed);
    }

    /// The time of the last update.
    #[inline]
    pub(super) fn now(&self) -> Ticks {
        Ticks(self.now.load(Relaxed))
    }

    /// Sets it to the time of the system.
    pub(super) fn update(&self) -> Ticks {
        if let Some(start) = self.start {
            self.now.store(ticks(start.elapsed()) + 1, Relaxed);
        }
        self.now()
    }
}

impl Ticks {
    /// Whether more than this has passed for certain, whatever happened between two ticks.
    pub(super) fn is_later_by_more(self, earlier: Self, time: Duration) -> bool {
        self.0.saturating_sub(earlier.0) > ticks(time)
    }

    /// The number of the period of this length that it is in.
    #[inline]
    pub(super) fn generation(self, length: Duration) -> usize {
        (self.0 / ticks(length)) as usize
    }

    #[cfg(test)]
    pub(super) fn since(self, earlier: Self) -> Duration {
        TICK * (self.0 - earlier.0)
    }
}

/// Whole ticks, rounded up.
fn ticks(time: Duration) -> u32 {
    let ticks = time.as_millis().div_ceil(TICK.as_millis());
    u32::try_from(ticks).unwrap_or(u32::MAX - 1)
}
