//! Tidegate is a rate limiter. It decides exactly whether a request may proceed, in less
//! than a microsecond and within bounded memory.
//!
//! ```toml
//! [dependencies]
//! tidegate = "0.1"
//! ```
//!
//! ```
//! use tidegate::{Limit, Limiter};
//!
//! let limiter = Limiter::in_memory(Limit::per_second(50).burst(100));
//! let decision = limiter.check("user:42");
//! if !decision.allowed() {
//!     println!("429, try again in {:?}", decision.retry_after());
//! }
//! ```
//!
//! # Where to start
//!
//! | you want | look at |
//! | --- | --- |
//! | one limit for each of many keys | [`Limiter`] |
//! | one limit for everything | [`Limiter`], with the key `()` |
//! | a limit, written in the source or read from text | [`Limit`] |
//! | the answer and its numbers | [`Decision`] |
//! | a policy over attributes, with levels and overrides | [`PolicyLimiter`], [`Policy`] |
//! | several policies by name | [`Policies`] |
//! | policies from a config file | the crate `tidegate-config` |
//! | the headers and the body of a response | [`PolicyDecision::headers`], [`Dialect`] |
//! | several limits decided as one, without policies | [`MemoryStore`] |
//! | to wait instead of being refused | [`Limiter::until_ready`] |
//! | to test without waiting | [`ManualClock`] |
//! | what exactly an algorithm promises | [`algorithm`] |
//! | to verify that limits held | the module `audit`, with the feature `audit` |
//!
//! # Which algorithm to choose
//!
//! By default, a limit is a token bucket whose burst equals its number of requests:
//! `Limit::per_second(100)` admits up to 200 requests in the first second after a quiet
//! moment, and 100 per second after that. For never more than 100 in any second, use
//! [`Limit::sliding_log`], or a [`burst`](Limit::burst) with [`Limit::strict`].
//!
//! | algorithm | at most | memory per key |
//! | --- | --- | --- |
//! | [token bucket](algorithm::TokenBucket) (default) | `burst + requests * t / window` in any time `t` | about 35 bytes |
//! | token bucket, [strict](Limit::strict) | `requests` in any window | about 35 bytes |
//! | [fixed window](Limit::fixed_window) | `requests` per window, twice that across an edge | about 35 bytes |
//! | [sliding window](Limit::sliding_window) | `requests` per aligned window, below twice that in any | about 35 bytes |
//! | [sliding log](Limit::sliding_log) | `requests` in any window | about 35 bytes, plus 12 per request of the last window |
//!
//! # What it does not do
//!
//! This crate opens no sockets, reads no environment, starts no threads and needs no
//! async runtime. A check is an ordinary call.

mod limiter;
mod wait;

mod policy;

pub mod draft;
pub mod text;

mod attributes;
mod encoding;
mod key;

mod cost;
mod duration;
mod error;
mod limit;
mod rate;

pub mod algorithm;
#[cfg(feature = "audit")]
pub mod audit;

mod decision;
mod headers;
mod memory;

mod clock;
mod monotonic;

pub use attributes::Attributes;
pub use clock::{Clock, ManualClock};
pub use cost::Cost;
pub use decision::{Decision, LevelDecision, LevelOutcome, OnLease, Receipt, Source};
pub use error::{LimitError, ParseError};
pub use headers::{Dialect, Headers, HeadersIntoIter};
pub use key::{Key, KeyValue};
pub use limit::{Algorithm, Align, Kind, Limit, LimitSpec};
pub use limiter::Limiter;
pub use memory::zone;
pub use memory::{
    Charge, Check, KeyHasher, Level, MemoryStore, MemoryStoreBuilder, Stats, TooManyLimits,
    WhenFull,
};
pub use policy::{
    Case, CheckError, CustomScript, Decisions, Explained, Keys, LevelKey, LevelReport,
    MissingAttribute, Mode, OnError, Override, OwnedDecision, Policies, PoliciesError, Policy,
    PolicyBuilder, PolicyDecision, PolicyError, PolicyLevel, PolicyLimiter, Question, ScriptAnswer,
    ScriptSource, Template, Which,
};
pub use rate::{MAX_WINDOW, MIN_WINDOW, Rate};
pub use wait::{Turn, Wait, WaitError, Waiting};

/// The example in the README is a test too.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

/// And so is the one for users of governor.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/migrating.md")]
struct Migrating;
