//! The algorithms, as arithmetic: a state, a cost and an instant go in, a state
//! and an [`Outcome`] come out.
//!
//! Nothing here reads a clock, takes a lock or allocates. Every number is an
//! integer, every instant a count of microseconds since the Unix epoch, and no
//! step needs a product that a double could not hold where a script has to do
//! the same: a store that decides elsewhere (in Lua, say) can agree number for
//! number.
//!
//! Each algorithm has the same six verbs:
//!
//! | verb | does |
//! | --- | --- |
//! | `at` | brings a state forward to an instant; if the clock reads earlier than the state, no time has passed |
//! | `admits` | would this cost fit |
//! | `charge` | the state after taking it |
//! | `saturate` | the state after a *refused* request that is counted all the same |
//! | `outcome` | the numbers to report |
//! | `refund` | the state after giving a charge back |
//!
//! and `step`, which puts `at`, `admits`, `charge` and `outcome` together for
//! one level. A store with several levels calls the verbs itself: it must know
//! what every level says before it charges any.

mod fixed_window;
mod sliding_log;
mod sliding_window;
mod token_bucket;

pub use fixed_window::{FixedWindow, FixedWindowState};
pub use sliding_log::{LogHeader, LogRecord, LogView, SlidingLog};
pub use sliding_window::{SlidingWindow, SlidingWindowState};
pub use token_bucket::{Span, TokenBucket, TokenBucketState};

/// The latest instant the arithmetic is made for, in microseconds: the year
/// 2112. Clocks that read later are read as this.
pub const MAX_NOW_US: u64 = (1 << 52) - 1;

/// The numbers one level reports, as they stand after the check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outcome {
    /// The requests per window, or the size of a token bucket.
    pub limit: u32,
    /// What is used of it now.
    pub used: Used,
    /// Until the same cost would be admitted if nobody else came: 0 when it is
    /// admitted now, `None` when it never will be.
    pub retry_after_us: Option<u64>,
    /// Until the key is as good as new.
    pub reset_after_us: u64,
}

/// An exact number of requests: `parts / per_request`. Kept as a fraction because
/// most callers only ask whether they may go on, and dividing is the dearest thing
/// a check could do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Used {
    /// How many parts are used.
    pub parts: u128,
    /// How many parts make a request.
    pub per_request: u64,
}

impl Outcome {
    /// The outcome of a limit that refuses everything.
    pub const BLOCKED: Self = Self {
        limit: 0,
        used: Used::requests(0),
        retry_after_us: None,
        reset_after_us: 0,
    };

    /// Requests of cost 1 that would still be admitted at this instant.
    #[must_use]
    pub fn remaining(&self) -> u32 {
        self.limit.saturating_sub(self.used.ceil())
    }

    /// Usage now: tokens used, requests counted, or the sliding estimate.
    #[must_use]
    pub fn rate(&self) -> f64 {
        self.used.to_f64()
    }
}

impl Used {
    /// A whole number of requests.
    #[must_use]
    pub const fn requests(count: u32) -> Self {
        Self {
            parts: count as u128,
            per_request: 1,
        }
    }

    /// Whole requests that cover it.
    #[must_use]
    pub fn ceil(self) -> u32 {
        // Dividing 128 bits takes several times as long as dividing 64.
        let requests = match u64::try_from(self.parts) {
            Ok(parts) => u128::from(parts.div_ceil(self.per_request)),
            Err(_) => self.parts.div_ceil(u128::from(self.per_request)),
        };
        u32::try_from(requests).unwrap_or(u32::MAX)
    }

    /// The nearest floating-point number.
    #[must_use]
    #[expect(
        clippy::cast_precision_loss,
        reason = "a figure to read, not to decide by"
    )]
    pub fn to_f64(self) -> f64 {
        self.parts as f64 / self.per_request as f64
    }
}

/// `a * b / c`, rounded down. The quotient must fit, as it does where `a <= c`
/// or `b <= c`.
pub(crate) fn mul_div(a: u64, b: u64, c: u64) -> u64 {
    if let Some(product) = a.checked_mul(b) {
        return product / c;
    }
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the caller's quotient fits"
    )]
    let quotient = (u128::from(a) * u128::from(b) / u128::from(c)) as u64;
    quotient
}
