//! The command line: commands, flags and their environment variables.

use std::convert::Infallible;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::builder::Resettable;
use clap::{Arg, Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use clap_complete::Shell;
use tidegate::Cost;
use tidegate::text::duration;
use tidegate_config::{Secret, StoreUrl};

use crate::section::Address;
use crate::settings::Listen;

pub use crate::log::{Format, Level};
pub use tidegate_lab::bench::Bench;
pub use tidegate_lab::client::Tls;
pub use tidegate_lab::simulate::Simulate;
pub use tidegate_lab::verify::Verify;

/// A distributed rate limiter: define policies, then ask for a decision before each request.
#[derive(Debug, Parser)]
#[command(
    name = "tidegate",
    version,
    arg_required_else_help = true,
    max_term_width = 100
)]
pub struct Arguments {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

impl Arguments {
    /// Parses this process's arguments. An empty environment variable counts as unset,
    /// because some tools cannot leave one out.
    pub fn read() -> Result<Self, clap::Error> {
        let matches = without_empty_variables(Self::command());
        let matches = matches.try_get_matches_from(arguments())?;
        Self::from_arg_matches(&matches)
    }
}

/// The arguments of this process. Under the name `ratelimit`, the program is what
/// `tidegate ratelimit` is.
pub(crate) fn arguments() -> Vec<OsString> {
    let mut arguments: Vec<OsString> = std::env::args_os().collect();
    let name = arguments.first().map(Path::new).and_then(Path::file_name);
    if name.is_some_and(|name| name == "ratelimit") {
        arguments.insert(1, "ratelimit".into());
    }
    arguments
}

fn without_empty_variables(command: clap::Command) -> clap::Command {
    let is_empty = |arg: &Arg| {
        let value = arg.get_env().and_then(std::env::var_os);
        value.is_some_and(|value| value.is_empty())
    };
    command
        .mut_args(|arg| match is_empty(&arg) {
            true => arg.env(Resettable::Reset),
            false => arg,
        })
        .mut_subcommands(without_empty_variables)
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the server.
    ///
    /// Without a config, it listens on 127.0.0.1:8080 and has one policy, `default`: ten
    /// requests per second for each key, counted in memory.
    Serve(Serve),
    /// Run as a replacement for envoyproxy/ratelimit, with its environment variables, ports, files
    /// and statistics. Also runs when the binary is called `ratelimit`.
    Ratelimit,
    /// Make one decision. Exits with 0 if allowed, 1 if denied, 2 on an error.
    Check(Check),
    /// Reset a key: its quota is full again.
    Reset(Reset),
    /// Check recorded decisions against their limits. Exits with 0 if the limits held, 1 if
    /// not, 2 on an error.
    Verify(Verify),
    /// Load-test a store or a server, and check that the limit held. Exits with 0 if it
    /// did, 1 if not, 2 on an error.
    Bench(Bench),
    /// Replay access logs, and report what your policies would have refused, whose requests
    /// and when. Exits with 0, or with 2 if a file or a flag is wrong.
    Simulate(Box<Simulate>),
    /// Watch a running server in the terminal: policies, rates, refusals, latencies, stores,
    /// and with the admin token the keys that are refused most. `q` quits.
    Top(Top),
    /// A worker process of `bench`.
    #[command(hide = true)]
    BenchWorker,
    /// Check or print a config file.
    #[command(subcommand)]
    Config(Config),
    /// Print a shell completion script.
    Completions {
        /// The shell.
        shell: Shell,
    },
    /// Write the manual pages of all commands into a folder. Packages are made with it.
    #[command(hide = true)]
    Man {
        /// The folder, which has to exist.
        folder: PathBuf,
    },
}

/// The config file, and the flag that replaces its store.
#[derive(Debug, Clone, Args)]
pub struct Source {
    /// The config file.
    #[arg(long, value_name = "FILE", env = "TIDEGATE_CONFIG")]
    pub config: Option<PathBuf>,
    /// The URL of the store `default`, instead of the config's: memory:, or
    /// redis://host:port.
    #[arg(
        long,
        value_name = "URL",
        env = "TIDEGATE_STORE",
        hide_env_values = true,
        value_parser = store
    )]
    pub store: Option<MaybeUrl>,
}

/// The URL of a store, or its error. The error is reported later, because clap's message
/// would repeat the URL, and with it a password.
pub type MaybeUrl = Result<StoreUrl, String>;

