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

use sha2::{Digest, Sha256};
use tidegate::{
    Algorithm, Align, Limit, LimitSpec, Mode, Policy, PolicyDecision, PolicyError, Rate, Receipt,
    Source,
};
use tidegate_redis::{Policies, TryCheckError};
use tonic::Status;

use super::rules::{Domains, Quota, Rule};
use super::section::{Envoy, OnError};
use super::service::status;
use super::wire::{RateLimitRequest, RateLimitResponse, Unit};
use crate::engine::{Answer, Call, Current, Engine, Entry};
use crate::metrics::Meter;
use crate::section::Server;
use crate::top::Top;
use plan::{Asked, Plan};

/// The name of its decisions in metrics.
pub(crate) const NAME: &str = "envoy";

/// Limits in force, and where they count.
pub(crate) struct DropIn {
    pub(crate) domains: Arc<Domains>,
    /// Whether they came while the server runs, and not from its config.
    pub(crate) is_given: bool,
    /// What counts hits, by the length of the window in seconds.
    windows: BTreeMap<u64, Entry>,
    /// What decides the limits that charge no refusals, by their index.
    exact: Vec<Option<Entry>>,
    /// Where requests are counted, each once.
    meter: Arc<Meter>,
    /// The most frequent keys of all limits.
    pub(crate) top: Arc<Top>,
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
        server: &Server,
        limiter: &Policies,
        (meter, top): (Arc<Meter>, Option<Arc<Top>>),
    ) -> Self {
        let top = top.unwrap_or_else(|| Arc::new(Top::new(["key"])));
        let entry = |name: String| {
            let handle = limiter.handle(&name).ok()?.clone();
            if server.envoy.on_error == OnError::Error {
                handle.callers_do("answered with UNAVAILABLE");
            }
            let counted = (None, Arc::clone(&top));
            Some(Entry::new(handle, counted, 0, server.log_keys))
        };
        let window = |seconds| Some((seconds, entry(window_name(seconds))?));
        let exact = domains.rules().iter().map(|rule| match rule.quota {
            Quota::Exact(..) => entry(rule_name(rule)),
            Quota::Counted(_) | Quota::Unlimited => None,
        });
        Self {
            windows: windows(&domains).into_iter().filter_map(window).collect(),
            exact: exact.collect(),
            is_given,
            meter,
            top,
            domains,
        }
    }
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
    if engine.options.stop_increment_when_over && plans.len() > 1 {
        stop_others(engine, &mut plans).await;
    }
    let outcomes = ask(engine, &plans).await;
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
    // Of several sources, the one that is farthest from the store.
    let sources = outcomes.iter().flatten().map(|outcome| match outcome {
        Ok(outcome) => outcome.source,
        Err(_) => Source::ErrorPolicy,
    });
    let farthest = |source: &Source| Source::ALL.iter().position(|it| it == source);
    let source = sources.max_by_key(farthest).unwrap_or(Source::Store);
    dropin.meter.count(counts, source, start.elapsed());
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
    source: Source,
    receipt: Option<Receipt>,
}

type Outcomes = Vec<Option<Result<Outcome, TryCheckError>>>;

/// Asks about all descriptors in one go: for Redis, they share a batch.
async fn ask(engine: &Engine, plans: &[Plan<'_>]) -> Outcomes {
    let asked: Vec<&Asked<'_>> = plans.iter().filter_map(Plan::asked).collect();
    let calls: Vec<Call<'_>> = asked.iter().map(|asked| asked.call()).collect();
    let (mut outcomes, mut rest) = (Vec::with_capacity(plans.len()), asked.iter());
    let each = |_: &Call<'_>, answer: &Answer<'_>| {
        let answer = answer.as_ref().map_err(Clone::clone);
        outcomes.extend(rest.next().map(|asked| {
            answer.map(|decision| match asked.is_exact {
                true => decided(asked, decision),
                false => counted(asked, decision),
            })
        }));
    };
    engine.ask(&calls, each).await;
    let mut outcomes = outcomes.into_iter();
    let outcome = |plan: &Plan<'_>| plan.asked().and_then(|_| outcomes.next());
    plans.iter().map(outcome).collect()
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
        source: decision.source(),
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
        source: decision.source(),
        receipt: decision.receipt(),
    }
}

/// Looks first: when a descriptor is about to go over its limit, the others are not
/// charged.
async fn stop_others(engine: &Engine, plans: &mut [Plan<'_>]) {
    let asked = plans.iter().enumerate();
    let asked = asked.filter_map(|(index, plan)| Some((index, plan.asked()?)));
    let asked: Vec<_> = asked
        .filter(|(_, asked)| !asked.is_exact && !asked.is_negative)
        .collect();
    let looks: Vec<Call<'_>> = asked.iter().map(|(_, asked)| asked.look()).collect();
    let (mut over, mut rest) = (None, asked.iter());
    let each = |_: &Call<'_>, answer: &Answer<'_>| {
        if let (Some((index, asked)), Ok(decision)) = (rest.next(), answer) {
            let count = counted(asked, decision).count.saturating_add(asked.hits);
            if over.is_none() && count > asked.window.requests.into() {
                over = Some(*index);
            }
        }
    };
    engine.ask(&looks, each).await;
    let Some(over) = over else {
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
        let asked = plan.asked().filter(|asked| asked.is_exact)?;
        let outcome = outcome.as_ref()?.as_ref().ok()?;
        Some((asked.call(), outcome.receipt.clone()?))
    });
    engine.give_back(charged).await;
}

#[cfg(test)]
mod tests;
