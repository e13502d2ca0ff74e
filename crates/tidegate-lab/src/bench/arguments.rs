//! The command-line arguments of `tidegate bench`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use tidegate::{Algorithm, Cost};

use crate::client::Tls;

/// The units that a time can be given in, with their microseconds.
const UNITS: [(&str, u64); 4] = [
    ("ms", 1_000),
    ("s", 1_000_000),
    ("m", 60_000_000),
    ("h", 3_600_000_000),
];

/// The longest run.
const MAX_DURATION: Duration = Duration::from_secs(86_400);

/// `tidegate bench`.
#[derive(Debug, Args)]
pub struct Bench {
    /// What to test: a store (memory:, redis://host:port, redis-sentinel://..., redis-cluster://...),
    /// with the limiter running in the bench processes, or a server
    /// (https://host:port, http://host:port, unix:PATH). Default: the config's store, or memory:.
    pub url: Option<String>,

    /// The limit, such as 100r/s or "5/10s sliding_log".
    #[arg(long, value_name = "LIMIT", help_heading = "Limit")]
    pub limit: Option<String>,
    /// The algorithm, by name.
    #[arg(long, value_name = "NAME", help_heading = "Limit", help = Algorithm::names(|_| true).join(", "))]
    pub algorithm: Option<String>,
    /// The burst of a token bucket.
    #[arg(long, value_name = "N", help_heading = "Limit")]
    pub burst: Option<u64>,
    /// When the store is asked: exact, lease or background.
    #[arg(long, value_name = "MODE", help_heading = "Limit")]
    pub mode: Option<String>,
    /// In mode background: how often counts are sent to the store.
    #[arg(long, value_name = "TIME", help_heading = "Limit")]
    pub sync_interval: Option<String>,
    /// In mode exact: how long a refusal is remembered; 0s turns it off.
    #[arg(long, value_name = "TIME", help_heading = "Limit")]
    pub refusal_memory: Option<String>,
    /// The deadline of a check. Default: 50ms for a store, 5s for a server.
    #[arg(long, value_name = "TIME", help_heading = "Limit")]
    pub timeout: Option<String>,
    /// Use a policy from this config file instead of --limit and the other limit flags.
    #[arg(long, value_name = "FILE", help_heading = "Limit")]
    pub config: Option<PathBuf>,
    /// The name of the policy, in the config or on the server.
    #[arg(long, value_name = "NAME", help_heading = "Limit")]
    pub policy: Option<String>,
    /// How often the store may have lost its counters during the run, for example in a failover.
    #[arg(long, value_name = "N", default_value = "0", help_heading = "Limit")]
    pub losses: u32,

    /// A fixed value for an attribute of the policy, such as resource=12. Other
    /// attributes get the number of a key. Can be repeated.
    #[arg(long, value_name = "NAME=VALUE", value_parser = attribute, help_heading = "Load")]
    pub attr: Vec<(String, String)>,
    /// Allow the run to use up counters that real clients share.
    #[arg(long, help_heading = "Load")]
    pub yes: bool,
    /// The files for `https://`.
    #[command(flatten, next_help_heading = "Load")]
    pub tls: Tls,
    /// Number of keys.
    #[arg(
        long,
        value_name = "N",
        default_value = "1",
        value_parser = clap::value_parser!(u32).range(1..=10_000_000),
        help_heading = "Load"
    )]
    pub keys: u32,
    /// Draw keys by Zipf's law, key number n as often as 1/n^S, instead of uniformly.
    #[arg(long, value_name = "S", value_parser = exponent, help_heading = "Load")]
    pub zipf: Option<f64>,
    /// The cost per check.
    #[arg(long, value_name = "N", default_value = "1", value_parser = cost, help_heading = "Load")]
    pub cost: Cost,
    /// The length of the run.
    #[arg(
        long,
        value_name = "TIME",
        default_value = "10s",
        value_parser = duration,
        help_heading = "Load"
    )]
    pub duration: Duration,
    /// Number of processes; each is a node.
    #[arg(
        long,
        value_name = "N",
        default_value = "1",
        value_parser = clap::value_parser!(u32).range(1..=256),
        help_heading = "Load"
    )]
    pub processes: u32,
    /// Callers per process; each has one check in flight.
    #[arg(
        long,
        value_name = "N",
        default_value = "64",
        value_parser = clap::value_parser!(u32).range(1..=65_536),
        help_heading = "Load"
    )]
    pub callers: u32,
    /// Send this many checks per second across all processes, whether or not earlier
    /// ones were answered. Default: as many as possible.
    #[arg(long, value_name = "R", value_parser = rate, help_heading = "Load")]
    pub rate: Option<f64>,

    /// Print the report as one JSON object.
    #[arg(long, help_heading = "Output")]
    pub json: bool,
    /// Draw latencies and the admitted checks over time into this SVG file.
    #[arg(long, value_name = "FILE.svg", help_heading = "Output")]
    pub plot: Option<PathBuf>,
}

/// A time from 10 milliseconds to a day, such as `10s`.
pub fn duration(text: &str) -> Result<Duration, String> {
    let digits = text.trim_end_matches(|sign: char| sign.is_ascii_alphabetic());
    let (_, unit) = text.split_at(digits.len());
    let unit = UNITS.iter().find(|(name, _)| *name == unit);
    let number: Option<u64> = digits.parse().ok();
    let micros = number
        .zip(unit)
        .and_then(|(number, (_, unit))| number.checked_mul(*unit));
    let duration = micros.map(Duration::from_micros);
    let allowed = Duration::from_millis(10)..=MAX_DURATION;
    let duration = duration.filter(|duration| allowed.contains(duration));
    duration.ok_or_else(|| "expected a time from 10ms to 24h, such as 10s".into())
}

fn attribute(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.into(), value.into())),
        _ => Err("expected NAME=VALUE, such as resource=12".into()),
    }
}

fn rate(text: &str) -> Result<f64, String> {
    let rate = text.parse().ok();
    let rate = rate.filter(|rate| (0.001..=100_000_000.0).contains(rate));
    rate.ok_or_else(|| "expected checks per second, from 0.001 to 100000000, such as 5000".into())
}

fn exponent(text: &str) -> Result<f64, String> {
    let exponent = text.parse().ok();
    let exponent = exponent.filter(|exponent| (0.0..=10.0).contains(exponent));
    exponent.ok_or_else(|| "expected an exponent from 0 to 10, such as 1.1".into())
}

fn cost(text: &str) -> Result<Cost, String> {
    let number = text.parse().ok();
    let cost = number.and_then(|number| Cost::new(number).ok());
    cost.ok_or_else(|| format!("expected a whole number from 1 to {}", u32::MAX))
}
