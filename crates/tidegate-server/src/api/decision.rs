//! A decision in JSON, and in the log.

use std::hash::BuildHasher;
use std::time::Duration;

use serde::Serialize;
use tidegate::{Attributes, LevelDecision, Policy, PolicyDecision, StoreUrl};

use crate::app::{App, Running};
use crate::receipt;

/// Room for nearly every decision in JSON.
pub(super) const LENGTH: usize = 768;

/// Writes a decision as the answer to a check. `instance` says who can give back what
/// was charged.
///
/// Field by field rather than by serde, which would look for something to escape in every
/// name: neither our own names need that, nor those of policies and levels.
pub(crate) fn write(
    json: &mut Vec<u8>,
    decision: &PolicyDecision<'_>,
    attributes: &(impl Attributes + ?Sized),
    instance: u64,
) {
    let policy = decision.policy();
    let (reported, retry_after) = (decision.reported(), decision.retry_after());
    put(json, "{\"allowed\":", decision.allowed());
    put(json, ",\"policy\":", policy.name());
    put(json, ",\"denied_by\":", decision.denied_by());
    let start = json.len();
    put_numbers(json, reported.map(|level| *level.numbers()), retry_after);
    let written = start..json.len();
    put(json, ",\"source\":", decision.source().as_str());
    put(json, ",\"shadow\":", policy.shadow());
    put(json, ",\"would_deny\":", decision.would_deny());
    put(json, ",\"decided_at_us\":", decision.decided_at_us());
    match decision.receipt() {
        None => json.extend(b",\"receipt\":null"),
        Some(receipt) => {
            json.extend(b",\"receipt\":\"");
            receipt::encode(json, instance, policy, attributes, &receipt);
            json.push(b'"');
        }
    }
    json.extend(b",\"levels\":[");
    for (index, level) in decision.levels().enumerate() {
        let numbers = level.numbers();
        let begin = if index == 0 {
            "{\"name\":"
        } else {
            ",{\"name\":"
        };
        put(json, begin, level.name());
        match decision.levels().len() == 1 && numbers.retry_after() == retry_after {
            // The only level is the one reported.
            true => json.extend_from_within(written.clone()),
            false => put_numbers(json, Some(*numbers), numbers.retry_after()),
        }
        json.push(b'}');
    }
    json.push(b']');
    // What a script has answered after its verdict and headers: any text.
    if let Some(answer) = decision.answer() {
        json.extend(b",\"answer\":");
        put_any(json, &answer.rest);
    }
    json.push(b'}');
}

/// Writes the numbers of a level; nulls where nothing is counted.
fn put_numbers(json: &mut Vec<u8>, numbers: Option<LevelDecision>, retry_after: Option<Duration>) {
    put(json, ",\"limit\":", numbers.map(|it| it.limit()));
    put(json, ",\"remaining\":", numbers.map(|it| it.remaining()));
    put(json, ",\"rate\":", numbers.map_or(0.0, |it| it.rate()));
    put(json, ",\"retry_after_ms\":", retry_after.map(milliseconds));
    let reset_after = numbers.map_or(0, |it| milliseconds(it.reset_after()));
    put(json, ",\"reset_after_ms\":", reset_after);
}

/// Writes what comes before a value, and the value. Always inline: then the length of
/// what comes before is known, and it is stored without a call.
#[inline(always)]
fn put(json: &mut Vec<u8>, before: &str, value: impl Value) {
    json.extend(before.as_bytes());
    value.put(json);
}

/// What can stand in a decision.
trait Value {
    fn put(self, json: &mut Vec<u8>);
}

impl Value for bool {
    fn put(self, json: &mut Vec<u8>) {
        json.extend(if self { &b"true"[..] } else { b"false" });
    }
}

impl Value for u64 {
    fn put(self, json: &mut Vec<u8>) {
        json.extend(itoa::Buffer::new().format(self).as_bytes());
    }
}

impl Value for u32 {
    fn put(self, json: &mut Vec<u8>) {
        u64::from(self).put(json);
    }
}

impl Value for f64 {
    fn put(self, json: &mut Vec<u8>) {
        put_any(json, &self);
    }
}

/// A name, which needs no escapes.
impl Value for &str {
    fn put(self, json: &mut Vec<u8>) {
        json.push(b'"');
        json.extend(self.as_bytes());
        json.push(b'"');
    }
}

impl<V: Value> Value for Option<V> {
    fn put(self, json: &mut Vec<u8>) {
        match self {
            Some(value) => value.put(json),
            None => json.extend(b"null"),
        }
    }
}

pub(super) fn put_any(json: &mut Vec<u8>, value: &impl Serialize) {
    serde_json::to_writer(json, value).expect("a vector takes everything");
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
    let rest = u64::from(duration.subsec_micros().div_ceil(1_000));
    duration
        .as_secs()
        .saturating_mul(1_000)
        .saturating_add(rest)
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
