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
    use tidegate_testkit::cases::rows;

    use super::*;

    #[test]
    fn numbers_are_short_and_right() {
        rows(include_str!("rows.txt"), "numbers for people", |row| {
            let (what, text) = row.split_once(' ').unwrap();
            let number: f64 = text.parse().unwrap();
            match what {
                "thousands" => thousands(text.parse().unwrap()),
                "time" => time(number),
                "about" => about(number),
                "third" => percent(number, 3.0),
                "zeroth" => percent(number, 0.0),
                _ => count(text.parse().unwrap(), "key", "keys"),
            }
        });
    }
}
