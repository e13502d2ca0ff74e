//! What can be said on the command line.

use std::convert::Infallible;
use std::path::PathBuf;
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
pub use tidegate_lab::verify::Verify;

/// A rate limiter for fleets: give it a policy, ask it before each request.
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
    /// What this process was started with. A variable that is empty is as good as one
    /// that is not set: some tools can only make them so.
    pub fn read() -> Result<Self, clap::Error> {
        let matches = without_empty_variables(Self::command()).try_get_matches()?;
        Self::from_arg_matches(&matches)
    }
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
    /// Answer checks over HTTP.
    ///
    /// Without a config: ten requests a second for each key, counted in memory, at
    /// 127.0.0.1:8080.
    Serve(Serve),
    /// Ask for one decision. Exits with 0 when allowed, 1 when denied, 2 on an error.
    Check(Check),
    /// Forget what a key has used.
    Reset(Reset),
    /// Say whether limits held, from what servers have recorded. Exits with 0 when they
    /// did, 1 when not, 2 on an error.
    Verify(Verify),
    /// Put load on a store or a server, and say how it fared and whether the limit held.
    /// Exits with 0 when it did, 1 when not, 2 on an error.
    Bench(Bench),
    /// One of the processes that `bench` starts.
    #[command(hide = true)]
    BenchWorker,
    /// Look at a config file.
    #[command(subcommand)]
    Config(Config),
    /// Print a script that completes commands in a shell.
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

/// Which config, and what is said in its place.
#[derive(Debug, Clone, Args)]
pub struct Source {
    /// The config file.
    #[arg(long, value_name = "FILE", env = "TIDEGATE_CONFIG")]
    pub config: Option<PathBuf>,
    /// Where counts are kept, in place of the config's default store: memory:, or
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

/// The URL of a store, or what is wrong with it. That is said later on: the message of
/// the command line would repeat the URL, and with it a password.
pub type MaybeUrl = Result<StoreUrl, String>;

/// `tidegate serve`.
#[derive(Debug, Clone, Args)]
pub struct Serve {
    /// Config and store.
    #[command(flatten)]
    pub source: Source,
    /// Where to listen, in place of the config's addresses: host:port or unix:PATH.
    #[arg(
        long,
        value_name = "ADDR",
        env = "TIDEGATE_HTTP",
        value_delimiter = ','
    )]
    pub http: Vec<Address>,
    /// Where operators ask for metrics, health and keys, and reset them, in place of the
    /// addresses of --http: host:port or unix:PATH.
    #[arg(
        long,
        value_name = "ADDR",
        env = "TIDEGATE_ADMIN",
        value_delimiter = ','
    )]
    pub admin: Vec<Address>,
    /// Where to answer Envoy over gRPC, in place of the config's addresses: host:port or
    /// unix:PATH.
    #[arg(
        long,
        value_name = "ADDR",
        env = "TIDEGATE_GRPC",
        value_delimiter = ','
    )]
    pub grpc: Vec<Address>,
    /// Where to speak the protocol of Redis, in place of the config's addresses: host:port
    /// or unix:PATH.
    #[arg(
        long,
        value_name = "ADDR",
        env = "TIDEGATE_RESP",
        value_delimiter = ','
    )]
    pub resp: Vec<Address>,
    /// Where to listen when neither the config nor --http says so: for images of
    /// containers.
    #[arg(
        long,
        value_name = "ADDR",
        env = "TIDEGATE_HTTP_DEFAULT",
        value_delimiter = ','
    )]
    pub http_default: Vec<Address>,
    /// How much to log, in place of the config's level (info unless it has one).
    #[arg(long, value_name = "LEVEL", env = "TIDEGATE_LOG")]
    pub log: Option<Level>,
    /// How log lines look.
    #[arg(
        long,
        value_name = "FORMAT",
        env = "TIDEGATE_LOG_FORMAT",
        default_value = "text"
    )]
    pub log_format: Format,
    /// After SIGTERM, how long to go on answering while /readyz says no, so that load
    /// balancers stop sending traffic; in place of the config's (2s unless it has one).
    #[arg(long, value_name = "TIME", value_parser = drain)]
    pub drain: Option<Duration>,
    /// How long a connection may be without a request before it is closed: longer than
    /// proxies keep theirs; in place of the config's (75s unless it has one).
    #[arg(long, value_name = "TIME", value_parser = idle)]
    pub idle: Option<Duration>,
    /// Append every decision to a file, for `tidegate verify`.
    #[arg(long, value_name = "FILE")]
    pub record: Option<PathBuf>,
    /// How long that file may become, such as 500MiB: then no more is recorded.
    #[arg(long, value_name = "SIZE", default_value = "1GiB", value_parser = size)]
    pub record_limit: u64,
    /// What keys are hashed with in records, log lines and /v1/keys: the same for servers
    /// whose records are put together. Any, when there is only one.
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
    /// The addresses that take the place of the file's.
    #[must_use]
    pub fn listen(&self) -> Listen {
        Listen {
            http: self.http.clone(),
            admin: self.admin.clone(),
            resp: self.resp.clone(),
            grpc: self.grpc.clone(),
            http_default: self.http_default.clone(),
            log: self.log,
            drain: self.drain,
            idle: self.idle,
        }
    }
}

