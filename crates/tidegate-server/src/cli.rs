//! What can be said on the command line.

use std::convert::Infallible;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::Resettable;
use clap::{Arg, Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use tidegate::Cost;
use tidegate_config::StoreUrl;

use crate::section::Address;
use crate::settings::Listen;

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
    /// How much to log.
    #[arg(
        long,
        value_name = "LEVEL",
        env = "TIDEGATE_LOG",
        default_value = "info"
    )]
    pub log: Level,
    /// How log lines look.
    #[arg(
        long,
        value_name = "FORMAT",
        env = "TIDEGATE_LOG_FORMAT",
        default_value = "text"
    )]
    pub log_format: Format,
    /// After SIGTERM, how long to go on answering while /readyz says no, so that load
    /// balancers can look away.
    #[arg(long, value_name = "SECONDS", default_value = "2", value_parser = seconds)]
    pub drain: Duration,
    /// How long a connection may be without a request before it is closed: longer than
    /// proxies keep theirs.
    #[arg(long, value_name = "SECONDS", default_value = "75", value_parser = idle)]
    pub idle: Duration,
    /// Append every decision to a file, for `tidegate verify`.
    #[arg(long, value_name = "FILE")]
    pub record: Option<PathBuf>,
    /// How long that file may become, such as 500MiB: then no more is recorded.
    #[arg(long, value_name = "SIZE", default_value = "1GiB", value_parser = size)]
    pub record_limit: u64,
    /// What keys are hashed with in the record: the same for servers whose records are
    /// put together. Any, when there is only one.
    #[arg(
        long,
        value_name = "TEXT",
        env = "TIDEGATE_RECORD_SALT",
        hide_env_values = true
    )]
    pub record_salt: Option<String>,
}

impl Serve {
    /// The addresses that take the place of the file's.
    #[must_use]
    pub fn listen(&self) -> Listen {
        Listen {
            http: self.http.clone(),
            admin: self.admin.clone(),
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
        }
    }
}

/// How much to log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Level {
    /// Nothing.
    Off,
    /// What needs somebody to act.
    Error,
    /// And what looks wrong.
    Warn,
    /// And what changes.
    Info,
    /// And every request.
    Debug,
    /// Everything.
    Trace,
}

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people.
    Text,
    /// For machines: a JSON object a line.
    Json,
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
    /// Ask a running server: http://host:port or unix:PATH.
    #[arg(long, value_name = "URL")]
    pub server: Option<String>,
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
        hide_env_values = true
    )]
    pub token: Option<String>,
}

/// `tidegate config`.
#[derive(Debug, Subcommand)]
pub enum Config {
    /// Say what is wrong with a config file, a line an error. Exits with 0 or 2.
    Check {
        /// The file.
        file: PathBuf,
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
}

fn attribute(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.into(), value.into())),
        _ => Err("expected NAME=VALUE, such as ip=203.0.113.7".into()),
    }
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

fn idle(text: &str) -> Result<Duration, String> {
    let idle = seconds(text).ok().filter(|idle| !idle.is_zero());
    idle.ok_or_else(|| "expected whole seconds, from 1 to 600".into())
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().filter(|seconds| *seconds <= 600);
    let seconds = seconds.ok_or("expected whole seconds, at most 600")?;
    Ok(Duration::from_secs(seconds))
}
