//! The common log format, and what nginx, Apache and Traefik let follow it:
//!
//! ```text
//! 203.0.113.7 - ada [16/Nov/2026:00:00:00 +0000] "GET /a?b=c HTTP/1.1" 200 612 "-" "curl/8.5"
//! ```

use memchr::{memchr, memchr_iter, memchr2_iter};

use super::Unreadable;
use crate::simulate::time::{At, Times};

/// A field of a line whose fields have fixed places.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub(super) enum Column {
    Address,
    User,
    Request,
    Method,
    Target,
    Protocol,
    Status,
    Bytes,
    Referer,
    Agent,
    Host,
    ForwardedFor,
    RequestId,
    Upstream,
}

impl Column {
    pub(super) const COUNT: usize = Self::Upstream as usize + 1;
}

/// The fields of a line, borrowed from it.
pub(super) type Found<'l> = [Option<&'l [u8]>; Column::COUNT];

/// The names of the fields: those of nginx's variables, and shorter ones.
pub(super) const COLUMNS: &[(&[&str], Column)] = &[
    (&["remote_addr", "ip"], Column::Address),
    (&["remote_user", "user"], Column::User),
    (&["request"], Column::Request),
    (&["request_method", "method"], Column::Method),
    (&["request_uri", "path", "uri"], Column::Target),
    (&["server_protocol", "protocol"], Column::Protocol),
    (&["status"], Column::Status),
    (&["body_bytes_sent", "bytes"], Column::Bytes),
    (&["http_referer", "referer"], Column::Referer),
    (&["http_user_agent", "user_agent"], Column::Agent),
];

/// How many opening brackets are tried: a user's name may have some.
const BRACKETS: usize = 16;

/// Reads a line.
pub(super) fn read<'l>(
    line: &'l [u8],
    combined: bool,
    times: &mut Times,
    found: &mut Found<'l>,
) -> Result<At, Unreadable> {
    let (address, rest) = word(line).ok_or("no address and a space at the start")?;
    if address.is_empty() {
        return Err("no address and a space at the start");
    }
    let (_, user) = word(rest).ok_or("no identity and user after the address")?;
    let (at, user, rest) = time(user, times)?;
    let rest = rest
        .strip_prefix(b" ")
        .ok_or("no quoted request after the time")?;
    let (request, rest) = quoted(rest).ok_or("no quoted request after the time")?;
    let rest = rest
        .strip_prefix(b" ")
        .ok_or("no status after the request")?;
    let (status, rest) = word(rest).ok_or("no status after the request")?;
    if status.is_empty() || !status.iter().all(u8::is_ascii_digit) {
        return Err("the status is not a number");
    }
    let (bytes, rest) = word(rest).unwrap_or((rest, b""));
    if bytes != b"-" && (bytes.is_empty() || !bytes.iter().all(u8::is_ascii_digit)) {
        return Err("the number of bytes is not a number");
    }
    found[Column::Address as usize] = Some(address);
    found[Column::User as usize] = Some(user);
    found[Column::Status as usize] = Some(status);
    found[Column::Bytes as usize] = Some(bytes);
    self::request(request, found);
    if let Some((referer, rest)) = quoted(rest)
        && let Some((agent, _)) = rest.strip_prefix(b" ").and_then(quoted)
    {
        found[Column::Referer as usize] = Some(referer);
        found[Column::Agent as usize] = Some(agent);
    } else if combined {
        return Err("no quoted referer and user agent at the end");
    }
    Ok(at)
}

/// The user, the time in brackets, and what follows them.
fn time<'l>(text: &'l [u8], times: &mut Times) -> Result<(At, &'l [u8], &'l [u8]), Unreadable> {
    let mut reason = "no time in brackets";
    for open in memchr_iter(b'[', text).take(BRACKETS) {
        let inside = &text[open + 1..];
        let Some(close) = memchr(b']', inside) else {
            break;
        };
        if let Some(at) = times.read(&inside[..close]) {
            let user = text[..open].trim_ascii_end();
            return Ok((at, user, &inside[close + 1..]));
        }
        reason = "the text in brackets is not a time with a zone";
    }
    Err(reason)
}

/// Up to the next space, and what follows it.
pub(super) fn word(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let space = memchr(b' ', text)?;
    Some((&text[..space], &text[space + 1..]))
}

/// A text in quotes, and what follows it. A quote after a backslash is part of the text.
pub(super) fn quoted(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let inside = text.strip_prefix(b"\"")?;
    let mut escaped = None;
    for at in memchr2_iter(b'"', b'\\', inside) {
        if escaped == Some(at) {
            continue;
        }
        if inside[at] == b'"' {
            return Some((&inside[..at], &inside[at + 1..]));
        }
        escaped = Some(at + 1);
    }
    None
}

/// `GET /a?b=c HTTP/1.1`. A request that is not one, as port scanners send it, has neither
/// method nor path.
pub(super) fn request<'l>(request: &'l [u8], found: &mut Found<'l>) {
    found[Column::Request as usize] = Some(request);
    if let Some((method, rest)) = word(request)
        && !method.is_empty()
        && method
            .iter()
            .all(|byte| byte.is_ascii_alphabetic() || b"-_".contains(byte))
    {
        let (target, protocol) = match memchr::memrchr(b' ', rest) {
            Some(space) => (&rest[..space], Some(&rest[space + 1..])),
            None => (rest, None),
        };
        found[Column::Method as usize] = Some(method);
        found[Column::Target as usize] = Some(target);
        found[Column::Protocol as usize] = protocol;
    }
}
