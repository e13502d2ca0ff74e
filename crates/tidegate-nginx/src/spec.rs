//! What the directives say, in words, before nginx is asked for anything: stores and zones
//! that cannot be wrong, or what is wrong with them.

use std::fmt::Display;
use std::time::Duration;

use tidegate::text::{NAME, duration, is_name, listed, shown};
use tidegate::{
    Algorithm, Dialect, Limit, LimitSpec, Mode, OnError, Policy, PolicyBuilder, PolicyError, Rate,
};
use tidegate_config::RedisUrl;
use tidegate_redis::RedisOptions;

/// The least memory of a zone.
const MIN_SIZE: usize = 128 << 10;

/// The store of zones that do not name one.
pub(crate) const DEFAULT_STORE: &str = "default";

/// What a zone says in place of a store when it has none.
const NO_STORE: &str = "none";

/// `tidegate_store NAME URL [timeout=50ms] [prefix=tg]`.
#[derive(Debug)]
pub(crate) struct StoreSpec {
    pub(crate) name: String,
    pub(crate) url: String,
    pub(crate) timeout: Duration,
    prefix: String,
}

impl StoreSpec {
    pub(crate) fn parse(words: &[&str]) -> Result<Self, String> {
        let [name, url, options @ ..] = words else {
            return Err("expected a name and a URL".into());
        };
        let url_error = |error: String| error;
        url.parse::<RedisUrl>().map_err(url_error)?;
        let name = named(name)?;
        if name == NO_STORE {
            return Err(wrong(
                &name,
                "expected another name, because \"store=none\" means no store",
            ));
        }
        let mut store = Self {
            name,
            url: (*url).into(),
            timeout: Duration::from_millis(50),
            prefix: "tg".into(),
        };
        let mut seen = Seen::default();
        for option in options {
            let (field, value) = seen.option(option, &["timeout", "prefix"])?;
            match field {
                "timeout" => {
                    let timeout = duration(value).filter(|timeout| !timeout.is_zero());
                    let timeout = timeout.filter(|timeout| *timeout <= Duration::from_secs(60));
                    store.timeout = timeout.ok_or_else(|| {
                        wrong(option, "expected a duration from 1ms to 60s, such as 50ms")
                    })?;
                }
                _ => store.prefix = prefix(option, value)?,
            }
        }
        Ok(store)
    }

    /// How the I/O thread reaches it: by one connection, which is as many as a thread can use.
    pub(crate) fn options(&self) -> RedisOptions {
        RedisOptions::default()
            .name(&self.name)
            .prefix(&self.prefix)
            .timeout(self.timeout)
            .connections(1)
    }
}

/// How a zone decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Counting {
    /// In shared memory, for this nginx alone.
    Local,
    /// In Redis, in one of the modes.
    Shared(Mode),
}

/// `tidegate_zone NAME key=EXPR rate=RATE ...`.
#[derive(Debug)]
pub(crate) struct ZoneSpec {
    pub(crate) name: String,
    pub(crate) limit: Limit,
    pub(crate) counting: Counting,
    /// It is local only because it came before any store.
    pub(crate) is_undecided: bool,
    pub(crate) store: String,
    pub(crate) size: usize,
    pub(crate) on_error: OnError,
    policy: PolicyBuilder,
    /// The policy of the zone's name, in each dialect, enforced and only watching.
    faces: [[Policy; 2]; 3],
}

/// The values of a zone's options.
#[derive(Default)]
struct Options<'a> {
    key: Option<&'a str>,
    rate: Option<&'a str>,
    burst: Option<&'a str>,
    algorithm: Option<&'a str>,
    mode: Option<&'a str>,
    store: Option<&'a str>,
    size: Option<&'a str>,
    on_error: Option<&'a str>,
}

const OPTIONS: [&str; 8] = [
    "key",
    "rate",
    "burst",
    "algorithm",
    "mode",
    "store",
    "size",
    "on_error",
];

