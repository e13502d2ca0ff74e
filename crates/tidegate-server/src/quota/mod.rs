//! Quotas for Envoys (RLQS): what each of them may admit by itself until it reports again.
//!
//! An Envoy reports every five seconds what it has admitted and refused for a bucket. It is
//! assigned a rate, as a token bucket of its own, that lasts for [`LIFETIME_S`]. This module
//! decides on the rates without opening sockets: reports, charges and the time go in,
//! [`Action`]s come out. `driver.rs` carries them out, and `service.rs` is
//! `StreamRateLimitQuotas`.
//!
//! - A bucket is a key of a policy. All Envoys that report it share its rate by demand, and
//!   each has a floor (`shares.rs`).
//! - Rates shrink before others grow. Assignments that have not expired never add up to
//!   more than the limit's rate, those of lost streams included (`bucket.rs`).
//! - All that is assigned is charged to the policy's own counter in the store, in advance,
//!   a tick at a time (`bucket.rs`). So other Tidegates, and other users of the policy, see
//!   it. What could not be charged is owed, and a server that owes assigns less.
//! - The table (`table.rs`) has all buckets of the process and bounds them.

mod assignment;
mod bucket;
mod driver;
mod outbox;
mod service;
mod shares;
#[cfg(test)]
mod simulator;
mod table;
mod terms;
pub mod wire;

pub use assignment::{Assignment, Tokens};
pub use bucket::Terms;
pub(crate) use service::QuotaService;
pub use table::{Action, BucketId, Full, HolderId, Subject, Table};

/// How often Envoys report, in seconds.
pub const REPORT_S: f64 = 5.0;

/// How long an assignment lasts, in seconds: whole ones, and more than two reports.
pub const LIFETIME_S: u32 = 15;

/// How much longer than that the books count an assignment, since it begins when the Envoy
/// receives it.
const DELIVERY_S: f64 = 1.0;

/// How long a smaller rate may take to reach an Envoy before others are given the rest.
const SETTLE_S: f64 = 0.5;

/// Zero reports in a row after which a bucket is abandoned.
const IDLE_REPORTS: u32 = 6;

/// How long a new process assigns no more than what an Envoy says it has used: by then every
/// Envoy that holds an assignment of an earlier process has reported.
const CAUTION_S: f64 = REPORT_S + 1.0;

/// The whole part of a number that is neither negative nor too large; those are cut.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "such a cast saturates, which is what is meant"
)]
fn whole(number: f64) -> u64 {
    number as u64
}

/// The same, of 32 bits.
fn whole_32(number: f64) -> u32 {
    u32::try_from(whole(number)).unwrap_or(u32::MAX)
}

/// What a bucket takes of the server's memory at most: its name on a stream and in the table,
/// as a key and as attributes, and what waits to be sent about it.
fn memory(name: &wire::BucketName) -> usize {
    let entries = name.bucket.iter();
    let bytes = entries.map(|(key, value)| 64 + key.len() + value.len());
    2_048 + 4 * bytes.sum::<usize>()
}
