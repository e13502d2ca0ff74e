//! A request in, a response out: which path leads where. Everything is decided on the
//! way down; nothing here knows of sockets.

mod body;
pub mod check;
pub(crate) mod decision;
mod gate;
mod keys;
mod policies;
mod problem;
pub mod query;
mod refund;

use std::time::Instant;

use bytes::Bytes;
use http::header::{AUTHORIZATION, CACHE_CONTROL, CONNECTION, CONTENT_TYPE};
use http::{HeaderName, HeaderValue, Method, Request, Response, StatusCode, Version};
use http_body_util::Full;
use hyper::body::Incoming;
use tidegate::{Attributes, CheckError, Cost, PolicyDecision};

use crate::app::{Access, App, Running};
pub(crate) use problem::Problem;

/// What goes out.
pub(crate) type Answer = Response<Full<Bytes>>;

/// The names of the paths, for `/openapi.json` and those who look for one.
const OPENAPI: &str = include_str!("openapi.json");

static REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Answers a request.
pub(crate) async fn answer(app: &App, request: Request<Incoming>) -> Answer {
    let running = app.running();
    let id = request_id(&request);
    let version = request.version();
    let mut answer = match route(app, &running, request).await {
        Ok(answer) => answer,
        Err(problem) => {
            tracing::debug!(status = problem.status.as_u16(), detail = %problem.detail, request_id = ?id, "a request that cannot be answered");
            problem.into_answer()
        }
    };
    if let Some(id) = id {
        answer.headers_mut().insert(&REQUEST_ID, id);
    }
    if app.is_draining() && version < Version::HTTP_2 {
        // So that nobody sends another request into a connection that is about to end.
        let close = HeaderValue::from_static("close");
        answer.headers_mut().insert(CONNECTION, close);
    }
    answer
}

async fn route(
    app: &App,
    running: &Running,
    request: Request<Incoming>,
) -> Result<Answer, Problem> {
    let path = request.uri().path();
    if let Some(policy) = path.strip_prefix("/v1/gate/") {
        return gate::answer(app, running, policy, &request).await;
    }
    if let Some(policy) = path.strip_prefix("/v1/keys/") {
        return match *request.method() {
            Method::GET | Method::HEAD => keys::explain(running, policy, &request).await,
            Method::DELETE => keys::reset(running, policy, &request).await,
            _ => Err(Problem::method(&request, "GET, DELETE")),
        };
    }
    let (allowed, is_allowed) = match path {
        "/v1/check" | "/v1/refund" => ("POST", request.method() == Method::POST),
        "/v1/policies" | "/openapi.json" | "/metrics" | "/healthz" | "/readyz" => (
            "GET",
            matches!(*request.method(), Method::GET | Method::HEAD),
        ),
        _ => return Err(Problem::path(path)),
    };
    if !is_allowed {
        return Err(Problem::method(&request, allowed));
    }
    match path {
        "/v1/check" => check::answer(app, running, request).await,
        "/v1/refund" => refund::answer(app, running, request).await,
        "/v1/policies" => Ok(json(&policies::listed(running))),
        "/openapi.json" => Ok(text("application/json", OPENAPI)),
        "/metrics" => Ok(text(
            "text/plain; version=0.0.4",
            app.metrics.text(&running.limiter),
        )),
        "/healthz" => Ok(text("text/plain", "ok\n")),
        _ => match app.is_ready() {
            Ok(()) => Ok(text("text/plain", "ready\n")),
            Err(why) => Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, why)),
        },
    }
}

/// Asks the limiter, and counts the answer.
async fn ask<'r, A>(
    app: &App,
    running: &'r Running,
    policy: &str,
    attributes: &A,
    cost: Cost,
) -> Result<PolicyDecision<'r>, CheckError>
where
    A: Attributes + ?Sized,
{
    let start = Instant::now();
    let decision = running.limiter.check(policy, attributes, cost).await?;
    running.meters.count(&decision, start.elapsed());
    decision::log(app, running, &decision, attributes);
    Ok(decision)
}

/// What came in with a request to be told from others; it goes back with the answer.
fn request_id<B>(request: &Request<B>) -> Option<HeaderValue> {
    let id = request.headers().get(&REQUEST_ID)?;
    (id.len() <= 128 && id.to_str().is_ok()).then(|| id.clone())
}

/// Whoever changes anything must show the admin token.
fn authorize<B>(running: &Running, request: &Request<B>) -> Result<(), Problem> {
    let header = request.headers().get(AUTHORIZATION);
    let token = header.and_then(|header| {
        let (scheme, token) = header.as_bytes().split_at_checked(7)?;
        scheme.eq_ignore_ascii_case(b"bearer ").then_some(token)
    });
    match running.access(token) {
        Access::Granted => Ok(()),
        Access::Refused => Err(Problem::unauthorized()),
        Access::Nobody => Err(Problem::new(
            StatusCode::FORBIDDEN,
            "nothing can be changed over HTTP: no admin_token is configured",
        )),
    }
}

fn text(kind: &'static str, body: impl Into<Bytes>) -> Answer {
    let mut answer = Response::new(Full::new(body.into()));
    let headers = answer.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    answer
}

fn json(value: &impl serde::Serialize) -> Answer {
    let body = serde_json::to_vec(value).expect("what is made here can be written");
    text("application/json", body)
}

/// Puts a decision's headers into a response.
fn put_headers(answer: &mut Answer, decision: &PolicyDecision<'_>) {
    for (name, value) in decision.headers().iter() {
        // A script may name what is no header.
        let name = HeaderName::from_bytes(name.as_bytes());
        if let (Ok(name), Ok(value)) = (name, HeaderValue::from_str(value)) {
            answer.headers_mut().insert(name, value);
        }
    }
}
