//! The same on a cluster and behind sentinels, asked by the store itself: what finds the
//! right server changes no decision.

use std::sync::Arc;
use std::time::Duration;

use super::pair::{Asked, Host};
use super::random::{RUN, seeds};
use super::{levels, scenarios};
use crate::options::RedisOptions;
use crate::store::RedisStore;
use tidegate_testkit::cluster::Cluster;
use tidegate_testkit::sentinels::Trio;

/// Servers, and a store that knows where they are.
struct Spread<S> {
    servers: S,
    asked: Arc<Asked>,
}

impl<S> Spread<S> {
    fn new(servers: S, url: &str) -> Self {
        let options = RedisOptions::default().timeout(Duration::from_secs(20));
        let store = RedisStore::new(url, options).expect("a right url");
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        let runtime = runtime.expect("a runtime");
        let asked = Arc::new(Asked { store, runtime });
        Self { servers, asked }
    }
}

impl Host for Spread<Cluster> {
    fn connect(&self, key: &str) -> redis::Connection {
        let cluster = &self.servers;
        cluster.master_of(cluster.slot(key))
    }

    fn store(&self) -> Option<Arc<Asked>> {
        Some(Arc::clone(&self.asked))
    }
}

impl Host for Spread<Trio> {
    fn connect(&self, _key: &str) -> redis::Connection {
        self.servers.servers[self.servers.master()].connect()
    }

    fn store(&self) -> Option<Arc<Asked>> {
        Some(Arc::clone(&self.asked))
    }
}

/// The scenarios, as many levels as there can be, and random steps.
fn conforms(host: &impl Host) {
    scenarios::come_out_as_written(host);
    levels::every_shape(host);
    seeds(host, 10, RUN.starting_at(500_000));
}

#[test]
fn a_cluster_gives_the_same_decisions() {
    let cluster = Cluster::start();
    let url = cluster.url();
    conforms(&Spread::new(cluster, &url));
}

#[test]
fn a_master_behind_sentinels_gives_the_same_decisions() {
    let trio = Trio::start();
    let url = trio.url();
    conforms(&Spread::new(trio, &url));
}