/// Where to listen.
#[derive(Debug, Clone, Default, Args)]
pub struct Addresses {
    /// Where to listen for HTTP, instead of the config's addresses: host:port or unix:PATH.
    #[arg(
        long,
        value_name = "ADDR",
        env = "TIDEGATE_HTTP",
        value_delimiter = ','
    )]
    pub http: Vec<Address>,
    /// A separate address for operators (metrics, health, keys, resets), instead of the
    /// --http addresses: host:port or unix:PATH.
    #[arg(
        long,
        value_name = "ADDR",
        env = "TIDEGATE_ADMIN",
        value_delimiter = ','
    )]
    pub admin: Vec<Address>,
    /// Where to answer Envoy over gRPC, instead of the config's addresses: host:port or
    /// unix:PATH.
    #[arg(
        long,
        value_name = "ADDR",
        env = "TIDEGATE_GRPC",
        value_delimiter = ','
    )]
    pub grpc: Vec<Address>,
    /// Where to listen for the Redis protocol, instead of the config's addresses: host:port
    /// or unix:PATH.
    #[arg(
        long,
        value_name = "ADDR",
        env = "TIDEGATE_RESP",
        value_delimiter = ','
    )]
    pub resp: Vec<Address>,
}

/// `tidegate serve`.
#[derive(Debug, Clone, Args)]
pub struct Serve {
    /// Config and store.
    #[command(flatten)]
    pub source: Source,
    /// Where to listen.
    #[command(flatten)]
    pub addresses: Addresses,
    /// Where to listen for HTTP if neither the config nor --http says so; for container
    /// images.
    #[arg(
        long,
        value_name = "ADDR",
        env = "TIDEGATE_HTTP_DEFAULT",
        value_delimiter = ','
    )]
    pub http_default: Vec<Address>,
    /// The log level, instead of the config's [default: info].
    #[arg(long, value_name = "LEVEL", env = "TIDEGATE_LOG")]
    pub log: Option<Level>,
    /// The format of log lines.
    #[arg(
        long,
        value_name = "FORMAT",
        env = "TIDEGATE_LOG_FORMAT",
        default_value = "text"
    )]
    pub log_format: Format,
    /// How long to keep answering after SIGTERM, with /readyz at 503, while load balancers
    /// stop sending traffic. Instead of the config's [default: 2s].
    #[arg(long, value_name = "TIME", value_parser = drain)]
    pub drain: Option<Duration>,
    /// How long a connection may stay idle before it is closed; proxies must close theirs
    /// earlier. Instead of the config's [default: 75s].
    #[arg(long, value_name = "TIME", value_parser = idle)]
    pub idle: Option<Duration>,
    /// Append every decision to this file, for `tidegate verify`.
    #[arg(long, value_name = "FILE")]
    pub record: Option<PathBuf>,
    /// The maximum size of that file, such as 500MiB. Recording stops when it is reached.
    #[arg(long, value_name = "SIZE", default_value = "1GiB", value_parser = size)]
    pub record_limit: u64,
    /// The salt for hashes of keys in records, log lines and /v1/keys. Servers whose records
    /// are verified together need the same one [default: random].
    #[arg(
        long,
        value_name = "TEXT",
        env = "TIDEGATE_RECORD_SALT",
        hide_env_values = true,
        value_parser = secret
    )]
    pub record_salt: Option<Secret>,
}

impl Serve {
    /// The settings that replace those of the file.
    #[must_use]
    pub fn listen(&self) -> Listen {
        Listen {
            addresses: self.addresses.clone(),
            http_default: self.http_default.clone(),
            log: self.log,
            drain: self.drain,
            idle: self.idle,
        }
    }
}

impl Print {
    /// The settings that replace those of the file.
    #[must_use]
    pub fn listen(&self) -> Listen {
        Listen {
            addresses: self.addresses.clone(),
            ..Listen::default()
        }
    }
}

/// What to check, and where.
#[derive(Debug, Args)]
pub struct Question {
    /// The policy.
    pub policy: String,
    /// The attributes of the check, such as ip=203.0.113.7.
    #[arg(value_name = "ATTR=VALUE", value_parser = attribute)]
    pub attributes: Vec<(String, String)>,
    /// Config and store.
    #[command(flatten)]
    pub source: Source,
    /// Ask a running server: https://host:port, http://host:port or unix:PATH.
    #[arg(long, value_name = "URL")]
    pub server: Option<String>,
    /// The files for `https://`.
    #[command(flatten)]
    pub tls: Tls,
}

/// `tidegate check`.
#[derive(Debug, Args)]
pub struct Check {
    /// The question.
    #[command(flatten)]
    pub question: Question,
    /// The cost of the request.
    #[arg(long, value_name = "N", default_value = "1", value_parser = cost)]
    pub cost: Cost,
    /// Show the numbers and charge nothing.
    #[arg(long)]
    pub peek: bool,
    /// Print the decision as JSON.
    #[arg(long)]
    pub json: bool,
}

