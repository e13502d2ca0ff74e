//! A config as text that can be read back.

use std::fmt::{self, Display, Formatter};

use toml_writer::ToTomlValue;

use super::{Config, Secret, Server, Store};
use crate::duration::Text;
use crate::headers::Dialect;
use crate::limit::{Algorithm, Align, Limit};
use crate::memory::WhenFull;
use crate::policy::{
    CustomScript, LimitFields, Mode, OnError, Policy, PolicyLevel, ScriptSource, Settings,
};

impl Display for Config {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        print_server(f, &self.server)?;
        for (name, store) in &self.stores {
            print_store(f, name, store)?;
        }
        self.policies
            .iter()
            .try_for_each(|policy| print_policy(f, policy))
    }
}

/// A line of a table, unless it says what holds anyway.
fn line<T: PartialEq>(
    f: &mut Formatter<'_>,
    name: &str,
    value: &T,
    standard: &T,
    shown: impl Display,
) -> fmt::Result {
    match value == standard {
        true => Ok(()),
        false => writeln!(f, "{name} = {shown}"),
    }
}

/// A text in quotes.
fn quoted(text: &str) -> String {
    text.to_toml_value()
}

fn list<'t>(texts: impl IntoIterator<Item = &'t str>) -> String {
    let texts: Vec<String> = texts.into_iter().map(quoted).collect();
    format!("[{}]", texts.join(", "))
}

fn print_server(f: &mut Formatter<'_>, server: &Server) -> fmt::Result {
    let standard = Server::default();
    if *server == standard {
        return Ok(());
    }
    writeln!(f, "[server]")?;
    let http: Vec<String> = server.http.iter().map(ToString::to_string).collect();
    let http = list(http.iter().map(String::as_str));
    line(f, "http", &server.http, &standard.http, http)?;
    match &server.admin_token {
        Some(Secret::Env(name)) => writeln!(f, "admin_token = {}", quoted(&format!("env:{name}")))?,
        Some(Secret::Text(_)) => writeln!(f, "# admin_token is set, and not shown")?,
        None => {}
    }
    let gate_headers = list(server.gate_headers.iter().map(String::as_str));
    line(
        f,
        "gate_headers",
        &server.gate_headers,
        &standard.gate_headers,
        gate_headers,
    )?;
    print_files(
        f,
        [("tls_cert", &server.tls_cert), ("tls_key", &server.tls_key)],
    )?;
    line(
        f,
        "log_keys",
        &server.log_keys,
        &standard.log_keys,
        server.log_keys,
    )?;
    writeln!(f)
}

fn print_files<const COUNT: usize>(
    f: &mut Formatter<'_>,
    files: [(&str, &Option<String>); COUNT],
) -> fmt::Result {
    for (name, file) in files {
        if let Some(file) = file {
            writeln!(f, "{name} = {}", quoted(file))?;
        }
    }
    Ok(())
}

fn print_store(f: &mut Formatter<'_>, name: &str, store: &Store) -> fmt::Result {
    let standard = Store::default();
    if name == "default" && *store == standard {
        return Ok(());
    }
    writeln!(f, "[stores.{name}]")?;
    writeln!(f, "url = {}", quoted(&store.url.to_string()))?;
    let files = [
        ("tls_ca", &store.tls_ca),
        ("tls_cert", &store.tls_cert),
        ("tls_key", &store.tls_key),
    ];
    print_files(f, files)?;
    line(
        f,
        "prefix",
        &store.prefix,
        &standard.prefix,
        quoted(&store.prefix),
    )?;
    line(
        f,
        "timeout",
        &store.timeout,
        &standard.timeout,
        duration(store.timeout),
    )?;
    line(
        f,
        "connections",
        &store.connections,
        &standard.connections,
        store.connections,
    )?;
    line(
        f,
        "replica_acks",
        &store.replica_acks,
        &standard.replica_acks,
        store.replica_acks,
    )?;
    line(
        f,
        "max_keys",
        &store.max_keys,
        &standard.max_keys,
        store.max_keys,
    )?;
    let when_full = match store.when_full {
        WhenFull::Evict => "\"evict\"",
        WhenFull::Deny => "\"deny\"",
    };
    line(
        f,
        "when_full",
        &store.when_full,
        &standard.when_full,
        when_full,
    )?;
    writeln!(f)
}

