//! `/v1/keys/{policy}`: explains or resets a key.

use std::collections::BTreeMap;

use http::request::Parts;
use serde::Serialize;
use tidegate::{Explained, Which};

use super::decision::milliseconds;
use super::policies::LimitBody;
use super::query::{Query, short};
use super::{Answer, Api, Problem, authorize, has_numbers, json};
use crate::engine::Current;

/// A key as it stands.
#[derive(Serialize)]
struct KeyBody<'r> {
    policy: &'r str,
    store: &'r str,
    enabled: bool,
    shadow: bool,
    levels: Vec<LevelBody<'r>>,
}

/// A level of it: the settings in force, and the numbers.
#[derive(Serialize)]
struct LevelBody<'r> {
    name: &'r str,
    key: String,
    /// What stands for the key in log lines and records. Null without the admin token,
    /// because the hashes of all addresses would tell whose lines these are.
    hash: Option<String>,
    /// Null when an override exempts this key.
    settings: Option<LimitBody>,
    /// What the override in force matches.
    overridden_by: Option<BTreeMap<&'r str, String>>,
    /// These are null when nothing is counted.
    limit: Option<u32>,
    remaining: Option<u32>,
    rate: Option<f64>,
    retry_after_ms: Option<u64>,
    reset_after_ms: Option<u64>,
    /// What nodes have taken out of the store, which the numbers count as used.
    leased_tokens: Option<u32>,
    leases: Option<u32>,
}

#[derive(Serialize)]
struct ResetBody {
    forgotten: usize,
}

pub(super) async fn explain(
    api: &Api,
    current: &Current,
    policy: &str,
    head: &Parts,
) -> Result<Answer, Problem> {
    let query = Query::parse(head.uri.query().unwrap_or_default()).map_err(Problem::bad)?;
    query.expect(&[]).map_err(Problem::bad)?;
    let entry = current.entry(policy)?;
    has_numbers(entry.policy())?;
    let levels = api.engine.explain(entry, &query);
    let (policy, levels) = (entry.policy(), levels.await?);
    let is_admin = authorize(current, head).is_ok();
    Ok(json(&KeyBody {
        policy: policy.name(),
        store: policy.store(),
        enabled: policy.enabled(),
        shadow: policy.shadow(),
        levels: levels
            .into_iter()
            .map(|it| LevelBody::new(api, it, is_admin))
            .collect(),
    }))
}

pub(super) async fn reset(
    api: &Api,
    current: &Current,
    policy: &str,
    head: &Parts,
) -> Result<Answer, Problem> {
    authorize(current, head)?;
    let query = Query::parse(head.uri.query().unwrap_or_default()).map_err(Problem::bad)?;
    query.expect(&["level", "all"]).map_err(Problem::bad)?;
    let (level, all) = (query.reserved("level"), query.reserved("all"));
    let which = match (&level, all.as_deref()) {
        (Some(_), Some("true")) => {
            return Err(Problem::bad("level and all: expected one of them"));
        }
        (Some(level), None | Some("false")) => Which::Level(level),
        (None, Some("true")) => Which::All,
        (None, None | Some("false")) => Which::Only,
        (_, Some(text)) => {
            let text = short(text);
            return Err(Problem::bad(format!(
                "all: {text:?}: expected true or false"
            )));
        }
    };
    let entry = current.entry(policy)?;
    let forgotten = api.engine.reset(entry, &query, which).await?;
    Ok(json(&ResetBody { forgotten }))
}

impl<'r> LevelBody<'r> {
    fn new(api: &Api, explained: Explained<'r>, is_admin: bool) -> Self {
        let numbers = explained.numbers;
        let mut overrides = explained.level.overrides();
        let matched = explained
            .overridden_by
            .and_then(|number| overrides.nth(number));
        let matched = matched.map(|(conditions, _)| {
            let conditions = conditions.iter();
            let text = |value: &[u8]| String::from_utf8_lossy(value).into_owned();
            conditions
                .map(|(name, value)| (*name, text(value)))
                .collect()
        });
        Self {
            name: explained.level.name(),
            hash: is_admin.then(|| api.engine.key_hash(&explained.key)),
            key: explained.key,
            settings: explained.limit.map(LimitBody::from),
            overridden_by: matched,
            limit: numbers.map(|it| it.limit()),
            remaining: numbers.map(|it| it.remaining()),
            rate: numbers.map(|it| it.rate()),
            retry_after_ms: numbers.and_then(|it| it.retry_after()).map(milliseconds),
            reset_after_ms: numbers.map(|it| milliseconds(it.reset_after())),
            leased_tokens: numbers.map(|it| it.on_lease().tokens),
            leases: numbers.map(|it| it.on_lease().leases),
        }
    }
}
