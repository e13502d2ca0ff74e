//! Limits in the form of envoyproxy/ratelimit, over gRPC.

use std::collections::HashMap;

use tidegate_testkit::cases::rows;
use tidegate_testkit::simulation::Random;

use super::Served;
use super::native::ROWS;
use crate::observed::metrics;
use crate::process::{Start, until};
use crate::redis_server::Server;

const SHOP: &str = "domain: shop
descriptors:
  - key: path
    value: /login
    rate_limit: {unit: year, requests_per_unit: 2, name: login}
  - key: ip
    rate_limit: {unit: year, requests_per_unit: 4}
";

/// A server with these lines in `[envoy]`, and SHOP as its limits.
fn start(lines: &str, store: &str) -> Start {
    let start = Start::new(&format!("[envoy]\nconfig = \"limits\"\n{lines}\n{store}"));
    std::fs::create_dir(start.folder().path("limits")).expect("a folder");
    start.folder().write("limits/shop.yaml", SHOP);
    start
}

fn redis_store(redis: &Server) -> String {
    format!(
        "[stores.default]\nurl = {:?}\ntimeout = \"5s\"\n",
        redis.url()
    )
}

#[test]
fn every_hit_counts_in_memory_and_in_redis_for_all_servers() {
    let heading = "limits are those of a file";
    let served = Served::with(start("", ""));
    rows(ROWS, heading, |question| served.say(question));
    let metrics = served.server.get("/metrics");
    let line = "tidegate_decisions_total{policy=\"envoy\",result=\"denied\"} 3";
    assert!(metrics.text().contains(line), "{}", metrics.text());
    let redis = Server::start();
    let servers = [(); 2].map(|()| Served::with(start("", &redis_store(&redis))));
    let mut turns = servers.iter().cycle();
    rows(ROWS, heading, |question| {
        turns.next().expect("a server").say(question)
    });
}

#[test]
fn random_hits_in_redis_are_counted_as_by_a_model() {
    let redis = Server::start();
    let served = Served::with(start("", &redis_store(&redis)));
    let (mut counts, mut random) = (HashMap::new(), Random::new(7));
    for step in 0..400 {
        let ip = format!("10.0.0.{}", random.below(5));
        let change = random.one_of(&[-3, -2, -1, 0, 1, 2]);
        let count = counts.entry(ip.clone()).or_insert(0_i64);
        *count = (*count + change).max(0);
        let code = if *count > 4 && change >= 0 {
            "OVER"
        } else {
            "OK"
        };
        let expected = format!("{code}: {code} {}/4", (4 - *count).max(0));
        let got = served.say(&format!("shop: ip={ip} *{change}"));
        assert_eq!(got, expected, "step {step}");
    }
}

#[test]
fn exact_limits_charge_all_descriptors_or_none_in_redis() {
    let redis = Server::start();
    for mode in ["exact", "background", "lease"] {
        let lines = format!("algorithm = \"token_bucket\"\nmode = \"{mode}\"");
        let store = format!("{}prefix = \"{mode}\"\n", redis_store(&redis));
        let served = Served::with(start(&lines, &store));
        let heading = "limits with an algorithm charge all descriptors or none";
        rows(ROWS, heading, |question| served.say(question));
        let last = || served.say("shop: ip=::1").starts_with("OK: ");
        match mode {
            // What is given back after its lease has ended counts for up to a second more.
            "lease" => until("what was given back", || last().then_some(())),
            _ => assert!(last(), "{mode}"),
        }
        assert_eq!(served.say("shop: ip=::1"), "OVER: OVER 0/4", "{mode}");
    }
}

#[test]
fn leased_limits_hold_in_redis() {
    let redis = Server::start();
    let lines = "algorithm = \"token_bucket\"\nmode = \"lease\"";
    let servers = [(); 2].map(|()| Served::with(start(lines, &redis_store(&redis))));
    let turns = servers.iter().cycle().take(20);
    let answers = turns.map(|served| served.say("shop: ip=::1"));
    let admitted = answers.filter(|answer| answer.starts_with("OK: "));
    assert_eq!(admitted.count(), 4);
}

