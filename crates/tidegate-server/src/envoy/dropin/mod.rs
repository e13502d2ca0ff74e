//! Requests that are answered as envoyproxy/ratelimit answers them: limits come from its
//! files, or from xDS.
//!
//! By default, every hit counts, also those above the limit, on every descriptor of the
//! request: a counter per window of the clock only counts, and what it has come to is
//! compared with the limit here. So a limit can change without losing its count. Limits
//! with another algorithm charge no refusals: each is a policy of its own, and when the
//! request is refused, the others get back what they were charged.

mod plan;
mod response;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use futures_util::future::join_all;
use sha2::{Digest, Sha256};
use tidegate::{
    Algorithm, Align, Attributes, Cost, Limit, LimitSpec, Mode, Policy, PolicyDecision,
    PolicyError, Rate, Receipt,
};
use tidegate_redis::{AnyStore, Policies, PolicyLimiter, TryCheckError};
use tonic::Status;

use super::rules::{Domains, Quota, Rule};
use super::section::{Envoy, OnError};
use super::service::status;
use super::wire::{RateLimitRequest, RateLimitResponse, Unit};
use crate::engine::{Current, Engine};
use crate::metrics::Meter;
use plan::{Asked, Plan};

/// The name of its decisions in metrics.
pub(crate) const NAME: &str = "envoy";

/// Limits in force, and where they count.
pub(crate) struct DropIn {
    pub(crate) domains: Arc<Domains>,
    /// Whether they came while the server runs, and not from its config.
    pub(crate) is_given: bool,
    /// What counts hits, by the length of the window in seconds.
    windows: BTreeMap<u64, PolicyLimiter>,
    /// What decides the limits that charge no refusals, by their index.
    exact: Vec<Option<PolicyLimiter>>,
    is_in_memory: bool,
    meter: Arc<Meter>,
}

/// The policies that count for these domains.
pub(crate) fn policies(domains: &Domains, envoy: &Envoy) -> Result<Vec<Policy>, PolicyError> {
    // Tokens of a window that only counts are nothing to lease.
    let mode = match envoy.mode {
        Mode::Lease => Mode::Exact,
        mode => mode,
    };
    let windows = windows(domains).into_iter().map(|seconds| {
        let rate = Rate::new(u32::MAX.into(), Duration::from_secs(seconds));
        let limit = rate.and_then(|rate| {
            LimitSpec {
                algorithm: Algorithm::FixedWindow,
                align: Align::Epoch,
                ..LimitSpec::new(rate)
            }
            .build()
        });
        let limit = limit.expect("a window that was checked");
        policy(window_name(seconds), limit, mode, envoy)
    });
    let exact = domains.rules().iter().filter_map(|rule| match rule.quota {
        Quota::Exact(_, limit) => Some(policy(rule_name(rule), limit, envoy.mode, envoy)),
        Quota::Counted(_) | Quota::Unlimited => None,
    });
    windows.chain(exact).collect()
}

fn policy(name: String, limit: Limit, mode: Mode, envoy: &Envoy) -> Result<Policy, PolicyError> {
    // Errors are answered here, as `answer` does. The log of an outage says what it does.
    let on_error = match envoy.on_error {
        OnError::Allow | OnError::Error => tidegate::OnError::Allow,
        OnError::Deny => tidegate::OnError::Deny,
    };
    let policy = Policy::builder(name).limit(limit).mode(mode);
    let policy = policy.on_error(on_error);
    policy.store(envoy.store.clone()).build()
}

/// The windows that may have to count: those of the limits, and those that a request can
/// bring.
fn windows(domains: &Domains) -> Vec<u64> {
    let units = Unit::ALL.iter().map(|(_, unit)| unit.seconds());
    let rules = domains.rules().iter().filter_map(|rule| match rule.quota {
        Quota::Counted(window) => Some(window.seconds),
        Quota::Exact(..) | Quota::Unlimited => None,
    });
    let mut windows: Vec<u64> = units.chain(rules).collect();
    windows.sort_unstable();
    windows.dedup();
    windows
}

fn window_name(seconds: u64) -> String {
    format!("{NAME}-{seconds}s")
}

/// The same on every node, whatever the numbers of the limit.
fn rule_name(rule: &Rule) -> String {
    let mut hash = Sha256::new();
    hash.update(rule.domain.as_bytes());
    for part in &rule.path {
        hash.update([0]);
        hash.update(part.as_bytes());
    }
    let hash: String = hash.finalize()[..8]
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    format!("{NAME}-{hash}")
}

