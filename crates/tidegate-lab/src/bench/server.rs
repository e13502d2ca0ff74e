//! Reads a policy from a running server.

use std::fmt::Write;

use anyhow::{Context, anyhow, bail};
use http::Method;
use serde_json::Value;
use tidegate::{Limit, Policy};

use super::Bench;
use super::target::{self, Subject, Target};
use crate::client::Client;

/// The default deadline of a request.
const TIMEOUT_MS: u64 = 5_000;

/// The policy that the command line means, of the server at a URL.
pub(super) async fn find(arguments: &Bench, url: &str) -> anyhow::Result<Subject> {
    if let Some(flag) = target::beside(arguments) {
        bail!(
            "{flag} with the URL of a server: expected --policy NAME, the server has its own limits"
        );
    }
    if arguments.config.is_some() {
        bail!(
            "--config with the URL of a server: expected --policy NAME, the server has its own config"
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
    Ok(Subject {
        target,
        mode: policy["mode"].as_str().unwrap_or("exact").into(),
        policy: listed(name, policy)?,
    })
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
        bail!("policy {name:?} is decided by a script, which promises nothing to judge");
    }
    let mut builder = Policy::builder(name)
        .enabled(policy["enabled"] != false)
        .shadow(policy["shadow"] == true);
    let levels = policy["levels"].as_array();
    for level in levels.map(Vec::as_slice).unwrap_or_default() {
        let limit = &level["limit"];
        let limit = match (limit["limit"].as_str(), limit["algorithm"].as_str()) {
            (None, _) => Limit::block(),
            (Some(rate), algorithm) => {
                let mut text = format!("{rate} {}", algorithm.unwrap_or_default());
                if let Some(burst) = limit["burst"].as_u64() {
                    write!(text, " burst={burst}")?;
                }
                Limit::parse(&text)?
            }
        };
        let text = |field: &str| level[field].as_str().unwrap_or_default().to_owned();
        builder = builder.level(text("name"), text("key"), limit);
    }
    Ok(builder.build()?)
}
