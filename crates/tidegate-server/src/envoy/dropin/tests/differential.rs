//! Random limits and requests beside a model of envoyproxy/ratelimit that shares no code
//! with the service: it keeps its own tree, its own counters and its own clock.

use std::collections::HashMap;
use std::fmt::Write as _;

use super::{START_S, Service, code, said_status};
use crate::envoy::rules::Defaults;
use crate::envoy::wire::{Descriptor, Entry, LimitOverride, RateLimitRequest};

const SEEDS: u64 = 3_000;
const REQUESTS: usize = 25;

/// Numbers that look random.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    fn pick<'a>(&mut self, words: &[&'a str]) -> &'a str {
        words[usize::try_from(self.below(words.len() as u64)).unwrap()]
    }
}

const KEYS: &[&str] = &["a", "b", "a_b"];
const VALUES: &[&str] = &["", "x", "xy", "xyz", "x*", "x*z", "*", "b"];
const ASKED: &[&str] = &["", "x", "xy", "xyz", "xz", "y", "b", "x*"];
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
struct Branch {
    /// Names, in order.
    names: Vec<String>,
    limits: HashMap<String, Limit>,
    shares: HashMap<String, bool>,
    below: HashMap<String, Branch>,
}

/// A random tree, and its YAML.
fn branch(random: &mut Random, depth: usize, yaml: &mut String) -> Branch {
    let mut branch = Branch::default();
    for _ in 0..1 + random.below(4) {
        let (key, value) = (random.pick(KEYS), random.pick(VALUES));
        let name = if value.is_empty() {
            key.to_owned()
        } else {
            format!("{key}_{value}")
        };
        if branch.names.contains(&name) {
            continue;
        }
        let indent = "  ".repeat(depth * 2 + 1);
        let _ = writeln!(yaml, "{indent}- key: {key}");
        if !value.is_empty() {
            let _ = writeln!(yaml, "{indent}  value: \"{value}\"");
        }
        if name.contains('*') && random.one_in(2) {
            let _ = writeln!(yaml, "{indent}  share_threshold: true");
            branch.shares.insert(name.clone(), true);
        }
        if !random.one_in(4) {
            let mut limit = Limit {
                requests: u32::try_from(random.below(5)).unwrap(),
                unit: usize::try_from(random.below(UNITS.len() as u64)).unwrap(),
                unlimited: random.one_in(8),
                shadow: random.one_in(6),
                quota: random.one_in(5),
                name: random.pick(NAMES),
                replaces: random.one_in(4).then(|| random.pick(&["n1", "n2"])),
            };
            limit.replaces = limit.replaces.filter(|it| *it != limit.name);
            let _ = write!(
                yaml,
                "{indent}  shadow_mode: {}\n{indent}  quota_mode: {}\n{indent}  rate_limit: {{name: \"{}\"",
                limit.shadow, limit.quota, limit.name
            );
            match limit.unlimited {
                true => yaml.push_str(", unlimited: true"),
                false => {
                    let _ = write!(
                        yaml,
                        ", unit: {}, requests_per_unit: {}",
                        UNITS[limit.unit].0, limit.requests
                    );
                }
            }
            if let Some(replaced) = limit.replaces {
                let _ = write!(yaml, ", replaces: [{{name: {replaced}}}]");
            }
            yaml.push_str("}\n");
            branch.limits.insert(name.clone(), limit);
        }
        if depth < 2 && random.one_in(3) {
            let _ = writeln!(yaml, "{indent}  descriptors:");
            let below = self::branch(random, depth + 1, yaml);
            branch.below.insert(name.clone(), below);
        }
        branch.names.push(name);
    }
    branch
}

/// Whether a text begins and ends as a pattern with one star does.
fn fits(pattern: &str, text: &str) -> bool {
    let Some((begin, end)) = pattern.split_once('*') else {
        return false;
    };
    text.strip_prefix(begin)
        .is_some_and(|rest| rest.ends_with(end))
}

/// What a descriptor has found: its limit, and the values of its counter.
fn search<'b>(tree: &'b Branch, entries: &[(String, String)]) -> Option<(&'b Limit, Vec<String>)> {
    let mut here: &Branch = tree;
    let mut values = Vec::new();
    let mut found = None;
    for (index, (key, value)) in entries.iter().enumerate() {
        let full = format!("{key}_{value}");
        let mut counted = value.clone();
        let name = if here.names.contains(&full) {
            full
        } else if let Some(pattern) = here.names.iter().find(|name| fits(name, &full)) {
            if here.shares.contains_key(pattern) {
                counted = format!("shared {pattern}");
            }
            pattern.clone()
        } else if here.names.contains(key) {
            key.clone()
        } else {
            return None;
        };
        values.push(counted);
        if index + 1 == entries.len() {
            found = here.limits.get(&name);
        }
        match here.below.get(&name) {
            Some(below) => here = below,
            None if index + 1 < entries.len() => return None,
            None => break,
        }
    }
    Some((found?, values))
}

struct Model {
    tree: Branch,
    now: u64,
    counts: HashMap<(Vec<String>, u64, u64), u64>,
}

impl Model {
    /// The overall code and all statuses, in words.
    fn answer(&mut self, request: &RateLimitRequest) -> String {
        let text = |bytes: &bytes::Bytes| String::from_utf8(bytes.to_vec()).unwrap();
        let mut limits = Vec::new();
        for descriptor in &request.descriptors {
            let entries: Vec<(String, String)> = descriptor
                .entries
                .iter()
                .map(|it| (text(&it.key), text(&it.value)))
                .collect();
            let found = match &descriptor.limit {
                Some(limit) => {
                    let unit = UNITS.iter().position(|it| it.2 == limit.unit).unwrap();
                    let own = Limit {
                        requests: limit.requests_per_unit,
                        unit,
                        ..Limit::default()
                    };
                    Some((
                        own,
                        entries.iter().map(|it| it.1.clone()).collect::<Vec<_>>(),
                    ))
                }
                None => search(&self.tree, &entries).map(|(limit, values)| (limit.clone(), values)),
            };
            limits.push(found.map(|(limit, values)| {
                let keys = entries.iter().map(|it| it.0.clone());
                let key: Vec<String> = keys
                    .zip(values)
                    .flat_map(|(key, value)| [key, value])
                    .collect();
                (limit, key)
            }));
        }
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
            key: random.pick(KEYS).into(),
            value: random.pick(ASKED).into(),
        });
        let entries = entries.collect();
        let limit = random.one_in(8).then(|| LimitOverride {
            requests_per_unit: u32::try_from(random.below(5)).unwrap(),
            unit: UNITS[usize::try_from(random.below(7)).unwrap()].2,
        });
        let hits_addend = random.one_in(3).then(|| random.below(4));
        Descriptor {
            entries,
            limit,
            hits_addend,
            is_negative_hits: hits_addend.is_some() && random.one_in(3),
        }
    });
    RateLimitRequest {
        domain: domain.into(),
        descriptors: descriptors.collect(),
        hits_addend: u32::try_from(random.below(3)).unwrap(),
    }
}

#[test]
fn random_limits_are_answered_as_by_the_model() {
    let service = Service::new("domain: d\n");
    let (mut over, mut now) = (0_u32, START_S);
    for seed in 0..SEEDS {
        let mut random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
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
            let seconds = [0, 0, 0, 1, 7, 60, 1_800][usize::try_from(random.below(7)).unwrap()];
            service.advance(seconds);
            now += seconds;
            model.now = now;
        }
    }
    assert!(over > 5_000, "{over}");
}
