//! The binary as its users meet it: started by the tests, asked over sockets.

#[path = "../../../tidegate-redis/tests/it/certificates.rs"]
mod certificates;
#[path = "../../../tidegate-redis/tests/it/server.rs"]
#[expect(dead_code, reason = "another crate's tests need the rest")]
mod redis_server;

mod browser;
mod client;
mod process;

mod abuse;
mod admin;
mod check;
mod dashboard;
mod envoy;
mod fleet;
mod front_end;
mod gate;
mod headers;
mod keys;
mod live;
mod observed;
mod policies;
mod resp;
mod top;
mod transport;
mod transport_limits;
mod trial;

mod operations;

mod manual;
mod openapi;
mod pages;
mod section;

mod logs;
mod record;
mod reload;
mod secrets;
mod shutdown;
mod stores;

mod bad_input;
mod memory;

mod bench;
mod bench_words;
mod command_config;
mod command_line;
mod command_questions;
mod command_top;
mod docs;
mod simulate;
