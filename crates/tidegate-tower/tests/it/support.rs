//! What the tests share: a service to put limits around, requests, and a limiter whose
//! counts can be looked at.

use std::convert::Infallible;
use std::fmt::Debug;
use std::future::{Ready, ready};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use tidegate::{Cost, Limit, ManualClock, MemoryStore, Policy, PolicyBuilder, PolicyLimiter};
use tidegate_tower::{Key, RateLimit, RateLimitBuilder, RateLimitLayer};
use tower::util::ServiceFn;
use tower::{Layer, Service, ServiceExt, service_fn};

pub(crate) type Body = Full<Bytes>;
pub(crate) type Hello = ServiceFn<fn(Request<Body>) -> Ready<Result<Response<Body>, Infallible>>>;

/// Long enough that nothing flows back while a test runs.
pub(crate) const YEAR: Duration = Duration::from_secs(365 * 86_400);

/// A service that answers everything with `hello`, and with the status asked for.
pub(crate) fn hello() -> Hello {
    service_fn(|request| {
        let mut response = Response::new(Body::from("hello"));
        if let Some(status) = request.headers().get("answer-with") {
            *response.status_mut() = StatusCode::from_bytes(status.as_bytes()).expect("a status");
        }
        ready(Ok(response))
    })
}

/// So many a year.
pub(crate) fn yearly(requests: u32) -> Limit {
    Limit::per(requests, YEAR)
}

/// A policy in memory.
pub(crate) fn limiter(policy: PolicyBuilder) -> PolicyLimiter {
    in_store(MemoryStore::builder().max_keys(1_000).build(), policy)
}

/// A policy, `p`, which counts by `k` on the test's own clock.
pub(crate) fn on_clock(clock: &ManualClock, limit: Limit) -> PolicyLimiter {
    let store = MemoryStore::builder().clock(clock.clone()).build();
    in_store(store, Policy::builder("p").key("{k}").limit(limit))
}

fn in_store(store: MemoryStore, policy: PolicyBuilder) -> PolicyLimiter {
    let policy = policy.build().expect("a policy");
    PolicyLimiter::over(&store, policy).expect("a policy without a script")
}

/// A policy, `p`, of this many a year for each value of `k`.
pub(crate) fn one_policy(requests: u32) -> PolicyLimiter {
    limiter(Policy::builder("p").key("{k}").limit(yearly(requests)))
}

/// A layer that asks the policy `p` about `k`.
pub(crate) fn by(limiter: &PolicyLimiter, key: Key) -> RateLimitBuilder {
    RateLimitLayer::builder(limiter.clone()).key("k", key)
}

pub(crate) fn around_hello(layer: RateLimitBuilder) -> RateLimit<Hello> {
    layer.build().expect("a layer").layer(hello())
}

/// Whether the policy `p` has counted something for this value of `k`.
pub(crate) fn is_counted(limiter: &PolicyLimiter, value: impl AsRef<[u8]>) -> bool {
    used(limiter, value) > 0
}

/// How much the policy `p` has counted for this value of `k`.
pub(crate) fn used(limiter: &PolicyLimiter, value: impl AsRef<[u8]>) -> u32 {
    let look = limiter.peek(&[("k", value)], Cost::ONE);
    let look = look.expect("its attributes");
    look.limit() - look.remaining()
}

/// How many keys the store of a policy holds.
pub(crate) fn count_keys(limiter: &PolicyLimiter) -> usize {
    limiter.store().stats().keys
}

/// A request with these header fields.
pub(crate) fn request(path: &str, headers: &[(&str, &str)]) -> Request<Body> {
    let mut request = Request::builder().uri(path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(Body::default()).expect("a request")
}

/// A response with its body read.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: String,
}

impl Answer {
    /// The value of a header field, its lines joined.
    pub(crate) fn header(&self, name: &str) -> Option<String> {
        let lines = self.headers.get_all(name).iter();
        let lines: Vec<&str> = lines.map(|line| line.to_str().expect("text")).collect();
        (!lines.is_empty()).then(|| lines.join(", "))
    }
}

/// Calls a service as tower wants it: ready first.
pub(crate) async fn send<B: http_body::Body<Error: Debug>>(
    service: &mut impl Service<Request<Body>, Response = Response<B>, Error: Debug>,
    request: Request<Body>,
) -> Answer {
    let service = service.ready().await.expect("a service that is ready");
    let response = service.call(request).await.expect("an answer");
    let (parts, body) = response.into_parts();
    let body = body.collect().await.expect("a body").to_bytes();
    Answer {
        status: parts.status,
        headers: parts.headers,
        body: String::from_utf8(body.into()).expect("text"),
    }
}

/// The statuses of this many requests alike, one after the other.
pub(crate) async fn statuses<B: http_body::Body<Error: Debug>>(
    service: &mut impl Service<Request<Body>, Response = Response<B>, Error: Debug>,
    requests: usize,
) -> Vec<u16> {
    let mut statuses = Vec::new();
    for _ in 0..requests {
        let answer = send(service, request("/", &[])).await;
        statuses.push(answer.status.as_u16());
    }
    statuses
}