impl ZoneSpec {
    /// The zone, and the expression of its key. A zone that names neither a store nor a mode
    /// uses the store `default`, if there is one.
    pub(crate) fn parse<'a>(
        words: &[&'a str],
        has_default: bool,
    ) -> Result<(Self, &'a str), String> {
        let [name, words @ ..] = words else {
            return Err("expected a name".into());
        };
        let name = named(name)?;
        if name == "off" {
            return Err(
                "\"off\": expected another name, because \"tidegate off\" turns limits off".into(),
            );
        }
        let options = Options::parse(words)?;
        let key = options.key.filter(|key| !key.is_empty());
        let key = key.ok_or("expected key=EXPRESSION, such as key=$binary_remote_addr")?;
        let limit = options.limit()?;
        let counting = options.counting(has_default)?;
        let (on_error, store, size) = match counting {
            Counting::Local => {
                let store = options.store.filter(|store| *store != NO_STORE);
                for (field, value) in [("store", store), ("on_error", options.on_error)] {
                    if let Some(value) = value {
                        return Err(wrong(
                            &format!("{field}={value}"),
                            "mode=local asks no store: expected mode=exact, mode=lease or mode=background",
                        ));
                    }
                }
                (OnError::Allow, "", size(options.size.unwrap_or("10m"))?)
            }
            Counting::Shared(_) => {
                if let Some(size) = options.size {
                    return Err(wrong(
                        &format!("size={size}"),
                        "only mode=local uses shared memory: expected that mode, or no size",
                    ));
                }
                let store = options.store.unwrap_or(DEFAULT_STORE);
                (options.on_error()?, store, 0)
            }
        };
        let base = || {
            let policy = Policy::builder(&name).limit(limit).on_error(on_error);
            match counting {
                Counting::Local => policy,
                Counting::Shared(mode) => policy.mode(mode).store(store),
            }
        };
        let face =
            |dialect: Dialect, dry_run: bool| base().headers(dialect).shadow(dry_run).build();
        let both = |dialect: Dialect| Ok([face(dialect.clone(), false)?, face(dialect, true)?]);
        let faces = || {
            Ok([
                both(Dialect::Ietf)?,
                both(Dialect::XRateLimit)?,
                both(Dialect::Draft06)?,
            ])
        };
        let faces = faces().map_err(|error: PolicyError| error.to_string())?;
        let zone = Self {
            limit,
            counting,
            is_undecided: options.mode.is_none() && options.store.is_none() && !has_default,
            store: store.into(),
            size,
            on_error,
            policy: base(),
            faces,
            name,
        };
        Ok((zone, key))
    }

    /// The policy of the zone's name, for one of so many workers. What they decide without
    /// the store, they decide each for itself: at its share of the rate.
    pub(crate) fn policy(&self, workers: u32) -> Result<Policy, PolicyError> {
        let policy = self.policy.clone();
        match self.on_error {
            OnError::Local => policy.local_share(1.0 / f64::from(workers.max(1))),
            OnError::Allow | OnError::Deny => policy,
        }
        .build()
    }

    /// The policy of the zone's name, with these headers.
    pub(crate) fn face(&self, headers: Headers, dry_run: bool) -> &Policy {
        let dialect = match headers {
            Headers::Ietf | Headers::Off => 0,
            Headers::XRateLimit => 1,
            Headers::Draft06 => 2,
        };
        &self.faces[dialect][usize::from(dry_run)]
    }
}

impl<'a> Options<'a> {
    fn parse(words: &[&'a str]) -> Result<Self, String> {
        let (mut options, mut seen) = (Self::default(), Seen::default());
        for word in words {
            let (field, value) = seen.option(word, &OPTIONS)?;
            let place = match field {
                "key" => &mut options.key,
                "rate" => &mut options.rate,
                "burst" => &mut options.burst,
                "algorithm" => &mut options.algorithm,
                "mode" => &mut options.mode,
                "store" => &mut options.store,
                "size" => &mut options.size,
                _ => &mut options.on_error,
            };
            *place = Some(value);
        }
        Ok(options)
    }

    fn limit(&self) -> Result<Limit, String> {
        let rate = self.rate.ok_or("expected rate=RATE, such as rate=100r/s")?;
        let rate: Rate = parsed("rate", rate)?;
        let mut limit = LimitSpec::new(rate);
        if let Some(algorithm) = self.algorithm {
            limit.algorithm = match algorithm {
                "token_bucket" => Algorithm::TokenBucket,
                "fixed_window" => Algorithm::FixedWindow,
                "sliding_window" => Algorithm::SlidingWindow,
                _ => {
                    return Err(wrong(
                        &format!("algorithm={algorithm}"),
                        "expected token_bucket, fixed_window or sliding_window",
                    ));
                }
            };
        }
        if let Some(burst) = self.burst {
            let number = burst.parse().ok().filter(|_| is_number(burst));
            limit.burst = Some(
                number
                    .ok_or_else(|| wrong(&format!("burst={burst}"), "expected a number from 1"))?,
            );
        }
        limit.build().map_err(|error| error.to_string())
    }

    fn counting(&self, has_default: bool) -> Result<Counting, String> {
        Ok(match (self.mode, self.store) {
            (None, None) if !has_default => Counting::Local,
            (None, Some(NO_STORE)) | (Some("local"), _) => Counting::Local,
            (Some(mode @ ("exact" | "lease" | "background")), Some(NO_STORE)) => {
                return Err(wrong(
                    "store=none",
                    &format!("mode={mode} needs a store: expected mode=local"),
                ));
            }
            (None, _) | (Some("exact"), _) => Counting::Shared(Mode::Exact),
            (Some("lease"), _) => Counting::Shared(Mode::Lease),
            (Some("background"), _) => Counting::Shared(Mode::Background),
            (Some(mode), _) => {
                return Err(wrong(
                    &format!("mode={mode}"),
                    "expected exact, lease, background or local",
                ));
            }
        })
    }

    fn on_error(&self) -> Result<OnError, String> {
        Ok(match self.on_error {
            None | Some("local") => OnError::Local,
            Some("allow") => OnError::Allow,
            Some("deny") => OnError::Deny,
            Some(other) => {
                return Err(wrong(
                    &format!("on_error={other}"),
                    "expected local, allow or deny",
                ));
            }
        })
    }
}

/// `tidegate_headers`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Headers {
    Ietf,
    XRateLimit,
    Draft06,
    Off,
}

