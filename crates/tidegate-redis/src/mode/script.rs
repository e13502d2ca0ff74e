//! User-defined scripts: run unchanged, with their replies validated.

use std::path::Path;
use std::sync::Arc;

use redis::Value;
use tidegate::{
    CustomScript, KeyHasher, Policy, PolicyDecision, ScriptAnswer, ScriptSource, Source,
};

use super::Query;
use crate::batch::Command;
use crate::config::read_text;
use crate::error::{ErrorKind, StoreError};
use crate::script;
use crate::store::RedisStore;

/// The longest text of a script, and the longest value of a header.
const MAX_TEXT: usize = 1 << 20;
const MAX_VALUE: usize = 1024;

/// A script that was read, and what it is called with.
#[derive(Debug)]
pub(crate) struct Script {
    store: RedisStore,
    pub(super) hasher: KeyHasher,
    script: Arc<script::Script>,
    /// As the policy has them: the cost is not filled in.
    arguments: Vec<Vec<u8>>,
}

impl Script {
    /// Reads a script; a relative path is relative to the folder.
    pub(super) fn read(
        custom: &CustomScript,
        store: &RedisStore,
        folder: &Path,
    ) -> Result<Self, String> {
        let text = match custom.source() {
            ScriptSource::Text(text) => text.to_string(),
            ScriptSource::File(path) => {
                let file = folder.join(&**path);
                let shown = file.display();
                read_text(&file, 1).map_err(|error| format!("{shown}: {error}"))?
            }
        };
        if text.trim().is_empty() || text.len() > MAX_TEXT {
            let length = text.len();
            return Err(format!(
                "{length} bytes: expected a script of 1 to {MAX_TEXT}"
            ));
        }
        Ok(Self {
            store: store.clone(),
            hasher: KeyHasher::new(),
            script: Arc::new(script::Script::custom(text)),
            arguments: custom.arguments().map(|it| it.as_bytes().into()).collect(),
        })
    }

    /// Lets the store compile it.
    pub(crate) async fn verify(&self) -> Result<(), StoreError> {
        let command = Command::words(&["SCRIPT", "LOAD", self.script.text()]);
        self.store.run(command).await.map(drop)
    }

    /// Runs it, and reads its verdict.
    pub(super) async fn ask<'p>(
        &self,
        query: &Query<'p, '_>,
    ) -> Result<PolicyDecision<'p>, StoreError> {
        if query.is_look() {
            let detail = "a user-defined script has no numbers to show";
            return Err(StoreError::new(ErrorKind::Script, detail));
        }
        let (store, policy) = (&self.store, query.policy);
        let mut arguments = self.arguments.clone();
        for argument in &mut arguments {
            if argument == CustomScript::COST.as_bytes() {
                *argument = query.cost.get().to_string().into_bytes();
            }
        }
        let stored = query.keys.iter().map(|key| key.stored(&store.0.prefix));
        let script = Arc::clone(&self.script);
        let value = store.script(script, stored.collect(), arguments).await?;
        let (allowed, answer) = read(&value, policy).map_err(|wrong| {
            let detail = format!("policy {:?}: {wrong}", policy.name());
            StoreError::new(ErrorKind::Script, detail)
        })?;
        let decision = match allowed {
            true => query.allowed(Source::Store),
            false => query.refused(query.keys.iter()),
        };
        Ok(decision.with_answer(answer))
    }
}

/// The verdict of a script, and what came with it.
fn read(value: &Value, policy: &Policy) -> Result<(bool, ScriptAnswer), String> {
    let expected =
        "expected a list: \"allow\", \"deny\" or \"block\", then a list of header values";
    let Value::Array(parts) = value else {
        return Err(format!("its script did not return a list: {expected}"));
    };
    let (verdict, rest) = parts
        .split_first()
        .ok_or("its script returned an empty list")?;
    let allowed = match text(verdict).as_deref() {
        Some("allow") => true,
        Some("deny" | "block") => false,
        _ => return Err(format!("its script returned no valid verdict: {expected}")),
    };
    let mut answer = ScriptAnswer::default();
    let Some((values, rest)) = rest.split_first() else {
        return Ok((allowed, answer));
    };
    let Value::Array(values) = values else {
        return Err(format!(
            "the header values of its script are not a list: {expected}"
        ));
    };
    let names = policy.headers().names();
    for (index, value) in values.iter().enumerate() {
        let (name, value) = match value {
            Value::Array(pair) => match &pair[..] {
                [name, value] => (text(name), text(value)),
                _ => (None, None),
            },
            // Where the policy has no names for them, only pairs are sent.
            _ if names.is_none() => continue,
            value => {
                let name = names.and_then(|names| names.get(index).copied());
                (name.map(str::to_owned), text(value))
            }
        };
        let header = name
            .zip(value)
            .filter(|(name, value)| is_header(name, value));
        let header = header.ok_or_else(|| {
            let number = index + 1;
            format!(
                "header value {number} of its script: expected a string, or a name and a string"
            )
        })?;
        answer.headers.push(header);
    }
    answer.rest = rest.iter().map(shown).collect();
    Ok((allowed, answer))
}

fn text(value: &Value) -> Option<String> {
    match value {
        Value::BulkString(bytes) => String::from_utf8(bytes.clone()).ok(),
        Value::Okay => Some("OK".into()),
        Value::SimpleString(text) => Some(text.clone()),
        Value::Int(number) => Some(number.to_string()),
        _ => None,
    }
}

/// A value that is passed on as it is.
fn shown(value: &Value) -> String {
    match value {
        Value::Array(values) => {
            let values: Vec<String> = values.iter().map(shown).collect();
            format!("[{}]", values.join(","))
        }
        value => text(value).unwrap_or_default(),
    }
}

/// Whether it can be sent as a header, and is one line.
fn is_header(name: &str, value: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    let is_visible = |byte: u8| byte.is_ascii_graphic() || byte == b' ';
    (1..=128).contains(&name.len())
        && name.bytes().all(is_part)
        && value.len() <= MAX_VALUE
        && value.bytes().all(is_visible)
}
