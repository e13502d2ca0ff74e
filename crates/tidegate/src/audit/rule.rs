//! The bounds that the records of a limit are checked against.

use std::time::Duration;

use super::Background;
use crate::limit::Limit;
use crate::rate::Rate;

/// The bound for every interval of a key's record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    /// At most `capacity + refill * t` in any closed interval of length `t`.
    Rate(Refill),
    /// At most this much in each epoch-aligned window.
    Aligned(Window),
    /// At most this much in any window.
    Any(Window),
    /// At most this much in windows that open with the first request after the previous one.
    FromFirst(Window),
    /// There are consecutive windows with at most this much in each.
    Partition(Window),
}

/// A bound that grows with time, in parts of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refill {
    /// What may be admitted at once.
    pub(crate) capacity: u128,
    /// What may be admitted more each microsecond.
    pub(crate) refill: u128,
    /// A request.
    pub(crate) request: u128,
}

/// An amount per window. Windows are half open: a request of the window's age has expired.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    pub(crate) most: u64,
    pub(crate) length_us: u64,
}

impl Rule {
    /// The most in a stretch of this length. Windows of a grid may be cut at both ends.
    #[expect(
        clippy::cast_precision_loss,
        reason = "a figure to read, not to judge by"
    )]
    fn most_in(&self, length: Duration) -> f64 {
        let windows = |window: &Window, cut: f64| {
            let whole = (length.as_micros() / u128::from(window.length_us)) as f64;
            window.most as f64 * (whole + cut)
        };
        match self {
            Self::Rate(rate) => {
                let more = length.as_micros() * rate.refill;
                (rate.capacity + more) as f64 / rate.request as f64
            }
            Self::Aligned(window) => windows(window, 2.0),
            Self::Any(window) | Self::FromFirst(window) | Self::Partition(window) => {
                windows(window, 1.0)
            }
        }
    }
}

/// The most that a limit admits of a key in a stretch of this length, by one node or by
/// nodes in mode `background`.
pub fn most_in(limit: &Limit, length: Duration, background: Option<&Background>) -> f64 {
    let nodes = Nodes {
        background,
        losses: 0,
        is_partial: false,
    };
    let rules = limit.rules(&nodes);
    let most = rules.iter().map(|rule| rule.most_in(length));
    most.fold(f64::INFINITY, f64::min)
}

/// Who recorded, and what may be missing.
#[derive(Debug, Clone, Copy)]
pub struct Nodes<'n> {
    /// Nodes that count by themselves.
    pub(crate) background: Option<&'n Background>,
    /// How often the store has lost its state.
    pub(super) losses: u32,
    /// Whether some requests are not known. So are the windows that open with a request.
    pub(super) is_partial: bool,
}

impl Nodes<'_> {
    /// What nodes that have not heard of the others may admit: what they are offered, up to
    /// `most` each; in parts, of which a request has so many.
    pub(crate) fn unheard(&self, most: u128, request: u128) -> u128 {
        self.background
            .map_or(0, |nodes| nodes.unheard(most, request))
    }

    /// How old a node's knowledge of the others may be.
    pub(crate) fn staleness_us(&self) -> u64 {
        self.background.map_or(0, Background::staleness_us)
    }

    /// What is forgotten may be given out again: with what was over the limit.
    pub(crate) fn forgotten(&self, most: u128) -> u128 {
        most.saturating_mul(u128::from(self.losses) + 1)
    }

    /// Whether windows that open with a request may be others than those on record.
    pub(crate) fn may_open_others(&self) -> bool {
        self.is_partial || self.background.is_some()
    }

    /// The most of this rate in a window.
    pub(crate) fn window(&self, rate: Rate) -> Window {
        self.windows(rate, 1)
    }

    /// The same where a window may overlap so many of another node's.
    pub(crate) fn windows(&self, rate: Rate, of_others: u64) -> Window {
        let requests = u128::from(rate.requests());
        let most = requests + self.unheard(requests * u128::from(of_others), 1);
        Window {
            most: u64::try_from(self.forgotten(most)).unwrap_or(u64::MAX),
            length_us: rate.window_us(),
        }
    }
}
