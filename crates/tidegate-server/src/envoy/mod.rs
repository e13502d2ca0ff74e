//! Envoy's rate limit service: a domain and descriptors in, statuses out.
//!
//! ```text
//! RateLimitRequest -> native (a domain names a policy) -> engine -> statuses, headers
//! ```
//!
//! | file | what it is |
//! | --- | --- |
//! | [`section`] | the section `[envoy]` of the file |
//! | [`wire`] | the messages |
//! | `descriptors` | the messages and services, described for reflection |
//! | `service` | `ShouldRateLimit` |
//! | `native` | a domain names a policy, entries are attributes |
//! | `dropin` | requests answered as envoyproxy/ratelimit answers them |
//! | [`rules`] | limits in the form of envoyproxy/ratelimit |
//! | [`options`] | how those are answered |
//! | [`tally`] | their statistics |
//! | [`xds`] | limits from a control plane |

mod descriptors;
pub(crate) mod dropin;
mod native;
pub mod options;
pub mod rules;
pub mod section;
mod service;
pub mod tally;
pub mod wire;
pub mod xds;

use std::sync::Arc;

use crate::engine::Engine;
use crate::grpc::{self, Service};
use crate::quota::QuotaService;
pub(crate) use service::should_rate_limit;

/// Everything that Envoy can call. One more service is one more line here, and its
/// messages in `descriptors`.
#[must_use]
pub fn services(engine: &Arc<Engine>) -> Vec<Arc<dyn Service>> {
    let mut services: Vec<Arc<dyn Service>> = vec![
        Arc::new(service::RateLimitService::new(Arc::clone(engine))),
        Arc::new(QuotaService::new(engine)),
        grpc::health::service(engine, &["ratelimit"]),
    ];
    services.extend(grpc::reflection::services(&descriptors::files()));
    services
}
