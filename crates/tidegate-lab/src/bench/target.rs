//! The target and the policy: a config for a store, or a running server. Errors name the
//! flags.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tidegate::{Algorithm, Limit, Policy, PolicyLevel};
use tidegate_config::{Config, ConfigErrors, StoreUrl, read};

use super::Bench;
use super::server;
use crate::client::Tls;

/// The default limit.
const LIMIT: &str = "100r/s";

/// The name of the policy that the flags make.
const POLICY: &str = "bench";

/// The default bound on keys of a store in memory.
const MEMORY_KEYS: u32 = 1_000_000;

/// Whom a process asks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Target {
    /// A store, by a limiter in the process.
    Store {
        /// The config and its place.
        text: String,
        file: String,
        folder: PathBuf,
        /// Where the store `default` is, if not where the config says.
        url: Option<String>,
    },
    /// A running server.
    Server {
        url: String,
        timeout_ms: u64,
        tls: Tls,
    },
}

/// What is put to the test.
#[derive(Debug, Clone)]
pub(super) struct Subject {
    pub(super) target: Target,
    /// What it is held to. Of a server: as one node of its own.
    pub(super) policy: Policy,
    /// For each of its levels, the limit in force for the keys of the run; `None` if they
    /// are exempt. Or why that is not known.
    pub(super) limits: Result<Vec<Option<Limit>>, String>,
    pub(super) mode: String,
}

/// The value of an attribute that differs from check to check, for questions before the run.
/// Overrides apply to values that are fixed, because every other one is new.
const ANY: &str = "tidegate-bench-0";

/// The attributes of a check of the run.
pub(super) fn attributes(arguments: &Bench, policy: &Policy) -> Vec<(String, String)> {
    let mut pairs = arguments.attr.clone();
    for name in policy.attributes() {
        if pairs.iter().all(|(other, _)| other != name) {
            pairs.push((name.into(), ANY.into()));
        }
    }
    pairs
}

fn in_force(arguments: &Bench, policy: &Policy) -> anyhow::Result<Vec<Option<Limit>>> {
    let attributes = attributes(arguments, policy);
    let keys = policy.keys(&attributes)?;
    let limit = |level: &PolicyLevel| {
        let key = keys.iter().find(|key| key.level() == level)?;
        Some(*key.limit())
    };
    Ok(policy.levels().iter().map(limit).collect())
}

impl Subject {
    /// Refuses what cannot be meant: attributes that the policy has not, and a run that
    /// uses up what real clients share.
    pub(super) fn check(&self, arguments: &Bench) -> anyhow::Result<()> {
        let policy = &self.policy;
        let mut names = policy.attributes();
        names.extend(policy.optional_attributes());
        for (index, (name, _)) in arguments.attr.iter().enumerate() {
            if !names.contains(&name.as_str()) {
                let names = names.join(", ");
                bail!(
                    "--attr {name}: policy {:?} has no such attribute: expected one of {names}",
                    policy.name()
                );
            }
            if arguments.attr[..index]
                .iter()
                .any(|(other, _)| other == name)
            {
                bail!("--attr {name} twice: expected it once");
            }
        }
        let is_own = match &self.target {
            Target::Server { .. } => false,
            // A policy from flags, or in memory, has no other clients.
            Target::Store { file, .. } => file.is_empty() || self.is_in_memory()?,
        };
        let is_shared = |level: &&PolicyLevel| {
            let mut names = level.key().attributes();
            names.all(|name| arguments.attr.iter().any(|(fixed, _)| fixed == name))
        };
        let shared = policy.levels().iter().find(is_shared);
        match shared {
            Some(level) if !is_own && !arguments.yes => bail!(
                "policy {:?}, level {:?}: its counter is shared with real clients, and this run would use it up: pass --yes to allow it",
                policy.name(),
                level.name()
            ),
            _ => Ok(()),
        }
    }

