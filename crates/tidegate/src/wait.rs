//! Waiting instead of being refused: how long, at what cost, and how callers that wait
//! for the same key are spread out.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use crate::clock::micros;
use crate::cost::Cost;
use crate::decision::Decision;

/// How long a caller is willing to wait. A [`Duration`] is a wait of that length, for a
/// cost of 1 and without jitter.
///
/// ```
/// use std::time::Duration;
/// use tidegate::{Cost, Wait};
///
/// let wait = Wait::within(Duration::from_secs(1))
///     .cost(Cost::of(3))
///     .jitter(Duration::from_millis(20));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "a wait does nothing until a limiter is asked"]
pub struct Wait {
    deadline: Duration,
    cost: Cost,
    jitter: Duration,
}

/// Why a limiter did not wait. The refusal is inside.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum WaitError {
    /// The cost is above what the limit can ever admit.
    #[error("waiting will never help")]
    Never(Box<Decision>),
    /// The request could be admitted only after the deadline.
    #[error("it would take {:?}, longer than the deadline", .0.retry_after().unwrap_or_default())]
    Deadline(Box<Decision>),
}

impl Wait {
    /// At most this long.
    pub const fn within(deadline: Duration) -> Self {
        Self {
            deadline,
            cost: Cost::ONE,
            jitter: Duration::ZERO,
        }
    }

    /// For a request of this cost.
    pub const fn cost(self, cost: Cost) -> Self {
        Self { cost, ..self }
    }

    /// Adds a random time of up to this length to each pause, so that callers which
    /// wait for the same key do not all come back at once. Never beyond the deadline.
    pub const fn jitter(self, jitter: Duration) -> Self {
        Self { jitter, ..self }
    }
}

impl From<Duration> for Wait {
    fn from(deadline: Duration) -> Self {
        Self::within(deadline)
    }
}

/// A wait that has begun.
#[derive(Debug, Clone, Copy)]
pub struct Waiting {
    wait: Wait,
    deadline_us: u64,
}

/// What a caller that waits does next.
#[derive(Debug, Clone, PartialEq)]
#[expect(clippy::large_enum_variant, reason = "made and taken apart at once")]
pub enum Turn {
    /// The request may proceed.
    Go(Decision),
    /// Ask again after this pause.
    Pause(Duration),
}

impl Waiting {
    /// Begins to wait, at this instant of the clock that decides.
    pub fn new(wait: Wait, now_us: u64) -> Self {
        Self {
            wait,
            deadline_us: now_us.saturating_add(micros(wait.deadline)),
        }
    }

    /// The cost that the caller waits for.
    pub fn cost(&self) -> Cost {
        self.wait.cost
    }

    /// What follows from a decision.
    pub fn next(&self, decision: Decision) -> Result<Turn, WaitError> {
        if decision.allowed() {
            return Ok(Turn::Go(decision));
        }
        let Some(pause) = decision.retry_after() else {
            return Err(WaitError::Never(Box::new(decision)));
        };
        let ready_us = decision.decided_at_us().saturating_add(micros(pause));
        let Some(spare_us) = self.deadline_us.checked_sub(ready_us) else {
            return Err(WaitError::Deadline(Box::new(decision)));
        };
        let most_us = micros(self.wait.jitter).min(spare_us);
        let jitter_us = match most_us {
            0 => 0,
            most_us => RandomState::new().hash_one(ready_us) % (most_us + 1),
        };
        Ok(Turn::Pause(pause + Duration::from_micros(jitter_us)))
    }
}
