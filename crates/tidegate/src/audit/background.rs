//! The bound for nodes in mode `background`.
//!
//! A node knows its own count, and what the others had admitted up to a time `D` ago. When
//! it admits a request, it can have missed only what each other node admitted within `D`:
//! at most what that node was offered, and at most what a single node admits. This is added
//! to the limit once: the excess stays counted, so it cannot be admitted again.

use crate::clock::micros;
use std::time::Duration;

/// The nodes behind a record in mode `background`.
///
/// | algorithm | promise |
/// | --- | --- |
/// | token bucket | `B + N*t/W`, and for each other node `min(B + N*D/W, a(D))`, in any `t` |
/// | fixed window, aligned to the epoch | `N`, and for each other node `min(N, a(D))`, per window |
/// | fixed window, from the first request | `N`, and for each other node `min(2N, a(D))`, per window: the nodes' windows need not begin together |
/// | sliding window | `N`, and for each other node `min(N, a(D))`, per aligned window, and twice that in any `W` |
/// | sliding log | `N`, and for each other node `min(N, a(D))`, in any `W` |
///
/// Here `a(D)` is the most that the node was offered for a key in any interval of length
/// `D`. A record does not say which node the others are compared with, so the one with the
/// smallest `a(D)` is assumed, which makes the bound hold for each.
///
/// A store that loses its state also loses the excess: each time, all of it may be admitted
/// once more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Background {
    stale_us: u64,
    /// In ascending order.
    offered: Vec<u64>,
}

impl Background {
    /// Nodes that sync every `sync_interval`, which takes `round_trip`. `D` is twice their
    /// sum, plus one more round trip if that is longer than the interval, because a node
    /// sends a key again only after the last reply. `offered` is the `a(D)` of every node.
    pub fn new(
        sync_interval: Duration,
        round_trip: Duration,
        offered: impl IntoIterator<Item = u64>,
    ) -> Self {
        let mut offered: Vec<u64> = offered.into_iter().collect();
        offered.sort_unstable();
        let mut stale_us = 2 * (sync_interval.as_micros() + round_trip.as_micros());
        if round_trip > sync_interval {
            stale_us += round_trip.as_micros();
        }
        Self {
            stale_us: u64::try_from(stale_us).unwrap_or(u64::MAX),
            offered,
        }
    }

    /// An outage of this length, which adds to `D`.
    #[must_use]
    pub fn outage(mut self, outage: Duration) -> Self {
        self.stale_us = self.stale_us.saturating_add(micros(outage));
        self
    }

    /// `D`: how old a node's knowledge of the others may be.
    pub fn staleness(&self) -> Duration {
        Duration::from_micros(self.stale_us)
    }

    pub(super) fn staleness_us(&self) -> u64 {
        self.stale_us
    }

    /// What a node may not have heard of, when each other one lets at most `most` pass;
    /// in parts, of which a request has so many.
    pub(super) fn unheard(&self, most: u128, request: u128) -> u128 {
        let others = self.offered.iter().skip(1);
        others
            .map(|offered| (u128::from(*offered).saturating_mul(request)).min(most))
            .fold(0, u128::saturating_add)
    }
}
