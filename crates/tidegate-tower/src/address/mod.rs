//! The client's address: that of the connection or of the client behind proxies, and its
//! form in a key.

mod forwarded;
mod networks;
mod proxies;

use std::fmt;
use std::io::Write;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};

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

impl Addresses {
    pub(crate) fn new(
        peer: Option<PeerFunction>,
        trusted: Option<Trusted>,
        ipv6_prefix: u8,
    ) -> Self {
        Self {
            peer,
            trusted,
            ipv6_prefix,
            warned: AtomicBool::new(false),
        }
    }

    /// The address of the connection.
    #[inline]
    pub(crate) fn peer(&self, head: &RequestHead<'_>) -> Option<IpAddr> {
        let peer = match &self.peer {
            Some(peer) => peer(head),
            None => known(head),
        };
        if peer.is_none() {
            self.warn();
        }
        // A socket that serves both families tells IPv4 addresses as IPv6 ones.
        peer.map(|peer| peer.to_canonical())
    }

    #[cold]
    fn warn(&self) {
        if !self.warned.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                "a request has no address: expected a SocketAddr in its extensions, \
                 or a `peer` function in the layer"
            );
        }
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

    /// An address as the value of a key.
    #[inline]
    pub(crate) fn text(&self, address: IpAddr) -> Text {
        text(address, self.ipv6_prefix)
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

/// An IPv4 address unchanged, an IPv6 address as its network, because one client usually
/// controls the whole network.
fn text(address: IpAddr, ipv6_prefix: u8) -> Text {
    match address {
        IpAddr::V4(address) => ipv4(address.octets()),
        IpAddr::V6(address) => {
            let mut text = Text::new();
            let bits = 128u32.saturating_sub(u32::from(ipv6_prefix));
            let mask = u128::MAX.checked_shl(bits).unwrap_or(0);
            let network = Ipv6Addr::from_bits(address.to_bits() & mask);
            write!(text, "{network}").expect("memory takes everything");
            if bits > 0 {
                write!(text, "/{ipv6_prefix}").expect("memory takes everything");
            }
            text
        }
    }
}

/// By hand: it is on the path of every request, and formatting takes several times as
/// long. Each octet is copied with its dot as four bytes, of which as many count as it
/// has.
#[inline]
fn ipv4(octets: [u8; 4]) -> Text {
    let (mut text, mut length) = ([0; 20], 0);
    for octet in octets {
        let (bytes, count) = OCTETS[usize::from(octet)];
        text[length..length + 4].copy_from_slice(&bytes);
        length += usize::from(count);
    }
    Text::from_slice(&text[..length - 1])
}

/// Each octet as text with a dot behind it, and how long that is.
static OCTETS: [([u8; 4], u8); 256] = octets();

const fn octets() -> [([u8; 4], u8); 256] {
    let mut all = [([b'.'; 4], 0); 256];
    let mut octet = 0;
    while octet < 256 {
        let digits = [octet / 100, octet / 10 % 10, octet % 10];
        let mut skipped = if octet >= 100 {
            0
        } else if octet >= 10 {
            1
        } else {
            2
        };
        let mut length = 0;
        while skipped < 3 {
            all[octet].0[length] = b"0123456789"[digits[skipped]];
            (length, skipped) = (length + 1, skipped + 1);
        }
        all[octet].1 = if length == 1 {
            2
        } else if length == 2 {
            3
        } else {
            4
        };
        octet += 1;
    }
    all
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn ipv4_is_written_as_the_standard_library_does() {
        for bits in (0..=u32::MAX).step_by(65_521) {
            let address = Ipv4Addr::from_bits(bits);
            let text = text(address.into(), 64);
            assert_eq!(text.as_slice(), address.to_string().as_bytes());
        }
    }
}
