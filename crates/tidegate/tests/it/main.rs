//! What the crate promises, tried from the outside.
//!
//! Examples are data: the conformance suite, `limits.txt` and `policies/suite.txt`. Then come
//! properties on random limits and traces, threads, waiting and memory.

mod support;

mod conformance;
mod limits;
mod pitfalls;
mod policies;
mod properties;

mod audit;
mod headers;
mod keys;
mod memory;
mod threads;
mod waiting;
