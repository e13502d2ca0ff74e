//! What tells others how the server is. Counts of single requests are in `requests/observed.txt`.

use std::collections::BTreeMap;
use std::process::Command;

use serde_json::{Value, json};

use crate::process::{Start, Tidegate, until};
use crate::redis_server::Server;

/// Every series of the text with its value.
pub(crate) fn metrics(server: &Tidegate) -> BTreeMap<String, f64> {
    let answer = server.get("/metrics");
    assert_eq!(answer.status, 200);
    let kind = answer.header("content-type").expect("a type");
    assert!(kind.starts_with("text/plain; version=0.0.4"), "{kind}");
    let lines = answer.text().lines().filter(|line| !line.starts_with('#'));
    let pairs = lines.map(|line| {
        let (name, value) = line.rsplit_once(' ').expect("a name and a value");
        (name.to_owned(), value.parse().expect("a number"))
    });
    pairs.collect()
}

#[test]
fn metrics_of_leases_add_up() {
    let redis = Server::start();
    let server = Tidegate::start(&format!(
        "[stores.default]\nurl = \"{}\"\ntimeout = \"20s\"\n[[policies]]\nname = \"p\"\n\
         limit = \"100000/1h\"\nmode = \"lease\"\n",
        redis.url()
    ));
    let many = format!("[{}]", [r#"{"policy":"p","key":"k"}"#; 50].join(","));
    for _ in 0..40 {
        assert_eq!(server.check(&many).status, 200);
    }
    let metrics = || metrics(&server);
    let of = |metrics: &BTreeMap<String, f64>, name: &str| metrics[&format!("tidegate_{name}")];
    let busy = metrics();
    let granted = of(&busy, "leases_total{event=\"granted\",policy=\"p\"}");
    let calls = of(&busy, "lease_calls_total{policy=\"p\"}");
    assert!(granted >= 1.0, "{granted}");
    assert!(calls >= granted, "{calls} calls for {granted} leases");
    assert!(calls < 1_000.0, "{calls} calls for 2000 checks");
    // Nobody asks any more: each lease ends in one of the two ways, and no token is left.
    until("the end of all leases", || {
        let idle = metrics();
        let granted = of(&idle, "leases_total{event=\"granted\",policy=\"p\"}");
        let settled = of(&idle, "leases_total{event=\"settled\",policy=\"p\"}");
        let lapsed = of(&idle, "leases_total{event=\"lapsed\",policy=\"p\"}");
        let tokens = of(&idle, "leased_tokens{policy=\"p\"}");
        (tokens == 0.0 && settled + lapsed == granted).then_some(())
    });
}

#[test]
fn every_series_has_its_help_and_its_type_and_no_key() {
    let server = Tidegate::start("");
    server.get("/v1/gate/default?key=secret-key");
    let text = server.get("/metrics");
    assert!(!text.text().contains("secret-key"));
    for name in metrics(&server).keys() {
        let family = name.split('{').next().expect("a name");
        let mut suffixes = ["_bucket", "_sum", "_count"].into_iter();
        let family = suffixes
            .find_map(|suffix| family.strip_suffix(suffix))
            .unwrap_or(family);
        for kind in ["HELP", "TYPE"] {
            let line = format!("# {kind} {family} ");
            assert!(text.text().contains(&line), "{line}");
        }
    }
}

#[test]
fn without_a_config_there_is_one_policy_and_a_command_to_try() {
    let server = Start::without_config().start();
    let policies = server.get("/v1/policies").json();
    let level = &policies[0]["levels"][0];
    let limit = json!({"algorithm": "token_bucket", "limit": "10r/s", "requests": 10,
                       "window_ms": 1000, "burst": 10});
    assert_eq!((&level["key"], &level["limit"]), (&json!("{key}"), &limit));
    let line = server.line("try: ");
    let command = line.split("try: ").nth(1).expect("a command");
    let output = Command::new("sh").args(["-c", command]).output();
    let output = output.expect("a shell").stdout;
    let decision: Value = serde_json::from_slice(&output).expect("a decision");
    assert_eq!(decision["allowed"], true, "{command}");
}

#[test]
fn scrapes_at_the_same_time_agree() {
    let server = Tidegate::start("[stores.default]\nmax_keys = 100\n");
    std::thread::scope(|scope| {
        for client in 0..4 {
            let server = &server;
            scope.spawn(move || {
                let mut evicted = 0.0;
                for round in 0..20 {
                    for key in 0..20 {
                        server.get(&format!("/v1/gate/default?key={client}-{round}-{key}"));
                    }
                    let now = metrics(server)["tidegate_evicted_total"];
                    assert!(now >= evicted && now < 10_000.0, "{now} after {evicted}");
                    evicted = now;
                }
            });
        }
    });
}
