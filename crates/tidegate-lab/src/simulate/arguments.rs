//! What can be said to `tidegate simulate`.

use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, ValueEnum};
use tidegate::Algorithm;

/// `tidegate simulate`.
#[derive(Debug, Args)]
pub struct Simulate {
    /// Access logs, merged in order of time. gzip and zstd files are detected by content. `-`
    /// is standard input.
    #[arg(required = true, value_name = "LOG")]
    pub logs: Vec<PathBuf>,

    /// The config file with the policies. Without one: ten requests per second for each
    /// address.
    #[arg(
        long,
        value_name = "FILE",
        env = "TIDEGATE_CONFIG",
        help_heading = "Policies"
    )]
    pub config: Option<PathBuf>,
    /// Only this policy of the config.
    #[arg(long, value_name = "NAME", help_heading = "Policies")]
    pub policy: Option<String>,

    /// The format of the lines [default: nginx].
    #[arg(
        long,
        value_name = "FORMAT",
        conflicts_with = "pattern",
        help_heading = "Lines"
    )]
    pub format: Option<Format>,
    /// A regular expression for any other format. Its named groups are fields, one of them
    /// the time: `(?P<time>...)`.
    #[arg(long, value_name = "REGEX", help_heading = "Lines")]
    pub pattern: Option<String>,
    /// Take an attribute from a field of the line, such as user=request.headers.X-User.0.
    /// Can be repeated. By default: ip, method, path, host, user, status, and key, which is
    /// ip.
    #[arg(long, value_name = "NAME=FIELD", value_parser = attribute, help_heading = "Lines")]
    pub attr: Vec<(String, String)>,
    /// The field with the time.
    #[arg(long, value_name = "FIELD", help_heading = "Lines")]
    pub time: Option<String>,

    /// Find the smallest limit and burst that refuse fewer than this share of clients, such
    /// as 0.1% or 0.001, and name them. With three or more clients, one may be refused anyway,
    /// unless this is 0.
    #[arg(long, value_name = "SHARE[%]", help_heading = "Questions")]
    pub suggest: Option<Share>,
    /// What the share counts.
    #[arg(
        long,
        value_name = "WHAT",
        default_value = "clients",
        requires = "suggest",
        help_heading = "Questions"
    )]
    pub of: Of,
    /// Decide by two algorithms and show where they differ, such as
    /// sliding_window,sliding_log.
    #[arg(long, value_name = "ONE,OTHER", value_parser = pair, help_heading = "Questions")]
    pub compare: Option<(Algorithm, Algorithm)>,

    /// Write a self-contained page with charts into this file.
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub html: Option<PathBuf>,
    /// Print everything as one JSON object.
    #[arg(long, help_heading = "Output")]
    pub json: bool,
}

/// How lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// The common log format, with or without referer and user agent; anything may follow.
    Nginx,
    /// The same with referer and user agent, as nginx and Apache name it.
    Combined,
    /// The common log format of Apache.
    Common,
    /// One JSON object per line, with fields of any usual name.
    Json,
    /// The access log of Caddy.
    Caddy,
    /// The access log of Traefik, as JSON or in its common format.
    Traefik,
    /// The access log of Envoy, as JSON or in its default text format.
    Envoy,
}

/// What a share is a share of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Of {
    /// Refused requests.
    Requests,
    /// Clients with at least one refused request.
    Clients,
}

/// A share, as an exact decimal fraction: `part / 10^digits`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share {
    part: u64,
    whole: u64,
}

impl Share {
    /// Nobody.
    pub(super) const ZERO: Self = Self { part: 0, whole: 1 };

    /// Whether so many of so many are fewer than this share: none at all, where the share
    /// is zero.
    #[must_use]
    pub fn is_above(self, some: u64, all: u64) -> bool {
        let product = |a: u64, b: u64| u128::from(a) * u128::from(b);
        some == 0 || product(some, self.whole) < product(self.part, all)
    }

    /// Whether it is nothing.
    #[must_use]
    pub fn is_zero(self) -> bool {
        self.part == 0
    }

    /// The share as a number to read.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a figure to read")]
    pub fn as_f64(self) -> f64 {
        self.part as f64 / self.whole as f64
    }
}

impl FromStr for Share {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || "expected a share from 0% to 100%, such as 0.1% or 0.001".to_owned();
        let (number, percent) = match text.strip_suffix('%') {
            Some(number) => (number.trim_end(), true),
            None => (text, false),
        };
        let (before, after) = number.split_once('.').unwrap_or((number, ""));
        let digits = format!("{before}{after}");
        if before.is_empty()
            || digits.len() > 15
            || number.ends_with('.')
            || !digits.bytes().all(|byte| byte.is_ascii_digit())
        {
            return Err(wrong());
        }
        let exponent = u32::try_from(after.len()).map_err(|_| wrong())?;
        let share = Self {
            part: digits.parse().map_err(|_| wrong())?,
            whole: 10_u64.pow(exponent) * if percent { 100 } else { 1 },
        };
        (share.part <= share.whole)
            .then_some(share)
            .ok_or_else(wrong)
    }
}

fn attribute(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, field)) if tidegate::text::is_name(name) && !field.is_empty() => {
            Ok((name.into(), field.into()))
        }
        _ => Err("expected NAME=FIELD, such as ip=remote_addr".into()),
    }
}

fn pair(text: &str) -> Result<(Algorithm, Algorithm), String> {
    let named =
        |name: &str| Algorithm::counting().find(|algorithm| algorithm.as_str() == name.trim());
    let pair = text.split_once(',');
    let pair = pair.and_then(|(one, other)| Some((named(one)?, named(other)?)));
    pair.filter(|(one, other)| one != other).ok_or_else(|| {
        let names = Algorithm::names(|_| true).join(", ");
        format!("expected two of {names}, with a comma")
    })
}

#[cfg(test)]
mod tests {
    use tidegate_testkit::cases::rows;

    use super::*;

    const ROWS: &str = include_str!("../rows.txt");

    #[test]
    fn shares_are_exact() {
        rows(ROWS, "shares are exact", |row| {
            let (counts, share) = row.split_once(" for ").unwrap();
            let (some, all) = counts.split_once(" of ").unwrap();
            let (some, all) = (some.parse().unwrap(), all.parse().unwrap());
            let is_above = share.parse().map(|it: Share| it.is_above(some, all));
            let words = is_above.map(|it| if it { "above" } else { "not above" });
            words.unwrap_or("wrong").into()
        });
    }

    #[test]
    fn two_different_algorithms_are_compared() {
        rows(ROWS, "two algorithms to compare", |text| {
            format!("{:?}", pair(text))
        });
    }
}
