//! A decision in JSON, and in the log.

use std::hash::BuildHasher;
use std::time::Duration;

use serde::Serialize;
use smallvec::SmallVec;
use tidegate::{Attributes, Policy, PolicyDecision, StoreUrl};

use crate::app::{App, Running};
use crate::receipt;

/// A decision as the answer to a check.
#[derive(Debug, Serialize)]
pub(crate) struct DecisionBody<'d> {
    allowed: bool,
    policy: &'d str,
    denied_by: Option<&'d str>,
    /// Null where nothing is counted, as are the others.
    limit: Option<u32>,
    remaining: Option<u32>,
    rate: f64,
    retry_after_ms: Option<u64>,
    reset_after_ms: u64,
    source: &'static str,
    shadow: bool,
    would_deny: bool,
    decided_at_us: u64,
    receipt: Option<String>,
    levels: SmallVec<[LevelBody<'d>; 2]>,
    /// What a script has answered after its verdict and headers.
    #[serde(skip_serializing_if = "Option::is_none")]
    answer: Option<&'d [String]>,
}

/// The numbers of a level.
#[derive(Debug, Serialize)]
pub(super) struct LevelBody<'d> {
    name: &'d str,
    limit: u32,
    remaining: u32,
    rate: f64,
    retry_after_ms: Option<u64>,
    reset_after_ms: u64,
}

impl<'d> DecisionBody<'d> {
    /// `instance` says who can give back what was charged.
    pub(crate) fn new(
        decision: &'d PolicyDecision<'_>,
        attributes: &(impl Attributes + ?Sized),
        instance: u64,
    ) -> Self {
        let policy = decision.policy();
        let counted = decision.reported().is_some();
        let receipt = decision.receipt();
        let receipt =
            receipt.map(|receipt| receipt::encode(instance, policy, attributes, &receipt));
        let levels = decision.levels().map(|level| {
            let numbers = level.numbers();
            LevelBody {
                name: level.name(),
                limit: numbers.limit(),
                remaining: numbers.remaining(),
                rate: numbers.rate(),
                retry_after_ms: numbers.retry_after().map(milliseconds),
                reset_after_ms: milliseconds(numbers.reset_after()),
            }
        });
        Self {
            allowed: decision.allowed(),
            policy: policy.name(),
            denied_by: decision.denied_by(),
            limit: counted.then(|| decision.limit()),
            remaining: counted.then(|| decision.remaining()),
            rate: decision.rate(),
            retry_after_ms: decision.retry_after().map(milliseconds),
            reset_after_ms: milliseconds(decision.reset_after()),
            source: decision.source().as_str(),
            shadow: policy.shadow(),
            would_deny: decision.would_deny(),
            decided_at_us: decision.decided_at_us(),
            receipt,
            levels: levels.collect(),
            answer: decision.answer().map(|answer| answer.rest.as_slice()),
        }
    }
}

/// Who can give back what this policy charges: zero for whoever reaches its store.
pub(super) fn instance(app: &App, running: &Running, policy: &Policy) -> u64 {
    let store = running.config.stores.get(policy.store());
    match store.is_some_and(|store| store.url == StoreUrl::Memory) {
        true => app.instance,
        false => 0,
    }
}

/// Rounded up.
pub(super) fn milliseconds(duration: Duration) -> u64 {
    let milliseconds = duration.as_micros().div_ceil(1_000);
    u64::try_from(milliseconds).unwrap_or(u64::MAX)
}

/// A line a decision at the level of debug; one now and then for what a policy that only
/// watches would have refused.
pub(super) fn log<A>(app: &App, running: &Running, decision: &PolicyDecision<'_>, attributes: &A)
where
    A: Attributes + ?Sized,
{
    let policy = decision.policy().name();
    if tracing::enabled!(tracing::Level::DEBUG) {
        let key = logged_key(app, running, decision.policy(), attributes);
        let (allowed, source) = (decision.allowed(), decision.source().as_str());
        let denied_by = decision.denied_by();
        tracing::debug!(policy, key, allowed, source, denied_by, "decided");
    }
    if decision.would_deny() && app.lines.check(policy).allowed() {
        let key = logged_key(app, running, decision.policy(), attributes);
        tracing::info!(
            policy,
            key,
            "this policy only watches: it would have refused"
        );
    }
}

/// The key, if it may be shown, or else what tells it from others as long as this
/// process runs. That is hashed with a secret of the process: whoever reads the log
/// could try all addresses otherwise.
fn logged_key<A>(app: &App, running: &Running, policy: &Policy, attributes: &A) -> String
where
    A: Attributes + ?Sized,
{
    let Ok(keys) = policy.keys(attributes) else {
        return String::new();
    };
    let texts: Vec<String> = keys.iter().map(|key| key.text().into_owned()).collect();
    let text = texts.join(" ");
    if running.config.server.log_keys {
        return text;
    }
    format!("{:016x}", app.redaction.hash_one(text))
}