    fn is_in_memory(&self) -> anyhow::Result<bool> {
        let config = self.target.config()?;
        let store = config.stores.get(self.policy.store());
        Ok(store.is_none_or(|store| store.url == StoreUrl::Memory))
    }
}

/// The flags that a config or a server has its own say on.
pub(super) fn beside(arguments: &Bench) -> Option<&'static str> {
    let flags = [
        ("--limit", arguments.limit.is_some()),
        ("--algorithm", arguments.algorithm.is_some()),
        ("--burst", arguments.burst.is_some()),
        ("--mode", arguments.mode.is_some()),
        ("--sync-interval", arguments.sync_interval.is_some()),
        ("--refusal-memory", arguments.refusal_memory.is_some()),
    ];
    let mut given = flags.into_iter().filter(|(_, given)| *given);
    given.next().map(|(flag, _)| flag)
}

/// Whom the command line means, and under which policy.
pub(super) async fn find(arguments: &Bench) -> anyhow::Result<Subject> {
    let url = arguments.url.as_deref();
    if let Some(url) = url
        && ["http:", "https:", "unix:"]
            .iter()
            .any(|scheme| url.starts_with(scheme))
    {
        return server::find(arguments, url).await;
    }
    let target = match &arguments.config {
        Some(file) => of_config(arguments, file)?,
        None => of_flags(arguments)?,
    };
    let name = match &arguments.config {
        Some(_) => arguments.policy.as_deref(),
        None => Some(POLICY),
    };
    let config = target.config()?;
    let policy = chosen(&config, name)?;
    let store = config.stores.get(policy.store());
    let in_memory = store.is_some_and(|store| store.url == StoreUrl::Memory);
    if in_memory && arguments.processes > 1 {
        bail!(
            "--processes {}: memory: belongs to one process: expected 1, or a Redis that all processes share",
            arguments.processes
        );
    }
    let mode = policy.mode().as_str();
    Ok(Subject {
        limits: Ok(in_force(arguments, &policy)?),
        target,
        policy,
        mode: mode.into(),
    })
}

impl Target {
    pub(super) fn is_server(&self) -> bool {
        matches!(self, Self::Server { .. })
    }

    /// The config of a store.
    pub(super) fn config(&self) -> anyhow::Result<Config> {
        let Self::Store {
            text, file, url, ..
        } = self
        else {
            bail!("a server has its own config");
        };
        let url = url.as_ref().map(|url| url.parse::<StoreUrl>());
        let url = url
            .transpose()
            .map_err(|wrong| anyhow!("the URL: {wrong}"))?;
        let parsed = read(text, file, |root| {
            // The server's own sections are left to the server.
            root.table("server");
            root.table("envoy");
            Config::from_root(root, url.as_ref())
        });
        parsed.map_err(|errors| match file.is_empty() {
            true => in_flags(&errors),
            false => errors.into(),
        })
    }
}

fn of_config(arguments: &Bench, file: &Path) -> anyhow::Result<Target> {
    if let Some(flag) = beside(arguments) {
        bail!(
            "{flag} with --config: expected only one of them, because the config has its own limits"
        );
    }
    if arguments.timeout.is_some() {
        bail!("--timeout with --config: expected the timeout of the store in the config");
    }
    let name = file.display().to_string();
    let text = std::fs::read_to_string(file).with_context(|| name.clone())?;
    Ok(Target::Store {
        text,
        file: name,
        folder: file.parent().map(Path::to_owned).unwrap_or_default(),
        url: arguments.url.clone(),
    })
}

