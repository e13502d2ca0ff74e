//! The store against real servers, started by the tests.

use tidegate_testkit::{certificates, proxy, redis as server};

mod monitor;
mod support;
mod user;

mod access;
mod background;
mod cluster;
mod custom;
mod docs;
mod forks;
mod keyed;
mod leases;
mod pitfalls_keys;
mod pitfalls_own;
mod refusals;
mod startup;
mod timing;
mod waiting;
mod wire;
