//! Warnings about overrides that are valid but look like a mistake.

use std::collections::{HashMap, HashSet};

use tidegate::{Limit, Policy, PolicyLevel};

use crate::read::nearest;
use crate::write::conditions_text;

/// The most conditions of an override whose combinations are looked up.
const MOST_CONDITIONS: usize = 8;

/// The most warnings about one level, or about the exemptions of a policy.
const MOST_WARNINGS: usize = 10;

/// What an override asks for: attributes and their values, sorted.
type Conditions<'l> = Vec<(&'l str, &'l [u8])>;

/// The overrides of a level, and whether each exempts.
fn overrides(level: &PolicyLevel) -> impl Iterator<Item = (Conditions<'_>, bool)> {
    level.overrides().map(|(mut conditions, limit)| {
        conditions.sort_unstable();
        (conditions, limit.is_none())
    })
}

/// One line each.
pub(crate) fn warnings(policy: &Policy) -> Vec<String> {
    let mut warnings: Vec<String> = Vec::new();
    for warning in policy
        .levels()
        .iter()
        .flat_map(|level| in_level(policy, level))
    {
        // An exemption is in every level.
        if !warnings.contains(&warning) {
            warnings.push(warning);
        }
    }
    warnings.extend(exemptions(policy));
    warnings
}

fn in_level(policy: &Policy, level: &PolicyLevel) -> Vec<String> {
    let policy = policy.name();
    let mut earlier: HashMap<Conditions<'_>, usize> = HashMap::new();
    let mut warnings = Vec::new();
    for (number, (conditions, _)) in (1..).zip(overrides(level)) {
        let place = format!(
            "policy {policy:?}, override {number} ({})",
            conditions_text(&conditions)
        );
        if let Some((name, value)) = conditions.iter().find(|(_, value)| value.contains(&b'*')) {
            let value = String::from_utf8_lossy(value);
            warnings.push(format!(
                "{place}: {name} must be {value:?} literally: * is not a wildcard"
            ));
        }
        let mut others = subsets(&conditions).into_iter();
        if let Some(first) = others.find_map(|subset| earlier.get(&subset)) {
            let (other, _) = level.overrides().nth(first - 1).unwrap_or_default();
            warnings.push(format!(
                "{place}: never applies: override {first} ({}) comes before it and matches the same keys",
                conditions_text(&other)
            ));
        }
        earlier.entry(conditions).or_insert(number);
    }
    let more = warnings.len().saturating_sub(MOST_WARNINGS);
    warnings.truncate(MOST_WARNINGS);
    if more > 0 {
        let name = level.name();
        warnings.push(format!(
            "policy {policy:?}, level {name:?}: {more} more warnings about its overrides"
        ));
    }
    warnings
}

/// What still counts or refuses the checks that an override exempts.
fn exemptions(policy: &Policy) -> Vec<String> {
    let exempt = |level| overrides(level).filter_map(|(it, is_exempt)| is_exempt.then_some(it));
    let levels: Vec<(&PolicyLevel, HashSet<Conditions<'_>>)> = policy
        .levels()
        .iter()
        .map(|level| (level, exempt(level).collect()))
        .collect();
    let mut warnings = Vec::new();
    let mut seen = HashSet::new();
    for conditions in policy.levels().iter().flat_map(exempt) {
        if warnings.len() >= MOST_WARNINGS || !seen.insert(conditions.clone()) {
            continue;
        }
        let place = format!(
            "policy {:?}, override ({})",
            policy.name(),
            conditions_text(&conditions)
        );
        let matched = |name: &&str| conditions.iter().any(|(other, _)| other == name);
        for name in policy.optional_attributes().filter(matched) {
            if let Some(near) = nearest(name, &policy.attributes()) {
                warnings.push(format!(
                    "{place}: no level's key has {name:?}: did you mean {near:?}?"
                ));
            }
        }
        for (level, exempt) in &levels {
            let name = level.name();
            if *level.limit() == Limit::block() {
                warnings.push(format!(
                    "{place}: level {name:?} has block = true and still refuses these checks"
                ));
            } else if !exempt.contains(&conditions) {
                warnings.push(format!(
                    "{place}: level {name:?} still counts these checks: leave out `level` to exempt them from the whole policy"
                ));
            }
        }
    }
    warnings
}

/// Every choice of at least one of these conditions. An override with fewer of them
/// matches all that this one does.
fn subsets<'l>(conditions: &Conditions<'l>) -> Vec<Conditions<'l>> {
    if conditions.len() > MOST_CONDITIONS {
        return vec![conditions.clone()];
    }
    let chosen = |choice: u32| {
        let conditions = conditions.iter().enumerate();
        let conditions = conditions.filter(move |(index, _)| choice & (1 << index) != 0);
        conditions.map(|(_, condition)| *condition).collect()
    };
    (1..1_u32 << conditions.len()).map(chosen).collect()
}
