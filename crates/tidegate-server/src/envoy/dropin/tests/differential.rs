//! Random limits and requests beside a model of envoyproxy/ratelimit that shares no code
//! with the service: it keeps its own tree, its own counters and its own clock.

use std::collections::HashMap;

use tidegate_testkit::simulation::Random;

use super::{START_S, Service, code, said_status};
use crate::envoy::rules::Defaults;
use crate::envoy::wire::{Descriptor, Entry, LimitOverride, RateLimitRequest};

const SEEDS: u64 = 3_000;
const REQUESTS: usize = 25;

const KEYS: &[&str] = &["a", "b", "a_b"];
const VALUES: &[&str] = &["", "x", "xy", "xyz", "x*", "x*z", "*", "b"];
const REQUESTED: &[&str] = &["", "x", "xy", "xyz", "xz", "y", "b", "x*"];
const NAMES: &[&str] = &["", "", "n1", "n2"];
/// Names, seconds and numbers of units.
const UNITS: &[(&str, u64, i32)] = &[
    ("second", 1, 1),
    ("minute", 60, 2),
    ("hour", 3_600, 3),
    ("day", 86_400, 4),
    ("week", 604_800, 7),
    ("month", 2_592_000, 5),
    ("year", 31_536_000, 6),
];

#[derive(Clone, Default)]
struct Limit {
    requests: u32,
    unit: usize,
    unlimited: bool,
    shadow: bool,
    quota: bool,
    name: &'static str,
    replaces: Option<&'static str>,
}

#[derive(Default)]
struct Node {
    name: String,
    limit: Option<Limit>,
    is_shared: bool,
    below: Vec<Node>,
}

/// A random tree, and its YAML.
fn branch(random: &mut Random, depth: usize, yaml: &mut String) -> Vec<Node> {
    let mut nodes: Vec<Node> = Vec::new();
    for _ in 0..1 + random.below(4) {
        let (key, value) = (random.one_of(KEYS), random.one_of(VALUES));
        let mut node = Node {
            name: format!("{key}_{value}").trim_end_matches('_').to_owned(),
            ..Node::default()
        };
        if nodes.iter().any(|it| it.name == node.name) {
            continue;
        }
        let indent = "  ".repeat(depth * 2 + 1);
        *yaml += &format!("{indent}- key: {key}\n");
        if !value.is_empty() {
            *yaml += &format!("{indent}  value: \"{value}\"\n");
        }
        if node.name.contains('*') && random.below(2) == 0 {
            *yaml += &format!("{indent}  share_threshold: true\n");
            node.is_shared = true;
        }
        if random.below(4) != 0 {
            let limit = limit(random);
            *yaml += &format!("{indent}  shadow_mode: {}\n", limit.shadow);
            *yaml += &format!("{indent}  quota_mode: {}\n", limit.quota);
            *yaml += &format!("{indent}  rate_limit: {}\n", written(&limit));
            node.limit = Some(limit);
        }
        if depth < 2 && random.below(3) == 0 {
            *yaml += &format!("{indent}  descriptors:\n");
            node.below = branch(random, depth + 1, yaml);
        }
        nodes.push(node);
    }
    nodes
}

fn limit(random: &mut Random) -> Limit {
    let name = random.one_of(NAMES);
    let replaces = (random.below(4) == 0).then(|| random.one_of(&["n1", "n2"]));
    Limit {
        requests: random.one_of(&[0, 1, 2, 3, 4]),
        unit: random.index(UNITS.len()),
        unlimited: random.below(8) == 0,
        shadow: random.below(6) == 0,
        quota: random.below(5) == 0,
        name,
        replaces: replaces.filter(|it| *it != name),
    }
}

/// A limit in YAML.
fn written(limit: &Limit) -> String {
    let (unit, requests) = (UNITS[limit.unit].0, limit.requests);
    let numbers = match limit.unlimited {
        true => "unlimited: true".into(),
        false => format!("unit: {unit}, requests_per_unit: {requests}"),
    };
    let replaces = limit.replaces.map(|it| format!("{{name: {it}}}"));
    let replaces = replaces.unwrap_or_default();
    format!(
        "{{name: \"{}\", {numbers}, replaces: [{replaces}]}}",
        limit.name
    )
}

/// Whether a text begins and ends as a pattern with one star does.
fn fits(pattern: &str, text: &str) -> bool {
    pattern.split_once('*').is_some_and(|(begin, end)| {
        let rest = text.strip_prefix(begin);
        rest.is_some_and(|rest| rest.ends_with(end))
    })
}

