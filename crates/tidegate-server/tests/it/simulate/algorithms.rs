//! Each algorithm on random traffic, beside its definition worked out in the plainest way;
//! and the decisions of the library for the same instants.

use std::collections::BTreeMap;

use serde_json::Value;
use tidegate::{Cost, ManualClock, MemoryStore, PolicyLimiter};
use tidegate_config::Config;

use super::{MIDNIGHT, Random, by_address, folder, json, lines, nginx, number, policy, simulate};

/// Whether each request of one client is admitted: their times in, in microseconds.
type Rule = fn(&[u64]) -> Vec<bool>;

const SECOND: i128 = 1_000_000;

/// Ten per second, four at once: the tokens in parts of 100,000 us.
fn bucket(times: &[u64]) -> Vec<bool> {
    let (refill, burst) = (SECOND / 10, 4);
    let (mut tokens, mut last) = (burst * refill, None);
    let admit = |at: &u64| {
        let at = i128::from(*at);
        tokens = (tokens + at - last.unwrap_or(at)).min(burst * refill);
        last = Some(at);
        let admitted = tokens >= refill;
        tokens -= if admitted { refill } else { 0 };
        admitted
    };
    times.iter().map(admit).collect()
}

/// Three per two seconds, in windows that open with a request.
fn window(times: &[u64]) -> Vec<bool> {
    let (mut start, mut count) = (None, 0);
    let admit = |at: &u64| {
        if start.is_none_or(|start| *at >= start + 2_000_000) {
            (start, count) = (Some(*at), 0);
        }
        count += 1;
        count <= 3
    };
    times.iter().map(admit).collect()
}

/// Three per two seconds of the clock.
fn aligned(times: &[u64]) -> Vec<bool> {
    let mut counts = BTreeMap::new();
    let admit = |at: &u64| {
        let count = counts.entry(at / 2_000_000).or_insert(0);
        *count += 1;
        *count <= 3
    };
    times.iter().map(admit).collect()
}

/// Three in any two seconds.
fn log(times: &[u64]) -> Vec<bool> {
    let mut admitted: Vec<u64> = Vec::new();
    let admit = |at: &u64| {
        let recent = admitted.iter().filter(|other| *other + 2_000_000 > *at);
        let fits = recent.count() < 3;
        if fits {
            admitted.push(*at);
        }
        fits
    };
    times.iter().map(admit).collect()
}

/// Three per two seconds by two counters.
fn two_counters(times: &[u64]) -> Vec<bool> {
    let mut counts: BTreeMap<u64, i128> = BTreeMap::new();
    let admit = |at: &u64| {
        let (number, into) = (at / 2_000_000, i128::from(at % 2_000_000));
        let before = counts.get(&(number - 1)).copied().unwrap_or(0);
        let now = counts.entry(number).or_insert(0);
        let fits = before * (2 * SECOND - into) <= (3 - *now - 1) * 2 * SECOND;
        *now += i128::from(fits);
        fits
    };
    times.iter().map(admit).collect()
}

const RULES: [(&str, Rule); 5] = [
    ("limit = \"10r/s\"\nburst = 4", bucket),
    ("limit = \"3/2s\"\nalgorithm = \"fixed_window\"", window),
    (
        "limit = \"3/2s\"\nalgorithm = \"fixed_window\"\nalign = \"epoch\"",
        aligned,
    ),
    ("limit = \"3/2s\"\nalgorithm = \"sliding_log\"", log),
    (
        "limit = \"3/2s\"\nalgorithm = \"sliding_window\"",
        two_counters,
    ),
];

/// The addresses of a few clients, one of which asks most.
fn address(random: &mut Random) -> String {
    let client = random.below(6) * random.below(2);
    match client % 2 {
        0 => format!("192.0.2.{client}"),
        _ => format!("2001:db8::{client}"),
    }
}

/// Requests and refusals per client, by a rule.
fn expected(events: &[(u64, String)], rule: Rule) -> BTreeMap<String, (u64, u64)> {
    let mut clients: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
    for (at_us, ip) in events {
        clients.entry(ip).or_default().push(*at_us);
    }
    let counts = clients.into_iter().map(|(ip, times)| {
        let refused = rule(&times).iter().filter(|admitted| !**admitted).count();
        (ip.to_owned(), (times.len() as u64, refused as u64))
    });
    counts.collect()
}

fn check(result: &Value, expected: &BTreeMap<String, (u64, u64)>, name: &str) {
    let body = policy(result);
    let refused: u64 = expected.values().map(|(_, refused)| refused).sum();
    assert!(refused > 0, "{name}: the traffic is above the limit");
    assert_eq!(number(&body["denied"]), refused, "{name}");
    assert_eq!(number(&body["keys"]), expected.len() as u64, "{name}");
    for client in body["top"].as_array().expect("a list") {
        let ip = client["key"]["ip"].as_str().expect("an address");
        let counts = (number(&client["requests"]), number(&client["denied"]));
        assert_eq!(counts, expected[ip], "{name}: {ip}");
    }
}