fn duration(duration: std::time::Duration) -> String {
    format!("\"{}\"", Text(duration))
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
    print_settings(f, policy.settings())?;
    let headers = match policy.headers() {
        Dialect::Ietf => "\"ietf\"".into(),
        Dialect::XRateLimit => "\"x-ratelimit\"".into(),
        Dialect::Draft06 => "\"draft-06\"".into(),
        Dialect::None => "\"none\"".into(),
        Dialect::Custom(names) => list(names.iter().map(|name| &**name)),
    };
    line(f, "headers", policy.headers(), &Dialect::default(), headers)?;
    if only.is_none() {
        for level in policy.levels() {
            writeln!(f, "[[policies.levels]]")?;
            writeln!(f, "name = {}", quoted(level.name()))?;
            print_level(f, level, script.is_some())?;
        }
    }
    for level in policy.levels() {
        print_overrides(f, level, only.is_none())?;
    }
    writeln!(f)
}

fn print_settings(f: &mut Formatter<'_>, settings: &Settings) -> fmt::Result {
    let standard = Settings::default();
    let mode = match settings.mode {
        Mode::Exact => "\"exact\"",
        Mode::Lease => "\"lease\"",
        Mode::Background => "\"background\"",
    };
    let on_error = match settings.on_error {
        OnError::Allow => "\"allow\"",
        OnError::Deny => "\"deny\"",
        OnError::Local => "\"local\"",
    };
    let Settings {
        sync_interval,
        refusal_memory,
        local_share,
        count_denied,
        shadow,
        enabled,
        ..
    } = *settings;
    line(f, "mode", &settings.mode, &standard.mode, mode)?;
    line(
        f,
        "sync_interval",
        &sync_interval,
        &standard.sync_interval,
        duration(sync_interval),
    )?;
    line(
        f,
        "refusal_memory",
        &refusal_memory,
        &standard.refusal_memory,
        duration(refusal_memory),
    )?;
    line(
        f,
        "on_error",
        &settings.on_error,
        &standard.on_error,
        on_error,
    )?;
    line(
        f,
        "local_share",
        &local_share,
        &standard.local_share,
        format!("{local_share:?}"),
    )?;
    line(
        f,
        "count_denied",
        &count_denied,
        &standard.count_denied,
        count_denied,
    )?;
    line(f, "shadow", &shadow, &standard.shadow, shadow)?;
    line(f, "enabled", &enabled, &standard.enabled, enabled)?;
    line(
        f,
        "store",
        &settings.store,
        &standard.store,
        quoted(&settings.store),
    )
}

fn print_level(f: &mut Formatter<'_>, level: &PolicyLevel, script: bool) -> fmt::Result {
    writeln!(f, "key = {}", quoted(level.key().as_str()))?;
    match script {
        true => Ok(()),
        false => print_limit(f, level.limit(), false),
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

fn print_overrides(f: &mut Formatter<'_>, level: &PolicyLevel, named: bool) -> fmt::Result {
    for (conditions, limit) in level.overrides() {
        writeln!(f, "[[policies.overrides]]")?;
        let conditions: Vec<String> = conditions
            .iter()
            .map(|(name, value)| format!("{name} = {}", quoted(&String::from_utf8_lossy(value))))
            .collect();
        writeln!(f, "match = {{ {} }}", conditions.join(", "))?;
        if named {
            writeln!(f, "level = {}", quoted(level.name()))?;
        }
        match limit {
            Some(limit) => print_limit(f, limit, true)?,
            None => writeln!(f, "enabled = false")?,
        }
    }
    Ok(())
}
