//! Real processes in the mode `lease`, which ask three times what the limit allows each, are
//! stopped and continued.

use std::time::Duration;

use tokio::time::sleep;

use crate::cluster::fleet::{ALONE, Fleet, Load};
use crate::server::Server;

/// Holds what a fleet has admitted to the bound, and to most of it.
fn judge(fleet: Fleet) {
    let report = fleet.stop();
    let (times, leased) = (report.admitted("alone", 0), report.leased());
    assert_eq!(report.broken(0), None, "bound broken");
    let span_us = times[times.len() - 1] - times[0];
    let (admitted, allowed) = (times.len(), u64::from(ALONE) * span_us / 1_000_000);
    assert!(
        admitted as u64 * 100 >= allowed * 99,
        "{admitted} of {allowed}"
    );
    assert!(leased * 2 > admitted, "{leased} of {admitted} from leases");
}

#[tokio::test]
async fn processes_use_the_limit_and_keep_to_it_while_one_is_stopped_for_five_seconds() {
    let server = Server::start();
    let fleet = Fleet::start(&server.url(), "tg", Load::Leases);
    sleep(Duration::from_secs(2)).await;
    fleet.signal(0, "STOP");
    sleep(Duration::from_secs(5)).await;
    fleet.signal(0, "CONT");
    sleep(Duration::from_secs(2)).await;
    judge(fleet);
}
