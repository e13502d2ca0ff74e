//! Lists of networks: proxies to be believed, clients that are exempt.

use std::net::IpAddr;

use ipnet::{IpNet, Ipv4Net};

use crate::error::LayerError;

/// Some networks.
#[derive(Debug, Clone, Default)]
pub(crate) struct Networks(Box<[IpNet]>);

impl Networks {
    /// Networks such as `10.0.0.0/8`, or single addresses.
    pub(crate) fn parse<T: AsRef<str>>(
        texts: impl IntoIterator<Item = T>,
    ) -> Result<Self, LayerError> {
        let networks = texts.into_iter().map(|text| {
            let text = text.as_ref();
            parse(text).ok_or_else(|| LayerError::Network(text.to_owned()))
        });
        networks.collect::<Result<_, _>>().map(Self)
    }

    /// These networks and others.
    pub(crate) fn and<T: AsRef<str>>(
        self,
        texts: impl IntoIterator<Item = T>,
    ) -> Result<Self, LayerError> {
        let others = Self::parse(texts)?.0;
        Ok(Self(self.0.into_iter().chain(others).collect()))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether an address is in one of them. Expects it in its own family.
    pub(crate) fn contain(&self, address: IpAddr) -> bool {
        self.0.iter().any(|network| network.contains(&address))
    }
}

fn parse(text: &str) -> Option<IpNet> {
    let network = match text.parse::<IpNet>() {
        Ok(network) => network,
        Err(_) => IpNet::from(text.parse::<IpAddr>().ok()?),
    };
    // Addresses are compared in their own family, so networks have to be, too.
    Some(
        match (network.addr().to_canonical(), network.prefix_len()) {
            (IpAddr::V4(address), prefix @ 96..) => Ipv4Net::new(address, prefix - 96).ok()?.into(),
            _ => network,
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_contains_its_addresses_whatever_family_they_are_told_in() {
        for (network, address, contained) in [
            ("10.0.0.0/8", "10.1.2.3", true),
            ("10.0.0.0/8", "11.1.2.3", false),
            // Bits that say nothing are no mistake worth an error.
            ("10.1.2.3/8", "10.9.9.9", true),
            ("10.1.2.3", "10.1.2.3", true),
            ("10.1.2.3", "10.1.2.4", false),
            ("::ffff:10.0.0.0/104", "10.1.2.3", true),
            ("::ffff:10.1.2.3", "10.1.2.3", true),
            ("fd00::/8", "fd12::1", true),
            ("fd00::/8", "fe12::1", false),
            ("::/0", "10.1.2.3", false),
            ("0.0.0.0/0", "10.1.2.3", true),
        ] {
            let networks = Networks::parse([network]).unwrap();
            let address: IpAddr = address.parse().unwrap();
            assert_eq!(
                networks.contain(address),
                contained,
                "{address} in {network}"
            );
        }
    }

    #[test]
    fn what_is_no_network_is_named() {
        for wrong in ["", "10.0.0.0/33", "10.0.0/8", "localhost", "10.0.0.1:80"] {
            let error = Networks::parse(["10.0.0.0/8", wrong]).unwrap_err();
            assert_eq!(error, LayerError::Network(wrong.to_owned()));
        }
    }
}
