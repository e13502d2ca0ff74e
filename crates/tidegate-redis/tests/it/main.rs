//! The store against real servers, started by the tests.

#[allow(dead_code, reason = "for tests to come")]
mod server;

mod proxy;

mod checks;
mod custom;
mod docs;
mod faults;
