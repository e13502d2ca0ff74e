//! The client's address: that of the connection or of the client behind proxies, and its
//! form in a key.

mod forwarded;
mod networks;
mod proxies;

use std::fmt;
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};

use tidegate::KeyValue;

use crate::head::RequestHead;
use crate::value::Text;

pub(crate) use networks::Networks;
pub use proxies::Proxies;
pub(crate) use proxies::Trusted;

/// Finds the address of the connection.
pub(crate) type PeerFunction = Box<dyn Fn(&RequestHead<'_>) -> Option<IpAddr> + Send + Sync>;

/// How addresses are found.
pub(crate) struct Addresses {
    /// Used instead of the known extensions.
    pub(crate) peer: Option<PeerFunction>,
    pub(crate) trusted: Option<Trusted>,
    /// IPv6 addresses with this many leading bits in common are one client.
    pub(crate) ipv6_prefix: u8,
    /// Whether it was said that there are none.
    warned: AtomicBool,
}

impl Default for Addresses {
    fn default() -> Self {
        Self {
            peer: None,
            trusted: None,
            ipv6_prefix: 64,
            warned: AtomicBool::new(false),
        }
    }
}

impl Addresses {
    /// The address of the connection.
    #[inline]
    pub(crate) fn peer(&self, head: &RequestHead<'_>) -> Option<IpAddr> {
        let peer = match &self.peer {
            Some(peer) => peer(head),
            None => known(head),
        };
        if peer.is_none() && !self.warned.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                "a request has no address: expected a SocketAddr in its extensions, \
                 or a `peer` function in the layer"
            );
        }
        // A socket that serves both families tells IPv4 addresses as IPv6 ones.
        peer.map(|peer| peer.to_canonical())
    }

    /// The address of the client: of the connection, unless that is a proxy to be
    /// believed.
    #[inline]
    pub(crate) fn client(&self, head: &RequestHead<'_>) -> Option<IpAddr> {
        let peer = self.peer(head)?;
        Some(match &self.trusted {
            Some(trusted) => trusted.client(peer, head.headers),
            None => peer,
        })
    }

    /// An address as the value of a key: of IPv6 the network, because one client usually
    /// controls all of it.
    #[inline]
    pub(crate) fn text(&self, address: IpAddr) -> Text {
        let address = match address {
            IpAddr::V4(address) => return ipv4(address),
            IpAddr::V6(address) => address,
        };
        let bits = u32::from(self.ipv6_prefix);
        let mask = u128::MAX.checked_shl(128 - bits).unwrap_or(0);
        let network = Ipv6Addr::from_bits(address.to_bits() & mask);
        let mut text = network.with_bytes(Text::from_slice);
        if bits < 128 {
            write!(text, "/{bits}").expect("memory takes everything");
        }
        text
    }
}

impl fmt::Debug for Addresses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Addresses")
            .field("trusted", &self.trusted)
            .field("ipv6_prefix", &self.ipv6_prefix)
            .finish_non_exhaustive()
    }
}

/// By hand: it is on the path of every request, and formatting takes several times as long.
#[inline]
fn ipv4(address: Ipv4Addr) -> Text {
    let (mut text, mut length) = ([b'.'; 16], 0);
    for octet in address.octets() {
        if octet >= 100 {
            text[length] = b'0' + octet / 100;
            length += 1;
        }
        if octet >= 10 {
            text[length] = b'0' + octet / 10 % 10;
            length += 1;
        }
        text[length] = b'0' + octet % 10;
        // And the dot.
        length += 2;
    }
    Text::from_slice(&text[..length - 1])
}

/// The address among the extensions, where servers are known to leave it.
#[inline]
fn known(head: &RequestHead<'_>) -> Option<IpAddr> {
    #[cfg(feature = "axum")]
    if let Some(info) = head
        .extensions
        .get::<axum::extract::ConnectInfo<SocketAddr>>()
    {
        return Some(info.0.ip());
    }
    if let Some(address) = head.extensions.get::<SocketAddr>() {
        return Some(address.ip());
    }
    #[cfg(feature = "tonic")]
    if let Some(info) = head
        .extensions
        .get::<tonic::transport::server::TcpConnectInfo>()
    {
        return info.remote_addr.map(|address| address.ip());
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ipv4_is_written_as_the_standard_library_does() {
        for bits in (0..=u32::MAX).step_by(65_521) {
            let address = Ipv4Addr::from_bits(bits);
            assert_eq!(ipv4(address).as_slice(), address.to_string().as_bytes());
        }
    }
}
