//! `tidegate simulate` on random logs, beside the library and beside itself. Logs whose right
//! answer is worked out by hand are cases of tests/cmd/simulate.txt.

mod page;

use std::collections::BTreeMap;

use serde_json::Value;
use tidegate::{Cost, ManualClock, MemoryStore, Policies, Rate};
use tidegate_config::Config;

use crate::process::{Folder, run};

/// Midnight of 16 November 2026, in UTC.
const MIDNIGHT: u64 = 20_773 * 86_400;

/// Runs it on a log with a config, and returns what `--json` prints.
fn simulate(config: &str, log: impl AsRef<[u8]>, flags: &[&str]) -> Value {
    let folder = Folder::new();
    folder.write("tidegate.toml", config);
    folder.write("log", log);
    let command = ["simulate", "--json", "--config", "tidegate.toml", "log"];
    let (code, said, error) = run(&folder, &[&command, flags].concat());
    assert_eq!((code, error.as_str()), (0, ""), "{flags:?}");
    serde_json::from_str(&said).unwrap_or_else(|error| panic!("{error}: {said}"))
}

/// One policy named `p` by address.
fn by_address(limit: &str) -> String {
    format!("[[policies]]\nname = \"p\"\nkey = \"{{ip}}\"\n{limit}\n")
}

/// A line as nginx writes it, in a second of that day.
fn nginx(second: u64, ip: &str, path: &str) -> String {
    let (hours, minutes, seconds) = (second / 3_600, second / 60 % 60, second % 60);
    let time = format!("16/Nov/2026:{hours:02}:{minutes:02}:{seconds:02} +0000");
    format!("{ip} - - [{time}] \"GET {path} HTTP/1.1\" 200 612 \"-\" \"curl/8.5\"\n")
}

/// A line of JSON with a time in milliseconds.
fn json(at_ms: u64, ip: &str, path: &str) -> String {
    format!("{{\"time\":{at_ms},\"ip\":\"{ip}\",\"path\":\"{path}\"}}\n")
}

fn number(value: &Value) -> u64 {
    value
        .as_u64()
        .unwrap_or_else(|| panic!("{value}: a number"))
}

/// The same numbers each time.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }

    fn index(&mut self, length: usize) -> usize {
        usize::try_from(self.below(length as u64)).expect("below a length")
    }

    /// One of a few clients, the first of which asks most, and one of three paths.
    fn client(&mut self) -> (String, String) {
        let client = self.below(6) * self.below(2);
        (format!("192.0.2.{client}"), format!("/{}", self.below(3)))
    }
}

/// The time of a request, its address and its path.
type Event = (u64, String, String);

/// Holds a run on this log against the library, which decides at the times of the events.
fn decisions_are_those_of_the_library(format: &str, log: &str, events: &[Event]) {
    let text = include_str!("policies.toml");
    let result = simulate(text, log, &["--format", format]);
    assert_eq!(result, simulate(text, log, &["--format", format]), "twice");
    let config: Config = text.parse().expect("a config that is right");
    let clock = ManualClock::at_us(0);
    let store = MemoryStore::builder().clock(clock.clone()).build();
    let limiter = Policies::with_stores([("default", store)], config.policies.clone());
    let limiter = limiter.expect("policies that are right");
    for (policy, body) in config
        .policies
        .iter()
        .zip(result["policies"].as_array().expect("a list"))
    {
        let mut levels: BTreeMap<String, u64> = BTreeMap::new();
        let mut clients: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
        for (at_us, ip, path) in events {
            clock.set_us(*at_us);
            let attributes = [("ip", ip), ("path", path)];
            let decision = limiter.check(policy.name(), &attributes, Cost::ONE);
            let decision = decision.expect("attributes that are there");
            let is_refused = !decision.allowed() || decision.would_deny();
            let client = clients.entry(ip).or_default();
            *client = (client.0 + 1, client.1 + u64::from(is_refused));
            if is_refused {
                let level = decision.denied_by().expect("a level").to_owned();
                *levels.entry(level).or_default() += 1;
            }
        }
        let name = policy.name();
        let refused: u64 = levels.values().sum();
        assert!(refused > 0, "{name}: the traffic is above the limit");
        assert_eq!(
            (&body["name"], number(&body["denied"])),
            (&name.into(), refused)
        );
        for level in body["levels"].as_array().into_iter().flatten() {
            let expected = levels.get(level["name"].as_str().expect("a name"));
            let expected = expected.copied().unwrap_or_default();
            assert_eq!(number(&level["denied"]), expected, "{name}: {level}");
        }
        for client in body["top"].as_array().expect("a list") {
            if let (Some(ip), None) = (client["key"]["ip"].as_str(), client["key"].get("path")) {
                let counts = (number(&client["requests"]), number(&client["denied"]));
                assert_eq!(counts, clients[ip], "{name}: {ip}");
            }
        }
    }
}

#[test]
fn milliseconds_are_taken_as_they_are() {
    let mut random = Random(1);
    let mut at_ms = MIDNIGHT * 1_000;
    let (mut events, mut log) = (Vec::new(), String::new());
    for _ in 0..2_000 {
        at_ms += random.below(60) * random.below(3);
        let (ip, path) = random.client();
        log.push_str(&json(at_ms, &ip, &path));
        events.push((at_ms * 1_000, ip, path));
    }
    decisions_are_those_of_the_library("json", &log, &events);
}

#[test]
fn requests_of_one_second_are_spread_over_it() {
    let mut random = Random(2);
    let (mut events, mut log) = (Vec::new(), String::new());
    for second in 0..60 {
        let count = random.below(40);
        for number in 0..count {
            let (ip, path) = random.client();
            log.push_str(&nginx(second, &ip, &format!("{path}?x")));
            let at_us = (MIDNIGHT + second) * 1_000_000 + number * 1_000_000 / count;
            events.push((at_us, ip, path));
        }
    }
    decisions_are_those_of_the_library("nginx", &log, &events);
}

