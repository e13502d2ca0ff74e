//! A decision in JSON.

use std::time::Duration;

use serde::Serialize;
use tidegate::{LevelDecision, PolicyDecision, Source};

use crate::engine::Call;
use crate::receipt;

/// Room for nearly every decision in JSON.
pub(super) const LENGTH: usize = 768;

/// Writes a decision as the answer to a check.
///
/// Field by field rather than by serde, which would look for something to escape in every
/// name: neither our own names need that, nor those of policies and levels.
pub(crate) fn write(json: &mut Vec<u8>, call: &Call<'_>, decision: &PolicyDecision<'_>) {
    let (entry, pieces) = (call.entry, call.entry.json());
    let (reported, retry_after) = (decision.reported(), decision.retry_after());
    put(json, pieces.begin(decision.allowed()), decision.denied_by());
    let start = json.len();
    let numbers = reported.map(|level| *level.numbers());
    // Nothing is used of a policy that counts nothing; of one that cannot be asked,
    // nobody knows.
    let rate = numbers.map(|it| it.rate());
    let rate = rate.or((!decision.is_unavailable()).then_some(0.0));
    put_numbers(json, numbers, rate, retry_after);
    let written = start..json.len();
    let before = match decision.source() {
        Source::Store => pieces.stored(decision.would_deny()),
        source => {
            put(json, ",\"source\":", source.as_str());
            pieces.shadow(decision.would_deny())
        }
    };
    put(json, before, decision.decided_at_us());
    match decision.receipt() {
        None => json.extend(b",\"receipt\":null"),
        Some(receipt) => {
            json.extend(b",\"receipt\":\"");
            let (instance, policy) = (entry.instance(), entry.policy());
            receipt::encode(json, instance, policy, call.attributes, &receipt);
            json.push(b'"');
        }
    }
    json.extend(b",\"levels\":[");
    for (index, level) in decision.levels().enumerate() {
        let numbers = level.numbers();
        if index > 0 {
            json.push(b',');
        }
        json.extend(pieces.level(level.index()).as_bytes());
        match decision.levels().len() == 1 && numbers.retry_after() == retry_after {
            // The only level is the one reported.
            true => json.extend_from_within(written.clone()),
            false => {
                let rate = Some(numbers.rate());
                put_numbers(json, Some(*numbers), rate, numbers.retry_after());
            }
        }
        let on_lease = numbers.on_lease();
        if on_lease.leases > 0 {
            put(json, ",\"leased_tokens\":", on_lease.tokens);
            put(json, ",\"leases\":", on_lease.leases);
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
fn put_numbers(
    json: &mut Vec<u8>,
    numbers: Option<LevelDecision>,
    rate: Option<f64>,
    retry_after: Option<Duration>,
) {
    put(json, ",\"limit\":", numbers.map(|it| it.limit()));
    put(json, ",\"remaining\":", numbers.map(|it| it.remaining()));
    put(json, ",\"rate\":", rate);
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

/// Rounded up.
pub(crate) fn milliseconds(duration: Duration) -> u64 {
    let rest = u64::from(duration.subsec_micros().div_ceil(1_000));
    duration
        .as_secs()
        .saturating_mul(1_000)
        .saturating_add(rest)
}
