//! Times as logs write them, as microseconds since the Unix epoch.
//!
//! | text | example |
//! | --- | --- |
//! | common log format | `16/Nov/2026:00:00:00 +0100` |
//! | RFC 3339 | `2026-11-16T00:00:00.123+01:00`, `2026-11-16 00:00:00Z` |
//! | Unix time: seconds, with or without a fraction | `1795000000`, `1795000000.123` |
//! | Unix time: milliseconds, microseconds, nanoseconds | `1795000000123`, by the size of the number |
//!
//! A text without a zone names no instant, so it cannot be read.

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::Offset;
use tidegate::algorithm::MAX_NOW_US;

const SECOND_US: u64 = 1_000_000;

/// When a line was written, and whether the log says so to the second only.
///
/// Ordered by time. Within a microsecond, times that are whole seconds come last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct At(u64);

impl At {
    fn new(at_us: u64, whole: bool) -> Option<Self> {
        (at_us <= MAX_NOW_US).then_some(Self(at_us << 1 | u64::from(whole)))
    }

    /// A time known to the second.
    pub(super) fn second(second: u64) -> Option<Self> {
        Self::new(second.checked_mul(SECOND_US)?, true)
    }

    /// A time known to the microsecond, or at least to less than a second.
    pub(super) fn exact(at_us: u64) -> Option<Self> {
        Self::new(at_us, false)
    }

    /// Microseconds since the Unix epoch.
    pub(super) fn us(self) -> u64 {
        self.0 >> 1
    }

    /// Whether the log has whole seconds only.
    pub(super) fn is_whole(self) -> bool {
        self.0 & 1 == 1
    }

    /// A fraction of seconds since the Unix epoch, as JSON has it.
    pub(super) fn seconds(seconds: f64) -> Option<Self> {
        let us = (seconds * 1e6).round();
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "what is out of range saturates, and is refused as too large"
        )]
        (us >= 0.0).then(|| Self::exact(us as u64)).flatten()
    }

    /// Unix time as a whole number: seconds, milliseconds, microseconds or nanoseconds by
    /// its size. Seconds take until the year 5138 to look like milliseconds.
    pub(super) fn number(number: u64) -> Option<Self> {
        match number {
            _ if number < 100_000_000_000 => Self::second(number),
            _ if number < 100_000_000_000_000 => Self::exact(number * 1_000),
            _ if number < 100_000_000_000_000_000 => Self::exact(number),
            _ => Self::exact(number / 1_000),
        }
    }
}

/// Reads times. Lines of one second follow each other, so the last text is remembered.
#[derive(Debug, Clone, Default)]
pub(super) struct Times {
    text: Vec<u8>,
    at: Option<At>,
}

impl Times {
    /// The time that a text says; `None` where it says none that is known here.
    pub(super) fn read(&mut self, text: &[u8]) -> Option<At> {
        if self.text != text {
            self.at = read(text);
            self.text.clear();
            self.text.extend_from_slice(text);
        }
        self.at
    }
}

fn read(text: &[u8]) -> Option<At> {
    if text.get(2) == Some(&b'/') {
        return common(text);
    }
    let text = std::str::from_utf8(text).ok()?;
    if text
        .bytes()
        .all(|byte| byte.is_ascii_digit() || byte == b'.')
    {
        return unix(text);
    }
    let at: Timestamp = text.parse().ok()?;
    let at_us = u64::try_from(at.as_microsecond()).ok()?;
    At::new(at_us, !text.contains(['.', ',']))
}

/// `1795000000.123`, digit by digit: nothing is rounded.
fn unix(text: &str) -> Option<At> {
    let Some((seconds, fraction)) = text.split_once('.') else {
        return At::number(text.parse().ok()?);
    };
    let digits = fraction.bytes().chain(std::iter::repeat(b'0')).take(6);
    if fraction.is_empty() || !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let fraction = digits.fold(0, |sum, digit| sum * 10 + u64::from(digit - b'0'));
    let seconds: u64 = seconds.parse().ok()?;
    At::exact(seconds.checked_mul(SECOND_US)?.checked_add(fraction)?)
}

/// `16/Nov/2026:00:00:00 +0100`.
fn common(text: &[u8]) -> Option<At> {
    const MONTHS: [&[u8]; 12] = [
        b"Jan", b"Feb", b"Mar", b"Apr", b"May", b"Jun", b"Jul", b"Aug", b"Sep", b"Oct", b"Nov",
        b"Dec",
    ];
    let number = |from: usize, to: usize| -> Option<i16> {
        text[from..to].iter().try_fold(0, |sum: i16, byte| {
            let digit = byte.is_ascii_digit().then(|| i16::from(byte - b'0'))?;
            Some(sum * 10 + digit)
        })
    };
    let small = |from: usize| number(from, from + 2).and_then(|number| i8::try_from(number).ok());
    let separators = [(6, b'/'), (11, b':'), (14, b':'), (17, b':'), (20, b' ')];
    if text.len() != 26 || separators.iter().any(|(at, byte)| text[*at] != *byte) {
        return None;
    }
    let month = MONTHS.iter().position(|month| *month == &text[3..6])?;
    let month = i8::try_from(month + 1).ok()?;
    // A leap second is the second before it, as everywhere else.
    let second = small(18)?.min(if small(18)? == 60 { 59 } else { 60 });
    let (day, year) = (small(0)?, number(7, 11)?);
    let civil = DateTime::new(year, month, day, small(12)?, small(15)?, second, 0).ok()?;
    let sign = match text[21] {
        b'+' => 1,
        b'-' => -1,
        _ => return None,
    };
    let (hours, minutes) = (i32::from(small(22)?), i32::from(small(24)?));
    if minutes > 59 {
        return None;
    }
    let offset = Offset::from_seconds(sign * (hours * 3_600 + minutes * 60)).ok()?;
    let at = offset.to_timestamp(civil).ok()?;
    At::second(u64::try_from(at.as_second()).ok()?)
}

/// An instant as RFC 3339 writes it, in UTC.
pub(super) fn text(at_us: u64) -> String {
    let at = i64::try_from(at_us).ok();
    let at = at.and_then(|at| Timestamp::from_microsecond(at).ok());
    at.map_or_else(|| format!("{at_us} us"), |at| at.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of one reader, which remembers the last text.
    #[test]
    fn instants_are_read_or_refused() {
        let mut times = Times::default();
        tidegate_testkit::cases::rows(include_str!("../rows.txt"), "instants", |text| {
            let Some(at) = times.read(text.as_bytes()) else {
                return "none".into();
            };
            let (second, rest) = (at.us() / 1_000_000, at.us() % 1_000_000);
            let whole = if at.is_whole() { " whole" } else { "" };
            format!("{second}.{rest:06}{whole}")
        });
    }
}
