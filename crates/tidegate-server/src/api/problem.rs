//! Errors as `application/problem+json` (RFC 9457).

use std::borrow::Cow;

use http::header::{ALLOW, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use http::request::Parts;
use http::{HeaderName, HeaderValue, Response, StatusCode};
use serde::Serialize;
use tidegate::CheckError;
use tidegate_redis::TryCheckError;

use super::{Answer, Scope};
use crate::serve::NoRoom;

/// Why there is no answer.
#[derive(Debug)]
pub(crate) struct Problem {
    pub(crate) status: StatusCode,
    pub(crate) detail: Cow<'static, str>,
    /// A header that helps.
    header: Option<(HeaderName, HeaderValue)>,
}

/// A problem in JSON.
#[derive(Debug, Serialize)]
pub(crate) struct ProblemBody<'a> {
    r#type: &'static str,
    title: &'static str,
    status: u16,
    detail: &'a str,
}

impl Problem {
    pub(crate) fn new(status: StatusCode, detail: impl Into<Cow<'static, str>>) -> Self {
        Self {
            status,
            detail: detail.into(),
            header: None,
        }
    }

    /// The request cannot be right.
    pub(crate) fn bad(detail: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, detail)
    }

    /// It may be right, but not now.
    pub(crate) fn later(detail: impl Into<Cow<'static, str>>) -> Self {
        Self {
            header: Some((RETRY_AFTER, HeaderValue::from_static("1"))),
            ..Self::new(StatusCode::SERVICE_UNAVAILABLE, detail)
        }
    }

    pub(crate) fn unauthorized() -> Self {
        let header = (WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        Self {
            header: Some(header),
            ..Self::new(
                StatusCode::UNAUTHORIZED,
                "expected the header Authorization: Bearer and the admin token",
            )
        }
    }

    pub(crate) fn method(head: &Parts, allowed: &'static str) -> Self {
        let detail = format!("{}: expected {allowed}", head.method);
        Self {
            header: Some((ALLOW, HeaderValue::from_static(allowed))),
            ..Self::new(StatusCode::METHOD_NOT_ALLOWED, detail)
        }
    }

    pub(crate) fn path(path: &str) -> Self {
        let shown: String = path.chars().take(100).collect();
        let detail = format!("{shown:?}: no such path: expected one of those in /openapi.json");
        Self::new(StatusCode::NOT_FOUND, detail)
    }

    /// The path is answered by another listener.
    #[cold]
    pub(crate) fn elsewhere(path: &str, scope: Scope) -> Self {
        let shown: String = path.chars().take(100).collect();
        let other = match scope {
            Scope::Admin => "http",
            Scope::All | Scope::Public => "admin",
        };
        let detail =
            format!("{shown:?}: not served on this address: use the one in server.{other}");
        Self::new(StatusCode::NOT_FOUND, detail)
    }

    pub(crate) fn body(&self) -> ProblemBody<'_> {
        ProblemBody {
            r#type: "about:blank",
            title: self.status.canonical_reason().unwrap_or("Error"),
            status: self.status.as_u16(),
            detail: &self.detail,
        }
    }

    pub(crate) fn into_answer(self) -> Answer {
        let body = serde_json::to_vec(&self.body()).expect("a problem can be written");
        let mut answer = Response::new(body.into());
        *answer.status_mut() = self.status;
        let kind = HeaderValue::from_static("application/problem+json");
        answer.headers_mut().insert(CONTENT_TYPE, kind);
        if let Some((name, value)) = self.header {
            answer.headers_mut().insert(name, value);
        }
        answer
    }
}

impl From<NoRoom> for Problem {
    fn from(full: NoRoom) -> Self {
        Self::later(full.to_string())
    }
}

impl From<CheckError> for Problem {
    fn from(error: CheckError) -> Self {
        let status = match error {
            CheckError::UnknownPolicy(_) => StatusCode::NOT_FOUND,
            _ => StatusCode::BAD_REQUEST,
        };
        Self::new(status, error.to_string())
    }
}

impl From<TryCheckError> for Problem {
    fn from(error: TryCheckError) -> Self {
        match error {
            TryCheckError::Check(error) => error.into(),
            TryCheckError::Store(error) => {
                Self::later(format!("the store did not answer: {error}"))
            }
        }
    }
}
