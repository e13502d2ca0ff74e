//! Rust and Lua agree: the same steps on the store in memory and inside a real server,
//! at the same instants, give the same decisions, number for number.
//!
//! Scripts take the time from an argument here, which they cannot outside of tests.

mod pair;

mod leases;
mod modes;
mod random;
mod scenarios;
mod written;

pub(crate) use random::more;
