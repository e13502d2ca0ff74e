//! Lists of networks: proxies to be believed, clients that are exempt.

use std::net::IpAddr;

use ipnet::{IpNet, Ipv4Net};

use crate::error::LayerError;

/// Some networks.
#[derive(Debug, Clone, Default)]
pub(crate) struct Networks(Vec<IpNet>);

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

    pub(crate) fn extend(&mut self, others: Self) {
        self.0.extend(others.0);
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