/// The policy beside them wakes the log of the outage.
#[test]
fn v4_on_error_answers_when_the_store_is_down_and_the_log_says_so() {
    let down = "[stores.default]\nurl = \"redis://127.0.0.1:1\"\n[[policies]]\nname = \"p\"\n\
                limit = \"1r/s\"\nstore = \"m\"\n[stores.m]\n";
    let heading = "limits are those of a file, and the store is down";
    rows(ROWS, heading, |text| {
        let (on_error, question) = text.split_once(' ').expect(text);
        let served = Served::with(start(&format!("on_error = \"{on_error}\""), down));
        let does = match on_error {
            "error" => "answered with UNAVAILABLE",
            "allow" => "allowed",
            _ => "denied",
        };
        let line = served.server.line("the store keeps failing");
        let expected = format!("policies={does}: envoy-1s, envoy-2592000s,");
        assert!(line.contains(&expected), "{line}");
        let said = served.say(question);
        let counted = |source: &str| {
            let name = format!("tidegate_source_total{{policy=\"envoy\",source=\"{source}\"}}");
            metrics(&served.server).get(&name).copied()
        };
        // An error is no decision.
        let expected = if on_error == "error" { 0.0 } else { 1.0 };
        assert_eq!(counted("error_policy"), Some(expected), "{on_error}");
        said
    });
}

#[test]
fn files_are_read_again_when_they_change() {
    let served = Served::with(start("", ""));
    let folder = served.server.folder();
    let ask = |domain: &str| served.say(&format!("{domain}: ip=::1"));
    assert_eq!(ask("shop"), "OK: OK 3/4");
    // A raised limit keeps its count.
    folder.write(
        "limits/shop.yaml",
        SHOP.replace("requests_per_unit: 4", "requests_per_unit: 1000000"),
    );
    let line = served
        .server
        .line("changed: shop.ip: 4/365d -> 1000000/365d");
    assert!(line.contains("INFO"), "{line}");
    assert_eq!(ask("shop"), "OK: OK 999998/1000000");
    // Another file is another domain.
    folder.write(
        "limits/web.yml",
        SHOP.replace("domain: shop", "domain: web"),
    );
    served.server.line("changed: web.ip: added, 4/365d");
    assert_eq!(ask("web"), "OK: OK 3/4");
    // A bad one is refused whole, with its line.
    folder.write("limits/web.yml", SHOP.replace("unit: year", "unit: eon"));
    let line = served
        .server
        .line("the config is wrong, and the old one stays in force");
    assert!(line.contains("web.yml:5: rate_limit.unit is"), "{line}");
    until("the count", || {
        let metrics = served.server.get("/metrics");
        let count = "tidegate_reload_total{result=\"error\"} 1";
        metrics.text().contains(count).then_some(())
    });
    assert_eq!(ask("web"), "OK: OK 2/4");
    // So is a domain that another file has.
    folder.write("limits/web.yml", SHOP);
    served.server.line("web.yml:1: domain");
    assert_eq!(ask("web"), "OK: OK 1/4");
    std::fs::remove_file(folder.path("limits/web.yml")).expect("a file");
    served.server.line("changed: web.ip: removed");
    assert_eq!(ask("web"), "OK: OK -");
}

#[test]
fn bad_files_are_named_at_the_start() {
    let start = start("", "");
    start
        .folder()
        .write("limits/bad.yaml", "domain: x\ncolour: red\n");
    let (code, _, errors) = start.argument("--grpc").argument("127.0.0.1:0").fail();
    assert_eq!(code, 2, "{errors}");
    let expected = "bad.yaml:2: unknown key \"colour\": expected domain or descriptors";
    assert!(errors.contains(expected), "{errors}");
    let start = Start::new("[envoy]\nconfig = \"nowhere\"\n");
    let (code, _, errors) = start.fail();
    assert_eq!(code, 2, "{errors}");
    assert!(
        errors.contains("expected a YAML file, or a directory of them"),
        "{errors}"
    );
}
