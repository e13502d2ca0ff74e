//! Trusted proxies, and how far to trust them.

use std::net::IpAddr;

use http::header::FORWARDED;
use http::{HeaderMap, HeaderName};

use super::forwarded::{Backwards, parameters, plain};
use super::networks::Networks;
use crate::error::LayerError;

/// The proxies in front of a service, and the header in which they pass the client's
/// address.
///
/// A header is trusted only as far as a trusted proxy has written it: the addresses are
/// read from the right, skipping trusted proxies, and the first one that is not trusted is
/// the client. Anything further left may be forged. If the connection itself does not come
/// from a trusted proxy, the header is not read at all. If an entry is not an address, the
/// client is the last known proxy.
///
/// Only one header is read, because most proxies write one and pass the other through as
/// the client sent it.
///
/// ```
/// use tidegate_tower::Proxies;
///
/// // Written by your load balancers and the CDN in front of them.
/// let proxies = Proxies::x_forwarded_for(["10.0.0.0/8", "198.51.100.0/24"]);
/// ```
#[derive(Debug, Clone)]
pub struct Proxies(pub(crate) Result<Trusted, LayerError>);

/// [`Proxies`] with valid networks.
#[derive(Debug, Clone)]
pub(crate) struct Trusted {
    networks: Networks,
    header: HeaderName,
    /// The address in an element of the header.
    read: fn(&[u8]) -> Option<IpAddr>,
}

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

impl Proxies {
    /// Proxies in these networks, which write `X-Forwarded-For`.
    pub fn x_forwarded_for<T: AsRef<str>>(networks: impl IntoIterator<Item = T>) -> Self {
        Self::new(networks, X_FORWARDED_FOR, plain)
    }

    /// Proxies in these networks, which write `Forwarded` (RFC 7239).
    pub fn forwarded<T: AsRef<str>>(networks: impl IntoIterator<Item = T>) -> Self {
        Self::new(networks, FORWARDED, parameters)
    }

    fn new<T: AsRef<str>>(
        networks: impl IntoIterator<Item = T>,
        header: HeaderName,
        read: fn(&[u8]) -> Option<IpAddr>,
    ) -> Self {
        Self(Networks::parse(networks).map(|networks| Trusted {
            networks,
            header,
            read,
        }))
    }
}

impl Trusted {
    /// The client of a connection with these headers.
    pub(crate) fn client(&self, peer: IpAddr, headers: &HeaderMap) -> IpAddr {
        if !self.networks.contain(peer) {
            return peer;
        }
        let mut last = peer;
        // Several lines are one list.
        let lines = headers.get_all(&self.header).iter().rev();
        for element in lines.flat_map(|line| Backwards::new(line.as_bytes(), b',')) {
            match (self.read)(element) {
                None => return last,
                Some(address) if !self.networks.contain(address) => return address,
                Some(address) => last = address,
            }
        }
        last
    }
}
