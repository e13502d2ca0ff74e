//! The file `tidegate.toml`: text in, policies and stores out, or everything that is
//! wrong with it.
//!
//! ```
//! use tidegate::Cost;
//! use tidegate_config::Config;
//!
//! let config: Config = r#"
//!     [[policies]]
//!     name = "login"
//!     key = "{ip}"
//!     limit = "5r/m"
//! "#
//! .parse()?;
//! let limiter = config.limiter()?;
//! assert!(limiter.check("login", &[("ip", "203.0.113.7")], Cost::ONE)?.allowed());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! This crate opens no files and reads no environment: `tidegate-redis` makes limiters
//! from a [`Config`] whose stores are in Redis, and `tidegate-server` reads the file.
//!
//! # Sections of your own
//!
//! A file has one owner per section. [`Config`] is the stores and the policies; the
//! section `[server]` belongs to `tidegate-server`, and [`Config::parse`] leaves it
//! alone. [`read`] hands the whole file to you, so that a program can read its own
//! section beside the policies and report all mistakes together:
//!
//! ```
//! use tidegate_config::{Config, read};
//!
//! let text = "[server]\nprot = 1\n[[policies]]\nname = \"p\"\nlimit = \"fast\"\n";
//! let errors = read(text, "tidegate.toml", |root| {
//!     let port = root.table("server").and_then(|server| {
//!         let port = server.number_in("port", 1..65_536);
//!         server.finish();
//!         port
//!     });
//!     (port, Config::from_root(root, None))
//! })
//! .expect_err("two mistakes");
//! let lines: Vec<String> = errors.to_string().lines().map(String::from).collect();
//! assert_eq!(lines[0], "tidegate.toml:2:1: server.prot: unknown field: did you mean \"port\"?");
//! assert!(lines[1].starts_with("tidegate.toml:5:9: policies.p.limit: \"fast\": "));
//! ```

mod config;
mod stores;
mod url;

mod limits;
mod overrides;
mod policies;

mod error;
mod read;
mod syntax;

pub mod write;

pub use config::Config;
pub use error::{ConfigError, ConfigErrors};
pub use read::{Fields, read};
pub use stores::Store;
pub use url::{RedisUrl, Secret, Servers, StoreUrl, is_host};

/// The examples of the README are tests, too.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

/// And those of the manual.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/policies.md")]
struct Policies;
