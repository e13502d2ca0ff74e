//! Reads the config file, `tidegate.toml`: policies and stores, or a list of all errors.
//!
//! ```toml
//! [dependencies]
//! tidegate = "0.1"
//! tidegate-config = "0.1"
//! ```
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
//! This crate opens no files and reads no environment variables. To build a limiter from a
//! [`Config`] with Redis stores, use `tidegate-redis`. `tidegate-server` reads the file.
//!
//! # Your own sections
//!
//! [`Config`] reads the stores and the policies. The section `[server]` belongs to
//! `tidegate-server`, and [`Config::parse`] ignores it. With [`read`], your program can read
//! its own section next to the policies and report all errors together:
//!
//! ```
//! use tidegate_config::{Config, Rows, Table, read};
//!
//! #[derive(Debug, Clone)]
//! struct Server {
//!     port: u16,
//! }
//!
//! impl Table for Server {
//!     fn rows(&mut self, rows: &mut Rows<'_>) {
//!         rows.number::<u16>("port", 1..65_536, &mut self.port);
//!     }
//! }
//!
//! let text = "[server]\nprot = 1\n[[policies]]\nname = \"p\"\nlimit = \"fast\"\n";
//! let errors = read(text, "tidegate.toml", |root| {
//!     let server = root.table("server").map(|fields| {
//!         let server = fields.rows(Server { port: 8080 });
//!         fields.finish();
//!         server
//!     });
//!     (server, Config::from_root(root, None))
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
mod schema;
mod syntax;

pub mod write;

pub use config::Config;
pub use error::{ConfigError, ConfigErrors};
pub use read::{Fields, read};
pub use schema::{List, Place, Rows, Table};
pub use stores::StoreConfig;
pub use url::{RedisUrl, Secret, Servers, StoreUrl, is_host};

/// The examples in the README are tests too.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
