//! Real processes that ask three times what the limit allows each, or all at once; some are
//! stopped and continued.

use std::time::Duration;

use tokio::time::sleep;

use crate::cluster::fleet::{ALONE, AT_ONCE, Fleet, Load};
use crate::server::Server;
use crate::support::{YEAR, every_algorithm};

#[test]
fn l1_three_processes_of_64_callers_and_4_connections_admit_the_limit_and_not_one_more() {
    let server = Server::start();
    let report = Fleet::start(&server.url(), "tg", Load::Once).stop();
    for (name, _) in every_algorithm(AT_ONCE, YEAR) {
        let admitted = report.admitted(name, 0).len();
        assert_eq!(admitted, AT_ONCE as usize, "bound broken: {name}");
    }
}

/// Holds what a fleet has admitted to the bound, and to this part of it, in a hundred.
fn judge(policy: &str, fleet: Fleet, least: u64) {
    let report = fleet.stop();
    let (times, leased) = (report.admitted(policy, 0), report.leased());
    assert_eq!(report.broken(0), None, "bound broken: {policy}");
    // When nobody asks for longer than a second, because the machine stalls, there is no
    // more than a burst of it.
    let pauses = times.windows(2).map(|pair| pair[1] - pair[0]);
    let used_us: u64 = pauses.map(|pause| pause.min(1_000_000)).sum();
    let allowed = u64::from(ALONE) * (1_000_000 + used_us) / 1_000_000;
    let admitted = times.len();
    let is_used = admitted as u64 * 100 >= allowed * least;
    assert!(is_used, "{policy}: {admitted} of {allowed}");
    let least = if policy == "alone" { admitted / 2 } else { 0 };
    assert!(leased >= least, "{leased} of {admitted} from leases");
}

#[tokio::test]
async fn processes_use_the_limit_and_keep_to_it_while_one_is_stopped_for_five_seconds() {
    let server = Server::start();
    let fleet = Fleet::start(&server.url(), "tg", Load::One("alone"));
    sleep(Duration::from_secs(2)).await;
    fleet.signal(0, "STOP");
    sleep(Duration::from_secs(5)).await;
    fleet.signal(0, "CONT");
    sleep(Duration::from_secs(2)).await;
    // What the one that is stopped has on lease is lost.
    judge("alone", fleet, 90);
}

/// Elsewhere a block lasts to the end of the window, and half of the limit is lost.
#[tokio::test]
async fn a6_b2_t2_processes_admit_together_what_one_may_and_all_of_it() {
    for policy in ["remembering", "asking"] {
        let server = Server::start();
        let fleet = Fleet::start(&server.url(), "tg", Load::One(policy));
        sleep(Duration::from_secs(3)).await;
        judge(policy, fleet, 95);
    }
}
