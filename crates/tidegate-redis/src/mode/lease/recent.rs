//! Leases that a thread has spent lately: the way to a token without a lock and without a
//! search. A lease that is closed or over is not spent from here, whatever this knows: that
//! stands in the lease itself.

use std::cell::RefCell;
use std::sync::Arc;

use tidegate::Cost;

use super::tokens::{Spent, Tokens};
use crate::fingerprint::Fingerprint;

/// Leases per thread.
const PLACES: usize = 512;

/// Fingerprints are salted by policy, so one list serves all policies.
type Places = [Option<(Fingerprint, Arc<Tokens>)>; PLACES];

thread_local! {
    static RECENT: RefCell<Places> = const { RefCell::new([const { None }; PLACES]) };
}

/// Takes tokens of a lease that this thread knows.
#[inline]
pub(super) fn spend(fingerprint: Fingerprint, cost: Cost, now_us: u64) -> Option<Spent> {
    let spend = |recent: &RefCell<Places>| {
        let recent = recent.try_borrow().ok()?;
        match &recent[place(fingerprint)] {
            Some((other, lease)) if *other == fingerprint => lease.spend(cost, now_us),
            _ => None,
        }
    };
    RECENT.try_with(spend).ok().flatten()
}

/// Remembers a lease that was just spent.
pub(super) fn keep(fingerprint: Fingerprint, lease: &Arc<Tokens>) {
    let keep = |recent: &RefCell<Places>| {
        if let Ok(mut recent) = recent.try_borrow_mut() {
            recent[place(fingerprint)] = Some((fingerprint, Arc::clone(lease)));
        }
    };
    // A thread that ends has no list any more.
    RECENT.try_with(keep).unwrap_or(());
}

#[inline]
fn place(fingerprint: Fingerprint) -> usize {
    usize::try_from(fingerprint[0] % PLACES as u64).unwrap_or(0)
}
