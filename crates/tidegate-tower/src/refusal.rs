//! What a client gets in place of an answer.

use std::time::Duration;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use tidegate::Decisions;

use crate::fields::{self, Names};
use crate::grpc;
use crate::head::RequestHead;

/// A request that is refused, and why.
#[derive(Debug)]
pub struct Refusal<'r, 'p> {
    pub(crate) head: RequestHead<'r>,
    pub(crate) reason: Reason<'r, 'p>,
    pub(crate) names: &'r Names,
}

/// Why a request is refused.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum Reason<'r, 'p> {
    /// A policy says so.
    Limited(&'r Decisions<'p>),
    /// The store of a policy with `on_error = "deny"` does not answer: no quota is used
    /// up.
    Unavailable(&'r Decisions<'p>),
    /// The attribute of this name has no value, and its key says to
    /// [refuse](crate::Key::or_refuse) then.
    Missing(&'r str),
}

/// The type of a body that tells what is wrong (RFC 9457).
const PROBLEM: HeaderValue = HeaderValue::from_static("application/problem+json");

impl<'r, 'p> Refusal<'r, 'p> {
    /// The request.
    #[must_use]
    pub fn request(&self) -> RequestHead<'r> {
        self.head
    }

    /// Why it is refused.
    #[must_use]
    pub fn reason(&self) -> Reason<'r, 'p> {
        self.reason
    }

    /// How long to wait before the request would be admitted; `None` when waiting will
    /// not help.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        match self.reason {
            Reason::Limited(decisions) | Reason::Unavailable(decisions) => {
                decisions.refusal()?.retry_after()
            }
            Reason::Missing(_) => None,
        }
    }

    /// Adds the fields of the policies' dialects, and `Retry-After`, to those of a
    /// response.
    pub fn add_headers(&self, headers: &mut HeaderMap) {
        if let Reason::Limited(decisions) | Reason::Unavailable(decisions) = self.reason {
            fields::add(headers, self.names.fields(decisions.headers()));
        }
    }

    /// The response that is sent when nothing else is said: 429 with a body of type
    /// `application/problem+json`, `Retry-After` and the fields of the policies'
    /// dialects; 503 with `Retry-After` alone when the store is unavailable; 400 when an
    /// attribute is missing. A request of gRPC gets a status of gRPC.
    #[must_use]
    pub fn response(&self) -> Response<Bytes> {
        let mut response = match (grpc::content_type(&self.head), self.reason) {
            (Some(content_type), _) => grpc::refusal(self, content_type),
            (None, Reason::Limited(decisions)) => {
                let status = StatusCode::TOO_MANY_REQUESTS;
                problem(status, decisions.problem(status.as_u16()))
            }
            (None, Reason::Unavailable(decisions)) => {
                let status = StatusCode::SERVICE_UNAVAILABLE;
                problem(status, decisions.problem(status.as_u16()))
            }
            (None, Reason::Missing(attribute)) => {
                // Names of attributes need no escapes.
                let text = format!(
                    "{{\"type\":\"about:blank\",\"title\":\"Bad Request\",\"status\":400,\
                     \"detail\":\"the attribute {attribute} is missing\"}}"
                );
                problem(StatusCode::BAD_REQUEST, text)
            }
        };
        self.add_headers(response.headers_mut());
        response
    }
}

fn problem(status: StatusCode, text: String) -> Response<Bytes> {
    let mut response = Response::new(text.into());
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, PROBLEM);
    response
}
