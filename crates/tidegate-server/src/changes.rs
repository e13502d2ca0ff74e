//! The changes between two configs, as log lines such as `api: 10r/m -> 20r/m`.

use std::collections::BTreeMap;

use tidegate::{Limit, Policy, PolicyLevel};
use tidegate_config::Config;
use tidegate_config::write::conditions_text;

use crate::section::Server;

/// The most lines about one change.
const MOST_LINES: usize = 30;

/// What is different in the config after.
pub(crate) fn between(
    (config_before, server_before): (&Config, &Server),
    (config, server): (&Config, &Server),
) -> Vec<String> {
    let print = |server: &Server| {
        let (resp_token, admin_token) = (None, None);
        let server = Server {
            resp_token,
            admin_token,
            ..server.clone()
        };
        format!("{server:#}")
    };
    let mut lines = fields("server", &print(server_before), &print(server));
    lines.extend(fields(
        "envoy",
        &format!("{:#}", server_before.envoy),
        &format!("{:#}", server.envoy),
    ));
    if server_before.resp_token != server.resp_token {
        lines.push("server: resp_token changed".into());
    }
    if server_before.admin_token != server.admin_token {
        lines.push("server: admin_token changed".into());
    }
    let names = |config: &Config| config.stores.keys().cloned().collect::<Vec<_>>();
    for (name, change) in added_and_removed(&names(config_before), &names(config)) {
        lines.push(format!("store {name}: {change}"));
    }
    for (name, store) in &config.stores {
        let Some(before) = config_before.stores.get(name) else {
            continue;
        };
        let print = |store: &tidegate_config::StoreConfig| {
            let mut store = store.clone();
            store.password = None;
            let stores = BTreeMap::from([(name.clone(), store)]);
            let policies = Vec::new();
            format!("{:#}", Config { stores, policies })
        };
        let changed = fields(&format!("store {name}"), &print(before), &print(store));
        if before.password != store.password || changed.is_empty() && before != store {
            lines.push(format!("store {name}: user or password changed"));
        }
        lines.extend(changed);
    }
    let names = |config: &Config| -> Vec<String> {
        config.policies.iter().map(|it| it.name().into()).collect()
    };
    for (name, change) in added_and_removed(&names(config_before), &names(config)) {
        lines.push(format!("{name}: {change}"));
    }
    for policy in &config.policies {
        let mut before = config_before.policies.iter();
        if let Some(before) = before.find(|before| before.name() == policy.name()) {
            lines.extend(in_policy(before, policy));
        }
    }
    let more = lines.len().saturating_sub(MOST_LINES);
    lines.truncate(MOST_LINES);
    if more > 0 {
        lines.push(format!("and {more} more changes"));
    }
    lines
}

fn in_policy(before: &Policy, policy: &Policy) -> Vec<String> {
    if before == policy {
        return Vec::new();
    }
    let name = policy.name();
    let mut lines = Vec::new();
    let is_single = policy.levels().len() == 1 && before.levels().len() == 1;
    let names = |policy: &Policy| -> Vec<String> {
        let levels = policy.levels().iter();
        levels.map(|level| level.name().to_owned()).collect()
    };
    for (level, change) in added_and_removed(&names(before), &names(policy)) {
        lines.push(format!("{name}.{level}: {change}"));
    }
    for level in policy.levels() {
        let mut all = before.levels().iter();
        let Some(before) = all.find(|before| before.name() == level.name()) else {
            continue;
        };
        let place = match is_single {
            true => name.to_owned(),
            false => format!("{name}.{}", level.name()),
        };
        lines.extend(in_level(&place, before, level));
    }
    // The rest of its fields, as they are printed: levels and overrides come behind.
    let own = |policy: &Policy| {
        let config = Config {
            stores: BTreeMap::new(),
            policies: vec![policy.clone()],
        };
        let text = format!("{config:#}");
        let text = text.split("[[policies.").next().unwrap_or_default();
        let is_own = |line: &&str| {
            let name = line.split(' ').next().unwrap_or_default();
            // Changes of a level are reported above.
            ![
                "key",
                "limit",
                "algorithm",
                "burst",
                "strict",
                "align",
                "block",
            ]
            .contains(&name)
        };
        text.lines().filter(is_own).collect::<Vec<_>>().join("\n")
    };
    lines.extend(fields(name, &own(before), &own(policy)));
    lines
}

