//! What happens when the store fails: servers that are stopped, killed, full, busy, locked, and
//! a network that loses what they say. In each case the policy's `on_error` decides, the breaker
//! opens and closes by itself, and nobody waits longer than a deadline. These tests need real
//! time. They run one after the other, and assert only what holds on a machine that stalls for a
//! second.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "helpers of tests fail as tests do, and what they measure is worth a line"
)]

mod callers;
mod faults;
mod lines;
pub(crate) mod load;
mod local;
mod network;
mod outages;
mod processes;
pub(crate) mod rig;
