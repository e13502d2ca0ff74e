//! The store on clusters and behind sentinels of the tests' own, and what their nodes can
//! do to it: die, go away and come back, move, lose their scripts.

#![expect(
    clippy::print_stdout,
    reason = "what the tests measure is worth a line"
)]

#[path = "../it/certificates.rs"]
mod certificates;
#[path = "../it/server.rs"]
#[expect(dead_code, reason = "the other tests use all of it")]
mod server;
#[path = "../it/support.rs"]
#[expect(dead_code, reason = "the other tests use all of it")]
mod support;
#[path = "../it/user.rs"]
mod user;

#[expect(dead_code, reason = "the unit tests use all of it")]
mod test_cluster;
mod test_sentinels;

mod fleet;
mod report;

mod access;
mod places;
mod timing;
