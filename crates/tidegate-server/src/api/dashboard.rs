//! `GET /`: the dashboard, a page with a style sheet and a script.
//!
//! It has no keys and no numbers: its script asks for them at `/v1/live`, and with the admin
//! token at `/v1/top` and `/v1/keys`.

use http::HeaderValue;
use http::header::{CONTENT_SECURITY_POLICY, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS};

use super::{Answer, text};

const PAGE: &str = include_str!("dashboard/page.html");
const STYLE: &str = include_str!("dashboard/style.css");
const SCRIPT: &str = include_str!("dashboard/script.js");

const HTML: HeaderValue = HeaderValue::from_static("text/html; charset=utf-8");
const CSS: HeaderValue = HeaderValue::from_static("text/css; charset=utf-8");
const JAVASCRIPT: HeaderValue = HeaderValue::from_static("text/javascript; charset=utf-8");

/// The page loads its own two files, asks its own server, and nothing else. The icon is in
/// the page.
const POLICY: HeaderValue = HeaderValue::from_static(
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
     img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
);

/// Whether a path is one of its files.
pub(super) fn has(path: &str) -> bool {
    matches!(path, "/" | "/dashboard.css" | "/dashboard.js")
}

/// The file at a path that it [has](has).
pub(super) fn answer(path: &str) -> Answer {
    let mut answer = match path {
        "/dashboard.css" => text(CSS, STYLE),
        "/dashboard.js" => text(JAVASCRIPT, SCRIPT),
        _ => text(HTML, PAGE),
    };
    let headers = answer.headers_mut();
    headers.insert(CONTENT_SECURITY_POLICY, POLICY);
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    answer
}
