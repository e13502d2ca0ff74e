//! Prints a config as text that parses back to the same config.
//!
//! Defaults are left out, unless the formatter asks for everything (`{:#}`). Programs use
//! the same functions to print their own sections.

use std::collections::VecDeque;
use std::fmt::{self, Display, Formatter};
use std::time::Duration;

use tidegate::draft::{LevelDraft, LimitFields};
use tidegate::text::DurationText;
use tidegate::{Algorithm, Align, OnError, Override, Policy, PolicyBuilder, PolicyLevel};
use toml_writer::ToTomlValue;

use crate::config::Config;
use crate::policies::unmatched;
use crate::schema::Table;
use crate::stores::StoreConfig;
use crate::url::StoreUrl;

impl Display for Config {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if self.policies.is_empty() {
            // Before any table: it is a field of the file.
            writeln!(f, "policies = []\n")?;
        }
        for (name, store) in &self.stores {
            print_store(f, name, store)?;
        }
        self.policies
            .iter()
            .try_for_each(|policy| print_policy(f, policy))
    }
}

/// A text as TOML: in quotes, escaped.
#[must_use]
pub fn quoted(text: &str) -> String {
    text.to_toml_value()
}

/// A list of texts as TOML.
pub fn list<T: Display>(texts: impl IntoIterator<Item = T>) -> String {
    let texts = texts.into_iter().map(|text| quoted(&text.to_string()));
    let texts: Vec<String> = texts.collect();
    format!("[{}]", texts.join(", "))
}

/// The conditions of an override for a message, such as `ip = "10.1.2.3"`.
#[must_use]
pub fn conditions_text(conditions: &[(&str, &[u8])]) -> String {
    let conditions = conditions.iter();
    let conditions =
        conditions.map(|(name, value)| format!("{name} = {:?}", String::from_utf8_lossy(value)));
    conditions.collect::<Vec<_>>().join(", ")
}

/// A duration as TOML.
#[must_use]
pub fn duration(duration: Duration) -> String {
    format!("\"{}\"", DurationText(duration))
}

fn print_store(f: &mut Formatter<'_>, name: &str, store: &StoreConfig) -> fmt::Result {
    let standard = StoreConfig::default();
    if name == "default" && *store == standard && !f.alternate() {
        return Ok(());
    }
    writeln!(f, "[stores.{name}]")?;
    // Other than any URL, so that each is printed.
    let url = StoreUrl::Env(String::new());
    store.print(f, &StoreConfig { url, ..standard })?;
    writeln!(f)
}

fn print_policy(f: &mut Formatter<'_>, policy: &Policy) -> fmt::Result {
    let is_script = policy.script().is_some();
    let level = |level: &PolicyLevel| {
        let mut limit = LimitFields::from(*level.limit());
        if !f.alternate() {
            limit.burst = level.limit().spec().and_then(|spec| spec.burst);
        }
        LevelDraft {
            name: level.name().into(),
            key: Some(level.key().as_str().into()),
            limit: if is_script {
                LimitFields::default()
            } else {
                limit
            },
        }
    };
    let (only, levels) = match policy.levels() {
        [only] if only.name() == policy.name() => (level(only), Vec::new()),
        levels => (LevelDraft::default(), levels.iter().map(level).collect()),
    };
    let draft = PolicyBuilder {
        name: policy.name().into(),
        script: policy.script().cloned(),
        only,
        tag: policy.tag_text().map(String::from),
        headers: policy.headers().clone(),
        settings: policy.settings().clone(),
        ..PolicyBuilder::default()
    };
    let mut standard = PolicyBuilder::default();
    standard.settings.on_error = Some(OnError::standard(is_script));
    standard.only.limit = LimitFields {
        algorithm: Some(Algorithm::default()),
        strict: Some(false),
        align: Some(Align::default()),
        ..LimitFields::default()
    };
    writeln!(f, "[[policies]]")?;
    draft.print(f, &standard)?;
    for level in levels {
        writeln!(f, "[[policies.levels]]")?;
        level.print(f, &standard.only)?;
    }
    for change in overrides(policy.levels()) {
        writeln!(f, "[[policies.overrides]]")?;
        change.print(f, &unmatched())?;
    }
    writeln!(f)
}

/// The overrides of all levels, each with all fields of its limit, or it would inherit some.
/// They are listed per level, because an override may inherit other numbers from each. An
/// exemption that all levels have is listed once, where each level keeps its order.
fn overrides(levels: &[PolicyLevel]) -> Vec<Override> {
    let drafts = |level: &PolicyLevel| -> VecDeque<Override> {
        let text =
            |(name, value): (&str, &[u8])| (name.into(), String::from_utf8_lossy(value).into());
        let drafts = level.overrides().map(|(conditions, limit)| Override {
            matches: conditions.into_iter().map(text).collect(),
            level: (levels.len() > 1).then(|| level.name().into()),
            limit: limit
                .map(|limit| LimitFields::from(*limit))
                .unwrap_or_default(),
            enabled: limit.is_some(),
        });
        drafts.collect()
    };
    let mut rest: Vec<VecDeque<Override>> = levels.iter().map(drafts).collect();
    let mut all = Vec::new();
    let first = levels.first().map(drafts).unwrap_or_default();
    for exemption in first.into_iter().filter(|it| !it.enabled) {
        let same = |it: &Override| !it.enabled && it.matches == exemption.matches;
        let places = rest.iter().map(|own| own.iter().position(same));
        let Some(places) = places.collect::<Option<Vec<usize>>>() else {
            continue;
        };
        for (own, place) in rest.iter_mut().zip(places) {
            all.extend(own.drain(..=place).take(place));
        }
        all.push(Override {
            level: None,
            ..exemption
        });
    }
    all.extend(rest.into_iter().flatten());
    all
}