/// Clients of all kinds: most ask rarely, some in bursts, one all the time.
fn traffic() -> String {
    let mut random = Random(11);
    let mut events = Vec::new();
    for client in 0..60_u64 {
        let mut at_ms = MIDNIGHT * 1_000 + random.below(5_000);
        for _ in 0..5 + client {
            at_ms += random.below(200 + 4_000 / (client + 1));
            events.push((at_ms, client));
        }
    }
    events.sort_unstable();
    let lines = events.into_iter();
    lines
        .map(|(at_ms, client)| json(at_ms, &format!("192.0.2.{client}"), "/"))
        .collect()
}

/// The suggested limit refuses few enough, and one less of either number does not.
#[test]
fn suggested_limit_is_the_smallest() {
    let log = traffic();
    for (limit, rest, share, per_mille, of) in [
        ("2r/s", "burst = 4", "1%", 10, "requests"),
        ("7r/s", "", "0.05", 50, "requests"),
        ("30r/m", "burst = 2", "20%", 200, "clients"),
        ("3/2s", "algorithm = \"sliding_log\"", "2%", 20, "requests"),
        (
            "9/5s",
            "algorithm = \"fixed_window\"",
            "10%",
            100,
            "clients",
        ),
        (
            "9/5s",
            "algorithm = \"sliding_window\"",
            "0.1%",
            1,
            "requests",
        ),
    ] {
        let name = format!("{limit} {rest} {share} of {of}");
        let start = by_address(&format!("limit = \"{limit}\"\n{rest}"));
        let flags = ["--format", "json", "--suggest", share, "--of", of];
        let result = simulate(&start, &log, &flags);
        let best = &result["policies"][0]["suggested"];
        let rate = |point: &Value| -> Rate {
            let text = point["limit"].as_str().expect("a limit");
            text.parse().expect("a rate")
        };
        let rest = if rest.starts_with("burst") { "" } else { rest };
        // The share that a limit refuses, and whether it is small enough.
        let refused = |rate: Rate, burst: Option<u64>| {
            let burst = burst.map_or(String::new(), |burst| format!("burst = {burst}\n"));
            let config = by_address(&format!("limit = \"{rate}\"\n{burst}{rest}"));
            let result = simulate(&config, &log, &["--format", "json"]);
            let [some, all] = match of {
                "requests" => ["denied", "requests"],
                _ => ["keys_denied", "keys"],
            }
            .map(|field| number(&result["policies"][0][field]));
            (some as f64 / all as f64, some * 1_000 < per_mille * all)
        };
        let (limit, burst) = (rate(best), best["burst"].as_u64());
        assert!(refused(limit, burst).1, "{name}: {best}");
        if let Ok(less) = Rate::new(u64::from(limit.requests()) - 1, limit.window()) {
            assert!(
                !refused(less, burst).1,
                "{name}: one less is enough, {best}"
            );
        }
        if let Some(burst) = burst.filter(|burst| *burst > 1) {
            let (_, is_few) = refused(limit, Some(burst - 1));
            assert!(!is_few, "{name}: a smaller burst is enough, {best}");
        }
        // The curve goes through it, and what it says is so.
        let curve = best["curve"].as_array().expect("a list");
        let same = |it: &&Value| it["limit"] == best["limit"] && it["burst"] == best["burst"];
        assert_eq!(curve.iter().filter(same).count(), 1, "{name}: {best}");
        for point in [best, &curve[0], &curve[curve.len() - 1]] {
            let (share, _) = refused(rate(point), point["burst"].as_u64());
            let said = point["denied_share"].as_f64().expect("a number");
            assert!((said - share).abs() < 1e-12, "{name}: {point}");
        }
    }
}

/// Lines that nobody wrote.
#[test]
fn random_bytes_are_lines_like_any_other() {
    let seeds = [
        nginx(0, "192.0.2.1", "/"),
        format!("{{\"ts\":{MIDNIGHT}.5,\"ip\":\"::1\",\"request\":{{\"uri\":\"/\\u00e4\"}}}}\n"),
        "[2026-11-16T00:00:00.310Z] \"GET / HTTP/2\" 204 - 154 0 226 100 \"::1\" \"a\" \"b\" \"c\" \"d\"\n".into(),
    ];
    let mut random = Random(5);
    let mut log = Vec::new();
    for number in 0..3_000 {
        let mut line = seeds[number % 3].clone().into_bytes();
        for _ in 0..random.below(4) {
            let at = random.index(line.len());
            match random.below(3) {
                0 => drop(line.remove(at)),
                1 => line.insert(at, b"\"[]{}\\:. -\0\xff9"[random.index(13)]),
                _ => line.truncate(at + 1),
            }
            line.retain(|byte| *byte != b'\n');
            line.push(b'\n');
        }
        log.extend(line);
    }
    for format in [
        "nginx", "combined", "common", "json", "caddy", "traefik", "envoy",
    ] {
        let result = simulate(&by_address("limit = \"1r/s\""), &log, &["--format", format]);
        let body = &result["policies"][0];
        let wrong = number(&result["unreadable"]);
        assert!((1..3_000).contains(&wrong), "{format}: {wrong}");
        let asked = number(&body["requests"]) + number(&body["without_key"]);
        let all = [
            number(&result["lines"]),
            asked + wrong + number(&result["late"]),
        ];
        assert_eq!(all, [3_000; 2], "{format}");
    }
}
