//! Errors of limits. Each names the invalid value and what was expected.

use std::time::Duration;

use crate::algorithm::{Algorithm, Profile};
use crate::policy::template::shown;

/// A number that no limit can have. Being limited is a
/// [`Decision`](crate::Decision), never an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LimitError {
    /// A number of requests outside 1 to 2^32 - 1.
    #[error("{0} requests: expected 1 to 4294967295 (to refuse everything, use `block`)")]
    Requests(u64),
    /// More requests than this algorithm can count exactly.
    #[error("{requests} requests with {algorithm}: expected at most {max}")]
    RequestsOf {
        /// The number given.
        requests: u32,
        /// The algorithm asked for.
        algorithm: Algorithm,
        /// The most it can count.
        max: u32,
    },
    /// A window outside 1 ms to 366 days, or not in whole microseconds.
    #[error("a window of {0:?}: expected 1ms to 366d, in whole microseconds")]
    Window(Duration),
    /// A burst outside 1 to 2^32 - 1.
    #[error("burst {0}: expected 1 to 4294967295")]
    Burst(u64),
    /// A bucket that would take more than a hundred years to refill.
    #[error("burst {burst} takes more than 100 years to refill: expected at most {max}")]
    BurstRefill {
        /// The burst given.
        burst: u32,
        /// The largest burst that refills within a hundred years.
        max: u32,
    },
    /// A burst for an algorithm that has none.
    #[error("burst {burst} with {algorithm}: only {} has a burst", names(|it| it.has_burst))]
    BurstOf {
        /// The burst given.
        burst: u64,
        /// The algorithm asked for.
        algorithm: Algorithm,
    },
    /// `strict` without a burst below the limit.
    #[error("strict with burst {burst} of {requests} requests: expected a burst below {requests}")]
    StrictBurst {
        /// The burst.
        burst: u32,
        /// The requests per window.
        requests: u32,
    },
    /// `strict` for an algorithm that has no such form.
    #[error("strict with {0}: only {only} can be strict", only = names(|it| it.has_burst))]
    StrictOf(Algorithm),
    /// An alignment for an algorithm that has none.
    #[error("align = \"epoch\" with {0}: only {only} can be aligned", only = names(|it| it.has_align))]
    AlignOf(Algorithm),
    /// A cost outside 1 to 2^32 - 1.
    #[error("cost {0}: expected 1 to 4294967295")]
    Cost(u64),
}

fn names(has: fn(&Profile) -> bool) -> String {
    Algorithm::names(has).join(" and ")
}

impl LimitError {
    /// Panics, also in a `const`, where messages cannot carry numbers.
    pub(crate) const fn panic(self) -> ! {
        panic!("{}", self.summary())
    }

    const fn summary(self) -> &'static str {
        match self {
            Self::Requests(_) => "requests out of range: expected 1 to 4294967295",
            Self::RequestsOf { .. } => "too many requests for the algorithm",
            Self::Window(_) => "window out of range: expected 1ms to 366d, in whole microseconds",
            Self::Burst(_) => "burst out of range: expected 1 to 4294967295",
            Self::BurstRefill { .. } => "burst too large: it takes more than 100 years to refill",
            Self::BurstOf { .. } => "the algorithm has no burst",
            Self::StrictBurst { .. } => "strict needs a burst below the number of requests",
            Self::StrictOf(_) => "the algorithm cannot be strict",
            Self::AlignOf(_) => "the algorithm cannot be aligned",
            Self::Cost(_) => "cost out of range: expected 1 to 4294967295",
        }
    }
}

/// A text that cannot be parsed as a limit.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text}: {problem}")]
pub struct ParseError {
    /// As it is shown: in quotes, escaped and not too long.
    text: String,
    problem: Fault,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
enum Fault {
    #[error(
        "expected a rate such as 100r/s, 100r/m, 100r/h or 100r/d, or a count per window such as 5/10s or 3/500ms"
    )]
    Rate,
    #[error(
        "expected a rate, then any of {}, burst=N, strict, align=epoch, each once",
        Algorithm::names(|_| true).join(", ")
    )]
    Option,
    #[error("{0}")]
    Value(LimitError),
}

impl ParseError {
    fn new(text: &str, problem: Fault) -> Self {
        Self {
            text: shown(text),
            problem,
        }
    }

    pub(crate) fn syntax(text: &str) -> Self {
        Self::new(text, Fault::Rate)
    }

    /// The same problem, of a part of a longer text.
    pub(crate) fn in_text(self, text: &str) -> Self {
        Self::new(text, self.problem)
    }

    pub(crate) fn option(text: &str) -> Self {
        Self::new(text, Fault::Option)
    }

    pub(crate) fn value(text: &str, error: LimitError) -> Self {
        Self::new(text, Fault::Value(error))
    }
}
