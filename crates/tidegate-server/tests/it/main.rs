//! The binary as its users meet it: started by the tests, asked over sockets.

use tidegate_testkit::{browser, certificates, http as client, redis as redis_server};

/// Processes, and the binary among them.
mod process {
    pub(crate) use tidegate_testkit::process::*;
    pub(crate) use tidegate_testkit::tidegate::*;
}

mod abuse;
mod dashboard;
mod doors;
mod envoy;
mod fleet;
mod http2;
mod live;
mod nginx;
mod observed;
mod proxies;
mod receipts;
mod requests;
mod resp;
mod transport;
mod transport_limits;
mod trial;

mod operations;

mod docs;
mod openapi;
mod section;

mod logs;
mod reload;
mod secrets;
mod shutdown;
mod stores;

mod bad_input;
mod memory;

mod bench;
mod commands;
mod simulate;
