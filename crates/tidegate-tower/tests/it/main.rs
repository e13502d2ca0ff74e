//! The layer around real services: called directly, through sockets, with axum and
//! tonic, over memory and over Redis servers that the tests start.

use tidegate_testkit::redis as server;

mod http1;
mod support;

mod addresses;
mod axum;
mod backpressure;
mod build;
mod example;
mod keys;
mod missing;
mod plain;
mod refunds;
mod responses;
mod rules;
mod several;
mod shared;
mod tonic;
mod waiting;
