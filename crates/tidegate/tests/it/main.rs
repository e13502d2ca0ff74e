//! What the crate promises, tried from the outside.
//!
//! The pitfalls come first, each under its id; then properties on random limits
//! and traces, threads, waiting and memory.

mod support;

mod pitfalls_counting;
mod pitfalls_input;
mod pitfalls_keys;
mod pitfalls_own;
mod pitfalls_store;

mod policies;
mod properties;

mod audit;
mod conformance;
mod headers;
mod keys;
mod memory;
mod regressions;
mod threads;
mod waiting;
