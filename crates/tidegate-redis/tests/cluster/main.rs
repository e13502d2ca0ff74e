//! The store on clusters and behind sentinels of the tests' own, and what their nodes can
//! do to it: die, go away and come back, move, lose their scripts.

#![expect(
    clippy::print_stdout,
    reason = "what the tests measure is worth a line"
)]

use tidegate_testkit::cluster as test_cluster;
use tidegate_testkit::sentinels as test_sentinels;
use tidegate_testkit::{certificates, redis as server};

#[path = "../it/support.rs"]
#[expect(dead_code, reason = "the other tests use all of it")]
mod support;
#[path = "../it/user.rs"]
mod user;

mod fleet;
mod report;

mod access;
mod places;
mod timing;
