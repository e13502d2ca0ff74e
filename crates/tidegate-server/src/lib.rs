//! The `tidegate` server: a config and stores in, HTTP answers out.
//!
//! ```text
//! connection -> api (route) -> attributes -> limiter -> decision -> JSON or headers
//! ```
//!
//! | module | what it is |
//! | --- | --- |
//! | [`cli`] | what can be said on the command line |
//! | [`commands`] | what each command does |
//! | [`section`] | the section `[server]` of the file |
//! | [`proxies`] | trusted proxies, and the client behind them |
//! | [`settings`] | flags, environment and file made into one config |
//! | [`engine`] | a policy, attributes and a cost in, a decision out: counted, logged, recorded |
//! | [`api`] | a request in, a response out |
//! | [`resp`] | the same for clients of Redis: commands in, replies out |
//! | [`grpc`] | gRPC as a protocol of a listener: any services, health, reflection |
//! | [`envoy`] | Envoy's rate limit service: descriptors in, statuses out |
//! | [`ratelimit`] | a replacement for envoyproxy/ratelimit: its variables, endpoints and statistics |
//! | [`quota`] | the quotas of Envoys: reports in, assignments out |
//! | [`serve`] | sockets, connections, and how they end |
//! | `live` | what happens now: one message per second for all viewers |
//! | `top` | who is limited: the most frequent keys of each policy |
//! | [`reload`] | a new config while the server runs |
//! | [`log`] | how much is logged, and how it looks |

pub mod cli;
pub mod commands;
pub mod proxies;
pub mod section;
pub mod settings;

pub mod serve;

pub mod api;
mod receipt;
pub mod resp;

pub mod envoy;
pub mod grpc;
pub mod quota;
pub mod ratelimit;

mod record;

mod changes;
pub mod engine;
mod live;
mod metrics;
pub mod reload;
mod top;

pub mod log;
