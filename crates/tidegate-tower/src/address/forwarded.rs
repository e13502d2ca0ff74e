//! Parses the headers that proxies write: `X-Forwarded-For`, a list of addresses, and
//! `Forwarded` (RFC 7239), a list of parameters.
//!
//! Every proxy appends at the end, and anything further left may be forged. So both are read
//! from the right, and only through trusted proxies: nothing that a client sends can change
//! how the part after it is read.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The parts of a line between separators, the last one first. Separators in quotes
/// are none.
pub(super) struct Backwards<'l> {
    rest: Option<&'l [u8]>,
    separator: u8,
}

impl<'l> Backwards<'l> {
    pub(super) fn new(line: &'l [u8], separator: u8) -> Self {
        Self {
            rest: Some(line),
            separator,
        }
    }
}

impl<'l> Iterator for Backwards<'l> {
    type Item = &'l [u8];

    fn next(&mut self) -> Option<&'l [u8]> {
        let rest = self.rest.take()?;
        let mut quoted = false;
        for (index, byte) in rest.iter().enumerate().rev() {
            if *byte == b'"' && !is_escaped(rest, index) {
                quoted = !quoted;
            } else if *byte == self.separator && !quoted {
                self.rest = Some(&rest[..index]);
                return Some(&rest[index + 1..]);
            }
        }
        Some(rest)
    }
}

/// Whether the byte stands behind a backslash that is none itself.
fn is_escaped(line: &[u8], index: usize) -> bool {
    let before = line[..index].iter().rev();
    before.take_while(|byte| **byte == b'\\').count() % 2 == 1
}

/// The address in an element of `X-Forwarded-For`; `None` when it is anything else.
pub(super) fn plain(element: &[u8]) -> Option<IpAddr> {
    address(std::str::from_utf8(element).ok()?)
}

/// The address in the `for` of an element of `Forwarded`; `None` when it hides it, or
/// is not to be understood.
pub(super) fn parameters(element: &[u8]) -> Option<IpAddr> {
    let mut node = None;
    for pair in Backwards::new(element, b';') {
        let (name, value) = std::str::from_utf8(pair).ok()?.split_once('=')?;
        if name.trim_matches(BLANK).eq_ignore_ascii_case("for") && node.replace(value).is_some() {
            return None;
        }
    }
    let node = node?.trim_matches(BLANK);
    // Nothing that needs an escape is an address.
    let unquoted = node.strip_prefix('"').and_then(|it| it.strip_suffix('"'));
    address(unquoted.unwrap_or(node))
}

const BLANK: [char; 2] = [' ', '\t'];

/// An address as proxies write it: with or without brackets, with or without a port.
fn address(text: &str) -> Option<IpAddr> {
    let text = text.trim_matches(BLANK);
    let address = if let Some(text) = text.strip_prefix('[') {
        let (address, port) = text.split_once(']')?;
        let is_right = port.is_empty() || port.strip_prefix(':').is_some_and(is_port);
        IpAddr::V6(address.parse().ok().filter(|_: &Ipv6Addr| is_right)?)
    } else if let Ok(address) = text.parse::<IpAddr>() {
        address
    } else {
        let (address, port) = text.split_once(':')?;
        IpAddr::V4(address.parse().ok().filter(|_: &Ipv4Addr| is_port(port))?)
    };
    Some(address.to_canonical())
}

/// A number, or a name that stands for one (RFC 7239, section 6).
fn is_port(text: &str) -> bool {
    let is_number = (1..=5).contains(&text.len()) && text.bytes().all(|it| it.is_ascii_digit());
    is_number || text.len() > 1 && text.starts_with('_')
}
