//! How many requests per how long: the part of a limit that people write as
//! `100r/s` or `5/10s`.
//!
//! A [`Rate`] is validated when it is made. [`Limit`](crate::Limit) decides how it is
//! counted (bucket, window, log).

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::duration::{UNITS, in_units, micros, number};
use crate::error::{LimitError, ParseError};

/// The longest window a limit may have: 366 days.
pub const MAX_WINDOW: Duration = Duration::from_secs(366 * 86_400);

/// The shortest window a limit may have: one millisecond.
pub const MIN_WINDOW: Duration = Duration::from_millis(1);

/// A number of requests per window.
///
/// ```
/// use std::time::Duration;
/// use tidegate::Rate;
///
/// let rate: Rate = "5/10s".parse()?;
/// assert_eq!(rate.requests(), 5);
/// assert_eq!(rate.window(), Duration::from_secs(10));
/// assert_eq!(rate, Rate::new(5, Duration::from_secs(10))?);
/// assert_eq!("60/1m".parse::<Rate>()?.to_string(), "60r/m");
///
/// let error = "10r/fortnight".parse::<Rate>().unwrap_err();
/// assert!(error.to_string().contains("\"10r/fortnight\""));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Rate {
    requests: u32,
    window_us: u64,
}

impl Rate {
    /// `requests` per `window`, or an error if a number is out of range.
    pub const fn new(requests: u64, window: Duration) -> Result<Self, LimitError> {
        let micros = window.as_micros();
        if micros < MIN_WINDOW.as_micros()
            || micros > MAX_WINDOW.as_micros()
            || !window.subsec_nanos().is_multiple_of(1_000)
        {
            return Err(LimitError::Window(window));
        }
        if requests == 0 || requests > u32::MAX as u64 {
            return Err(LimitError::Requests(requests));
        }
        #[expect(
            clippy::cast_possible_truncation,
            reason = "both were just found to be in range"
        )]
        Ok(Self {
            requests: requests as u32,
            window_us: micros as u64,
        })
    }

    /// The number of requests, 1 to 4,294,967,295.
    pub const fn requests(self) -> u32 {
        self.requests
    }

    /// The window they are counted over.
    pub const fn window(self) -> Duration {
        Duration::from_micros(self.window_us)
    }

    /// The window in microseconds.
    pub const fn window_us(self) -> u64 {
        self.window_us
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match in_units(self.window_us) {
            (1, unit @ ("d" | "h" | "m" | "s")) => write!(f, "{}r/{unit}", self.requests),
            (count, unit) => write!(f, "{}/{count}{unit}", self.requests),
        }
    }
}

impl FromStr for Rate {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let (requests, window_us) = split(text).ok_or_else(|| ParseError::syntax(text))?;
        Self::new(requests, Duration::from_micros(window_us))
            .map_err(|error| ParseError::value(text, error))
    }
}

/// The two numbers of `100r/s` or `5/10s`. Numbers too large for a `u64` stay
/// too large for a limit.
fn split(text: &str) -> Option<(u64, u64)> {
    let (requests, window) = text.split_once('/')?;
    if let Some(requests) = requests.strip_suffix('r') {
        let (_, unit_us) = UNITS[..4].iter().find(|(unit, _)| *unit == window)?;
        return Some((number(requests)?, *unit_us));
    }
    Some((number(requests)?, micros(window)?))
}

/// The greatest common divisor.
pub(crate) const fn gcd(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}
