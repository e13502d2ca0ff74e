//! Reads a policy from a running server.

use std::fmt::Write;

use anyhow::{Context, anyhow, bail};
use http::Method;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;
use tidegate::{Limit, Policy, PolicyLevel};

use super::Bench;
use super::target::{self, Subject, Target};
use crate::client::Client;

/// The default deadline of a request.
const TIMEOUT_MS: u64 = 5_000;

/// The policy that the command line means, of the server at a URL.
pub(super) async fn find(arguments: &Bench, url: &str) -> anyhow::Result<Subject> {
    if let Some(flag) = target::beside(arguments) {
        bail!(
            "{flag} with the URL of a server: expected --policy NAME, because the server has its own limits"
        );
    }
    if arguments.config.is_some() {
        bail!(
            "--config with the URL of a server: expected --policy NAME, because the server has its own config"
        );
    }
    let timeout_ms = match &arguments.timeout {
        Some(text) => timeout_ms(text)
            .ok_or_else(|| anyhow!("--timeout {text:?}: expected 1ms to 60s, such as 500ms"))?,
        None => TIMEOUT_MS,
    };
    let client = Client::new(url, &arguments.tls)?;
    let answer = client.ask(Method::GET, "/v1/policies", None, String::new());
    let answer = answer.await?;
    let policies = answer.as_array().map(Vec::as_slice).unwrap_or_default();
    let names: Vec<&str> = policies
        .iter()
        .filter_map(|it| it["name"].as_str())
        .collect();
    let name = target::named(arguments.policy.as_deref(), &names, "the server")?;
    let mut found = policies.iter().filter(|it| it["name"] == name);
    let policy = found.next().context("a policy of this name")?;
    let target = Target::Server {
        url: url.to_owned(),
        timeout_ms,
        tls: arguments.tls.clone(),
    };
    let mode = policy["mode"].as_str().unwrap_or("exact").into();
    let has_overrides = policy["levels"].as_array().is_some_and(|levels| {
        let mut levels = levels.iter();
        levels.any(|level| level["overrides"].as_u64() > Some(0))
    });
    let policy = listed(name, policy)?;
    let limits = match has_overrides && !arguments.attr.is_empty() {
        true => in_force(&client, arguments, &policy).await,
        false => {
            let levels = policy.levels().iter();
            Ok(levels.map(|level| Some(*level.limit())).collect())
        }
    };
    Ok(Subject {
        target,
        mode,
        limits: limits.map_err(|error| {
            format!("an override may apply to this key, and its limit is unknown: {error:#}")
        }),
        policy,
    })
}

/// The limits that the server applies to the keys of the run, by what it explains of one.
async fn in_force(
    client: &Client,
    arguments: &Bench,
    policy: &Policy,
) -> anyhow::Result<Vec<Option<Limit>>> {
    let encoded = |text: &str| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
    let pairs = target::attributes(arguments, policy).into_iter();
    let pairs = pairs.map(|(name, value)| format!("{}={}", encoded(&name), encoded(&value)));
    let query = pairs.collect::<Vec<_>>().join("&");
    let path = format!("/v1/keys/{}?{query}", encoded(policy.name()));
    let answer = client.ask(Method::GET, &path, None, String::new()).await?;
    let settings = |level: &PolicyLevel| {
        let mut levels = answer["levels"].as_array().into_iter().flatten();
        let found = levels.find(|it| it["name"] == level.name());
        let found = found.with_context(|| format!("no level {:?}", level.name()))?;
        match &found["settings"] {
            Value::Null => Ok(None),
            settings => limit(settings).map(Some),
        }
    };
    policy.levels().iter().map(settings).collect()
}

/// A limit as a server shows it.
fn limit(shown: &Value) -> anyhow::Result<Limit> {
    let Some(rate) = shown["limit"].as_str() else {
        return Ok(Limit::block());
    };
    let algorithm = shown["algorithm"].as_str().unwrap_or_default();
    let mut text = format!("{rate} {algorithm}");
    if let Some(burst) = shown["burst"].as_u64() {
        write!(text, " burst={burst}")?;
    }
    Ok(Limit::parse(&text)?)
}

fn timeout_ms(text: &str) -> Option<u64> {
    let (digits, unit) = match text.strip_suffix("ms") {
        Some(digits) => (digits, 1),
        None => (text.strip_suffix('s')?, 1_000),
    };
    let number: u64 = digits.parse().ok()?;
    let timeout = number.checked_mul(unit)?;
    (1..=60_000).contains(&timeout).then_some(timeout)
}

/// A policy as a server lists it.
fn listed(name: &str, policy: &Value) -> anyhow::Result<Policy> {
    if policy["script"] == true {
        bail!("policy {name:?} has a script, so there is no bound to check");
    }
    let mut builder = Policy::builder(name)
        .enabled(policy["enabled"] != false)
        .shadow(policy["shadow"] == true);
    let levels = policy["levels"].as_array();
    for level in levels.map(Vec::as_slice).unwrap_or_default() {
        let text = |field: &str| level[field].as_str().unwrap_or_default().to_owned();
        builder = builder.level(text("name"), text("key"), limit(&level["limit"])?);
    }
    Ok(builder.build()?)
}