impl Print {
    /// The addresses that take the place of the file's.
    #[must_use]
    pub fn listen(&self) -> Listen {
        Listen {
            http: self.http.clone(),
            admin: self.admin.clone(),
            resp: self.resp.clone(),
            grpc: self.grpc.clone(),
            ..Listen::default()
        }
    }
}

/// Whom to ask, of what.
#[derive(Debug, Args)]
pub struct Question {
    /// The policy.
    pub policy: String,
    /// What the check is about, such as ip=203.0.113.7.
    #[arg(value_name = "ATTR=VALUE", value_parser = attribute)]
    pub attributes: Vec<(String, String)>,
    /// Config and store.
    #[command(flatten)]
    pub source: Source,
    /// Ask a running server: https://host:port, http://host:port or unix:PATH.
    #[arg(long, value_name = "URL")]
    pub server: Option<String>,
    /// The authority that signed the server's certificate, where that is not a public
    /// one: a PEM file.
    #[arg(long, value_name = "FILE", env = "TIDEGATE_CA")]
    pub ca: Option<PathBuf>,
}

/// `tidegate check`.
#[derive(Debug, Args)]
pub struct Check {
    /// The question.
    #[command(flatten)]
    pub question: Question,
    /// What the request costs.
    #[arg(long, value_name = "N", default_value = "1", value_parser = cost)]
    pub cost: Cost,
    /// Only look, charge nothing.
    #[arg(long)]
    pub peek: bool,
    /// Print the decision as JSON.
    #[arg(long)]
    pub json: bool,
}

/// `tidegate reset`.
#[derive(Debug, Args)]
pub struct Reset {
    /// What to forget.
    #[command(flatten)]
    pub question: Question,
    /// The level to forget, of a policy with several.
    #[arg(long, value_name = "NAME", conflicts_with = "all")]
    pub level: Option<String>,
    /// Forget all levels: counters that others share, too.
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

/// `tidegate config`.
#[derive(Debug, Subcommand)]
pub enum Config {
    /// Say what is wrong with a config file, a line an error. Exits with 0 or 2.
    Check {
        /// The file.
        file: PathBuf,
        /// Look at this file alone: secrets, certificates and scripts need not be there.
        #[arg(long)]
        offline: bool,
    },
    /// Print the config that `serve` would use, with its defaults. Flags and environment
    /// variables take the place of what the file says. Secrets are hidden.
    Print(Print),
}

/// `tidegate config print`.
#[derive(Debug, Args)]
pub struct Print {
    /// The config file.
    #[arg(value_name = "FILE", env = "TIDEGATE_CONFIG")]
    pub file: Option<PathBuf>,
    /// Where counts are kept, in place of the config's default store.
    #[arg(
        long,
        value_name = "URL",
        env = "TIDEGATE_STORE",
        hide_env_values = true,
        value_parser = store
    )]
    pub store: Option<MaybeUrl>,
    /// Where to listen, in place of the config's addresses: host:port or unix:PATH.
    #[arg(
        long,
        value_name = "ADDR",
        env = "TIDEGATE_HTTP",
        value_delimiter = ','
    )]
    pub http: Vec<Address>,
    /// Where operators ask, in place of the config's addresses: host:port or unix:PATH.
    #[arg(
        long,
        value_name = "ADDR",
        env = "TIDEGATE_ADMIN",
        value_delimiter = ','
    )]
    pub admin: Vec<Address>,
    /// Where to answer Envoy over gRPC, in place of the config's addresses: host:port or
    /// unix:PATH.
    #[arg(
        long,
        value_name = "ADDR",
        env = "TIDEGATE_GRPC",
        value_delimiter = ','
    )]
    pub grpc: Vec<Address>,
    /// Where to speak the protocol of Redis, in place of the config's addresses: host:port
    /// or unix:PATH.
    #[arg(
        long,
        value_name = "ADDR",
        env = "TIDEGATE_RESP",
        value_delimiter = ','
    )]
    pub resp: Vec<Address>,
}

fn attribute(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.into(), value.into())),
        _ => Err("expected NAME=VALUE, such as ip=203.0.113.7".into()),
    }
}

/// A text that is not shown. What it looks like is up to others.
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

/// A time with its unit. A number alone is one of seconds, as in earlier versions.
fn time(text: &str) -> Option<Duration> {
    let seconds = || text.parse().ok().map(Duration::from_secs);
    duration(text).or_else(seconds)
}
