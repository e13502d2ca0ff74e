//! The HTTP endpoints of envoyproxy/ratelimit.

use std::sync::Arc;

use http::header::{ALLOW, CONNECTION, CONTENT_TYPE};
use http::{HeaderValue, Method, Request, Response, StatusCode, Version};

use super::statistics::Statistics;
use super::{dump, json};
use crate::api::Problem;
use crate::api::door::{Asked, Handler};
use crate::api::host;
use crate::api::request::RequestBody;
use crate::api::response::ResponseBody;
use crate::engine::Engine;
use crate::envoy::should_rate_limit;
use crate::envoy::wire::Code;

const JSON: HeaderValue = HeaderValue::from_static("application/json");
const PLAIN: HeaderValue = HeaderValue::from_static("text/plain");
const METRICS: HeaderValue = HeaderValue::from_static("text/plain; version=0.0.4");

/// What the requests on one address share.
pub(crate) struct Pages {
    engine: Arc<Engine>,
    statistics: Arc<Statistics>,
    part: Part,
}

/// What an address answers.
pub(crate) enum Part {
    /// `/json`, `/healthcheck` and `/rlconfig`.
    Service,
    /// `/rlconfig`.
    Debug,
    /// Statistics, under this path.
    Statistics(String),
}

/// What is answered, before it is a response.
type Page = (StatusCode, HeaderValue, Vec<u8>);

impl Pages {
    pub(crate) fn new(engine: &Arc<Engine>, statistics: &Arc<Statistics>, part: Part) -> Self {
        Self {
            engine: Arc::clone(engine),
            statistics: Arc::clone(statistics),
            part,
        }
    }

    async fn page(&self, is_spare: bool, request: Request<RequestBody>) -> Page {
        let path = request.uri().path();
        match (&self.part, path) {
            (Part::Service, "/healthcheck") => match self.engine.is_ready() {
                Ok(()) => plain(StatusCode::OK, "OK"),
                Err(why) => plain(StatusCode::INTERNAL_SERVER_ERROR, why),
            },
            _ if is_spare => plain(
                StatusCode::SERVICE_UNAVAILABLE,
                "all connections are in use",
            ),
            (Part::Service, "/json") => self.decide(request).await,
            (Part::Service | Part::Debug, "/rlconfig") => {
                let current = self.engine.current();
                let limits = current.dropin().map(|it| dump::text(&it.domains));
                plain(StatusCode::OK, limits.unwrap_or_default())
            }
            (Part::Statistics(own), path) if own == path => {
                let text = self.statistics.text(&self.engine);
                (StatusCode::OK, METRICS, text.into())
            }
            _ => {
                let here = match &self.part {
                    Part::Service => "/json, /healthcheck or /rlconfig",
                    Part::Debug => "/rlconfig",
                    Part::Statistics(own) => own,
                };
                let text = format!("no such path: expected {here}\n");
                plain(StatusCode::NOT_FOUND, text)
            }
        }
    }

    /// `/json`: any error is the client's, as in envoyproxy/ratelimit.
    async fn decide(&self, request: Request<RequestBody>) -> Page {
        let body = match request.into_body().whole().await {
            Ok(body) => body,
            Err(problem) => return plain(StatusCode::BAD_REQUEST, &*problem.detail),
        };
        let request = match json::request(&body) {
            Ok(request) => request,
            Err(error) => {
                let text = format!("the body: {error}: expected a RateLimitRequest in JSON\n");
                return plain(StatusCode::BAD_REQUEST, text);
            }
        };
        match should_rate_limit(&self.engine, &request).await {
            Ok(response) => {
                let status = match response.overall_code == i32::from(Code::OverLimit) {
                    true => StatusCode::TOO_MANY_REQUESTS,
                    false => StatusCode::OK,
                };
                let body = json::response(&response).to_string();
                (status, JSON, body.into())
            }
            Err(status) => plain(StatusCode::BAD_REQUEST, status.message()),
        }
    }
}

fn plain(status: StatusCode, text: impl Into<String>) -> Page {
    (status, PLAIN, text.into().into_bytes())
}

impl Handler for Pages {
    async fn answer(
        asked: Arc<Asked<Self>>,
        request: Request<RequestBody>,
    ) -> Response<ResponseBody> {
        let (pages, connection) = (&*asked.handler, &asked.connection);
        let (version, is_head) = (request.version(), request.method() == Method::HEAD);
        let (head, body) = request.into_parts();
        let unclear = host::named(&head).err();
        let request = Request::from_parts(head, body);
        let allowed = match request.uri().path() {
            "/json" => "POST",
            _ => "GET, HEAD",
        };
        let is_allowed = allowed.split(", ").any(|it| it == request.method());
        let (mut status, kind, mut body) = match (unclear, is_allowed) {
            (Some(problem), _) => plain(problem.status, problem.detail),
            (None, true) => pages.page(connection.is_spare(), request).await,
            (None, false) => {
                let text = format!("{}: expected {allowed}\n", request.method());
                plain(StatusCode::METHOD_NOT_ALLOWED, text)
            }
        };
        if is_head {
            body = Vec::new();
        }
        let mut body = ResponseBody::from(body);
        if let Err(full) = body.reserve(connection) {
            let problem = Problem::from(full);
            status = problem.status;
            body = problem.detail.into_owned().into();
        }
        let mut answer = Response::new(body);
        *answer.status_mut() = status;
        let headers = answer.headers_mut();
        headers.insert(CONTENT_TYPE, kind);
        if !is_allowed {
            headers.insert(ALLOW, HeaderValue::from_static(allowed));
        }
        let is_last = pages.engine.is_draining() || connection.is_spare();
        if is_last && version < Version::HTTP_2 {
            // So that clients send no other request on a connection that is about to close.
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
        answer
    }
}
