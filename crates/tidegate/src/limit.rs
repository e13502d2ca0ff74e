//! A limit: an algorithm with its numbers.
//!
//! [`Limit`] is small, `Copy` and always valid. The numbers each algorithm needs
//! on the hot path are worked out here, once.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

pub use crate::algorithm::{Algorithm, Kind};

use crate::algorithm::Block;
use crate::duration::number;
use crate::error::{LimitError, ParseError};
use crate::rate::Rate;

/// Where a fixed window begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Align {
    /// With the key's first admitted request.
    #[default]
    First,
    /// At whole multiples of the window since the Unix epoch.
    Epoch,
}

/// An algorithm with its numbers: what a key may do.
///
/// Limits in the source are written with `const fn`s that need no `unwrap`:
/// nonsense does not compile in a `const`, and panics elsewhere.
///
/// ```
/// use std::time::Duration;
/// use tidegate::{Align, Limit};
///
/// const LOGIN: Limit = Limit::per_second(100).burst(20);
///
/// let smooth = Limit::per_minute(15).burst(3).strict();
/// let window = Limit::per_minute(3).fixed_window().align(Align::Epoch);
/// let exact = Limit::per(5, Duration::from_secs(10)).sliding_log();
/// assert_eq!(exact.to_string(), "5/10s sliding_log");
/// ```
///
/// Numbers and text from outside get a [`Result`]:
///
/// ```
/// use std::time::Duration;
/// use tidegate::{Limit, LimitSpec, Rate};
///
/// assert_eq!(Limit::parse("100r/s burst=20")?, Limit::per_second(100).burst(20));
/// assert!(Limit::parse("100").is_err());
///
/// let limit = LimitSpec {
///     burst: Some(20),
///     ..LimitSpec::new(Rate::new(100, Duration::from_secs(1))?)
/// }
/// .build()?;
/// assert_eq!(limit, Limit::per_second(100).burst(20));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Limit(Kind);

/// The numbers of a limit before they are checked, as a config file has them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LimitSpec {
    /// Requests per window.
    pub rate: Rate,
    /// How they are counted.
    pub algorithm: Algorithm,
    /// The capacity of the bucket, by default the number of requests;
    /// [`Algorithm::TokenBucket`] only.
    pub burst: Option<u64>,
    /// Never more than the rate in any window; [`Algorithm::TokenBucket`] only.
    pub strict: bool,
    /// Where windows begin; [`Algorithm::FixedWindow`] only.
    pub align: Align,
    /// Counts in whole nanoseconds ([`gcra`](crate::algorithm::TokenBucket::gcra));
    /// [`Algorithm::TokenBucket`] only, and never strict.
    pub gcra: bool,
}

impl LimitSpec {
    /// A token bucket of this rate.
    pub const fn new(rate: Rate) -> Self {
        Self {
            rate,
            algorithm: Algorithm::TokenBucket,
            burst: None,
            strict: false,
            align: Align::First,
            gcra: false,
        }
    }

    /// The capacity in force, of an algorithm that has one.
    pub const fn capacity(&self) -> Option<u64> {
        match (self.algorithm.profile().has_burst, self.burst) {
            (false, _) => None,
            (true, Some(burst)) => Some(burst),
            (true, None) => Some(self.rate.requests() as u64),
        }
    }

    /// Validates the numbers and builds the limit.
    pub const fn build(self) -> Result<Limit, LimitError> {
        let Self {
            algorithm,
            burst,
            strict,
            align,
            ..
        } = self;
        let profile = algorithm.profile();
        match burst {
            Some(burst) if !profile.has_burst => {
                return Err(LimitError::BurstOf { burst, algorithm });
            }
            _ => {}
        }
        if strict && !profile.has_burst {
            return Err(LimitError::StrictOf(algorithm));
        }
        if matches!(align, Align::Epoch) && !profile.has_align {
            return Err(LimitError::AlignOf(algorithm));
        }
        match Kind::new(self) {
            Ok(kind) => Ok(Limit(kind)),
            Err(error) => Err(error),
        }
    }

    const fn expect(self) -> Limit {
        match self.build() {
            Ok(limit) => limit,
            Err(error) => error.panic(),
        }
    }
}

impl Limit {
    /// `requests` per second, as a token bucket with a burst of `requests`. After a quiet
    /// moment, up to twice `requests` can therefore pass within one second.
    ///
    /// # Panics
    /// When `requests` is 0. So do the other constructors for numbers in the
    /// source; [`Rate::new`] and [`LimitSpec::build`] return an error instead.
    pub const fn per_second(requests: u32) -> Self {
        Self::per(requests, Duration::from_secs(1))
    }

    /// `requests` per minute, with a burst of `requests`.
    ///
    /// # Panics
    /// When `requests` is 0.
    pub const fn per_minute(requests: u32) -> Self {
        Self::per(requests, Duration::from_secs(60))
    }

    /// `requests` per hour, with a burst of `requests`.
    ///
    /// # Panics
    /// When `requests` is 0.
    pub const fn per_hour(requests: u32) -> Self {
        Self::per(requests, Duration::from_secs(3_600))
    }

    /// `requests` per day of 24 hours, with a burst of `requests`.
    ///
    /// # Panics
    /// When `requests` is 0.
    pub const fn per_day(requests: u32) -> Self {
        Self::per(requests, Duration::from_secs(86_400))
    }

