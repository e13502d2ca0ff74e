//! The store on clusters and behind sentinels of the tests' own, and what their nodes can
//! do to it: die, go away and come back, move, lose their scripts.

#![expect(
    clippy::print_stdout,
    reason = "what the tests measure is worth a line"
)]

pub(crate) mod fleet;
mod report;

mod access;
mod places;
mod timing;
