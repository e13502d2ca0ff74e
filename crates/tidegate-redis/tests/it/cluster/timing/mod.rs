//! Tests that need real time. They run one after the other, and assert only what holds on
//! a machine that stalls for a second.

mod acks;
mod fleets;
mod shards;
mod starts;
