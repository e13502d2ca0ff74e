//! What happens when the store does not answer: the only place that chooses between failing
//! open, failing closed and deciding locally.
//!
//! The local limiter has the policy's limits at this node's share. Charges that the store
//! admits are also charged here, so that an outage continues from the current usage, and a
//! store that comes and goes does not grant a new burst each time. What is spent from leases is
//! charged when the store is asked about their key, not with every check.

use std::sync::Arc;
use std::time::Duration;

use tidegate::{
    Charge, Cost, Decision, Keys, Limit, LimitSpec, MAX_WINDOW, OnError as Setting, PoliciesError,
    Policy, PolicyDecision, PolicyLimiter, Rate, Source,
};

use crate::mode::{Query, wall_us};
use crate::outage::FallbackNote;
use crate::store::RedisStore;

/// The `on_error` of one policy.
#[derive(Debug)]
pub(crate) struct OnError {
    store: RedisStore,
    /// Decides under `on_error = "local"`.
    pub(crate) local: Option<PolicyLimiter>,
    /// What it does, for the log.
    pub(crate) note: Arc<FallbackNote>,
}

impl OnError {
    /// For this policy. A local limiter that was there before goes on.
    pub(crate) fn new(
        policy: &Policy,
        store: &RedisStore,
        before: Option<&Self>,
    ) -> Result<Self, PoliciesError> {
        let local = || {
            let share = policy.local_share();
            let policy = policy.with_limits("default", |limit| at_share(limit, share));
            match before.and_then(|before| before.local.as_ref()) {
                // Its decisions have no receipts that would have to be void.
                Some(before) => before.changed(policy),
                None => PolicyLimiter::in_memory(policy),
            }
        };
        Ok(Self {
            store: store.clone(),
            local: match policy.on_error() {
                Setting::Local => Some(local()?),
                Setting::Allow | Setting::Deny => None,
            },
            note: FallbackNote::new(policy),
        })
    }

    /// Decides without the store.
    pub(crate) fn decide<'p>(&self, query: &Query<'p, '_>) -> PolicyDecision<'p> {
        match (&self.local, query.policy.on_error()) {
            (Some(local), _) => {
                let given = given(&query.keys);
                let keys = query.keys.with_limit(given.as_ref());
                let decision = local.decide_keys(&keys, query.cost, query.charge);
                query.decided(decision.with_source(Source::Local))
            }
            // No quota is used up, so there are no numbers.
            (None, Setting::Deny) => {
                let retry_after = self.store.next_probe();
                query.reporting([], Decision::unavailable(retry_after, wall_us()))
            }
            (None, _) => query.allowed(Source::ErrorPolicy),
        }
    }

    /// Counts what the store has admitted, each level by itself; what does not fit fills it up.
    pub(crate) fn admitted(&self, keys: &Keys<'_>, cost: Cost) {
        if let Some(local) = &self.local {
            let given = given(keys);
            let keys = keys.with_limit(given.as_ref());
            drop(local.decide_keys(&keys, cost, Charge::Told));
        }
    }
}

/// A limit that came with the check, at this node's share.
fn given(keys: &Keys<'_>) -> Option<Limit> {
    let share = keys.policy().local_share();
    keys.given_limit().map(|limit| at_share(limit, share))
}

/// A share of a limit: the same number of requests in a longer window, or where that
/// would be too long, fewer of them.
fn at_share(limit: &Limit, share: f64) -> Limit {
    let Some(spec) = limit.spec() else {
        return *limit;
    };
    let window = spec.rate.window();
    let longer = window.div_f64(share).min(MAX_WINDOW);
    let longer = Duration::from_micros(u64::try_from(longer.as_micros()).unwrap_or(u64::MAX));
    let missing = share * longer.as_secs_f64() / window.as_secs_f64();
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "at most the requests there were"
    )]
    let requests = (f64::from(spec.rate.requests()) * missing.min(1.0)).round() as u64;
    let rate = Rate::new(requests.max(1), longer);
    let built = rate.and_then(|rate| LimitSpec { rate, ..spec }.build());
    // A burst that a slower bucket cannot have: without it.
    let plain = || rate.and_then(|rate| LimitSpec::new(rate).build());
    built.or_else(|_| plain()).unwrap_or(*limit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_stretches_the_window() {
        let table = [
            ("100r/s burst=20", 0.5, "100/2s burst=20"),
            ("100r/s", 1.0, "100r/s"),
            ("5/10s sliding_log", 0.25, "5/40s sliding_log"),
            ("100/366d fixed_window", 0.5, "50/366d fixed_window"),
            ("15r/m burst=3 strict", 0.5, "15/2m burst=3 strict"),
            ("1/366d", 0.001, "1/366d"),
            ("block", 0.5, "block"),
        ];
        for (limit, share, expected) in table {
            let limit = Limit::parse(limit).unwrap();
            assert_eq!(at_share(&limit, share).to_string(), expected);
        }
    }
}
