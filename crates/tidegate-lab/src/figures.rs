//! Numbers as people read them.

use indicatif::HumanCount;

/// A whole number with a comma every three digits.
pub(crate) fn thousands(number: u64) -> String {
    HumanCount(number).to_string()
}

/// The same of a number that need not be whole, rounded; with a digit or two where it is
/// small.
pub(crate) fn about(number: f64) -> String {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "what is too large or below zero stays the nearest that is not"
    )]
    match number {
        _ if number >= 100.0 => thousands(number.round() as u64),
        _ if number >= 10.0 => format!("{number:.1}"),
        _ => format!("{number:.2}"),
    }
}

/// A time in the unit that suits it, to three digits.
pub(crate) fn time(us: f64) -> String {
    let (number, unit) = match us {
        _ if us < 1.0 => return format!("{:.0} ns", us * 1e3),
        _ if us < 1e3 => (us, "us"),
        _ if us < 1e6 => (us / 1e3, "ms"),
        _ => (us / 1e6, "s"),
    };
    let digits = match number {
        _ if number < 10.0 => 2,
        _ if number < 100.0 => 1,
        _ => 0,
    };
    format!("{number:.digits$} {unit}")
}

/// A share as a percentage.
pub(crate) fn percent(part: f64, whole: f64) -> String {
    match whole > 0.0 {
        true => format!("{:.1} %", 100.0 * part / whole),
        false => "0.0 %".into(),
    }
}

/// `1 key`, `2 keys`.
pub(crate) fn count(number: u64, one: &str, many: &str) -> String {
    let noun = if number == 1 { one } else { many };
    format!("{} {noun}", thousands(number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short_and_right() {
        for (number, text) in [
            (0, "0"),
            (999, "999"),
            (1_000, "1,000"),
            (1_234_567, "1,234,567"),
        ] {
            assert_eq!(thousands(number), text);
        }
        for (us, text) in [
            (0.25, "250 ns"),
            (1.0, "1.00 us"),
            (12.34, "12.3 us"),
            (999.0, "999 us"),
            (50_000.0, "50.0 ms"),
            (2_500_000.0, "2.50 s"),
        ] {
            assert_eq!(time(us), text);
        }
        assert_eq!(
            (about(0.5), about(1_234.6)),
            ("0.50".into(), "1,235".into())
        );
        assert_eq!(
            (percent(1.0, 3.0), percent(1.0, 0.0)),
            ("33.3 %".into(), "0.0 %".into())
        );
        assert_eq!(
            (count(1, "key", "keys"), count(2, "key", "keys")),
            ("1 key".into(), "2 keys".into())
        );
    }
}
