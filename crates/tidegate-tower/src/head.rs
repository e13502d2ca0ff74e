//! Heads of requests and responses, without their bodies.

use http::{Extensions, HeaderMap, Method, Request, Response, StatusCode, Uri, Version, request};

/// A request without its body, the input of keys, costs and rules.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct RequestHead<'r> {
    /// The method.
    pub method: &'r Method,
    /// The URI as this layer sees it: an outer router may have removed a prefix.
    pub uri: &'r Uri,
    /// The version of HTTP.
    pub version: Version,
    /// The header fields.
    pub headers: &'r HeaderMap,
    /// Values that the server and outer layers have stored.
    pub extensions: &'r Extensions,
}

/// A response without its body, the input of refund rules.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct ResponseHead<'r> {
    /// The status.
    pub status: StatusCode,
    /// The header fields.
    pub headers: &'r HeaderMap,
    /// Values that handlers and inner layers have stored.
    pub extensions: &'r Extensions,
}

impl<'r> RequestHead<'r> {
    /// The head of a request.
    pub fn of<B>(request: &'r Request<B>) -> Self {
        Self {
            method: request.method(),
            uri: request.uri(),
            version: request.version(),
            headers: request.headers(),
            extensions: request.extensions(),
        }
    }

    /// The head of a request whose body is elsewhere.
    pub(crate) fn of_parts(parts: &'r request::Parts) -> Self {
        Self {
            method: &parts.method,
            uri: &parts.uri,
            version: parts.version,
            headers: &parts.headers,
            extensions: &parts.extensions,
        }
    }
}

impl<'r> ResponseHead<'r> {
    /// The head of a response.
    pub fn of<B>(response: &'r Response<B>) -> Self {
        Self {
            status: response.status(),
            headers: response.headers(),
            extensions: response.extensions(),
        }
    }
}
