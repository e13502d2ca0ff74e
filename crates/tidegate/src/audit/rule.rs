//! The bounds that the records of a limit are checked against.

use smallvec::{SmallVec, smallvec};

use super::Background;
use crate::limit::{Align, Kind, Limit};

/// The bound for every interval of a key's record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rule {
    /// At most `capacity + refill * t` in any closed interval of length `t`.
    Rate(Rate),
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
pub(super) struct Rate {
    /// What may be admitted at once.
    pub(super) capacity: u128,
    /// What may be admitted more each microsecond.
    pub(super) refill: u128,
    /// A request.
    pub(super) request: u128,
}

/// An amount per window. Windows are half open: a request of the window's age has expired.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Window {
    pub(super) most: u64,
    pub(super) length_us: u64,
}

/// The rules of a limit. Where windows open with a request and some requests are not
/// known, so are the windows.
pub(super) fn rules(
    limit: &Limit,
    losses: u32,
    background: Option<&Background>,
    is_partial: bool,
) -> SmallVec<[Rule; 2]> {
    // Every node that has not heard of the others may admit what it is offered, up to
    // the limit.
    let unheard =
        |most: u128, request: u128| background.map_or(0, |nodes| nodes.unheard(most, request));
    let window_of = |rate: crate::rate::Rate, of_others: u64| {
        let requests = u64::from(rate.requests());
        let most = u128::from(requests * of_others);
        let more = u64::try_from(unheard(most, 1)).unwrap_or(u64::MAX);
        // What is forgotten may be given out again: with what was over the limit.
        let most = requests
            .saturating_add(more)
            .saturating_mul(u64::from(losses) + 1);
        Window {
            most,
            length_us: rate.window_us(),
        }
    };
    let window = |rate| window_of(rate, 1);
    match limit.kind() {
        Kind::TokenBucket(bucket) => {
            let request = u128::from(bucket.token_parts());
            let refill = u128::from(bucket.parts_per_us());
            let burst = u128::from(bucket.burst()) * request;
            let stale_us = background.map_or(0, Background::staleness_us);
            let more = unheard(burst + refill * u128::from(stale_us), request);
            smallvec![Rule::Rate(Rate {
                capacity: (burst + more) * (u128::from(losses) + 1),
                refill,
                request,
            })]
        }
        Kind::FixedWindow(fixed) => {
            smallvec![match fixed.align() {
                Align::Epoch => Rule::Aligned(window(fixed.rate())),
                // Nodes that have not heard of each other open windows of their own: one of
                // a node's may have the end of one and the start of the next in it.
                Align::First if is_partial || background.is_some() => {
                    Rule::Partition(window_of(fixed.rate(), 2))
                }
                Align::First => Rule::FromFirst(window(fixed.rate())),
            }]
        }
        Kind::SlidingWindow(sliding) => {
            let window = window(sliding.rate());
            let both = match background {
                // Any window lies in two of the grid, of which the first has faded by
                // what the second has.
                None => window.most + u64::from(sliding.rate().requests()) - 1,
                Some(_) => window.most.saturating_mul(2),
            };
            smallvec![
                Rule::Aligned(window),
                Rule::Any(Window {
                    most: both,
                    ..window
                }),
            ]
        }
        Kind::SlidingLog(log) => smallvec![Rule::Any(window(log.rate()))],
        Kind::Block(_) => smallvec![Rule::Any(Window {
            most: 0,
            length_us: 1,
        })],
    }
}
