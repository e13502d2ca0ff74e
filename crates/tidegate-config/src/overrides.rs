//! Warnings about overrides that are valid but look like a mistake.

use std::collections::HashMap;

use tidegate::PolicyLevel;

/// The most conditions of an override whose combinations are looked up.
const MOST_CONDITIONS: usize = 8;

/// The most warnings about one level.
const MOST_WARNINGS: usize = 10;

/// What an override asks for: attributes and their values.
type Conditions<'l> = Vec<(&'l str, &'l [u8])>;

/// One line each.
pub(crate) fn warnings(policy: &str, level: &PolicyLevel) -> Vec<String> {
    let mut earlier: HashMap<Conditions<'_>, usize> = HashMap::new();
    let mut warnings = Vec::new();
    for (index, (mut conditions, _)) in level.overrides().enumerate() {
        conditions.sort_unstable();
        let place = format!(
            "policy {policy:?}, override {} ({})",
            index + 1,
            shown(&conditions)
        );
        if let Some((name, value)) = conditions.iter().find(|(_, value)| value.contains(&b'*')) {
            let value = String::from_utf8_lossy(value);
            warnings.push(format!(
                "{place}: {name} must be {value:?} literally: * is not a wildcard"
            ));
        }
        let mut others = subsets(&conditions).into_iter();
        if let Some(first) = others.find_map(|subset| earlier.get(&subset)) {
            let (other, _) = level.overrides().nth(*first).unwrap_or_default();
            warnings.push(format!(
                "{place}: never applies: override {} ({}) comes before it and matches the same keys",
                first + 1,
                shown(&other)
            ));
        }
        earlier.entry(conditions).or_insert(index);
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

/// `ip = "10.1.2.3"`.
fn shown(conditions: &[(&str, &[u8])]) -> String {
    let conditions = conditions.iter();
    let conditions =
        conditions.map(|(name, value)| format!("{name} = {:?}", String::from_utf8_lossy(value)));
    conditions.collect::<Vec<_>>().join(", ")
}
