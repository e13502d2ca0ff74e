//! Limits shared by any number of machines. Every check is decided inside Redis or Valkey,
//! on its clock, in one atomic step and one round trip.
//!
//! ```toml
//! [dependencies]
//! tidegate = "0.1"
//! tidegate-redis = "0.1"
//! tokio = { version = "1", features = ["macros", "rt-multi-thread"] }
//! ```
//!
//! ```no_run
//! use tidegate::Limit;
//! use tidegate_redis::Limiter;
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let limit = Limit::per_second(50).burst(100);
//! let limiter = Limiter::connect("redis://127.0.0.1:6379", "api", limit)?;
//! let decision = limiter.check("user:42").await;
//! # Ok(())
//! # }
//! ```
//!
//! [`Limiter`] has one limit and many keys, like [`tidegate::Limiter`]. [`PolicyLimiter`]
//! decides a policy over attributes, and [`Policies`] several of them by name:
//!
//! ```no_run
//! use tidegate::{Cost, Limit, Policy};
//! use tidegate_redis::{PolicyLimiter, RedisOptions, RedisStore};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let store = RedisStore::new("redis://127.0.0.1:6379/", RedisOptions::default())?;
//! let login = Policy::builder("login").key("{ip}").limit(Limit::per_minute(5)).build()?;
//! let login = PolicyLimiter::over(store, login)?;
//! let decision = login.check(&[("ip", "203.0.113.7")], Cost::ONE).await?;
//! # Ok(())
//! # }
//! ```
//!
//! # What happens when the store fails
//!
//! A check takes at most the store's `timeout`, retries included. A check that certainly
//! did not run is retried; one that may have run is not, because it could be charged twice.
//! A store that keeps failing is not asked for a while. When the store gives no answer, the
//! policy's `on_error` decides, and the decision's source says so.

mod config;
mod limiter;
mod policies;
mod policy;

mod fingerprint;
mod lock;
mod mode;
mod node;
mod on_error;

mod options;
mod store;

mod agreement;
mod cluster;
mod connect;
mod sentinel;
mod server;
mod slots;

mod credentials;

mod breaker;
mod error;
mod eviction;
mod outage;
mod retry;

mod batch;
mod call;
mod lane;
mod script;

#[cfg(test)]
mod conformance;
#[cfg(test)]
mod simulator;

pub use config::SetupError;
#[doc(hidden)]
pub use config::{read_file, read_text};
pub use credentials::Password;
pub use error::{ErrorKind, StoreError};
pub use limiter::{Limiter, LimiterBuilder};
pub use mode::lease::LeaseStats;
pub use options::RedisOptions;
pub use policies::Policies;
pub use policy::{AnyStore, PolicyLimiter, TryCheckError};
pub use store::{RedisStats, RedisStore};
