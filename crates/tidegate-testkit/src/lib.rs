//! What the tests of all crates share: real servers on free ports, which stop when they are
//! dropped and die with the test; certificates; clients that hide nothing; a browser.
//!
//! Only tests and benchmarks use it. A helper that cannot do its part panics, because that
//! is how a test fails.

#![allow(
    missing_docs,
    reason = "names say it; nobody outside the workspace reads this"
)]
#![allow(clippy::missing_panics_doc, reason = "all of them do")]

pub mod browser;
pub mod cases;
pub mod certificates;
pub mod cluster;
pub mod conformance;
pub mod console;
pub mod http;
pub mod limits;
pub mod nginx;
pub mod page;
pub mod process;
pub mod proxy;
pub mod redis;
pub mod sentinels;
pub mod simulation;
pub mod tidegate;
