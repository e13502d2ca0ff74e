//! `GET /v1/policies`: lists the policies.

use serde::Serialize;
use tidegate::{Dialect, Limit, Policy, PolicyLevel};

use super::decision::milliseconds;
use crate::engine::Current;

/// A policy.
#[derive(Serialize)]
pub(super) struct PolicyBody<'r> {
    name: &'r str,
    store: &'r str,
    mode: &'static str,
    on_error: &'static str,
    enabled: bool,
    shadow: bool,
    /// The policy that it is asked beside.
    trial_of: Option<&'r str>,
    count_denied: bool,
    headers: HeadersBody<'r>,
    /// Attributes that decide where in a cluster its keys live.
    tag: Vec<&'r str>,
    /// Whether a script decides in place of the levels' limits.
    script: bool,
    levels: Vec<LevelBody<'r>>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum HeadersBody<'r> {
    Dialect(&'static str),
    Names([&'r str; 3]),
}

#[derive(Serialize)]
struct LevelBody<'r> {
    name: &'r str,
    key: &'r str,
    /// Null where a script decides.
    limit: Option<LimitBody>,
    overrides: usize,
}

/// A limit.
#[derive(Serialize)]
pub(super) struct LimitBody {
    algorithm: String,
    /// As it is written in a config; null where everything is refused.
    limit: Option<String>,
    requests: u32,
    window_ms: u64,
    burst: Option<u64>,
}

pub(super) fn listed(current: &Current) -> Vec<PolicyBody<'_>> {
    let policies = current.config.policies.iter();
    policies.map(PolicyBody::from).collect()
}

impl<'r> From<&'r Policy> for PolicyBody<'r> {
    fn from(policy: &'r Policy) -> Self {
        Self {
            name: policy.name(),
            store: policy.store(),
            mode: policy.mode().as_str(),
            on_error: policy.on_error().as_str(),
            enabled: policy.enabled(),
            shadow: policy.shadow(),
            trial_of: policy.trial_of(),
            count_denied: policy.count_denied(),
            headers: match policy.headers() {
                Dialect::Custom(names) => HeadersBody::Names(names.each_ref().map(|name| &**name)),
                dialect => HeadersBody::Dialect(dialect.as_str()),
            },
            tag: policy.tag().collect(),
            script: policy.script().is_some(),
            levels: policy
                .levels()
                .iter()
                .map(|level| LevelBody::new(level, policy.script().is_some()))
                .collect(),
        }
    }
}

impl<'r> LevelBody<'r> {
    fn new(level: &'r PolicyLevel, script: bool) -> Self {
        Self {
            name: level.name(),
            key: level.key().as_str(),
            limit: (!script).then(|| level.limit().into()),
            overrides: level.overrides().len(),
        }
    }
}

impl From<&Limit> for LimitBody {
    fn from(limit: &Limit) -> Self {
        let Some(spec) = limit.spec() else {
            return Self {
                algorithm: "block".into(),
                limit: None,
                requests: 0,
                window_ms: 0,
                burst: None,
            };
        };
        Self {
            algorithm: spec.algorithm.to_string(),
            limit: Some(spec.rate.to_string()),
            requests: spec.rate.requests(),
            window_ms: milliseconds(spec.rate.window()),
            burst: spec.capacity(),
        }
    }
}
