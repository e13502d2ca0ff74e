//! Warnings about overrides that are valid but look like a mistake.

use std::collections::BTreeSet;

use tidegate::{Limit, Policy, PolicyLevel};

use crate::read::nearest;
use crate::write::conditions_text;

/// The most warnings about one level, or about the exemptions of a policy.
const MOST_WARNINGS: usize = 10;

/// The conditions of an override: attributes and their values.
type Conditions<'l> = Vec<(&'l str, &'l [u8])>;

/// One line each.
pub(crate) fn warnings(policy: &Policy) -> Vec<String> {
    let levels = 0..policy.levels().len();
    let mut warnings: Vec<String> = Vec::new();
    for warning in levels.flat_map(|level| in_level(policy, level)) {
        // An exemption is in every level.
        if !warnings.contains(&warning) {
            warnings.push(warning);
        }
    }
    warnings.extend(exemptions(policy));
    warnings
}

fn in_level(policy: &Policy, index: usize) -> Vec<String> {
    let (name, level) = (policy.name(), &policy.levels()[index]);
    let mut warnings = Vec::new();
    for (number, (conditions, _)) in (1..).zip(level.overrides()) {
        let text = conditions_text(&conditions);
        let place = format!("policy {name:?}, override {number} ({text})");
        if let Some((name, value)) = conditions.iter().find(|(_, value)| value.contains(&b'*')) {
            let value = String::from_utf8_lossy(value);
            warnings.push(format!(
                "{place}: {name} must be {value:?} literally: * is not a wildcard"
            ));
        }
        // No override asks for a value that is not UTF-8.
        let others = policy
            .attributes()
            .into_iter()
            .map(|name| (name, &b"\xff"[..]));
        let check: Conditions<'_> = conditions.into_iter().chain(others).collect();
        let first = policy.overridden_by(&check).ok();
        let first = first.and_then(|first| first[index]).unwrap_or(number);
        if first + 1 < number {
            let (other, _) = level.overrides().nth(first).unwrap_or_default();
            let (other, first) = (conditions_text(&other), first + 1);
            warnings.push(format!(
                "{place}: never applies: override {first} ({other}) comes before it and matches the same keys"
            ));
        }
    }
    let more = warnings.len().saturating_sub(MOST_WARNINGS);
    warnings.truncate(MOST_WARNINGS);
    if more > 0 {
        let level = level.name();
        warnings.push(format!(
            "policy {name:?}, level {level:?}: {more} more warnings about its overrides"
        ));
    }
    warnings
}

/// A level, and the conditions of its exemptions.
fn exempt(level: &PolicyLevel) -> (&PolicyLevel, BTreeSet<Conditions<'_>>) {
    let exempt = level.overrides().filter(|(_, limit)| limit.is_none());
    (level, exempt.map(|(conditions, _)| conditions).collect())
}

/// What still counts or refuses the checks that an override exempts.
fn exemptions(policy: &Policy) -> Vec<String> {
    let levels: Vec<_> = policy.levels().iter().map(exempt).collect();
    let all = policy.levels().iter().flat_map(PolicyLevel::overrides);
    let mut seen = BTreeSet::new();
    let mut warnings = Vec::new();
    for (conditions, _) in all.filter(|(_, limit)| limit.is_none()) {
        if warnings.len() >= MOST_WARNINGS || !seen.insert(conditions.clone()) {
            continue;
        }
        let (name, text) = (policy.name(), conditions_text(&conditions));
        let place = format!("policy {name:?}, override ({text})");
        let matched = |name: &&str| conditions.iter().any(|(other, _)| other == name);
        for name in policy.optional_attributes().filter(matched) {
            if let Some(near) = nearest(name, &policy.attributes()) {
                warnings.push(format!(
                    "{place}: no level's key has {name:?}: did you mean {near:?}?"
                ));
            }
        }
        for (level, exempt) in &levels {
            let problem = match level.limit() == &Limit::block() {
                true => "has block = true and still refuses these checks",
                false if exempt.contains(&conditions) => continue,
                false => {
                    "still counts these checks: leave out `level` to exempt them from the whole policy"
                }
            };
            warnings.push(format!("{place}: level {:?} {problem}", level.name()));
        }
    }
    warnings
}