    /// `requests` per `window`, with a burst of `requests`.
    ///
    /// # Panics
    /// When `requests` is 0, or `window` is not 1 ms to 366 days in whole
    /// microseconds.
    pub const fn per(requests: u32, window: Duration) -> Self {
        match Rate::new(requests as u64, window) {
            Ok(rate) => LimitSpec::new(rate).expect(),
            Err(error) => error.panic(),
        }
    }

    /// Refuses everything, for a key that must never pass.
    pub const fn block() -> Self {
        Self(Kind::Block(Block))
    }

    /// The capacity of the bucket: how many requests may pass at once after a quiet period.
    ///
    /// # Panics
    /// When `burst` is 0, when this is not a token bucket, or when it would
    /// take more than a hundred years to refill.
    #[must_use]
    pub const fn burst(self, burst: u32) -> Self {
        let mut spec = self.spec_or_panic();
        spec.burst = Some(burst as u64);
        spec.expect()
    }

    /// Never more than the rate's requests in *any* window: a bucket with capacity
    /// `B` refills with `N - B` requests per window.
    ///
    /// # Panics
    /// When this is not a token bucket with a burst below its requests.
    #[must_use]
    pub const fn strict(self) -> Self {
        let mut spec = self.spec_or_panic();
        spec.strict = true;
        spec.expect()
    }

    /// Counts with a [`FixedWindow`](crate::algorithm::FixedWindow).
    ///
    /// # Panics
    /// When a burst other than the number of requests was set: only token buckets have one.
    #[must_use]
    pub const fn fixed_window(self) -> Self {
        self.counted_by(Algorithm::FixedWindow)
    }

    /// Counts with a [`SlidingWindow`](crate::algorithm::SlidingWindow).
    ///
    /// # Panics
    /// When another burst was set, or there are more than 2^28 requests.
    #[must_use]
    pub const fn sliding_window(self) -> Self {
        self.counted_by(Algorithm::SlidingWindow)
    }

    /// Counts with a [`SlidingLog`](crate::algorithm::SlidingLog).
    ///
    /// # Panics
    /// When another burst was set, or there are more than 1,000,000 requests.
    #[must_use]
    pub const fn sliding_log(self) -> Self {
        self.counted_by(Algorithm::SlidingLog)
    }

    const fn counted_by(self, algorithm: Algorithm) -> Self {
        let mut spec = self.spec_or_panic();
        spec.algorithm = algorithm;
        spec.expect()
    }

    /// Where a fixed window begins.
    ///
    /// # Panics
    /// When this is not a fixed window and `align` is [`Align::Epoch`].
    #[must_use]
    pub const fn align(self, align: Align) -> Self {
        let mut spec = self.spec_or_panic();
        spec.align = align;
        spec.expect()
    }

    /// Parses what [`Display`](fmt::Display) prints: a rate, then any of the
    /// [algorithms](Algorithm::counting) by name, `burst=20`, `strict`, `align=epoch`; or
    /// `block`.
    pub fn parse(text: &str) -> Result<Self, ParseError> {
        let mut words = text.split(' ');
        let rate = words.next().unwrap_or_default();
        if text == "block" {
            return Ok(Self::block());
        }
        let rate = rate
            .parse()
            .map_err(|error: ParseError| error.in_text(text))?;
        let mut spec = LimitSpec::new(rate);
        let mut algorithm = None;
        for word in words {
            let named = || Algorithm::counting().find(|it| it.as_str() == word);
            match (word, word.strip_prefix("burst=").and_then(number)) {
                ("strict", _) if !spec.strict => spec.strict = true,
                ("align=epoch", _) if spec.align == Align::First => spec.align = Align::Epoch,
                (_, Some(burst)) if spec.burst.is_none() => spec.burst = Some(burst),
                _ if algorithm.is_none() && named().is_some() => algorithm = named(),
                _ => return Err(ParseError::option(text)),
            }
        }
        spec.algorithm = algorithm.unwrap_or_default();
        spec.build().map_err(|error| ParseError::value(text, error))
    }

    /// The limit's parts, for code that evaluates it.
    pub const fn kind(&self) -> &Kind {
        &self.0
    }

    pub(crate) const fn from_kind(kind: Kind) -> Self {
        Self(kind)
    }

    /// The numbers that it was built from; `None` for [`Limit::block`].
    pub const fn spec(&self) -> Option<LimitSpec> {
        self.0.spec()
    }

    const fn spec_or_panic(&self) -> LimitSpec {
        match self.spec() {
            Some(spec) => spec,
            None => panic!("a blocked limit has no numbers to change"),
        }
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(spec) = self.spec() else {
            return f.write_str("block");
        };
        write!(f, "{}", spec.rate)?;
        if spec.algorithm != Algorithm::default() {
            write!(f, " {}", spec.algorithm)?;
        }
        if let Some(burst) = spec.burst {
            write!(f, " burst={burst}")?;
        }
        if spec.strict {
            f.write_str(" strict")?;
        }
        if spec.align == Align::Epoch {
            f.write_str(" align=epoch")?;
        }
        Ok(())
    }
}

impl FromStr for Limit {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        Self::parse(text)
    }
}

impl From<Rate> for Limit {
    fn from(rate: Rate) -> Self {
        LimitSpec::new(rate).expect()
    }
}