fn in_level(place: &str, before: &PolicyLevel, level: &PolicyLevel) -> Vec<String> {
    let mut lines = Vec::new();
    if before.limit() != level.limit() {
        lines.push(format!("{place}: {} -> {}", before.limit(), level.limit()));
    }
    let (key_before, key) = (before.key().as_str(), level.key().as_str());
    if key_before != key {
        lines.push(format!("{place}: key {key_before:?} -> {key:?}"));
    }
    let limit = |limit: Option<&Limit>| match limit {
        Some(limit) => limit.to_string(),
        None => "not limited".into(),
    };
    let overrides = |level: &PolicyLevel| -> BTreeMap<String, String> {
        let overrides = level.overrides();
        overrides
            .map(|(conditions, it)| (conditions_text(&conditions), limit(it)))
            .collect()
    };
    let (before, after) = (overrides(before), overrides(level));
    for (conditions, limit) in &after {
        match before.get(conditions) {
            None => lines.push(format!("{place}: override {conditions}: added, {limit}")),
            Some(before) if before != limit => {
                lines.push(format!(
                    "{place}: override {conditions}: {before} -> {limit}"
                ));
            }
            Some(_) => {}
        }
    }
    let removed = before.keys().filter(|it| !after.contains_key(*it));
    lines.extend(removed.map(|it| format!("{place}: override {it}: removed")));
    lines
}

fn added_and_removed(before: &[String], after: &[String]) -> Vec<(String, &'static str)> {
    let missing_in = |others: &[String], names: &[String]| -> Vec<String> {
        let names = names.iter().filter(|name| !others.contains(name));
        names.cloned().collect()
    };
    let added = missing_in(before, after)
        .into_iter()
        .map(|it| (it, "added"));
    let removed = missing_in(after, before);
    added
        .chain(removed.into_iter().map(|it| (it, "removed")))
        .collect()
}

/// Fields of a printed table whose values differ.
fn fields(place: &str, before: &str, after: &str) -> Vec<String> {
    let read = |text: &str| -> BTreeMap<String, String> {
        let lines = text.lines().filter_map(|line| line.split_once(" = "));
        lines
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect()
    };
    let (before, after) = (read(before), read(after));
    let mut lines = Vec::new();
    for (name, value) in &after {
        match before.get(name) {
            None => lines.push(format!("{place}: {name} = {value}")),
            Some(old) if old != value => lines.push(format!("{place}: {name} {old} -> {value}")),
            Some(_) => {}
        }
    }
    let removed = before.keys().filter(|name| !after.contains_key(*name));
    lines.extend(removed.map(|name| format!("{place}: {name} removed")));
    lines
}

#[cfg(test)]
mod tests {
    use tidegate_testkit::cases::check;

    use super::*;
    use crate::settings::parse;

    fn lines(before: &str, after: &str) -> Vec<String> {
        let read = |text: &str| parse(text, "tidegate.toml", None).expect("a right config");
        let ((server_before, before), (server, after)) = (read(before), read(after));
        between((&before, &server_before), (&after, &server))
    }

    #[test]
    fn every_kind_of_change_has_its_line() {
        check(include_str!("changes.txt"), 14, |text| {
            let (before, after) = text.split_once("\n->\n").expect("two configs");
            match &lines(before, after)[..] {
                [] => "nothing".into(),
                lines => lines.join("\n"),
            }
        });
    }

    #[test]
    fn many_changes_are_cut_short() {
        let all = |limit: &str| -> String {
            let one = |number| format!("[[policies]]\nname = \"p{number}\"\nlimit = \"{limit}\"\n");
            (0..100).map(one).collect()
        };
        let lines = lines(&all("1r/s"), &all("2r/s"));
        assert_eq!(lines.len(), MOST_LINES + 1);
        assert_eq!(lines[MOST_LINES], "and 70 more changes");
    }
}
