//! Trusted proxies: which peers they are, and the client's address behind them.
//!
//! Every proxy appends to `X-Forwarded-For` at the right, and anything further left may be
//! forged. So the list is read from the right, and only through trusted proxies.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

use http::{HeaderMap, HeaderName};
use ipnet::{IpNet, Ipv4Net};
use tidegate::text::shown;

/// What a list of trusted proxies consists of, in words for an error.
pub(crate) const EXPECTED: &str =
    "a network such as \"10.0.0.0/8\", an address, or \"unix:\" for unix sockets";

pub(crate) const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// Peers whose `X-Forwarded-*` headers are read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TrustedProxy {
    /// Those with an address in this network.
    Network(IpNet),
    /// Those on a unix socket, which have no address.
    Unix,
}

impl FromStr for TrustedProxy {
    type Err = String;

    /// The error is in the words of a config's.
    fn from_str(text: &str) -> Result<Self, String> {
        if text == "unix:" {
            return Ok(Self::Unix);
        }
        let network = text.parse::<IpNet>().ok();
        let network = network.or_else(|| Some(IpNet::from(text.parse::<IpAddr>().ok()?)));
        let network = network.ok_or_else(|| format!("{}: expected {EXPECTED}", shown(text)))?;
        // Addresses are compared in their own family, so networks have to be, too.
        let (address, prefix) = (network.addr().to_canonical(), network.prefix_len());
        Ok(Self::Network(match (address, network) {
            (IpAddr::V4(address), IpNet::V6(_)) if prefix >= 96 => {
                Ipv4Net::new_assert(address, prefix - 96).into()
            }
            _ => network,
        }))
    }
}

impl fmt::Display for TrustedProxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Network(network) => network.fmt(f),
            Self::Unix => f.write_str("unix:"),
        }
    }
}

/// Whether a peer is one of these proxies. Peers on unix sockets have no address.
pub(crate) fn trust(proxies: &[TrustedProxy], peer: Option<IpAddr>) -> bool {
    proxies.iter().any(|proxy| match (proxy, peer) {
        (TrustedProxy::Network(network), Some(peer)) => network.contains(&peer.to_canonical()),
        (TrustedProxy::Unix, None) => true,
        _ => false,
    })
}

/// The address of the client behind a trusted peer: the rightmost one in
/// `X-Forwarded-For` that is not a trusted proxy. Where an entry is not an address, it is
/// the last known proxy. `None` without the header.
pub(crate) fn client(
    proxies: &[TrustedProxy],
    peer: Option<IpAddr>,
    headers: &HeaderMap,
) -> Option<IpAddr> {
    // Several lines are one list.
    let lines = headers.get_all(X_FORWARDED_FOR).iter().rev();
    let mut entries = lines
        .flat_map(|line| line.as_bytes().rsplit(|byte| *byte == b','))
        .peekable();
    entries.peek()?;
    let mut last = peer;
    for entry in entries {
        match address(entry) {
            None => return last,
            found if !trust(proxies, found) => return found,
            found => last = found,
        }
    }
    last
}

/// An address as proxies write it: with or without brackets, with or without a port.
fn address(entry: &[u8]) -> Option<IpAddr> {
    let text = std::str::from_utf8(entry).ok()?.trim_matches([' ', '\t']);
    let bracketed = || text.strip_prefix('[')?.strip_suffix(']')?.parse().ok();
    let with_port = || Some(text.parse::<SocketAddr>().ok()?.ip());
    let address = text.parse().ok().or_else(with_port);
    let address = address.or_else(|| bracketed().map(|it: Ipv6Addr| it.into()));
    address.map(|it: IpAddr| it.to_canonical())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn client_is_the_rightmost_address_that_is_not_a_trusted_proxy() {
        let proxies = ["10.0.0.0/8", "::ffff:192.0.2.0/120", "fd00::1", "unix:"];
        let proxies = proxies.map(|text| text.parse().unwrap());
        let rows = include_str!("proxies.txt");
        tidegate_testkit::cases::rows(rows, "X-Forwarded-For => client", |lines| {
            let mut headers = HeaderMap::new();
            for line in lines.split(" | ") {
                headers.append(X_FORWARDED_FOR, line.parse().unwrap());
            }
            let peer = "10.0.0.1".parse().unwrap();
            let found = client(&proxies, Some(peer), &headers);
            found.unwrap().to_string()
        });
        assert_eq!(client(&proxies, None, &HeaderMap::new()), None);
        for (peer, trusted) in [
            (Some("10.1.2.3"), true),
            (Some("::ffff:10.1.2.3"), true),
            (Some("11.1.2.3"), false),
            (Some("192.0.2.255"), true),
            (Some("fd00::2"), false),
            (None, true),
        ] {
            let address = peer.map(|peer| peer.parse().unwrap());
            assert_eq!(trust(&proxies, address), trusted, "{peer:?}");
        }
    }
}
