//! The host and the origin that a request names.
//!
//! Any site can resolve its own name to 127.0.0.1. Its pages then reach what listens there
//! as if it were their own server. So on loopback addresses, a request must name a host of
//! this machine, and must not come from a page of another server. Proxies pass the names of
//! their clients on to the gate, which therefore takes any.

use http::header::{HOST, ORIGIN};
use http::request::Parts;
use http::{HeaderValue, StatusCode, Version};

use super::Problem;
use super::query::short;
use crate::engine::Current;
use crate::serve::Connection;

/// Refuses a request that names no host or a foreign one.
#[inline]
pub(super) fn check(
    current: &Current,
    connection: &Connection,
    head: &Parts,
) -> Result<(), Problem> {
    let host = named(head)?;
    if !connection.is_loopback() || head.uri.path().starts_with("/v1/gate/") {
        return Ok(());
    }
    let hosts = &current.server.hosts;
    match host {
        Some(host) if !is_own(host, hosts) => return Err(misdirected(host)),
        _ => {}
    }
    // Only browsers send it, with many headers: for the others, looking is cheaper than
    // hashing its name.
    if !head.headers.keys().any(|name| *name == ORIGIN) {
        return Ok(());
    }
    let mut origins = head.headers.get_all(ORIGIN).iter();
    match origins.find(|origin| !is_own_origin(origin.as_bytes(), host, hosts)) {
        Some(origin) => Err(foreign(origin)),
        None => Ok(()),
    }
}

/// The host that a request names, and its port. HTTP/1.1 needs exactly one (RFC 9112,
/// section 3.2).
#[inline]
pub(crate) fn named(head: &Parts) -> Result<Option<&[u8]>, Problem> {
    // Nearly every client sends Host first, and no header twice.
    let headers = &head.headers;
    match headers.iter().next() {
        Some((name, value)) if *name == HOST && headers.len() == headers.keys_len() => {
            Ok(Some(value.as_bytes()))
        }
        _ => named_elsewhere(head),
    }
}

#[inline(never)]
fn named_elsewhere(head: &Parts) -> Result<Option<&[u8]>, Problem> {
    let mut hosts = head.headers.get_all(HOST).iter().map(HeaderValue::as_bytes);
    let authority = head.uri.authority();
    match (hosts.next(), hosts.next(), head.version) {
        (None, _, Version::HTTP_11) => Err(Problem::bad("no header host: expected it once")),
        (_, Some(_), _) => Err(Problem::bad("the header host twice: expected it once")),
        (host, None, Version::HTTP_2) => Ok(authority.map(|it| it.as_str().as_bytes()).or(host)),
        (host, None, _) => Ok(host),
    }
}

/// Whether a host is an address, this machine, or configured. Its port does not matter.
#[inline]
fn is_own(host: &[u8], hosts: &[String]) -> bool {
    let rest = host.strip_prefix(b"localhost");
    // Digits, dots, and the colon before a port: the end of a name is never a number.
    let is_address = || host.iter().all(|byte| matches!(byte, b'.'..=b':'));
    rest.is_some_and(|rest| rest.first().is_none_or(|byte| *byte == b':'))
        || !host.is_empty() && is_address()
        || is_own_name(host, hosts)
}

#[inline(never)]
fn is_own_name(host: &[u8], hosts: &[String]) -> bool {
    let name = host.split(|byte| *byte == b':').next().unwrap_or(host);
    let is = |own: &str| name.eq_ignore_ascii_case(own.as_bytes());
    host.starts_with(b"[") || is("localhost") || hosts.iter().any(|own| is(own))
}

/// Whether a page is of this server, or of a configured name. Sandboxed pages and files
/// have the origin `null`.
fn is_own_origin(origin: &[u8], host: Option<&[u8]>, hosts: &[String]) -> bool {
    let Some(start) = origin.windows(3).position(|part| part == b"://") else {
        return false;
    };
    let authority = &origin[start + 3..];
    let name = authority
        .split(|byte| *byte == b':')
        .next()
        .unwrap_or(authority);
    host.is_some_and(|host| authority.eq_ignore_ascii_case(host))
        || hosts
            .iter()
            .any(|own| name.eq_ignore_ascii_case(own.as_bytes()))
}

#[cold]
fn misdirected(host: &[u8]) -> Problem {
    let host = short(&String::from_utf8_lossy(host));
    let detail = format!(
        "the host {host:?} is not this server: expected an address, localhost, or a name in server.hosts"
    );
    Problem::new(StatusCode::MISDIRECTED_REQUEST, detail)
}

#[cold]
fn foreign(origin: &HeaderValue) -> Problem {
    let origin = short(&String::from_utf8_lossy(origin.as_bytes()));
    let detail = format!(
        "the origin {origin:?} is another server: expected pages of this one, or of a name in server.hosts"
    );
    Problem::new(StatusCode::FORBIDDEN, detail)
}
