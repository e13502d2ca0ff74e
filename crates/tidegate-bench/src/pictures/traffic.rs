//! The traffic of the pictures: one key, its requests, and when they come.
//!
//! Light traffic, then a blast far above the limit; a pause of two windows; then a
//! blast that lies across the edge of an aligned window, and busy traffic after it.
//! The pause lets every algorithm refill, and leaves a whole aligned window empty:
//! what follows is the worst that the two window algorithms can do.

/// Requests per window: the `N` of every picture.
pub(crate) const REQUESTS: u32 = 10;

/// The window: the `W` of every picture.
pub(crate) const WINDOW_MS: u32 = 10_000;

/// Where the pictures end.
pub(crate) const END_MS: u32 = 42_800;

/// Requests at even distances.
pub(crate) struct Phase {
    pub(crate) name: &'static str,
    pub(crate) start_ms: u32,
    pub(crate) every_ms: u32,
    pub(crate) requests: u32,
}

pub(crate) const PHASES: [Phase; 4] = [
    Phase {
        name: "light traffic",
        start_ms: 500,
        every_ms: 1_500,
        requests: 4,
    },
    Phase {
        name: "a blast",
        start_ms: 7_000,
        every_ms: 100,
        requests: 20,
    },
    Phase {
        name: "a blast across an edge",
        start_ms: 29_200,
        every_ms: 80,
        requests: 20,
    },
    Phase {
        name: "busy traffic",
        start_ms: 31_000,
        every_ms: 500,
        requests: 18,
    },
];

impl Phase {
    /// Whether a request comes at this instant.
    pub(crate) fn has_request_at(&self, at_ms: u32) -> bool {
        at_ms >= self.start_ms
            && at_ms <= self.end_ms()
            && (at_ms - self.start_ms).is_multiple_of(self.every_ms)
    }

    /// When the last request comes.
    pub(crate) const fn end_ms(&self) -> u32 {
        self.start_ms + (self.requests - 1) * self.every_ms
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_of_the_second_blast_lies_before_the_edge() {
        let edge_ms = 3 * WINDOW_MS;
        let before = (0..edge_ms).filter(|&at_ms| PHASES[2].has_request_at(at_ms));
        assert_eq!(before.count(), 10);
        assert!(PHASES[2].has_request_at(edge_ms));
        assert_eq!(PHASES[2].end_ms() - PHASES[2].start_ms, 1_520);
    }
}
