//! From a bucket id to a policy, its key, and the terms that the policy sets.

use tidegate::{Algorithm, CheckError, Limit};

use super::wire::BucketName;
use super::{Subject, Terms};
use crate::engine::Current;

/// The entry of a bucket id that names the policy.
const POLICY: &str = "policy";

/// The longest bucket id, keys and values together.
const MAX_BYTES: usize = 4 << 10;

/// What a bucket id stands for.
#[derive(Debug)]
pub(super) struct Fit {
    pub(super) subject: Subject,
    /// The bucket's key under the policy: two bucket ids of one key share a limit.
    pub(super) key: String,
    pub(super) terms: Terms,
}

/// Why a bucket id stands for nothing.
#[derive(Debug, thiserror::Error)]
pub(super) enum Misfit {
    #[error("a bucket id of {0} bytes: expected at most {MAX_BYTES}")]
    Long(usize),
    #[error("a bucket id without entries: expected at least one")]
    Empty,
    #[error("{0}")]
    Check(#[from] CheckError),
    #[error("policy {0:?} has a script, which cannot be assigned: expected limits")]
    Script(String),
    #[error("the entry \"policy\" is not text: expected the name of a policy")]
    Name,
}

/// The entry `policy` names the policy, or else the domain does. The other entries are the
/// attributes.
pub(super) fn fit(current: &Current, domain: &str, name: &BucketName) -> Result<Fit, Misfit> {
    let entries = name.bucket.iter();
    let bytes = entries.map(|(key, value)| key.len() + value.len()).sum();
    if bytes > MAX_BYTES {
        return Err(Misfit::Long(bytes));
    }
    // Envoy ignores the field.
    if name.bucket.is_empty() {
        return Err(Misfit::Empty);
    }
    let policy = match name.bucket.get(POLICY) {
        Some(policy) => std::str::from_utf8(policy).map_err(|_| Misfit::Name)?,
        None => domain,
    };
    let entry = current.entry(policy)?;
    let attributes = name.bucket.iter().filter(|(key, _)| *key != POLICY);
    let attributes = attributes.map(|(key, value)| (key.clone(), value.clone()));
    let subject = Subject {
        policy: policy.to_owned(),
        attributes: attributes.collect(),
    };
    let policy = entry.policy();
    if policy.script().is_some() {
        return Err(Misfit::Script(policy.name().into()));
    }
    let keys = policy.keys(&subject.attributes).map_err(CheckError::from)?;
    let (mut rate, mut burst) = (f64::INFINITY, f64::INFINITY);
    let mut key = String::new();
    for level in keys.iter() {
        let (of_rate, of_burst) = numbers(level.limit());
        (rate, burst) = (rate.min(of_rate), burst.min(of_burst));
        key.push_str(&level.text());
        // No encoded value has a space.
        key.push(' ');
    }
    drop(keys);
    let terms = match () {
        // Every level may be switched off for this key.
        () if !policy.enabled() || rate.is_infinite() => Terms::Open { burst: None },
        () if rate <= 0.0 => Terms::Closed,
        () if policy.shadow() => Terms::Open { burst: Some(burst) },
        () => Terms::Limited { rate, burst },
    };
    Ok(Fit {
        subject,
        key,
        terms,
    })
}

/// Tokens per second, and the most at once.
fn numbers(limit: &Limit) -> (f64, f64) {
    let Some(spec) = limit.spec() else {
        return (0.0, 0.0);
    };
    let requests = f64::from(spec.rate.requests());
    let burst = spec.burst.map_or(requests, |burst| burst as f64);
    let refill = match (spec.algorithm, spec.strict) {
        (Algorithm::TokenBucket, true) => requests - burst,
        _ => requests,
    };
    (refill / spec.rate.window().as_secs_f64(), burst)
}
