//! What tells others how the server is: metrics, health and readiness.

use std::collections::BTreeMap;

use crate::process::{Tidegate, until};
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
fn every_metric_of_the_contract_is_there() {
    let server = Tidegate::start(
        "[stores.default]\nmax_keys = 1000\n\
         [[policies]]\nname = \"p\"\nlimit = \"2/1h\"\n\
         [[policies]]\nname = \"w\"\nlimit = \"1/1h\"\nshadow = true\n",
    );
    for _ in 0..3 {
        server.get("/v1/gate/p?key=secret-key");
        server.check("{\"policy\":\"w\",\"key\":\"secret-key\"}");
    }
    // What only looks is not counted.
    server.check("{\"policy\":\"p\",\"key\":\"x\",\"peek\":true}");
    server.get("/v1/keys/p?key=x");
    let metrics = metrics(&server);
    for (name, value) in [
        (
            "tidegate_decisions_total{policy=\"p\",result=\"allowed\"}",
            2.0,
        ),
        (
            "tidegate_decisions_total{policy=\"p\",result=\"denied\"}",
            1.0,
        ),
        (
            "tidegate_decisions_total{policy=\"p\",result=\"shadow_denied\"}",
            0.0,
        ),
        (
            "tidegate_decisions_total{policy=\"w\",result=\"allowed\"}",
            1.0,
        ),
        (
            "tidegate_decisions_total{policy=\"w\",result=\"shadow_denied\"}",
            2.0,
        ),
        (
            "tidegate_decision_duration_seconds_count{policy=\"p\"}",
            3.0,
        ),
        (
            "tidegate_decision_duration_seconds_bucket{policy=\"p\",le=\"+Inf\"}",
            3.0,
        ),
        ("tidegate_source_total{policy=\"p\",source=\"store\"}", 3.0),
        (
            "tidegate_source_total{policy=\"p\",source=\"error_policy\"}",
            0.0,
        ),
        ("tidegate_store_up{store=\"default\"}", 1.0),
        (
            "tidegate_store_duration_seconds_count{store=\"default\"}",
            6.0,
        ),
        ("tidegate_breaker_open{store=\"default\"}", 0.0),
        ("tidegate_keys", 2.0),
        ("tidegate_evicted_total", 0.0),
        ("tidegate_reload_total{result=\"ok\"}", 0.0),
        ("tidegate_reload_total{result=\"error\"}", 0.0),
        ("tidegate_build_info{version=\"0.1.0\"}", 1.0),
    ] {
        assert_eq!(metrics.get(name), Some(&value), "{name}: {metrics:#?}");
    }
    assert!(metrics["tidegate_connections"] >= 1.0);
    let text = server.get("/metrics");
    assert!(!text.text().contains("secret-key"));
    // Every series has its help and its type.
    for name in metrics.keys() {
        let family = name.split('{').next().expect("a name");
        let suffixes = ["_bucket", "_sum", "_count"];
        let family = suffixes
            .iter()
            .find_map(|suffix| family.strip_suffix(suffix))
            .unwrap_or(family);
        for kind in ["HELP", "TYPE"] {
            let line = format!("# {kind} {family} ");
            assert!(text.text().contains(&line), "{line}");
        }
    }
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

#[test]
fn health_and_readiness() {
    let server = Tidegate::start("");
    for (path, text) in [("/healthz", "ok\n"), ("/readyz", "ready\n")] {
        let answer = crate::process::until(path, || {
            let answer = server.get(path);
            (answer.status == 200).then_some(answer)
        });
        assert_eq!(answer.text(), text);
        assert_eq!(answer.header("content-type"), Some("text/plain"));
        let head = server.ask("HEAD", path, "");
        assert_eq!((head.status, head.body.len()), (200, 0));
        assert_eq!(
            head.header("content-length"),
            Some(&*text.len().to_string())
        );
    }
}