impl DropIn {
    /// Limits over a limiter that has their [`policies`].
    pub(crate) fn new(
        domains: Arc<Domains>,
        is_given: bool,
        envoy: &Envoy,
        limiter: &Policies,
        meter: Arc<Meter>,
    ) -> Self {
        let handle = |name: String| limiter.handle(&name).ok().cloned();
        let window = |seconds| Some((seconds, handle(window_name(seconds))?));
        let exact = domains.rules().iter().map(|rule| match rule.quota {
            Quota::Exact(..) => handle(rule_name(rule)),
            Quota::Counted(_) | Quota::Unlimited => None,
        });
        let windows: BTreeMap<u64, PolicyLimiter> =
            windows(&domains).into_iter().filter_map(window).collect();
        let exact: Vec<Option<PolicyLimiter>> = exact.collect();
        if envoy.on_error == OnError::Error {
            for handle in windows.values().chain(exact.iter().flatten()) {
                handle.callers_do("answered with UNAVAILABLE");
            }
        }
        let is_in_memory = limiter
            .stores()
            .any(|(name, store)| name == envoy.store && matches!(store, AnyStore::Memory(_)));
        Self {
            windows,
            exact,
            is_in_memory,
            is_given,
            meter,
            domains,
        }
    }
}

/// Answers a request without waiting, where counts are kept in this process.
pub(super) fn answer_now(
    engine: &Engine,
    current: &Current,
    dropin: &DropIn,
    request: &RateLimitRequest,
) -> Option<Result<RateLimitResponse, Status>> {
    if !dropin.is_in_memory {
        return None;
    }
    answer(engine, current, dropin, request).now_or_never()
}

/// Answers any request.
pub(super) async fn answer(
    engine: &Engine,
    current: &Current,
    dropin: &DropIn,
    request: &RateLimitRequest,
) -> Result<RateLimitResponse, Status> {
    let start = Instant::now();
    let on_error = current.server.envoy.on_error;
    let mut plans = plan::of(dropin, request)?;
    let stops = engine.options.stop_increment_when_over && plans.len() > 1;
    let asked = plans.iter().any(|plan| matches!(plan, Plan::Asked(_)));
    let outcomes = match asked {
        true => {
            if stops {
                stop_others(engine, &mut plans).await;
            }
            ask_all(engine, &plans).await
        }
        false => plans.iter().map(|_| None).collect(),
    };
    let failed = outcomes.iter().flatten().find_map(|it| it.as_ref().err());
    if let (Some(error), OnError::Error) = (failed, on_error) {
        let failed = status(error);
        give_back(engine, &plans, &outcomes).await;
        return Err(failed);
    }
    let response = response::of(engine, request, &plans, &outcomes, on_error);
    if response.is_over {
        give_back(engine, &plans, &outcomes).await;
    }
    let counts = match (response.is_over, engine.options.shadow_mode) {
        (false, _) => [1, 0, 0],
        (true, false) => [0, 1, 0],
        (true, true) => [0, 0, 1],
    };
    dropin.meter.count_stored(counts, start.elapsed());
    Ok(response.message)
}

/// What became of a descriptor that has a limit.
struct Outcome {
    /// It is above the limit.
    is_over: bool,
    /// What the counter has come to, with this request.
    count: u64,
    remaining: u32,
    /// Seconds until the window ends, or until it makes sense to ask again.
    reset: u64,
    receipt: Option<Receipt>,
}

type Outcomes = Vec<Option<Result<Outcome, TryCheckError>>>;

