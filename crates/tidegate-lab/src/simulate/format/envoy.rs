//! Envoy's default text format:
//!
//! ```text
//! [2026-11-16T00:00:00.310Z] "POST /a HTTP/2" 204 - 154 0 226 100 "10.0.35.28" "curl/8.5" "cc21d9b0" "api.example.com" "10.0.2.1:80"
//! ```
//!
//! It has no address of the client, only what the header `X-Forwarded-For` says: whether to
//! believe that is up to `--attr ip=x_forwarded_for`.

use memchr::memchr;

use super::Unreadable;
use super::common::{Column, Found, quoted, request, word};
use crate::simulate::time::{At, Times};

pub(super) const COLUMNS: &[(&[&str], Column)] = &[
    (&["method"], Column::Method),
    (&["path"], Column::Target),
    (&["protocol"], Column::Protocol),
    (&["response_code", "status"], Column::Status),
    (&["bytes_sent"], Column::Bytes),
    (&["x_forwarded_for"], Column::ForwardedFor),
    (&["user_agent"], Column::Agent),
    (&["request_id"], Column::RequestId),
    (&["authority", "host"], Column::Host),
    (&["upstream_host"], Column::Upstream),
];

/// Reads a line.
pub(super) fn read<'l>(
    line: &'l [u8],
    times: &mut Times,
    found: &mut Found<'l>,
) -> Result<At, Unreadable> {
    let inside = line
        .strip_prefix(b"[")
        .ok_or("no time in brackets at the start")?;
    let close = memchr(b']', inside).ok_or("no time in brackets at the start")?;
    let at = times.read(&inside[..close]);
    let at = at.ok_or("the text in brackets is not a time with a zone")?;
    let rest = inside[close + 1..].strip_prefix(b" ");
    let (asked, rest) = rest
        .and_then(quoted)
        .ok_or("no quoted request after the time")?;
    let (status, mut rest) = rest
        .strip_prefix(b" ")
        .and_then(word)
        .ok_or("no status after the request")?;
    if status.is_empty() || !status.iter().all(u8::is_ascii_digit) {
        return Err("the status is not a number");
    }
    request(asked, found);
    found[Column::Status as usize] = Some(status);
    // Flags and details between status and numbers are words, or texts in quotes.
    let mut words = 0;
    while !rest.is_empty() && words < 4 {
        let Some((text, after)) = token(rest) else {
            break;
        };
        if text.iter().all(u8::is_ascii_digit) && !text.is_empty() {
            words += 1;
            if words == 2 {
                found[Column::Bytes as usize] = Some(text);
            }
        } else if words > 0 {
            words += 1;
        }
        rest = after;
    }
    let texts = [
        Column::ForwardedFor,
        Column::Agent,
        Column::RequestId,
        Column::Host,
        Column::Upstream,
    ];
    for column in texts {
        let Some((text, after)) = quoted(rest) else {
            return Err("no five quoted texts at the end");
        };
        found[column as usize] = Some(text);
        rest = after.strip_prefix(b" ").unwrap_or(after);
    }
    Ok(at)
}

fn token(text: &[u8]) -> Option<(&[u8], &[u8])> {
    match quoted(text) {
        Some((inside, after)) => Some((inside, after.strip_prefix(b" ")?)),
        None => word(text),
    }
}
