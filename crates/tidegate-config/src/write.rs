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
    Algorithm, Align, CustomScript, Dialect, Limit, Mode, OnError, Policy, PolicyLevel,
    ScriptSource, WhenFull,
};
use toml_writer::ToTomlValue;

use crate::config::Config;
use crate::stores::StoreConfig;
use crate::url::{Secret, StoreUrl};

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

/// Prints a field, unless it has its default value. `shown` is its value as TOML.
pub fn field<T: PartialEq>(
    f: &mut Formatter<'_>,
    name: &str,
    value: &T,
    standard: &T,
    shown: impl Display,
) -> fmt::Result {
    match value == standard && !f.alternate() {
        true => Ok(()),
        false => writeln!(f, "{name} = {shown}"),
    }
}

/// Prints a text, if there is one.
pub fn optional(f: &mut Formatter<'_>, name: &str, text: Option<&str>) -> fmt::Result {
    match text {
        Some(text) => writeln!(f, "{name} = {}", quoted(text)),
        None => Ok(()),
    }
}

/// Prints where a secret comes from. In place of a secret that is written in the file itself
/// stands a variable to set: what is printed does not work without it.
pub fn secret(f: &mut Formatter<'_>, name: &str, secret: Option<&Secret>) -> fmt::Result {
    match secret {
        Some(Secret::Env(variable)) => {
            writeln!(f, "{name} = {}", quoted(&format!("env:{variable}")))
        }
        Some(Secret::File(path)) => writeln!(f, "{name} = {}", quoted(&format!("file:{path}"))),
        Some(Secret::Text(_)) => writeln!(f, "{name} = \"env:SET_ME\""),
        None => Ok(()),
    }
}

/// A text as TOML: in quotes, escaped.
#[must_use]
pub fn quoted(text: &str) -> String {
    text.to_toml_value()
}

/// A list of texts as TOML.
pub fn list<'t>(texts: impl IntoIterator<Item = &'t str>) -> String {
    let texts: Vec<String> = texts.into_iter().map(quoted).collect();
    format!("[{}]", texts.join(", "))
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
    let StoreConfig {
        url,
        prefix,
        timeout,
        connections: lanes,
        replica_acks: acks,
        max_keys,
        when_full,
        ..
    } = store;
    writeln!(f, "[stores.{name}]")?;
    writeln!(f, "url = {}", quoted(&url.to_string()))?;
    if *url == StoreUrl::Memory {
        let when = match when_full {
            WhenFull::Evict => "\"evict\"",
            WhenFull::Deny => "\"deny\"",
        };
        field(f, "max_keys", max_keys, &standard.max_keys, max_keys)?;
        field(f, "when_full", when_full, &standard.when_full, when)?;
    } else {
        let after = duration(*timeout);
        optional(f, "username", store.username.as_deref())?;
        secret(f, "password", store.password.as_ref())?;
        optional(f, "tls_ca", store.tls_ca.as_deref())?;
        optional(f, "tls_cert", store.tls_cert.as_deref())?;
        optional(f, "tls_key", store.tls_key.as_deref())?;
        field(f, "prefix", prefix, &standard.prefix, quoted(prefix))?;
        field(f, "timeout", timeout, &standard.timeout, after)?;
        field(f, "connections", lanes, &standard.connections, lanes)?;
        field(f, "replica_acks", acks, &standard.replica_acks, acks)?;
    }
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
    print_settings(f, policy.settings(), script.is_some())?;
    let headers = match policy.headers() {
        Dialect::Ietf => "\"ietf\"".into(),
        Dialect::XRateLimit => "\"x-ratelimit\"".into(),
        Dialect::Draft06 => "\"draft-06\"".into(),
        Dialect::None => "\"none\"".into(),
        Dialect::Custom(names) => list(names.iter().map(|name| &**name)),
    };
    field(f, "headers", policy.headers(), &Dialect::default(), headers)?;
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

fn print_settings(f: &mut Formatter<'_>, settings: &Settings, script: bool) -> fmt::Result {
    let standard = Settings::default();
    let mode = match settings.mode {
        Mode::Exact => "\"exact\"",
        Mode::Lease => "\"lease\"",
        Mode::Background => "\"background\"",
    };
    let on_error = settings.on_error.unwrap_or(OnError::standard(script));
    let answer = match on_error {
        OnError::Allow => "\"allow\"",
        OnError::Deny => "\"deny\"",
        OnError::Local => "\"local\"",
    };
    let Settings {
        sync_interval: sync,
        refusal_memory: memory,
        local_share: share,
        count_denied: count,
        shadow,
        enabled,
        ref trial_of,
        ref store,
        ..
    } = *settings;
    field(f, "mode", &settings.mode, &standard.mode, mode)?;
    match settings.mode {
        Mode::Background => {
            let shown = duration(sync);
            field(f, "sync_interval", &sync, &standard.sync_interval, shown)?;
        }
        Mode::Exact => {
            let shown = duration(memory);
            field(
                f,
                "refusal_memory",
                &memory,
                &standard.refusal_memory,
                shown,
            )?;
        }
        Mode::Lease => {}
    }
    field(f, "on_error", &on_error, &OnError::standard(script), answer)?;
    if on_error == OnError::Local {
        let shown = format!("{share:?}");
        field(f, "local_share", &share, &standard.local_share, shown)?;
    }
    field(f, "count_denied", &count, &standard.count_denied, count)?;
    field(f, "shadow", &shadow, &standard.shadow, shadow)?;
    optional(f, "trial_of", trial_of.as_deref())?;
    field(f, "enabled", &enabled, &standard.enabled, enabled)?;
    field(f, "store", store, &standard.store, quoted(store))
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
    writeln!(f, "limit = \"{}\"", spec.rate)?;
    if all || spec.algorithm != Algorithm::default() {
        writeln!(f, "algorithm = \"{}\"", spec.algorithm)?;
    }
    if let Some(burst) = fields.burst.filter(|_| all).or(spec.burst) {
        writeln!(f, "burst = {burst}")?;
    }
    if let Some(strict) = fields.strict.filter(|strict| all || *strict) {
        writeln!(f, "strict = {strict}")?;
    }
    let aligned = spec.algorithm == Algorithm::FixedWindow && all || spec.align != Align::default();
    match spec.align {
        Align::First if aligned => writeln!(f, "align = \"first\""),
        Align::Epoch if aligned => writeln!(f, "align = \"epoch\""),
        _ => Ok(()),
    }
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
