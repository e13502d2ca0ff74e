//! A request in, a response out: which path leads where. Everything is decided on the
//! way down; nothing here but the door knows of connections.

mod again;
pub mod check;
mod dashboard;
pub(crate) mod decision;
pub mod door;
mod gate;
pub(crate) mod host;
mod keys;
mod live;
mod policies;
mod problem;
pub mod query;
mod quick;
mod refund;
pub mod request;
pub mod response;
mod top;

use std::borrow::Cow;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::header::{AUTHORIZATION, CACHE_CONTROL, CONNECTION, CONTENT_LENGTH, CONTENT_TYPE};
use http::request::Parts;
use http::{HeaderName, HeaderValue, Method, Request, Response, StatusCode, Version, header};
use hyper::body::Body;
use percent_encoding::percent_decode_str;
use tidegate::{Algorithm, Policy, PolicyDecision};
use tidegate_config::Config;
use tracing::{Instrument, Span};

use crate::engine::{Access, Current, Engine, Entry};
use crate::serve::Connection;
use door::{Asked, Handler};
pub(crate) use problem::Problem;
use request::RequestBody;
use response::ResponseBody;

/// What goes out.
pub(crate) type Answer = Response<ResponseBody>;

/// What a listener answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// Everything: there is no listener for operators.
    All,
    /// Checks, refunds, and what describes them.
    Public,
    /// What operators ask: metrics, health, keys and resets.
    Admin,
}

/// The HTTP interface over an engine: what requests on one group of addresses share.
pub struct Api {
    engine: Arc<Engine>,
    scope: Scope,
}

impl Api {
    /// Answers what is in this scope.
    #[must_use]
    pub fn new(engine: Arc<Engine>, scope: Scope) -> Self {
        Self { engine, scope }
    }
}

/// What `/openapi.json` answers, with the algorithms that there are.
static OPENAPI: LazyLock<String> = LazyLock::new(|| {
    let names = Algorithm::ALL.iter().map(|it| it.as_str());
    let names: Vec<&str> = names.collect();
    include_str!("openapi.json").replace("ALGORITHMS", &names.join("\", \""))
});

// Types of bodies. Constants, so that they are not validated at run time.
const JSON: HeaderValue = HeaderValue::from_static("application/json");
const PLAIN: HeaderValue = HeaderValue::from_static("text/plain");
const METRICS: HeaderValue = HeaderValue::from_static("text/plain; version=0.0.4");

const NO_STORE: HeaderValue = HeaderValue::from_static("no-store");

// Nearly every answer has these two: they are not read anew each time.
static RATE_LIMIT: HeaderName = HeaderName::from_static("ratelimit");
static RATE_LIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");

static REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

impl Handler for Api {
    fn answer(
        asked: Arc<Asked<Self>>,
        request: Request<RequestBody>,
    ) -> impl Future<Output = Answer> + Send {
        let (head, mut body) = request.into_parts();
        // A block, since a function would make room for its arguments twice.
        async move {
            let engine = &*asked.handler.engine;
            let start = engine.logs_access().then(Instant::now);
            let current = engine.current();
            let answer = match span(&head) {
                None => answered(&asked, &current, &head, &mut body).await,
                Some(span) => {
                    let answered = answered(&asked, &current, &head, &mut body);
                    Box::pin(answered.instrument(span)).await
                }
            };
            let answer = finished(&asked, &head, answer);
            if let Some(start) = start {
                logged(&asked, &head, &answer, start.elapsed());
            }
            answer
        }
    }
}

/// The log line of a request. The query is left out: it has keys.
#[cold]
fn logged(asked: &Asked<Api>, head: &Parts, answer: &Answer, took: Duration) {
    let (peer, id) = (asked.connection.peer(), request_id(head));
    tracing::info!(
        peer = peer.map(tracing::field::display),
        method = head.method.as_str(),
        path = head.uri.path(),
        status = answer.status().as_u16(),
        took_us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX),
        id = id.as_ref().and_then(|id| id.to_str().ok()),
        "request"
    );
}

/// Says which request it is that lines on the way are about, where each has a line.
/// Otherwise no span is made that nobody would see.
#[inline]
fn span(head: &Parts) -> Option<Span> {
    if !tracing::enabled!(tracing::Level::DEBUG) {
        return None;
    }
    let id = request_id(head)?;
    let id = id.to_str().unwrap_or_default();
    Some(tracing::debug_span!("request", id))
}