#[test]
fn milliseconds_are_taken_as_they_are() {
    let mut random = Random(1);
    let mut at_ms = MIDNIGHT * 1_000;
    let events: Vec<(u64, String)> = (0..1_500)
        .map(|_| {
            at_ms += random.below(60) * random.below(3);
            (at_ms * 1_000, address(&mut random))
        })
        .collect();
    for (limit, rule) in RULES {
        let folder = folder(&by_address(limit));
        folder.write("log", lines(&events, |(at_us, ip)| json(at_us / 1_000, ip)));
        let flags = ["--config", "tidegate.toml", "--format", "json", "log"];
        check(&simulate(&folder, &flags), &expected(&events, rule), limit);
    }
}

#[test]
fn bursts_within_a_second_are_spread_over_it() {
    // Ten in one second under 5r/s, one at once: they come 100 ms apart, and every other
    // one finds a token.
    let folder = folder(&by_address("limit = \"5r/s\"\nburst = 1"));
    let log = nginx(MIDNIGHT, "192.0.2.1").repeat(10) + &nginx(MIDNIGHT + 1, "192.0.2.1");
    folder.write("log", log);
    let result = simulate(&folder, &["--config", "tidegate.toml", "log"]);
    assert_eq!(number(&policy(&result)["denied"]), 5);
    let mut random = Random(2);
    for (limit, rule) in RULES {
        let folder = super::folder(&by_address(limit));
        let (mut events, mut log) = (Vec::new(), String::new());
        for second in 0..60 {
            let count = random.below(40);
            for number in 0..count {
                let ip = address(&mut random);
                log.push_str(&nginx(MIDNIGHT + second, &ip));
                let at_us = (MIDNIGHT + second) * 1_000_000 + number * 1_000_000 / count;
                events.push((at_us, ip));
            }
        }
        folder.write("log", log);
        let result = simulate(&folder, &["--config", "tidegate.toml", "log"]);
        check(&result, &expected(&events, rule), limit);
        let again = simulate(&folder, &["--config", "tidegate.toml", "log"]);
        assert_eq!(result, again, "each run is the same");
    }
}

#[test]
fn decisions_are_those_of_the_library() {
    let config = r#"
        [[policies]]
        name = "levels"
        count_denied = true
        [[policies.levels]]
        name = "path"
        key = "{path}"
        limit = "40/10s"
        algorithm = "sliding_window"
        [[policies.levels]]
        name = "both"
        key = "{ip}:{path}"
        limit = "3r/s"
        burst = 5
        [[policies.overrides]]
        match = { ip = "192.0.2.2" }
        limit = "1r/s"
        burst = 1
        [[policies.overrides]]
        match = { ip = "192.0.2.3" }
        enabled = false

        [[policies]]
        name = "shadow"
        key = "{ip}"
        shadow = true
        limit = "20/10s"
        algorithm = "sliding_log"

        [[policies]]
        name = "blocked"
        key = "{ip}"
        limit = "1000r/s"
        [[policies.overrides]]
        match = { ip = "192.0.2.4" }
        block = true
    "#;
    let mut random = Random(3);
    let mut at_ms = MIDNIGHT * 1_000;
    let events: Vec<(u64, String, String)> = (0..2_000)
        .map(|_| {
            at_ms += random.below(100);
            let ip = format!("192.0.2.{}", random.below(6));
            (at_ms, ip, format!("/{}", random.below(3)))
        })
        .collect();
    let folder = folder(config);
    let line = |(at_ms, ip, path): &(u64, String, String)| {
        format!("{{\"ts\":{at_ms},\"client_ip\":\"{ip}\",\"uri\":\"{path}?x\"}}\n")
    };
    folder.write("log", lines(&events, line));
    let flags = ["--config", "tidegate.toml", "--format", "json", "log"];
    let result = simulate(&folder, &flags);

    let config: Config = config.parse().expect("a config that is right");
    let clock = ManualClock::at_us(0);
    let store = MemoryStore::builder().clock(clock.clone()).build();
    let limiter = PolicyLimiter::with_stores([("default", store)], config.policies.clone());
    let limiter = limiter.expect("policies that are right");
    for (index, policy) in config.policies.iter().enumerate() {
        let (mut refused, mut first) = (0, BTreeMap::new());
        for (at_ms, ip, path) in &events {
            clock.set_us(at_ms * 1_000);
            let attributes = [("ip", ip), ("path", path)];
            let decision = limiter.check(policy.name(), &attributes, Cost::ONE);
            let decision = decision.expect("attributes that are there");
            if !decision.allowed() || decision.would_deny() {
                refused += 1;
                let level = decision.denied_by().expect("a level").to_owned();
                *first.entry(level).or_insert(0) += 1;
            }
        }
        let body = &result["policies"][index];
        assert_eq!(body["name"], policy.name());
        assert!(refused > 0, "{}", policy.name());
        assert_eq!(number(&body["denied"]), refused, "{}", policy.name());
        for level in body["levels"].as_array().expect("a list") {
            let name = level["name"].as_str().expect("a name");
            let expected = first.get(name).copied().unwrap_or(0);
            assert_eq!(number(&level["denied"]), expected, "{name}");
        }
    }
}