/// What a descriptor has found: its limit, and the keys and values of its counter.
fn search(tree: &[Node], entries: &[(&str, &str)]) -> Option<(Limit, Vec<String>)> {
    let mut here = tree;
    let mut counter = Vec::new();
    let mut found = None;
    for (key, value) in entries {
        let full = format!("{key}_{value}");
        let node = here.iter().find(|it| it.name == full);
        let node = node.or_else(|| here.iter().find(|it| fits(&it.name, &full)));
        let node = node.or_else(|| here.iter().find(|it| it.name == *key))?;
        let counted = match node.is_shared && node.name != full {
            true => format!("shared {}", node.name),
            false => (*value).to_owned(),
        };
        counter.extend([(*key).to_owned(), counted]);
        (here, found) = (&node.below, node.limit.clone());
    }
    Some((found?, counter))
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

struct Model {
    tree: Vec<Node>,
    now: u64,
    counts: HashMap<(Vec<String>, u64, u64), u64>,
}

impl Model {
    /// The overall code and all statuses, in words.
    fn answer(&mut self, request: &RateLimitRequest) -> String {
        let limits = request.descriptors.iter().map(|descriptor| {
            let entries = descriptor.entries.iter();
            let entries = entries.map(|it| (text(&it.key), text(&it.value)));
            let entries: Vec<_> = entries.collect();
            let Some(limit) = &descriptor.limit else {
                return search(&self.tree, &entries);
            };
            let own = Limit {
                requests: limit.requests_per_unit,
                unit: UNITS.iter().position(|it| it.2 == limit.unit).unwrap(),
                ..Limit::default()
            };
            let words = entries.iter().flat_map(|(key, value)| [*key, *value]);
            Some((own, words.map(str::to_owned).collect()))
        });
        let limits: Vec<_> = limits.collect();
        let replaced: Vec<&str> = limits
            .iter()
            .flatten()
            .filter_map(|(limit, _)| limit.replaces)
            .collect();
        let (mut statuses, mut refused) = (Vec::new(), false);
        let mut quotas: Vec<(Vec<Entry>, bool)> = Vec::new();
        for (descriptor, found) in request.descriptors.iter().zip(&limits) {
            let Some((limit, key)) = found else {
                statuses.push("OK -".to_owned());
                continue;
            };
            if limit.unlimited {
                statuses.push("OK inf".to_owned());
                continue;
            }
            if !limit.name.is_empty() && replaced.contains(&limit.name) {
                statuses.push("OK -".to_owned());
                continue;
            }
            let seconds = UNITS[limit.unit].1;
            let count = self
                .counts
                .entry((key.clone(), seconds, self.now / seconds))
                .or_insert(0);
            let hits = descriptor
                .hits_addend
                .unwrap_or(u64::from(request.hits_addend.max(1)));
            *count = match descriptor.is_negative_hits {
                true => count.saturating_sub(hits),
                false => *count + hits,
            };
            let requests = u64::from(limit.requests);
            let is_over = *count > requests && !descriptor.is_negative_hits;
            let is_told = is_over && !limit.shadow;
            let left = requests.saturating_sub(*count);
            let word = if is_told { "OVER" } else { "OK" };
            let reset = seconds - self.now % seconds;
            statuses.push(format!("{word} {left}/{requests} {reset}s"));
            match limit.quota {
                true => match quotas.iter_mut().find(|it| it.0 == descriptor.entries) {
                    Some(group) => group.1 |= is_told,
                    None => quotas.push((descriptor.entries.clone(), is_told)),
                },
                false => refused |= is_told,
            }
        }
        let no_quota = !quotas.is_empty() && quotas.iter().all(|it| it.1);
        let word = if refused || no_quota { "OVER" } else { "OK" };
        format!("{word}: {}", statuses.join(", "))
    }
}

fn request(random: &mut Random, domain: &str) -> RateLimitRequest {
    let descriptors = (0..1 + random.below(3)).map(|_| {
        let entries = (0..1 + random.below(3)).map(|_| Entry {
            key: random.one_of(KEYS).into(),
            value: random.one_of(REQUESTED).into(),
        });
        let entries = entries.collect();
        let limit = (random.below(8) == 0).then(|| LimitOverride {
            requests_per_unit: random.one_of(&[0, 1, 2, 3, 4]),
            unit: random.one_of(UNITS).2,
        });
        let hits_addend = (random.below(3) == 0).then(|| random.one_of(&[0, 1, 2, 3]));
        Descriptor {
            entries,
            limit,
            hits_addend,
            is_negative_hits: hits_addend.is_some() && random.below(3) == 0,
        }
    });
    RateLimitRequest {
        domain: domain.into(),
        descriptors: descriptors.collect(),
        hits_addend: random.one_of(&[0, 1, 2]),
    }
}

#[test]
fn random_limits_are_answered_as_by_the_model() {
    let service = Service::new("domain: d\n");
    let (mut over, mut now) = (0_u32, START_S);
    for seed in 0..SEEDS {
        let mut random = Random::new(seed);
        // A domain of its own: nothing of the seeds before counts.
        let domain = format!("d{seed}");
        let mut yaml = format!("domain: {domain}\ndescriptors:\n");
        let tree = branch(&mut random, 0, &mut yaml);
        service.change(&yaml, &Defaults::default());
        let mut model = Model {
            tree,
            now,
            counts: HashMap::new(),
        };
        for step in 0..REQUESTS {
            let request = request(&mut random, &domain);
            let expected = model.answer(&request);
            let answer = service.ask(&request);
            let statuses: Vec<String> = answer
                .statuses
                .iter()
                .map(|status| {
                    let reset = status
                        .duration_until_reset
                        .map(|it| format!(" {}s", it.seconds));
                    format!("{}{}", said_status(status), reset.unwrap_or_default())
                })
                .collect();
            let got = format!("{}: {}", code(answer.overall_code), statuses.join(", "));
            assert_eq!(
                got, expected,
                "seed {seed}, step {step}: {request:?}\n{yaml}"
            );
            over += u32::from(got.starts_with("OVER"));
            let seconds = random.one_of(&[0, 0, 0, 1, 7, 60, 1_800]);
            service.advance(seconds);
            now += seconds;
            model.now = now;
        }
    }
    assert!(over > 5_000, "{over}");
}
