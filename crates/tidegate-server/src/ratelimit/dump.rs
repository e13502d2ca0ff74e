//! The limits in force, as `/rlconfig` lists them: a line each, in the order of the files.

use std::fmt::Write;

use tidegate::text::DurationText;

use crate::envoy::rules::{Domains, Quota, Rule, Window};
use crate::envoy::wire::Unit;

/// All limits.
pub(super) fn text(domains: &Domains) -> String {
    let mut text = String::new();
    for rule in domains.rules() {
        // Into a string, nothing fails.
        let _ = writeln!(text, "{}", line(rule));
    }
    text
}

fn line(rule: &Rule) -> String {
    let mut line = match &rule.quota {
        Quota::Unlimited => format!("{rule}: unlimited"),
        Quota::Counted(window) => format!("{rule}: {}", described(*window)),
        Quota::Exact(window, limit) => {
            let algorithm = limit.algorithm().as_str();
            format!("{rule}: {}, algorithm: {algorithm}", described(*window))
        }
    };
    for (name, value) in [
        ("shadow_mode", rule.shadow_mode),
        ("quota_mode", rule.quota_mode),
    ] {
        let _ = write!(line, ", {name}: {value}");
    }
    line
}

fn described(window: Window) -> String {
    let mut units = Unit::ALL.iter();
    let unit = units.find(|(_, unit)| unit.seconds() == window.seconds);
    let unit = match unit {
        Some((name, _)) => format!("unit={}", name.to_uppercase()),
        None => format!("window={}", DurationText(window.duration())),
    };
    format!("{unit} requests_per_unit={}", window.requests)
}
