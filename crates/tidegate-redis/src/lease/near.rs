//! Leases that a thread has spent lately: the way to a token without a lock and without a
//! search. A lease that is closed or over is not spent from here, whatever this knows: that
//! stands in the lease itself.

use std::cell::RefCell;
use std::sync::Arc;

use tidegate::Cost;

use super::held::{Lease, Spent};
use crate::fingerprint::Fingerprint;

/// Leases per thread.
const PLACES: usize = 512;

/// Fingerprints are salted by table, so one list serves all tables.
type Places = [Option<(Fingerprint, Arc<Lease>)>; PLACES];

thread_local! {
    static NEAR: RefCell<Places> = const { RefCell::new([const { None }; PLACES]) };
}

/// Takes tokens of a lease that this thread knows.
#[inline]
pub(super) fn spend(fingerprint: Fingerprint, cost: Cost, now_us: u64) -> Option<Spent> {
    let spend = |near: &RefCell<Places>| {
        let near = near.try_borrow().ok()?;
        match &near[place(fingerprint)] {
            Some((other, lease)) if *other == fingerprint => lease.spend(cost, now_us),
            _ => None,
        }
    };
    NEAR.try_with(spend).ok().flatten()
}

/// Remembers a lease that was just spent.
pub(super) fn keep(fingerprint: Fingerprint, lease: &Arc<Lease>) {
    let keep = |near: &RefCell<Places>| {
        if let Ok(mut near) = near.try_borrow_mut() {
            near[place(fingerprint)] = Some((fingerprint, Arc::clone(lease)));
        }
    };
    // A thread that ends has no list any more.
    NEAR.try_with(keep).unwrap_or(());
}

#[inline]
fn place(fingerprint: Fingerprint) -> usize {
    usize::try_from(fingerprint[0] % PLACES as u64).unwrap_or(0)
}
