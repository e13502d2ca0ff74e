//! Refunds of leased tokens: into the lease they came from while that is open, and otherwise
//! to the store.

use smallvec::SmallVec;
use tidegate::Receipt;

use super::Lease;
use super::tokens::{Spent, Tokens};
use crate::error::StoreError;
use crate::mode::Query;

/// Marks of tokens from a lease have this bit, ten of the lease's nonce, and 53 of the era.
const LEASED: u64 = 1 << 63;
const ERA_BITS: u32 = 53;

impl Lease {
    /// Gives back tokens of leases that are open, and has the store give back the rest. Says
    /// whether it is the first time.
    pub(in crate::mode) async fn refund(
        &self,
        query: &Query<'_, '_>,
        receipt: &Receipt,
    ) -> Result<bool, StoreError> {
        let open = self.open_leases(query, receipt);
        let at_store = |level: usize| open.get(level).is_none_or(Option::is_none);
        let is_paid = self.exact.refund(query, receipt, "", at_store).await?;
        if is_paid {
            let put_back = |(print, nonce, cost)| self.put_back(print, nonce, cost);
            let closed = open.iter().map(|open| !open.is_none_or(put_back));
            let closed: SmallVec<[bool; 2]> = closed.collect();
            // A lease that was closed meanwhile has told the store what was spent.
            if closed.contains(&true) {
                let is_closed = |level: usize| closed.get(level) == Some(&true);
                self.exact.refund(query, receipt, "+", is_closed).await?;
            }
        }
        self.refunded(&query.prints);
        Ok(is_paid)
    }
}

/// What a receipt knows a token of a lease by.
#[inline]
pub(super) fn mark(spent: &Spent) -> u64 {
    LEASED | part(spent.nonce) << ERA_BITS | spent.era_us & ((1 << ERA_BITS) - 1)
}

/// The era of a mark, and whether it is of a lease.
pub(in crate::mode) fn era(mark: u64) -> (u64, bool) {
    match mark & LEASED {
        0 => (mark, false),
        _ => (mark & ((1 << ERA_BITS) - 1), true),
    }
}

/// Whether a charge with this mark, at this time, can be of this lease. Parts of nonces
/// repeat, so an earlier lease may have had the same.
pub(super) fn is_of(lease: &Tokens, mark: u64, decided_at_us: u64) -> bool {
    let (era_us, is_leased) = era(mark);
    is_leased && part(lease.nonce) == mark_part(mark) && lease.may_have_given(era_us, decided_at_us)
}

fn part(nonce: u64) -> u64 {
    nonce & 0x3ff
}

fn mark_part(mark: u64) -> u64 {
    mark >> ERA_BITS & 0x3ff
}
