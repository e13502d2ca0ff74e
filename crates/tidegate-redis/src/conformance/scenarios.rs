//! The conformance suite on a pair of stores: what is written down must come of both, on a
//! server by itself, in a cluster and behind sentinels.

use std::sync::Arc;
use std::time::Duration;

use tidegate::{Cost, Decision, Limit};
use tidegate_testkit::cluster::Cluster;
use tidegate_testkit::conformance::{Subject, run};
use tidegate_testkit::redis::Server;
use tidegate_testkit::sentinels::Trio;

use super::pair::{Client, Host, Pair};
use super::random::{RUN, seeds};
use crate::options::RedisOptions;
use crate::store::RedisStore;

impl Subject for Pair {
    fn at(&mut self, since_start_us: u64) {
        Pair::at(self, since_start_us);
    }

    fn checks(&mut self, times: usize, cost: Cost) -> Vec<Decision> {
        Pair::checks(self, times, cost)
    }

    fn look(&mut self, cost: Cost) -> Decision {
        Pair::look(self, cost)
    }

    fn refund(&mut self, charge: usize) {
        let receipt = self.receipts[charge].clone();
        Pair::refund(self, &receipt);
    }

    fn reset(&mut self, level: usize) {
        Pair::reset(self, level);
    }

    fn set_limits(&mut self, limits: Vec<Limit>) {
        self.limits = limits;
    }
}

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
    for server in Server::start_each() {
        come_out_as_written(&server);
    }
}

/// Servers, and a store that knows where they are: what finds the right server changes no
/// decision.
struct Spread<S> {
    servers: S,
    client: Arc<Client>,
}

impl<S> Spread<S>
where
    Self: Host,
{
    fn conforms(servers: S, url: &str) {
        let options = RedisOptions::default().timeout(Duration::from_secs(20));
        let store = RedisStore::new(url, options).expect("a right url");
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        let runtime = runtime.expect("a runtime");
        let client = Arc::new(Client { store, runtime });
        let host = Self { servers, client };
        come_out_as_written(&host);
        seeds(&host, 10, RUN.starting_at(500_000));
    }
}

impl Host for Spread<Cluster> {
    fn connect(&self, key: &str) -> redis::Connection {
        let cluster = &self.servers;
        cluster.master_of(cluster.slot(key))
    }

    fn store(&self) -> Option<Arc<Client>> {
        Some(Arc::clone(&self.client))
    }
}

impl Host for Spread<Trio> {
    fn connect(&self, _key: &str) -> redis::Connection {
        self.servers.servers[self.servers.master()].connect()
    }

    fn store(&self) -> Option<Arc<Client>> {
        Some(Arc::clone(&self.client))
    }
}

#[test]
fn a_cluster_gives_the_same_decisions() {
    let cluster = Cluster::start();
    let url = cluster.url();
    Spread::conforms(cluster, &url);
}

#[test]
fn a_master_behind_sentinels_gives_the_same_decisions() {
    let trio = Trio::start();
    let url = trio.url();
    Spread::conforms(trio, &url);
}
