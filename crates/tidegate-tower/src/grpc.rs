//! Refusals in the form of gRPC: a status in the headers of a response without a body
//! ("trailers-only"), with the time to wait in both forms that clients read.

use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD_NO_PAD;
use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderName, HeaderValue, Response};

use crate::head::RequestHead;
use crate::refusal::{Reason, Refusal};

const STATUS: HeaderName = HeaderName::from_static("grpc-status");
const MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
const DETAILS: HeaderName = HeaderName::from_static("grpc-status-details-bin");
/// What retrying clients obey (gRFC A6): milliseconds, or less than zero for "do not".
const PUSHBACK: HeaderName = HeaderName::from_static("grpc-retry-pushback-ms");

const INVALID_ARGUMENT: u8 = 3;
const RESOURCE_EXHAUSTED: u8 = 8;
const UNAVAILABLE: u8 = 14;

/// The content type of a request of gRPC.
pub(crate) fn content_type<'r>(head: &RequestHead<'r>) -> Option<&'r HeaderValue> {
    let value = head.headers.get(CONTENT_TYPE)?;
    let start = value.as_bytes().get(..b"application/grpc".len())?;
    start
        .eq_ignore_ascii_case(b"application/grpc")
        .then_some(value)
}

/// The response to a request of this content type.
pub(crate) fn refusal(refusal: &Refusal<'_, '_>, content_type: &HeaderValue) -> Response<Bytes> {
    let mut response = Response::new(Bytes::new());
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, content_type.clone());
    let (code, message) = match refusal.reason() {
        Reason::Limited(_) => (RESOURCE_EXHAUSTED, "rate limit exceeded".to_owned()),
        Reason::Unavailable(_) => {
            let message = "the rate limit store is unavailable";
            (UNAVAILABLE, message.to_owned())
        }
        Reason::Missing(name) => {
            let message = format!("the attribute {name} is missing");
            (INVALID_ARGUMENT, message)
        }
    };
    headers.insert(STATUS, HeaderValue::from(u16::from(code)));
    if let Reason::Limited(_) | Reason::Unavailable(_) = refusal.reason() {
        let wait = refusal.retry_after();
        let pushback = wait.map_or(-1, |wait| {
            i64::try_from(wait.as_nanos().div_ceil(1_000_000)).unwrap_or(i64::MAX)
        });
        headers.insert(PUSHBACK, HeaderValue::from(pushback));
        let details = BASE64_STANDARD_NO_PAD.encode(status(code, &message, wait));
        if let Ok(details) = HeaderValue::from_maybe_shared(Bytes::from(details)) {
            headers.insert(DETAILS, details);
        }
    }
    // Words and names of attributes: nothing here needs an escape.
    if let Ok(message) = HeaderValue::from_maybe_shared(Bytes::from(message)) {
        headers.insert(MESSAGE, message);
    }
    response
}

/// A `google.rpc.Status` with a `google.rpc.RetryInfo`, in the wire format of protocol
/// buffers: three small messages are no reason for a library.
///
/// ```proto
/// message Status    { int32 code = 1; string message = 2; repeated Any details = 3; }
/// message Any       { string type_url = 1; bytes value = 2; }
/// message RetryInfo { Duration retry_delay = 1; }
/// message Duration  { int64 seconds = 1; int32 nanos = 2; }
/// ```
fn status(code: u8, message: &str, wait: Option<Duration>) -> Vec<u8> {
    let mut status = Vec::new();
    put_number(&mut status, 1, code.into());
    put_bytes(&mut status, 2, message.as_bytes());
    if let Some(wait) = wait {
        let mut duration = Vec::new();
        put_number(&mut duration, 1, wait.as_secs());
        put_number(&mut duration, 2, wait.subsec_nanos().into());
        let mut retry_info = Vec::new();
        put_bytes(&mut retry_info, 1, &duration);
        let mut any = Vec::new();
        put_bytes(&mut any, 1, b"type.googleapis.com/google.rpc.RetryInfo");
        put_bytes(&mut any, 2, &retry_info);
        put_bytes(&mut status, 3, &any);
    }
    status
}

/// A field of wire type 0. One that is zero is left out, as the format wants it.
fn put_number(message: &mut Vec<u8>, field: u8, number: u64) {
    if number > 0 {
        message.push(field << 3);
        put_varint(message, number);
    }
}

/// A field of wire type 2.
fn put_bytes(message: &mut Vec<u8>, field: u8, bytes: &[u8]) {
    message.push(field << 3 | 2);
    put_varint(message, bytes.len() as u64);
    message.extend_from_slice(bytes);
}

/// Seven bits a byte, the least first, the highest bit set in all but the last.
fn put_varint(message: &mut Vec<u8>, mut number: u64) {
    loop {
        let low = (number & 127) as u8;
        number >>= 7;
        if number == 0 {
            return message.push(low);
        }
        message.push(low | 128);
    }
}
