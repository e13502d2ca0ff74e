//! The conformance suite on a pair of stores: what is written down must come of both.

use tidegate::{Cost, Decision, Limit};
use tidegate_testkit::conformance::{Subject, run};
use tidegate_testkit::redis::Server;

use super::pair::{Host, Pair, START_US};

impl Subject for Pair {
    fn at(&mut self, since_start_us: u64) {
        self.set_time(START_US + since_start_us);
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
pub(super) fn come_out_as_written(server: &impl Host) {
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
