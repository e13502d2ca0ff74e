//! The module in a real nginx, with a real Redis where limits are shared.
//!
//! `cargo xtask nginx test` runs this. Tests that need real time are in modules named
//! `timing`, and hold on a machine that stalls for a second.

#![expect(clippy::unwrap_used, reason = "a test that fails says where")]

mod decisions;
mod nginx;

#[allow(dead_code, reason = "tests of its own are in the file")]
#[path = "../../src/lock.rs"]
mod lock;

mod directives;
mod fleet;
mod leases;
mod manual;
mod memory;
mod operations;
mod requests;
mod soak;
mod stores;
