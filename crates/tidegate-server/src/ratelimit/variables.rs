//! Environment variables as Go programs read them: booleans, durations, maps.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::Duration;

/// The variables of an environment, and what was wrong with those that were read.
pub(super) struct Variables {
    values: BTreeMap<String, String>,
    errors: RefCell<Vec<String>>,
}

impl Variables {
    /// Empty variables count as unset.
    pub(super) fn new(values: impl IntoIterator<Item = (String, String)>) -> Self {
        let values = values.into_iter().filter(|(_, value)| !value.is_empty());
        Self {
            values: values.collect(),
            errors: RefCell::default(),
        }
    }

    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.values.get(name).map(String::as_str)
    }

    pub(super) fn wrong(&self, error: String) {
        self.errors.borrow_mut().push(error);
    }

    pub(super) fn errors(self) -> Vec<String> {
        self.errors.into_inner()
    }

    /// The value that `parse` makes of a variable; the standard where it is not set, or
    /// wrong.
    pub(super) fn read<T>(
        &self,
        name: &str,
        standard: T,
        expected: &str,
        parse: impl FnOnce(&str) -> Option<T>,
    ) -> T {
        let Some(text) = self.get(name) else {
            return standard;
        };
        parse(text).unwrap_or_else(|| {
            self.wrong(format!("{name} is {text:?}: expected {expected}"));
            standard
        })
    }

    pub(super) fn text(&self, name: &str, standard: &str) -> String {
        self.get(name).unwrap_or(standard).to_owned()
    }

    pub(super) fn flag(&self, name: &str, standard: bool) -> bool {
        self.read(name, standard, "true or false", flag)
    }

    pub(super) fn duration(&self, name: &str, standard: Duration) -> Duration {
        self.read(
            name,
            standard,
            "a duration such as 150us or 1m30s",
            duration,
        )
    }

    pub(super) fn port(&self, name: &str, standard: u16) -> u16 {
        let expected = "a port from 0 to 65535";
        self.read(name, standard, expected, |text| text.parse().ok())
    }

    /// Pairs such as `zone:a,rack:7`.
    pub(super) fn map(&self, name: &str) -> BTreeMap<String, String> {
        let expected = "pairs such as zone:a,rack:7";
        self.read(name, BTreeMap::new(), expected, |text| {
            let pairs = text.split(',').map(|pair| {
                let (name, value) = pair.split_once([':', '='])?;
                Some((name.trim().to_owned(), value.trim().to_owned()))
            });
            pairs.collect()
        })
    }
}

/// A boolean, as `strconv.ParseBool` reads it.
fn flag(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

/// A duration, as `time.ParseDuration` reads it. Negative ones mean nothing here.
pub(super) fn duration(text: &str) -> Option<Duration> {
    let mut rest = text.strip_prefix('+').unwrap_or(text);
    if rest == "0" {
        return Some(Duration::ZERO);
    }
    if rest.is_empty() {
        return None;
    }
    let mut sum = Duration::ZERO;
    while !rest.is_empty() {
        let number = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (digits, after) = rest.split_at(number);
        let unit = after.find(|c: char| c.is_ascii_digit() || c == '.');
        let (unit, after) = after.split_at(unit.unwrap_or(after.len()));
        let seconds = match unit {
            "ns" => 1e-9,
            "us" | "µs" | "μs" => 1e-6,
            "ms" => 1e-3,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3_600.0,
            _ => return None,
        };
        let number: f64 = digits.parse().ok()?;
        let part = Duration::try_from_secs_f64(number * seconds).ok()?;
        sum = sum.checked_add(part)?;
        rest = after;
    }
    Some(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_as_go_reads_them() {
        let file = include_str!("environment.txt");
        tidegate_testkit::cases::rows(file, "durations are read as Go reads them", |text| {
            duration(text).map_or("none".into(), |it| format!("{it:?}"))
        });
    }

    #[test]
    fn maps_and_flags_are_read_as_go_reads_them() {
        let set = [("A", "zone:a,rack=7"), ("B", "T"), ("C", "yes"), ("D", "x")];
        let set = set.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let variables = Variables::new(set);
        let map = variables.map("A");
        assert_eq!((&*map["zone"], &*map["rack"], map.len()), ("a", "7", 2));
        assert!(variables.flag("B", false));
        assert!(variables.flag("C", true));
        assert!(variables.map("D").is_empty());
        assert!(!variables.flag("E", false));
        assert_eq!(
            variables.errors(),
            [
                "C is \"yes\": expected true or false",
                "D is \"x\": expected pairs such as zone:a,rack:7"
            ]
        );
    }
}