/// All descriptors in one go: for Redis, they share a batch.
async fn ask_all(engine: &Engine, plans: &[Plan<'_>]) -> Outcomes {
    let asking = plans.iter().map(|plan| async move {
        match plan {
            Plan::Asked(asked) => Some(ask(asked).await),
            Plan::Open | Plan::Unlimited => None,
        }
    });
    engine.at_home(join_all(asking)).await
}

async fn ask(asked: &Asked<'_>) -> Result<Outcome, TryCheckError> {
    let key = Key(&asked.key);
    let decision = match cost(asked.hits) {
        Some(cost) if asked.is_negative => {
            asked.handle.give_back(&key, cost).await?;
            asked.handle.peek(&key, Cost::ONE).await?
        }
        Some(cost) => asked.handle.try_check(&key, cost).await?,
        None => asked.handle.peek(&key, Cost::ONE).await?,
    };
    Ok(match asked.is_exact {
        true => decided(asked, &decision),
        false => counted(asked, &decision),
    })
}

/// What a counter says that counts everything.
fn counted(asked: &Asked<'_>, decision: &PolicyDecision<'_>) -> Outcome {
    let window = asked.window;
    let count = match decision.allowed() {
        true => u64::from(u32::MAX - decision.remaining()),
        // It counts no further.
        false => 1 << 32,
    };
    let now = decision.decided_at_us() / 1_000_000;
    Outcome {
        is_over: count > window.requests.into() && !asked.is_negative,
        count,
        remaining: window
            .requests
            .saturating_sub(u32::try_from(count).unwrap_or(u32::MAX)),
        reset: window.seconds - now % window.seconds,
        receipt: None,
    }
}

/// What a limit says that charges no refusals.
fn decided(asked: &Asked<'_>, decision: &PolicyDecision<'_>) -> Outcome {
    let is_look = asked.hits == 0 || asked.is_negative;
    let is_over = !decision.allowed() && !is_look;
    let wait = match is_over {
        true => decision.retry_after().unwrap_or(asked.window.duration()),
        false => decision.reset_after(),
    };
    let left = decision.remaining();
    Outcome {
        is_over,
        count: u64::from(decision.limit().saturating_sub(left)),
        remaining: if is_over { 0 } else { left },
        reset: wait.as_secs() + u64::from(wait.subsec_nanos() > 0),
        receipt: decision.receipt(),
    }
}

/// Looks first: when a descriptor is about to go over its limit, the others are not
/// charged.
async fn stop_others(engine: &Engine, plans: &mut [Plan<'_>]) {
    let looks = plans.iter().map(|plan| async move {
        let Plan::Asked(asked) = plan else {
            return None;
        };
        let key = Key(&asked.key);
        let look = asked.handle.peek(&key, Cost::ONE);
        Some(counted(asked, &look.await.ok()?).count)
    });
    let looks: Vec<Option<u64>> = engine.at_home(join_all(looks)).await;
    let goes_over = |plan: &Plan<'_>, count: Option<u64>| match (plan, count) {
        (Plan::Asked(asked), Some(count)) => {
            let is_counted = !asked.is_exact && !asked.is_negative;
            is_counted && count.saturating_add(asked.hits) > asked.window.requests.into()
        }
        _ => false,
    };
    let mut over = plans.iter().zip(&looks);
    let Some(over) = over.position(|(plan, count)| goes_over(plan, *count)) else {
        return;
    };
    for (index, plan) in plans.iter_mut().enumerate() {
        if let Plan::Asked(asked) = plan
            && index != over
        {
            asked.hits = 0;
        }
    }
}

/// Gives back what descriptors of a refused request were charged that charge no refusals.
async fn give_back(engine: &Engine, plans: &[Plan<'_>], outcomes: &Outcomes) {
    let charged = plans.iter().zip(outcomes).filter_map(|(plan, outcome)| {
        let (Plan::Asked(asked), Some(Ok(outcome))) = (plan, outcome) else {
            return None;
        };
        outcome
            .receipt
            .as_ref()
            .filter(|_| asked.is_exact)
            .map(|it| (asked, it))
    });
    let refunds = charged.map(|(asked, receipt)| async move {
        let (policy, key) = (asked.handle.policy().name(), Key(&asked.key));
        let refund = asked.handle.refund(&key, receipt);
        if let Err(error) = refund.await {
            tracing::debug!(%error, policy, "a charge was not given back");
        }
    });
    let refunds: Vec<_> = refunds.collect();
    if !refunds.is_empty() {
        engine.at_home(join_all(refunds)).await;
    }
}

/// More than any limit admits counts as that much.
fn cost(hits: u64) -> Option<Cost> {
    Cost::new(hits.min(u32::MAX.into())).ok()
}

/// The key of a counter, as attributes.
struct Key<'k>(&'k [u8]);

impl Attributes for Key<'_> {
    fn value(&self, name: &str) -> Option<&[u8]> {
        (name == "key").then_some(self.0)
    }
}

#[cfg(test)]
mod tests;
