//! The layer around real services: called directly, through sockets, with axum and
//! tonic, over memory and over Redis servers that the tests start.

mod support;

mod requests;

mod addresses;
mod axum;
mod backpressure;
mod example;
mod responses;
mod shared;
mod tonic;
mod waiting;
