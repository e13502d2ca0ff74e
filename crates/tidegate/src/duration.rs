//! Durations as text: `50ms`, `1s`, `10m`.

use std::fmt;
use std::time::Duration;

/// The units a duration can be written in, the longest first, with their
/// microseconds.
pub(crate) const UNITS: [(&str, u64); 6] = [
    ("d", 86_400_000_000),
    ("h", 3_600_000_000),
    ("m", 60_000_000),
    ("s", 1_000_000),
    ("ms", 1_000),
    ("us", 1),
];

/// The microseconds of a number and a unit. Numbers too large for a `u64` stay too
/// large for anything.
pub(crate) fn micros(text: &str) -> Option<u64> {
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (count, unit) = text.split_at(digits);
    let (_, unit_us) = UNITS.iter().find(|(name, _)| *name == unit)?;
    Some(number(count)?.saturating_mul(*unit_us))
}

/// A number written in ASCII digits and nothing else.
pub(crate) fn number(digits: &str) -> Option<u64> {
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| digits.parse().unwrap_or(u64::MAX))
}

/// The number and the longest unit that say it whole.
pub(crate) fn in_units(micros: u64) -> (u64, &'static str) {
    let (unit, unit_us) = UNITS
        .into_iter()
        .find(|(_, unit_us)| micros.is_multiple_of(*unit_us))
        .expect("every whole number is a multiple of one microsecond");
    (micros / unit_us, unit)
}

/// Reads a duration: a whole number and a unit, such as `50ms`.
pub fn duration(text: &str) -> Option<Duration> {
    micros(text).map(Duration::from_micros)
}

/// Prints a duration of whole microseconds as [`duration`] reads it.
#[derive(Debug, Clone, Copy)]
pub struct Text(pub Duration);

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match u64::try_from(self.0.as_micros()) {
            Ok(0) => f.write_str("0s"),
            Ok(micros) => {
                let (count, unit) = in_units(micros);
                write!(f, "{count}{unit}")
            }
            Err(_) => write!(f, "{:?}", self.0),
        }
    }
}