/// A config of one policy: the same words as in a file, so whatever a file can say of a
/// mode, this can.
fn of_flags(arguments: &Bench) -> anyhow::Result<Target> {
    if let Some(policy) = &arguments.policy {
        bail!("--policy {policy}: expected --config with it, or the URL of a server");
    }
    let limit = limit(arguments)?;
    let spec = limit.spec();
    let spec =
        spec.ok_or_else(|| anyhow!("--limit \"block\": expected a rate, such as {LIMIT}"))?;
    let url = arguments.url.as_deref().unwrap_or("memory:");
    // A string of JSON is one of TOML.
    let mut text = format!("[stores.default]\nurl = {}\n", json!(url));
    if url == "memory:" {
        if arguments.timeout.is_some() {
            bail!("--timeout: expected a Redis store, or a server: a memory store has no timeout");
        }
        writeln!(text, "max_keys = {}", arguments.keys.max(MEMORY_KEYS))?;
    } else if let Some(timeout) = &arguments.timeout {
        writeln!(text, "timeout = {}", json!(timeout))?;
    }
    writeln!(text, "[[policies]]\nname = \"{POLICY}\"")?;
    writeln!(text, "limit = \"{}\"", spec.rate)?;
    writeln!(text, "algorithm = \"{}\"", spec.algorithm)?;
    if let Some(burst) = spec.burst {
        writeln!(text, "burst = {burst}")?;
    }
    if spec.strict {
        writeln!(text, "strict = true")?;
    }
    if limit.to_string().ends_with("align=epoch") {
        writeln!(text, "align = \"epoch\"")?;
    }
    for (field, value) in [
        ("mode", &arguments.mode),
        ("sync_interval", &arguments.sync_interval),
        ("refusal_memory", &arguments.refusal_memory),
    ] {
        if let Some(value) = value {
            writeln!(text, "{field} = {}", json!(value))?;
        }
    }
    Ok(Target::Store {
        text,
        file: String::new(),
        folder: PathBuf::new(),
        url: None,
    })
}

fn limit(arguments: &Bench) -> anyhow::Result<Limit> {
    let algorithms = Algorithm::names(|_| true);
    let mut text = arguments.limit.as_deref().unwrap_or(LIMIT).to_owned();
    if let Some(algorithm) = arguments.algorithm.as_deref() {
        match algorithm {
            "script" => bail!("--algorithm script: expected --config with the policy that has one"),
            _ if !algorithms.contains(&algorithm) => {
                bail!(
                    "--algorithm {algorithm:?}: expected {}",
                    algorithms.join(", ")
                )
            }
            _ => write!(text, " {algorithm}")?,
        }
    }
    if let Some(burst) = arguments.burst {
        write!(text, " burst={burst}")?;
    }
    Limit::parse(&text).map_err(|error| anyhow!("--limit {error}"))
}

/// Errors of the config that the flags were made into, as errors of the flags.
fn in_flags(errors: &ConfigErrors) -> anyhow::Error {
    let lines = errors.as_slice().iter().map(|error| {
        match error.field.rsplit('.').next().unwrap_or_default() {
            "url" => format!(
                "the URL: {}, or a server: \"http://host:port\"",
                error.message
            ),
            field => format!("--{}: {}", field.replace('_', "-"), error.message),
        }
    });
    anyhow!(lines.collect::<Vec<_>>().join("; "))
}

/// The policy of a name, or the only one.
fn chosen(config: &Config, name: Option<&str>) -> anyhow::Result<Policy> {
    let policies = config.policies.iter();
    let names: Vec<&str> = policies.clone().map(|policy| policy.name()).collect();
    let name = named(name, &names, "the config")?;
    let policy = policies.clone().find(|policy| policy.name() == name);
    Ok(policy.context("a policy of this name")?.clone())
}

pub(super) fn named<'n>(
    name: Option<&'n str>,
    names: &[&'n str],
    whose: &str,
) -> anyhow::Result<&'n str> {
    match (name, names) {
        (Some(name), _) if names.contains(&name) => Ok(name),
        (Some(name), _) => bail!(
            "--policy {name:?}: expected one of {whose}: {}",
            names.join(", ")
        ),
        (None, [only]) => Ok(only),
        (None, _) => bail!(
            "which policy: expected --policy with one of {whose}: {}",
            names.join(", ")
        ),
    }
}
