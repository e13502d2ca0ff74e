//! The store against real servers, started by the tests.

#[expect(dead_code, reason = "the tests of clusters use all of it")]
mod server;

mod certificates;
mod monitor;
mod proxy;
mod support;
mod user;

mod access;
mod background;
mod checks;
mod custom;
mod docs;
mod forks;
mod keyed;
mod leases;
mod pitfalls_counting;
mod pitfalls_fleet;
mod pitfalls_keys;
mod pitfalls_own;
mod refusals;
mod sizes;
mod startup;
mod timing;
mod waiting;
mod wire;
