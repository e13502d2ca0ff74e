//! Refusals, and the responses to them.

use std::time::Duration;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use tidegate::Decisions;

use crate::fields::{self, KnownFields};
use crate::grpc;
use crate::head::RequestHead;

/// A request that is refused, and why.
#[derive(Debug)]
pub struct Refusal<'r, 'p> {
    pub(crate) head: RequestHead<'r>,
    pub(crate) reason: Reason<'r, 'p>,
    pub(crate) fields: &'r KnownFields,
}

/// Why a request is refused.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum Reason<'r, 'p> {
    /// A policy refused it.
    Limited(&'r Decisions<'p>),
    /// The store of a policy with `on_error = "deny"` is unavailable. No quota was used up.
    Unavailable(&'r Decisions<'p>),
    /// The attribute with this name has no value, and its key
    /// [refuses](crate::Key::or_refuse) such requests.
    Missing(&'r str),
}

/// The content type of problem bodies (RFC 9457).
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

    /// How long to wait until the request would be admitted; `None` if waiting never helps.
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
            fields::add(headers, self.fields.of(decisions.headers()));
        }
    }

    /// The default response: 429 with a body of type `application/problem+json`,
    /// `Retry-After` and the headers of the policies' dialects; 503 with only `Retry-After`
    /// if the store is unavailable; 400 if an attribute is missing. A gRPC request gets a
    /// gRPC status.
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
