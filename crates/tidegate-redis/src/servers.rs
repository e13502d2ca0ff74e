//! Which servers a store has: one, whoever is the master, or the nodes of a cluster.

use std::sync::Arc;

use redis::RedisResult;
use tokio::time::Instant;

use crate::cluster::Cluster;
use crate::connector::{Connector, Sentinels, client};
use crate::error::{ErrorKind, StoreError};
use crate::node::{Node, Wiring};
use crate::place::Place;

/// The servers of a store.
pub(crate) enum Servers {
    /// All keys are in one place, even if that moves.
    One(Arc<Node>),
    /// Keys are spread over nodes.
    Cluster(Cluster),
}

impl Servers {
    pub(crate) fn new(
        url: &str,
        certificates: Option<redis::TlsCertificates>,
        wiring: Wiring,
    ) -> RedisResult<Self> {
        let (address, connector) = match Place::parse(url) {
            Place::One(url) => {
                let connector = Connector::direct(&url, certificates.as_ref())?;
                let client = client(&url, certificates.as_ref())?;
                let address = client.get_connection_info().addr().to_string();
                (address, connector)
            }
            Place::Sentinel {
                sentinels,
                master,
                login,
            } => {
                for sentinel in &sentinels {
                    client(&login.url(sentinel), certificates.as_ref())?;
                }
                let sentinels = Sentinels::new(sentinels, master.clone(), login, certificates);
                (master, Connector::Sentinel(Arc::new(sentinels)))
            }
            Place::Cluster { seeds, login } => {
                for seed in &seeds {
                    client(&login.url(seed), certificates.as_ref())?;
                }
                let wiring = Wiring {
                    is_cluster: true,
                    ..wiring
                };
                let cluster = Cluster::new(seeds, login, certificates, wiring);
                return Ok(Self::Cluster(cluster));
            }
        };
        Ok(Self::One(Arc::new(Node::new(address, &connector, &wiring))))
    }

    /// The one to ask.
    pub(crate) async fn of(&self, keys: &[String], deadline: Instant) -> Arc<Node> {
        match self {
            Self::One(node) => Arc::clone(node),
            Self::Cluster(cluster) => {
                let key = keys.first();
                cluster.node(key.map(String::as_str), deadline).await
            }
        }
    }

    /// All of them.
    pub(crate) fn all(&self) -> Vec<Arc<Node>> {
        match self {
            Self::One(node) => vec![Arc::clone(node)],
            Self::Cluster(cluster) => cluster.nodes(),
        }
    }

    /// Where an error leads, and whether to ask there for keys on their way.
    pub(crate) fn redirected(&self, error: &StoreError, from: &Node) -> Option<(Arc<Node>, bool)> {
        match self {
            Self::One(_) => None,
            Self::Cluster(cluster) => cluster.redirected(error, from),
        }
    }

    /// An error may mean that keys are elsewhere now.
    pub(crate) fn doubt(&self, kind: ErrorKind) {
        if let Self::Cluster(cluster) = self {
            cluster.doubt(kind);
        }
    }
}
