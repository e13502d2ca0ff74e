//! The suggested limit refuses few enough, and one less of either number does not.

use serde_json::{Value, json};

use super::{MIDNIGHT, Random, by_address, folder, json as line, lines, number, policy, simulate};

/// Clients of all kinds: most ask rarely, some in bursts, one all the time.
fn traffic() -> Vec<(u64, String)> {
    let mut random = Random(11);
    let mut events = Vec::new();
    for client in 0..60_u64 {
        let mut at_ms = MIDNIGHT * 1_000 + random.below(5_000);
        for _ in 0..5 + client {
            at_ms += random.below(200 + 4_000 / (client + 1));
            events.push((at_ms, format!("192.0.2.{client}")));
        }
    }
    events.sort();
    events
}

/// What a limit refuses, as the share of `of`.
fn refused(log: &str, limit: &str, of: &str) -> (u64, u64) {
    let folder = folder(&by_address(limit));
    folder.write("log", log);
    let flags = ["--config", "tidegate.toml", "--format", "json", "log"];
    let result = simulate(&folder, &flags);
    let fields = match of {
        "requests" => ["denied", "requests"],
        _ => ["keys_denied", "keys"],
    };
    let [some, all] = fields.map(|field| number(&policy(&result)[field]));
    (some, all)
}

fn suggested(log: &str, limit: &str, share: &str, of: &str) -> Value {
    let folder = folder(&by_address(limit));
    folder.write("log", log);
    let flags = ["--config", "tidegate.toml", "--format", "json", "log"];
    let asked = ["--suggest", share, "--of", of];
    policy(&simulate(&folder, &[&flags[..], &asked].concat())).clone()
}

#[test]
fn suggested_limit_is_the_smallest() {
    let log = lines(&traffic(), |(at_ms, ip)| line(*at_ms, ip));
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
        let body = suggested(&log, &format!("limit = \"{limit}\"\n{rest}"), share, of);
        let best = &body["suggested"];
        let text = best["limit"]
            .as_str()
            .unwrap_or_else(|| panic!("{name}: {body}"));
        let rate: tidegate::Rate = text.parse().expect("a rate");
        let burst = best["burst"].as_u64();
        let is_few = |requests: u64, burst: Option<u64>| {
            let window = rate.window();
            let Ok(rate) = tidegate::Rate::new(requests, window) else {
                return None;
            };
            let algorithm = if rest.starts_with("burst") { "" } else { rest };
            let burst = burst.map_or(String::new(), |burst| format!("burst = {burst}\n"));
            let limit = format!("limit = \"{rate}\"\n{burst}{algorithm}");
            let (some, all) = refused(&log, &limit, of);
            Some((some * 1_000 < per_mille * all, some, all))
        };
        let requests = u64::from(rate.requests());
        let (few, some, all) = is_few(requests, burst).expect("a limit");
        assert!(few, "{name}: {best}");
        let share = best["denied_share"].as_f64().expect("a number");
        assert!(
            (share - some as f64 / all as f64).abs() < 1e-12,
            "{name}: {best}"
        );
        if let Some((few, ..)) = is_few(requests - 1, burst) {
            assert!(!few, "{name}: one less is enough, {best}");
        }
        if let Some(burst) = burst.filter(|burst| *burst > 1) {
            let (few, ..) = is_few(requests, Some(burst - 1)).expect("a limit");
            assert!(!few, "{name}: a smaller burst is enough, {best}");
        }
        // The curve goes through it, and what it says is so.
        let curve = best["curve"].as_array().expect("a list");
        assert!(
            curve
                .iter()
                .any(|it| it["limit"] == best["limit"] && it["burst"] == best["burst"])
        );
        for point in [&curve[0], &curve[curve.len() - 1]] {
            let rate: tidegate::Rate = point["limit"].as_str().unwrap().parse().unwrap();
            let (_, some, all) = is_few(rate.requests().into(), point["burst"].as_u64()).unwrap();
            let share = point["denied_share"].as_f64().expect("a number");
            assert!(
                (share - some as f64 / all as f64).abs() < 1e-12,
                "{name}: {point}"
            );
        }
    }
}