/// An answer with what every answer has.
#[inline]
fn finished(asked: &Asked<Api>, head: &Parts, mut answer: Answer) -> Answer {
    if head.method == Method::HEAD {
        // HTTP/2 would send it all the same.
        let body = std::mem::take(answer.body_mut());
        let length = body.size_hint().lower();
        answer.headers_mut().insert(CONTENT_LENGTH, length.into());
    }
    if let Some(id) = request_id(head) {
        answer.headers_mut().insert(&REQUEST_ID, id);
    }
    let headers = answer.headers_mut();
    // Any of these is another one a moment later.
    headers.insert(CACHE_CONTROL, NO_STORE);
    let is_last = asked.handler.engine.is_draining() || asked.connection.is_spare();
    if is_last && head.version < Version::HTTP_2 {
        // So that clients send no other request on a connection that is about to close.
        let close = HeaderValue::from_static("close");
        headers.insert(CONNECTION, close);
    }
    answer
}

/// What is wrong with a request is an answer, too.
async fn answered(
    asked: &Asked<Api>,
    current: &Current,
    head: &Parts,
    body: &mut RequestBody,
) -> Answer {
    let (api, connection) = (&*asked.handler, &*asked.connection);
    let is_for_us = host::check(current, connection, head);
    let answer = match is_for_us.and_then(|()| is_answered(api.scope, connection, head)) {
        Ok(()) => route(asked, current, head, body).await,
        Err(problem) => Err(problem),
    };
    let answer = answer.and_then(|mut answer| {
        answer.body_mut().reserve(&asked.connection)?;
        Ok(answer)
    });
    answer.unwrap_or_else(|problem| unanswered(api, head, problem))
}

#[cold]
fn unanswered(api: &Api, head: &Parts, problem: Problem) -> Answer {
    let id = request_id(head);
    let id = id.as_ref().and_then(|id| id.to_str().ok());
    let (status, detail) = (problem.status, &problem.detail);
    api.engine.problem(status, head.uri.path(), id, detail);
    problem.into_answer()
}

/// Whether this listener answers this path, on this connection.
#[inline]
fn is_answered(scope: Scope, connection: &Connection, head: &Parts) -> Result<(), Problem> {
    if scope == Scope::All && !connection.is_spare() {
        return Ok(());
    }
    let path = head.uri.path();
    let is_watched = matches!(path, "/healthz" | "/readyz" | "/metrics");
    if connection.is_spare() && !is_watched {
        return Err(Problem::later("all connections are in use"));
    }
    let is_described = matches!(path, "/v1/policies" | "/openapi.json");
    let is_admin = is_watched
        || path == "/v1/live"
        || dashboard::has(path)
        || path.starts_with("/v1/keys/")
        || path.starts_with("/v1/top/");
    let is_there = match scope {
        Scope::All => true,
        Scope::Public => !is_admin,
        Scope::Admin => is_admin || is_described,
    };
    match is_there {
        true => Ok(()),
        false => Err(Problem::elsewhere(path, scope)),
    }
}

async fn route(
    asked: &Asked<Api>,
    current: &Current,
    head: &Parts,
    body: &mut RequestBody,
) -> Result<Answer, Problem> {
    let path = head.uri.path();
    if let Some(policy) = path.strip_prefix("/v1/gate/") {
        return gate::answer(asked, current, &name(policy), head).await;
    }
    match (path, &head.method) {
        ("/v1/check", &Method::POST) => check::answer(asked, current, body).await,
        ("/v1/check" | "/v1/refund", method) if method != Method::POST => {
            Err(Problem::method(head, "POST"))
        }
        // In a future of its own, since every connection has room for the one that waits.
        _ => Box::pin(rest(asked, current, head, body)).await,
    }
}

/// All that asks for no decision.
async fn rest(
    asked: &Asked<Api>,
    current: &Current,
    head: &Parts,
    body: &mut RequestBody,
) -> Result<Answer, Problem> {
    let api = &*asked.handler;
    let path = head.uri.path();
    if let Some(policy) = path.strip_prefix("/v1/keys/") {
        let policy = name(policy);
        return match head.method {
            Method::GET | Method::HEAD => keys::explain(api, current, &policy, head).await,
            Method::DELETE => keys::reset(api, current, &policy, head).await,
            _ => Err(Problem::method(head, "GET, HEAD, DELETE")),
        };
    }
    if let Some(policy) = path.strip_prefix("/v1/top/") {
        return match head.method {
            Method::GET | Method::HEAD => top::answer(current, &name(policy), head),
            _ => Err(Problem::method(head, "GET, HEAD")),
        };
    }
    match path {
        "/v1/refund" => refund::answer(api, current, head, body).await,
        _ => look(asked, current, head),
    }
}

