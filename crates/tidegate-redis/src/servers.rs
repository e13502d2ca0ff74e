//! The servers of a store: a single one, the current master behind sentinels, or a cluster.

use std::sync::Arc;

use redis::RedisResult;
use tokio::time::Instant;

use crate::access::Access;
use crate::cluster::Cluster;
use crate::connector::{Connector, Sentinels};
use crate::lane::LaneOptions;
use crate::place::Place;
use crate::server::Server;

/// The servers of a store.
pub(crate) enum Servers {
    /// All keys are in one place, even if that moves.
    One(Arc<Server>),
    /// Keys are spread over servers.
    Cluster(Cluster),
}

impl Servers {
    pub(crate) fn new(url: &str, access: Access, options: LaneOptions) -> RedisResult<Self> {
        let (address, connector) = match Place::parse(url) {
            Place::One(url) => {
                let connector = Connector::direct(&url, &access)?;
                let client = access.client(&url)?;
                let address = client.get_connection_info().addr().to_string();
                (address, connector)
            }
            Place::Sentinel {
                sentinels,
                master,
                login,
            } => {
                for sentinel in &sentinels {
                    access.client(&login.url(sentinel))?;
                }
                let sentinels = Sentinels::new(sentinels, master.clone(), login, access);
                (master, Connector::Sentinel(Arc::new(sentinels)))
            }
            Place::Cluster { seeds, login } => {
                for seed in &seeds {
                    access.client(&login.url(seed))?;
                }
                let options = LaneOptions {
                    is_cluster: true,
                    ..options
                };
                let cluster = Cluster::new(seeds, login, access, options);
                return Ok(Self::Cluster(cluster));
            }
        };
        Ok(Self::One(Arc::new(Server::new(
            address, &connector, &options,
        ))))
    }

    /// Waits until it is known which servers there are.
    pub(crate) async fn ready(&self, deadline: Instant) {
        if let Self::Cluster(cluster) = self {
            drop(cluster.server(None, deadline).await);
        }
    }

    /// All of them.
    pub(crate) fn all(&self) -> Vec<Arc<Server>> {
        match self {
            Self::One(server) => vec![Arc::clone(server)],
            Self::Cluster(cluster) => cluster.servers(),
        }
    }
}
