//! Whether a counter admitted more than its limit: what the audit says of its record.

use tidegate::audit::{Audit, Background, Record};
use tidegate::{Cost, Kind, Limit};

use crate::mode::lease::message::TERM_US;

/// What one counter admitted, and what it may admit beyond its limit.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    /// When, at what cost, and whether it was given back.
    pub(super) records: Vec<(u64, u32, bool)>,
    allowances: Vec<Allowance>,
}

/// Tokens that the store does not count, spent from one moment to another.
#[derive(Debug, Clone, Copy)]
struct Allowance {
    from_us: u64,
    until_us: u64,
    tokens: u64,
}

/// `B`, or `N` of a window.
pub(super) fn size(limit: &Limit) -> u32 {
    limit.outcome(&limit.new_state(0), Cost::ONE, true).limit
}

impl Ledger {
    pub(super) fn admitted(&mut self, at_us: u64, cost: Cost) -> usize {
        self.records.push((at_us, cost.get(), false));
        self.records.len() - 1
    }

    /// So many tokens may be spent that the store does not count, as long as leases of this
    /// moment run: until the last of them has ended on any node's clock.
    pub(super) fn allow(&mut self, now_us: u64, tokens: u64, step_us: u64) {
        let open = self.allowances.iter_mut();
        for before in open.filter(|it| it.until_us > now_us) {
            before.until_us += step_us;
        }
        if tokens > 0 {
            self.allowances.push(Allowance {
                from_us: now_us,
                until_us: now_us + step_us + TERM_US,
                tokens,
            });
        }
    }

    /// How much more than the largest of these limits was admitted, at least.
    pub(super) fn excess(&self, limits: &[Limit], background: Option<&(Background, u32)>) -> u64 {
        let records = self.records.iter().filter(|it| !it.2);
        let mut records: Vec<(u64, u32)> = records.map(|it| (it.0, it.1)).collect();
        records.sort_unstable();
        let of = |limit| self.excess_of(limit, &records, background);
        limits.iter().map(of).min().unwrap_or(0)
    }

    fn excess_of(
        &self,
        limit: &Limit,
        records: &[(u64, u32)],
        background: Option<&(Background, u32)>,
    ) -> u64 {
        if !self.allowances.is_empty() && matches!(limit.kind(), Kind::TokenBucket(_)) {
            return self.excess_of_bucket(limit, records);
        }
        let size = u64::from(size(limit));
        let allowances = self.allowances.iter();
        let more: u64 = allowances.map(|it| it.tokens.div_ceil(size)).sum();
        let more = u32::try_from(more).unwrap_or(u32::MAX);
        let audit = Audit::new(*limit).partial(true);
        let mut audit = match background {
            Some((background, losses)) => audit
                .background(background.clone())
                .allow_losses(more + losses),
            None => audit.allow_losses(more),
        };
        for (at_us, cost) in records {
            audit.push(&Record::admitted("k", *at_us, Cost::of(*cost)));
        }
        u64::from(!audit.verdict().held())
    }

    /// What goes beyond a bucket is taken out of the allowances: the audit knows of bursts
    /// only.
    fn excess_of_bucket(&self, limit: &Limit, records: &[(u64, u32)]) -> u64 {
        let Kind::TokenBucket(bucket) = limit.kind() else {
            return 0;
        };
        let request = u128::from(bucket.token_parts());
        let burst = u128::from(bucket.burst()) * request;
        let allowed = self.allowances.iter();
        let mut allowed: Vec<_> = allowed
            .map(|it| (it.from_us, it.until_us, u128::from(it.tokens) * request))
            .collect();
        let (mut debt, mut last_us, mut most) = (0_u128, 0, 0_u128);
        for (at_us, cost) in records {
            let drained = u128::from(at_us - last_us) * u128::from(bucket.parts_per_us());
            debt = debt.saturating_sub(drained);
            last_us = *at_us;
            // What the store does not count of what was spent by then has drained with the
            // rest.
            for (_, until_us, parts) in &mut allowed {
                if *until_us <= *at_us {
                    *parts = debt.min(*parts);
                }
            }
            debt += u128::from(*cost) * request;
            for (from_us, _, parts) in &mut allowed {
                if *from_us <= *at_us {
                    let used = debt.saturating_sub(burst).min(*parts);
                    debt -= used;
                    *parts -= used;
                }
            }
            most = most.max(debt.saturating_sub(burst));
        }
        u64::try_from(most.div_ceil(request)).unwrap_or(u64::MAX)
    }
}
