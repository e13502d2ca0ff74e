//! Prints a config as text that parses back to the same config.
//!
//! Defaults are left out, unless the formatter asks for everything (`{:#}`). Programs use
//! the same functions to print their own sections.

use std::collections::VecDeque;
use std::fmt::{self, Display, Formatter};
use std::time::Duration;

use tidegate::draft::{LimitFields, Settings};
use tidegate::text::DurationText;
use tidegate::{
    Algorithm, Align, CustomScript, Dialect, Limit, OnError, Policy, PolicyLevel, ScriptSource,
};
use toml_writer::ToTomlValue;

use crate::config::Config;
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
    writeln!(f, "[[policies]]")?;
    writeln!(f, "name = {}", quoted(policy.name()))?;
    let only = match policy.levels() {
        [level] if level.name() == policy.name() => Some(level),
        _ => None,
    };
    let script = policy.script();
    if let Some(script) = script {
        print_script(f, script)?;
    }
    if let Some(level) = only {
        print_level(f, level, script.is_some())?;
    }
    if let Some(tag) = policy.tag_text() {
        writeln!(f, "tag = {}", quoted(tag))?;
    }
    let standard = Settings {
        on_error: Some(OnError::standard(script.is_some())),
        ..Settings::default()
    };
    policy.settings().print(f, &standard)?;
    if f.alternate() || *policy.headers() != Dialect::default() {
        let headers = match policy.headers() {
            Dialect::Custom(names) => list(names),
            dialect => quoted(dialect.as_str()),
        };
        writeln!(f, "headers = {headers}")?;
    }
    if only.is_none() {
        for level in policy.levels() {
            writeln!(f, "[[policies.levels]]")?;
            writeln!(f, "name = {}", quoted(level.name()))?;
            print_level(f, level, script.is_some())?;
        }
    }
    print_overrides(f, policy.levels())?;
    writeln!(f)
}

fn print_level(f: &mut Formatter<'_>, level: &PolicyLevel, script: bool) -> fmt::Result {
    writeln!(f, "key = {}", quoted(level.key().as_str()))?;
    match script {
        true => Ok(()),
        false => print_limit(f, level.limit(), f.alternate()),
    }
}

fn print_script(f: &mut Formatter<'_>, script: &CustomScript) -> fmt::Result {
    writeln!(f, "algorithm = \"script\"")?;
    match script.source() {
        ScriptSource::File(path) => writeln!(f, "script = {}", quoted(path))?,
        ScriptSource::Text(_) => writeln!(f, "# its script is in the program, and not shown")?,
    }
    writeln!(f, "args = {}", list(script.arguments()))
}

/// A limit's fields: those of an override all of them, or it would inherit some.
fn print_limit(f: &mut Formatter<'_>, limit: &Limit, all: bool) -> fmt::Result {
    let Some(spec) = limit.spec() else {
        return writeln!(f, "block = true");
    };
    let fields = LimitFields::from(*limit);
    let is_aligned = all && spec.algorithm.profile().has_align;
    let fields = LimitFields {
        algorithm: fields
            .algorithm
            .filter(|it| all || *it != Algorithm::default()),
        burst: fields.burst.filter(|_| all).or(spec.burst),
        strict: fields.strict.filter(|strict| all || *strict),
        align: fields
            .align
            .filter(|align| is_aligned || *align != Align::default()),
        block: None,
        ..fields
    };
    fields.print(f, &LimitFields::default())
}

/// An override of a level: its conditions, and its limit.
type Override<'p> = (Vec<(&'p str, &'p [u8])>, Option<&'p Limit>);

/// Per level, because an override may inherit other numbers from each. An exemption that all
/// levels have is printed once, where each level keeps its order.
fn print_overrides(f: &mut Formatter<'_>, levels: &[PolicyLevel]) -> fmt::Result {
    let [first, others @ ..] = levels else {
        return Ok(());
    };
    let mut rest: Vec<(&PolicyLevel, VecDeque<Override<'_>>)> = levels
        .iter()
        .map(|level| (level, level.overrides().collect()))
        .collect();
    let exempt = first.overrides().filter(|(_, limit)| limit.is_none());
    for exemption in exempt.filter(|_| !others.is_empty()) {
        let place = |all: &VecDeque<Override<'_>>| all.iter().position(|it| *it == exemption);
        let places = rest.iter().map(|(_, all)| place(all));
        let Some(places) = places.collect::<Option<Vec<usize>>>() else {
            continue;
        };
        for ((level, all), place) in rest.iter_mut().zip(places) {
            for before in all.drain(..=place).take(place) {
                print_override(f, &before, Some(level))?;
            }
        }
        print_override(f, &exemption, None)?;
    }
    for (level, all) in &rest {
        let level = (!others.is_empty()).then_some(*level);
        all.iter().try_for_each(|it| print_override(f, it, level))?;
    }
    Ok(())
}

fn print_override(
    f: &mut Formatter<'_>,
    (conditions, limit): &Override<'_>,
    level: Option<&PolicyLevel>,
) -> fmt::Result {
    writeln!(f, "[[policies.overrides]]")?;
    let conditions: Vec<String> = conditions
        .iter()
        .map(|(name, value)| format!("{name} = {}", quoted(&String::from_utf8_lossy(value))))
        .collect();
    writeln!(f, "match = {{ {} }}", conditions.join(", "))?;
    if let Some(level) = level {
        writeln!(f, "level = {}", quoted(level.name()))?;
    }
    match limit {
        Some(limit) => print_limit(f, limit, true),
        None => writeln!(f, "enabled = false"),
    }
}