/// `tidegate reset`.
#[derive(Debug, Args)]
pub struct Reset {
    /// The key to reset.
    #[command(flatten)]
    pub question: Question,
    /// Reset only this level of a policy with several levels.
    #[arg(long, value_name = "NAME", conflicts_with = "all")]
    pub level: Option<String>,
    /// Reset all levels, including counters that other keys share.
    #[arg(long)]
    pub all: bool,
    /// The server's admin token.
    #[arg(
        long,
        value_name = "TOKEN",
        env = "TIDEGATE_ADMIN_TOKEN",
        hide_env_values = true,
        value_parser = secret
    )]
    pub token: Option<Secret>,
}

/// `tidegate top`.
#[derive(Debug, Args)]
pub struct Top {
    /// The server: https://host:port, http://host:port or unix:PATH. If absent, the address
    /// for operators in the config, or http://127.0.0.1:8080.
    #[arg(long, value_name = "URL")]
    pub server: Option<String>,
    /// The config file of the server, for its address and its admin token.
    #[arg(long, value_name = "FILE", env = "TIDEGATE_CONFIG")]
    pub config: Option<PathBuf>,
    /// The files for `https://`.
    #[command(flatten)]
    pub tls: Tls,
    /// The server's admin token, instead of the config's. Without one, no keys are shown.
    #[arg(
        long,
        value_name = "TOKEN",
        env = "TIDEGATE_ADMIN_TOKEN",
        hide_env_values = true,
        value_parser = secret
    )]
    pub token: Option<Secret>,
}

/// `tidegate config`.
#[derive(Debug, Subcommand)]
pub enum Config {
    /// Validate a config file and print one line per error. Exits with 0 if valid, 2 if not.
    Check {
        /// The file.
        file: PathBuf,
        /// Check only this file, without the secrets, certificates and scripts it refers to.
        #[arg(long)]
        offline: bool,
    },
    /// Print the config that `serve` would use, with flags, environment variables and all
    /// defaults applied. Secrets are hidden.
    Print(Box<Print>),
}

/// `tidegate config print`.
#[derive(Debug, Args)]
pub struct Print {
    /// The config file.
    #[arg(value_name = "FILE", env = "TIDEGATE_CONFIG")]
    pub file: Option<PathBuf>,
    /// The URL of the store `default`, instead of the config's.
    #[arg(
        long,
        value_name = "URL",
        env = "TIDEGATE_STORE",
        hide_env_values = true,
        value_parser = store
    )]
    pub store: Option<MaybeUrl>,
    /// Where to listen.
    #[command(flatten)]
    pub addresses: Addresses,
}

fn attribute(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.into(), value.into())),
        _ => Err("expected NAME=VALUE, such as ip=203.0.113.7".into()),
    }
}

/// A secret text, which is never printed. Its content is validated elsewhere.
fn secret(text: &str) -> Result<Secret, Infallible> {
    Ok(Secret::Text(text.into()))
}

fn store(text: &str) -> Result<MaybeUrl, Infallible> {
    Ok(text.parse())
}

fn cost(text: &str) -> Result<Cost, String> {
    let number = text.parse().ok();
    let cost = number.and_then(|number| Cost::new(number).ok());
    cost.ok_or_else(|| format!("expected a whole number from 1 to {}", u32::MAX))
}

fn size(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|sign: char| !sign.is_ascii_digit());
    let unit: Option<u64> = match &text[digits.len()..] {
        "" => Some(1),
        "KiB" => Some(1 << 10),
        "MiB" => Some(1 << 20),
        "GiB" => Some(1 << 30),
        _ => None,
    };
    let number: Option<u64> = digits.parse().ok();
    let size = number
        .zip(unit)
        .and_then(|(number, unit)| number.checked_mul(unit));
    size.ok_or_else(|| "expected a number of bytes, KiB, MiB or GiB, such as 500MiB".into())
}

/// The longest drain, and the longest that a connection may be idle.
const LONGEST: Duration = Duration::from_secs(600);

fn drain(text: &str) -> Result<Duration, String> {
    let drain = time(text).filter(|drain| *drain <= LONGEST);
    drain.ok_or_else(|| "expected a time from 0s to 10m, such as 2s".into())
}

fn idle(text: &str) -> Result<Duration, String> {
    let allowed = Duration::from_secs(1)..=LONGEST;
    let idle = time(text).filter(|idle| allowed.contains(idle));
    idle.ok_or_else(|| "expected a time from 1s to 10m, such as 75s".into())
}

/// A duration with its unit. A bare number is in seconds, as in earlier versions.
fn time(text: &str) -> Option<Duration> {
    let seconds = || text.parse().ok().map(Duration::from_secs);
    duration(text).or_else(seconds)
}
