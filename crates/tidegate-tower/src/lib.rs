//! Tidegate's limits as a [tower] layer, for axum, hyper, tonic and plain tower. It adds the
//! limiter's policies, stores, headers and failure modes to any service that answers HTTP
//! requests.
//!
//! ```toml
//! [dependencies]
//! tidegate = "0.1"
//! tidegate-tower = { version = "0.1", features = ["axum"] }
//! ```
//!
//! ```
//! use std::convert::Infallible;
//! use http::{Request, Response, StatusCode};
//! use tidegate::Limit;
//! use tidegate_tower::{Key, RateLimitLayer};
//! use tower::{Layer, ServiceExt, service_fn};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Infallible> {
//! let hello = service_fn(async |_: Request<()>| Ok::<_, Infallible>(Response::new("hello")));
//! let limited = RateLimitLayer::new(Limit::per_minute(1), Key::method()).layer(hello);
//!
//! let answer = limited.clone().oneshot(Request::new(())).await?;
//! assert_eq!(answer.status(), StatusCode::OK);
//! let answer = limited.clone().oneshot(Request::new(())).await?;
//! assert_eq!(answer.status(), StatusCode::TOO_MANY_REQUESTS);
//! assert!(answer.headers().contains_key("retry-after"));
//! # Ok(())
//! # }
//! ```
//!
//! # Where to start
//!
//! | you want | look at |
//! | --- | --- |
//! | one limit for each client | [`RateLimitLayer::new`] |
//! | policies, several of them, or a store in Redis | [`RateLimitLayer::builder`] |
//! | to identify clients | [`Key`] |
//! | the client's address behind proxies | [`Proxies`] |
//! | a response other than 429 | [`RateLimitBuilder::responder`], [`Refusal`] |
//! | to exempt some requests or clients | [`RateLimitBuilder::skip`], [`RateLimitBuilder::exempt_addresses`] |
//! | responses that do not count | [`RateLimitBuilder::refund`] |
//! | to wait instead of being refused | [`RateLimitBuilder::wait`] |
//!
//! # What it does to a service
//!
//! The layer is ready when the inner service is. Policies in memory decide inside `call`,
//! without awaiting or boxing; others are awaited while the inner service is kept ready. Response bodies are wrapped in a [`ResponseBody`], and errors are those of the
//! inner service. A missing key value is never an error: you choose what happens
//! ([`Key::or_skip`], [`Key::or_refuse`], [`Key::or_shared`]).
//!
//! # Features
//!
//! | feature | adds |
//! | --- | --- |
//! | `redis` (default) | limits shared by many machines, through `tidegate-redis` |
//! | `axum` | the connection's address from axum's `ConnectInfo<SocketAddr>` |
//! | `tonic` | the connection's address from tonic's `TcpConnectInfo` |
//!
//! [tower]: https://docs.rs/tower

mod layer;
mod service;

mod future;
mod gate;
mod limiter;
mod refund;
mod wait;

mod head;
mod key;

mod address;
mod path;
mod token;
mod value;

mod body;
mod fields;
mod grpc;
mod refusal;

mod error;

pub use address::Proxies;
pub use body::ResponseBody;
pub use error::LayerError;
pub use future::ResponseFuture;
pub use head::{RequestHead, ResponseHead};
pub use key::Key;
pub use layer::{RateLimitBuilder, RateLimitLayer};
pub use limiter::LayerPolicy;
pub use refusal::{Reason, Refusal};
pub use service::RateLimit;

/// The examples in the manual are tests too.
#[cfg(all(doctest, feature = "redis"))]
#[doc = include_str!("../../../docs/tower.md")]
struct Manual;
