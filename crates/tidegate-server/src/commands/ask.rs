//! `tidegate check` and `tidegate reset`, in the config's store or on a server.

use std::process::ExitCode;

use anyhow::{Context, bail};
use http::Method;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Value, json};
use tidegate::Which;
use tidegate_config::{Secret, StoreUrl};
use tidegate_lab::client::Client;
use tidegate_lab::say;
use tidegate_redis::{ErrorKind, TryCheckError};

use crate::api::decision;
use crate::api::query::RESERVED;
use crate::cli::{Check, Question, Reset};
use crate::engine::{Call, Engine, Kind};
use crate::settings::{Listen, Settings};

pub(super) async fn check(check: &Check) -> anyhow::Result<ExitCode> {
    each_once(&check.question)?;
    let Question {
        policy, attributes, ..
    } = &check.question;
    let decision = match &check.question.server {
        Some(server) => {
            let attributes: serde_json::Map<String, Value> = attributes
                .iter()
                .map(|(name, value)| (name.clone(), Value::from(value.as_str())))
                .collect();
            let question = json!({
                "policy": policy,
                "attributes": attributes,
                "cost": check.cost.get(),
                "peek": check.peek,
            });
            let client = Client::new(server, &check.question.tls)?;
            client
                .ask(Method::POST, "/v1/check", None, question.to_string())
                .await?
        }
        None => {
            let engine = engine(&check.question)?;
            let current = engine.current();
            let call = Call {
                kind: if check.peek { Kind::Peek } else { Kind::Check },
                is_strict: true,
                ..Call::new(current.entry(policy)?, attributes, check.cost)
            };
            let decision = engine.ask_one(&call).await.map_err(unanswered)?;
            let mut json = Vec::new();
            decision::write(&mut json, &call, &decision);
            serde_json::from_slice(&json)?
        }
    };
    match check.json {
        true => say(&decision.to_string()),
        false => say(&described(&decision)),
    }
    Ok(match decision["allowed"] == true {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

pub(super) async fn reset(reset: &Reset) -> anyhow::Result<ExitCode> {
    each_once(&reset.question)?;
    let Question {
        policy, attributes, ..
    } = &reset.question;
    let which = match (&reset.level, reset.all) {
        (Some(level), _) => Which::Level(level),
        (None, true) => Which::All,
        (None, false) => Which::Only,
    };
    let forgotten = match &reset.question.server {
        Some(server) => {
            let mut names = attributes.iter().map(|(name, _)| name.as_str());
            if let Some(name) = names.find(|name| RESERVED.contains(name)) {
                bail!(
                    "the attribute {name:?} is reserved in URLs: expected --config instead of --server"
                );
            }
            let mut query: Vec<String> = attributes
                .iter()
                .map(|(name, value)| format!("{}={}", encoded(name), encoded(value)))
                .collect();
            match which {
                Which::Level(level) => query.push(format!("level={}", encoded(level))),
                Which::All => query.push("all=true".into()),
                Which::Only => {}
            }
            let path = format!("/v1/keys/{}?{}", encoded(policy), query.join("&"));
            let client = Client::new(server, &reset.question.tls)?;
            let token = reset.token.as_ref().and_then(Secret::text);
            let answer = client.ask(Method::DELETE, &path, token, String::new());
            let answer = answer.await.map_err(in_flags)?;
            answer["forgotten"].as_u64().unwrap_or(0)
        }
        None => {
            let engine = engine(&reset.question)?;
            let current = engine.current();
            let entry = current
                .entry(policy)
                .map_err(|error| unanswered(error.into()))?;
            let forgotten = engine.reset(entry, attributes, which).await;
            forgotten.map_err(unanswered).map_err(in_flags)? as u64
        }
    };
    say(&match forgotten {
        0 => "the key has no counters".into(),
        1 => "forgot 1 key".into(),
        many => format!("forgot {many} keys"),
    });
    Ok(ExitCode::SUCCESS)
}

/// The error of a reset that has to name a level, in the words of the command line.
fn in_flags(error: anyhow::Error) -> anyhow::Error {
    let text = error.to_string();
    let parts = text.split_once(" has several levels: expected one of ");
    let parts = parts.and_then(|(policy, rest)| Some((policy, rest.strip_suffix(", or all")?)));
    let Some((policy, levels)) = parts else {
        return error;
    };
    let policy = &policy[policy.find("policy ").unwrap_or(0)..];
    let flags: Vec<String> = levels
        .split(", ")
        .map(|it| format!("`--level {it}`"))
        .collect();
    anyhow::anyhow!(
        "{policy} has {} levels: add {} or `--all`",
        flags.len(),
        flags.join(", ")
    )
}

/// An attribute with two values would be ambiguous.
fn each_once(question: &Question) -> anyhow::Result<()> {
    let names = || question.attributes.iter().map(|(name, _)| name);
    match names()
        .enumerate()
        .find(|(index, name)| names().take(*index).any(|other| other == *name))
    {
        Some((_, name)) => bail!("the attribute {name:?} twice: expected it once"),
        None => Ok(()),
    }
}

/// An engine over the config's stores, if they can be reached from another process.
fn engine(question: &Question) -> anyhow::Result<Engine> {
    let mut loaded = Settings::new(&question.source, Listen::default())?.load()?;
    let config = &loaded.config;
    let policy = config.policies.iter();
    let mut policy = policy.filter(|policy| policy.name() == question.policy);
    if let Some(policy) = policy.next() {
        let store = config.stores.get(policy.store());
        if store.is_some_and(|store| store.url == StoreUrl::Memory) {
            bail!(
                "policy {:?} counts in a server's memory: ask that server with --server, such as --server http://127.0.0.1:8080",
                question.policy
            );
        }
    } else if question.source.config.is_none() {
        bail!(
            "no policy named {:?}: expected a config with --config FILE, or a server with --server URL",
            question.policy
        );
    }
    // A command listens nowhere, and needs no secrets and certificates for that.
    loaded.server = Default::default();
    Engine::new(loaded).context("the config cannot be used")
}

fn unanswered(error: TryCheckError) -> anyhow::Error {
    match error {
        TryCheckError::Check(error) => error.into(),
        TryCheckError::Store(error) if error.kind() == ErrorKind::Auth => anyhow::anyhow!(
            "the store refused the password: {error}: check its username and password in the config"
        ),
        TryCheckError::Store(error) => {
            anyhow::anyhow!("the store did not answer: {error}: is it running at the config's URL?")
        }
    }
}

fn encoded(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}

/// A decision in a sentence.
fn described(decision: &Value) -> String {
    let seconds = |field: &str| decision[field].as_f64().map(|it| it / 1_000.0);
    let denied_by = match decision["denied_by"].as_str() {
        Some(level) => format!("denied by level {level:?}"),
        // on_error = "deny" claims no quota.
        None => "denied: the store is unavailable".into(),
    };
    let mut text = match (decision["allowed"] == true, seconds("retry_after_ms")) {
        (true, _) if decision["would_deny"] == true => {
            format!("allowed (shadow mode: would be {denied_by})")
        }
        (true, _) => "allowed".into(),
        (false, Some(wait)) => format!("{denied_by}; retry in {wait} s"),
        (false, None) => format!("{denied_by}; waiting will not help"),
    };
    if let (Some(remaining), Some(limit)) =
        (decision["remaining"].as_u64(), decision["limit"].as_u64())
    {
        text.push_str(&format!("; {remaining} of {limit} left"));
        if let Some(reset) = seconds("reset_after_ms") {
            text.push_str(&format!(", quota full in {reset} s"));
        }
    }
    for level in decision["levels"].as_array().into_iter().flatten() {
        if let (Some(tokens), Some(leases)) =
            (level["leased_tokens"].as_u64(), level["leases"].as_u64())
        {
            let name = level["name"].as_str().unwrap_or_default();
            text.push_str(&format!(
                "; level {name:?}: {tokens} on lease ({leases} leases)"
            ));
        }
    }
    if let Some(source) = decision["source"].as_str().filter(|it| *it != "store") {
        text.push_str(&format!(" (answered by {source})"));
    }
    text
}
