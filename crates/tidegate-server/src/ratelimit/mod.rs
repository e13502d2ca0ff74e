//! A replacement for envoyproxy/ratelimit: its environment variables, its HTTP endpoints and
//! its statistics. [`commands`](crate::commands) puts them together.
//!
//! | file | what it is |
//! | --- | --- |
//! | [`environment`] | what the variables say, which are not supported, and what is wrong with them |
//! | `variables` | the values that they can have, as Go reads them |
//! | `config` | the same as a config of the server |
//! | `pages` | `/json`, `/healthcheck`, `/rlconfig` and statistics, over HTTP |
//! | `json` | requests and responses as protobuf writes them in JSON |
//! | `dump` | the limits in force, as text |
//! | `statistics` | the hits of each limit, for Prometheus |
//! | `statsd` | the same for statsd |

mod config;
mod dump;
pub mod environment;
mod json;
pub(crate) mod pages;
pub(crate) mod statistics;
pub(crate) mod statsd;
mod variables;
