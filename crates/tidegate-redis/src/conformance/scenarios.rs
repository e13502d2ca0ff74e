//! The conformance suite on a pair of stores: what is written down must come of both, on a
//! server by itself, in a cluster and behind sentinels.

use std::sync::Arc;
use std::time::Duration;

use tidegate_testkit::cluster::Cluster;
use tidegate_testkit::conformance::run;
use tidegate_testkit::redis::Server;
use tidegate_testkit::sentinels::Trio;

use super::pair::{Client, Host, Pair};
use super::random::ANYWHERE;
use crate::options::RedisOptions;
use crate::store::RedisStore;

/// Every scenario, on the store in memory and on this one.
fn come_out_as_written(server: &impl Host) {
    run(|name, limits, charge| {
        let mut pair = Pair::new(server, name, limits);
        pair.charge = charge;
        pair
    });
}

#[test]
fn every_scenario_comes_out_as_written_on_both_stores() {
    Server::start_each().iter().for_each(come_out_as_written);
}

/// Servers, which of them has a key, and a store that has to find that out: it changes no
/// decision.
struct Spread<F> {
    connect: F,
    client: Arc<Client>,
}

impl<F: Fn(&str) -> redis::Connection> Host for Spread<F> {
    fn connect(&self, key: &str) -> redis::Connection {
        (self.connect)(key)
    }

    fn store(&self) -> Option<Arc<Client>> {
        Some(Arc::clone(&self.client))
    }
}

fn conforms(url: &str, connect: impl Fn(&str) -> redis::Connection) {
    let options = RedisOptions::default().timeout(Duration::from_secs(20));
    let store = RedisStore::new(url, options).expect("a right url");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let runtime = runtime.expect("a runtime");
    let client = Arc::new(Client { store, runtime });
    let host = Spread { connect, client };
    come_out_as_written(&host);
    ANYWHERE.all(&host);
}

#[test]
fn a_cluster_gives_the_same_decisions() {
    let cluster = Cluster::start();
    conforms(&cluster.url(), |key| cluster.master_of(cluster.slot(key)));
}

#[test]
fn a_master_behind_sentinels_gives_the_same_decisions() {
    let trio = Trio::start();
    conforms(&trio.url(), |_| trio.servers[trio.master()].connect());
}
