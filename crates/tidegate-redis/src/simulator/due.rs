//! Events in the order of time, and of those at one instant, in the order they were put.

use std::cmp::Ordering;
use std::time::Duration;

/// When, the how manieth, and what.
pub(super) struct Due<E>(pub(super) Duration, pub(super) u64, pub(super) E);

impl<E> PartialEq for Due<E> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl<E> Eq for Due<E> {}

impl<E> PartialOrd for Due<E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> Ord for Due<E> {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.0, self.1).cmp(&(other.0, other.1))
    }
}