/// What is only there to be looked at.
fn look(asked: &Asked<Api>, current: &Current, head: &Parts) -> Result<Answer, Problem> {
    let api = &*asked.handler;
    let is_allowed = matches!(head.method, Method::GET | Method::HEAD);
    match head.uri.path() {
        "/v1/policies" | "/v1/live" | "/openapi.json" | "/metrics" | "/healthz" | "/readyz"
            if !is_allowed =>
        {
            Err(Problem::method(head, "GET, HEAD"))
        }
        path if dashboard::has(path) => match is_allowed {
            true => Ok(dashboard::answer(path)),
            false => Err(Problem::method(head, "GET, HEAD")),
        },
        "/v1/live" => live::answer(api, &asked.connection, head),
        "/v1/policies" => Ok(json(&policies::listed(current))),
        "/openapi.json" => Ok(text(JSON, OPENAPI.as_str())),
        "/metrics" => Ok(text(METRICS, api.engine.metrics.text(&current.limiter))),
        "/healthz" => Ok(text(PLAIN, "ok\n")),
        "/readyz" => match api.engine.is_ready() {
            Ok(()) => Ok(text(PLAIN, "ready\n")),
            Err(why) => Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, why)),
        },
        path => Err(Problem::path(path)),
    }
}

/// The name of a policy in a path.
fn name(part: &str) -> Cow<'_, str> {
    percent_decode_str(part).decode_utf8_lossy()
}

/// A user-defined script decides, which has no numbers to peek at.
fn has_numbers(policy: &Policy) -> Result<(), Problem> {
    match policy.script() {
        None => Ok(()),
        Some(_) => Err(Problem::bad(format!(
            "policy {:?} has a script, which has no numbers to show",
            policy.name()
        ))),
    }
}

/// The request's `X-Request-Id`, which the response repeats.
fn request_id(head: &Parts) -> Option<HeaderValue> {
    let id = head.headers.get(&REQUEST_ID)?;
    (id.len() <= 128 && id.to_str().is_ok()).then(|| id.clone())
}

/// Requests that change state need the admin token.
fn authorize(current: &Current, head: &Parts) -> Result<(), Problem> {
    let header = head.headers.get(AUTHORIZATION);
    let token = header.and_then(|header| {
        let (scheme, token) = header.as_bytes().split_at_checked(7)?;
        scheme.eq_ignore_ascii_case(b"bearer ").then_some(token)
    });
    match current.access(token) {
        Access::Granted => Ok(()),
        Access::Refused => Err(Problem::unauthorized()),
        Access::Nobody => Err(Problem::new(
            StatusCode::FORBIDDEN,
            "no admin_token is configured: expected one for requests that change state or list keys",
        )),
    }
}

fn text(kind: HeaderValue, body: impl Into<ResponseBody>) -> Answer {
    let mut answer = Response::new(body.into());
    answer.headers_mut().insert(CONTENT_TYPE, kind);
    answer
}

fn json(value: &impl serde::Serialize) -> Answer {
    let body = serde_json::to_vec(value).expect("what is made here can be written");
    text(JSON, body)
}

/// Headers that say how an answer travels: a policy or its script may name them, but
/// the answer would be another one, or none.
const OURS: [HeaderName; 9] = [
    header::CONNECTION,
    header::CONTENT_ENCODING,
    header::CONTENT_LENGTH,
    header::CONTENT_TYPE,
    header::DATE,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];

/// Puts a decision's headers into a response.
#[inline]
fn put_headers(answer: &mut Answer, entry: &Entry, decision: &PolicyDecision<'_>) {
    match entry.usual_headers(decision) {
        Some([limit, left]) => {
            let headers = answer.headers_mut();
            headers.insert(&RATE_LIMIT_POLICY, limit);
            headers.insert(&RATE_LIMIT, left);
        }
        None => put_all_headers(answer, decision),
    }
}

fn put_all_headers(answer: &mut Answer, decision: &PolicyDecision<'_>) {
    for (name, value) in decision.headers() {
        let name = match &*name {
            "RateLimit" => Some(RATE_LIMIT.clone()),
            "RateLimit-Policy" => Some(RATE_LIMIT_POLICY.clone()),
            // A script may name what is no header.
            name => HeaderName::from_bytes(name.as_bytes())
                .ok()
                .filter(|name| !OURS.contains(name)),
        };
        let value = match value {
            Cow::Borrowed(value) => HeaderValue::from_str(value),
            Cow::Owned(value) => HeaderValue::from_maybe_shared(Bytes::from(value)),
        };
        if let (Some(name), Ok(value)) = (name, value) {
            answer.headers_mut().insert(name, value);
        }
    }
}

/// What is allowed in a config and yet looks like a mistake over HTTP.
pub(crate) fn warnings(config: &Config) -> Vec<String> {
    let reserved = config.policies.iter().filter_map(|policy| {
        let levels = policy.levels().iter();
        let mut names = levels.flat_map(|level| level.key().attributes());
        let name = names.find(|name| query::RESERVED.contains(name))?;
        Some(format!(
            "policy {:?}: the attribute {name:?} is reserved in URLs: use /v1/check",
            policy.name()
        ))
    });
    config.warnings().into_iter().chain(reserved).collect()
}