#[test]
fn suggested_limit_is_the_one_that_arithmetic_gives() {
    // One client asks ten times at once, every ten seconds. To refuse none takes ten in ten
    // seconds, under every algorithm that counts per window.
    let mut log = String::new();
    for round in 0..5 {
        log.push_str(&line((MIDNIGHT + 10 * round) * 1_000, "::1").repeat(10));
    }
    for algorithm in ["fixed_window", "sliding_log"] {
        let limit = format!("limit = \"3/10s\"\nalgorithm = \"{algorithm}\"");
        let body = suggested(&log, &limit, "0", "requests");
        assert_eq!(body["suggested"]["limit"], "10/10s", "{body}");
        assert_eq!(body["suggested"]["denied_share"], 0.0);
        assert_eq!(body["suggested"].get("burst"), None);
        // Nine of ten refuse one in ten: 10 % is not fewer than 10 %, 11 % is.
        let body = suggested(&log, &limit, "10%", "requests");
        assert_eq!(body["suggested"]["limit"], "10/10s");
        let body = suggested(&log, &limit, "11%", "requests");
        assert_eq!(body["suggested"]["limit"], "9/10s");
    }
    // A bucket of ten that is full again after ten seconds.
    let body = suggested(&log, "limit = \"3/10s\"", "0", "requests");
    assert_eq!(body["suggested"]["limit"], "10/10s", "{body}");
    assert_eq!(body["suggested"]["burst"], 10);
}

#[test]
fn u4_one_scraper_does_not_set_the_limit_of_all() {
    // Thirty clients ask twice a second for a minute, and one 25 times a second.
    let mut events = Vec::new();
    for tick in 0..60 * 25_u64 {
        let at_ms = MIDNIGHT * 1_000 + tick * 40;
        events.push((at_ms, "203.0.113.7".to_owned()));
        if tick % 25 == 0 {
            for client in 0..30 {
                let ip = format!("192.0.2.{client}");
                events.extend([(at_ms, ip.clone()), (at_ms, ip)]);
            }
        }
    }
    let folder = folder(&by_address("limit = \"5r/s\"\nburst = 5"));
    folder.write("log", lines(&events, |(at_ms, ip)| line(*at_ms, ip)));
    let flags = ["--config", "tidegate.toml", "--format", "json", "log"];
    let result = simulate(&folder, &[&flags[..], &["--suggest", "1%"]].concat());
    let suggested = &policy(&result)["suggested"];
    assert_eq!(suggested["of"], "clients");
    assert_eq!(suggested["limit"], "2r/s", "{suggested}");
    assert_eq!(suggested["burst"], 2);
    assert_eq!(suggested["keys_denied"], 1);
    assert_eq!(suggested["denied_share"], 1.0 / 31.0);
    // 2 at once and 2 per second of its 1,500.
    let scraper = &suggested["clients"][0];
    assert_eq!(scraper["key"], json!({"ip": "203.0.113.7"}));
    assert_eq!(
        (&scraper["requests"], &scraper["denied"]),
        (&json!(1_500), &suggested["denied"])
    );
    assert_eq!(suggested["clients"].as_array().map(Vec::len), Some(1));
    // With it, nobody is refused by what it takes.
    assert_eq!(suggested["with_them"]["limit"], "25r/s", "{suggested}");
    let nobody = simulate(&folder, &[&flags[..], &["--suggest", "0"]].concat());
    let nobody = &policy(&nobody)["suggested"];
    assert_eq!(nobody["limit"], suggested["with_them"]["limit"]);
    assert_eq!(nobody["burst"], suggested["with_them"]["burst"]);
    assert_eq!(nobody["clients"], json!([]));
    assert_eq!(nobody.get("with_them"), None);
}