impl Headers {
    pub(crate) fn parse(word: &str) -> Result<Self, String> {
        Ok(match word {
            "ietf" => Self::Ietf,
            "x-ratelimit" => Self::XRateLimit,
            "draft-06" => Self::Draft06,
            "off" => Self::Off,
            _ => return Err(wrong(word, "expected ietf, x-ratelimit, draft-06 or off")),
        })
    }
}

/// `tidegate_status`.
pub(crate) fn status(word: &str) -> Result<u16, String> {
    let status = word.parse().ok().filter(|_| is_number(word));
    status
        .filter(|status| (400..=599).contains(status))
        .ok_or_else(|| wrong(word, "expected a status from 400 to 599"))
}

/// `on` or `off`.
pub(crate) fn flag(word: &str) -> Result<bool, String> {
    match word {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err(wrong(word, "expected on or off")),
    }
}

/// What is wrong with a value.
pub(crate) fn wrong(value: &str, expected: &str) -> String {
    format!("{}: {expected}", shown(value))
}

fn named(name: &str) -> Result<String, String> {
    match is_name(name) {
        true => Ok(name.into()),
        false => Err(wrong(name, &format!("expected {NAME}"))),
    }
}

fn prefix(option: &str, value: &str) -> Result<String, String> {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"._:-".contains(&byte);
    match (1..=64).contains(&value.len()) && value.bytes().all(is_part) {
        true => Ok(value.into()),
        false => Err(wrong(
            option,
            "expected 1 to 64 of the characters A-Z a-z 0-9 . _ : -",
        )),
    }
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

fn parsed<T: std::str::FromStr>(field: &str, value: &str) -> Result<T, String>
where
    T::Err: Display,
{
    let parsed = value.parse();
    parsed.map_err(|error: T::Err| format!("{field}={value}: {error}"))
}

/// `10m`, `512k`, `1g`, or bytes.
fn size(text: &str) -> Result<usize, String> {
    let expected = "expected a size of at least 128k, such as 10m";
    let digits = text.trim_end_matches(|unit: char| unit.is_ascii_alphabetic());
    let unit = match text[digits.len()..].to_ascii_lowercase().as_str() {
        "" => 1,
        "k" => 1 << 10,
        "m" => 1 << 20,
        "g" => 1 << 30,
        _ => 0_usize,
    };
    let number: Option<usize> = digits.parse().ok().filter(|_| is_number(digits));
    let size = number.and_then(|number| number.checked_mul(unit));
    size.filter(|size| *size >= MIN_SIZE)
        .ok_or_else(|| wrong(&format!("size={text}"), expected))
}

/// Options that were given: each once.
#[derive(Default)]
struct Seen<'a>(Vec<&'a str>);

impl<'a> Seen<'a> {
    fn option(&mut self, word: &'a str, known: &[&str]) -> Result<(&'a str, &'a str), String> {
        let (field, value) = word.split_once('=').unwrap_or((word, ""));
        if !known.contains(&field) || !word.contains('=') {
            let fields: Vec<String> = known.iter().map(|field| format!("{field}=")).collect();
            let fields: Vec<&str> = fields.iter().map(String::as_str).collect();
            return Err(wrong(word, &format!("expected one of {}", listed(fields))));
        }
        if self.0.contains(&field) {
            return Err(wrong(
                word,
                "this option was given before: expected it once",
            ));
        }
        self.0.push(field);
        Ok((field, value))
    }
}
