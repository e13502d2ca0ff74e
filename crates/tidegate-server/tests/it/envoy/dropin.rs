//! Limits in the form of envoyproxy/ratelimit, over gRPC.

use std::collections::HashMap;

use tidegate_server::envoy::wire::{Code, RateLimitRequest};
use tonic::Code as Grpc;

use super::{Served, codes, numbers, request};
use crate::process::{Start, until};
use crate::redis_server::Server;

const OK: Code = Code::Ok;
const OVER: Code = Code::OverLimit;

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

/// One hit, or as many as this.
fn hits(ip: &str, hits: i64) -> RateLimitRequest {
    let mut request = request("shop", &[&[("ip", ip)]]);
    request.descriptors[0].hits_addend = Some(hits.unsigned_abs());
    request.descriptors[0].is_negative_hits = hits < 0;
    request
}

fn counts_as_the_reference(served: &Served) {
    let both: &[&[(&str, &str)]] = &[&[("path", "/login")], &[("ip", "::1")], &[("other", "1")]];
    assert_eq!(served.codes("shop", both), [OK, OK, OK, OK]);
    let answer = served.ask(request("shop", both)).expect("an answer");
    assert_eq!(codes(&answer), [OK; 4]);
    let (limit, left, reset) = numbers(&answer.statuses[0]);
    assert_eq!((limit, left), (Some((2, "login".into())), 0));
    assert!(reset.is_some_and(|reset| reset > 0));
    assert_eq!(numbers(&answer.statuses[2]), (None, 0, None));
    // A refused request counts on its other descriptors, too.
    for _ in 0..2 {
        assert_eq!(served.codes("shop", both), [OVER, OVER, OK, OK]);
    }
    assert_eq!(served.codes("shop", both), [OVER, OVER, OVER, OK]);
    assert_eq!(served.codes("nobody", both), [OK; 4]);
}

#[test]
fn every_hit_counts_in_memory() {
    let served = Served::with(start("", ""));
    counts_as_the_reference(&served);
    let metrics = served.server.get("/metrics");
    let metrics = metrics.text();
    let line = "tidegate_decisions_total{policy=\"envoy\",result=\"denied\"} 3";
    assert!(metrics.contains(line), "{metrics}");
    let error = served
        .ask(request("", &[&[("ip", "1")]]))
        .expect_err("no domain");
    assert_eq!(error.code(), Grpc::InvalidArgument);
    let error = served
        .ask(request("shop", &[]))
        .expect_err("no descriptors");
    assert_eq!(
        error.message(),
        "rate limit descriptor list must not be empty"
    );
}

#[test]
fn every_hit_counts_in_redis_for_all_servers() {
    let redis = Server::start();
    let served = Served::with(start("", &redis_store(&redis)));
    counts_as_the_reference(&served);
    let other = Served::with(start("", &redis_store(&redis)));
    assert_eq!(other.codes("shop", &[&[("path", "/login")]]), [OVER, OVER]);
}

#[test]
fn random_hits_in_redis_are_counted_as_by_a_model() {
    let redis = Server::start();
    let served = Served::with(start("", &redis_store(&redis)));
    let (mut counts, mut random) = (HashMap::new(), 7_u64);
    let mut next = |end: u64| {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(99_991);
        (random >> 33) % end
    };
    for step in 0..400 {
        let ip = format!("10.0.0.{}", next(5));
        let change = i64::try_from(next(6)).expect("small") - 3;
        let count = counts.entry(ip.clone()).or_insert(0_i64);
        *count = (*count + change).max(0);
        let answer = served.ask(hits(&ip, change)).expect("an answer");
        let expected = if *count > 4 && change >= 0 { OVER } else { OK };
        assert_eq!(codes(&answer), [expected; 2], "step {step}");
        let left = u32::try_from((4 - *count).max(0)).expect("small");
        assert_eq!(answer.statuses[0].limit_remaining, left, "step {step}");
    }
}

#[test]
fn exact_limits_charge_all_descriptors_or_none_in_redis() {
    for mode in ["exact", "background", "lease"] {
        let redis = Server::start();
        let lines = format!("algorithm = \"token_bucket\"\nmode = \"{mode}\"");
        let served = Served::with(start(&lines, &redis_store(&redis)));
        let both: &[&[(&str, &str)]] = &[&[("path", "/login")], &[("ip", "::1")]];
        assert_eq!(served.codes("shop", both), [OK; 3], "{mode}");
        assert_eq!(served.codes("shop", both), [OK; 3], "{mode}");
        for _ in 0..5 {
            assert_eq!(served.codes("shop", both), [OVER, OVER, OK], "{mode}");
        }
        assert_eq!(served.codes("shop", &[&[("ip", "::1")]]), [OK; 2], "{mode}");
        let fourth = || served.codes("shop", &[&[("ip", "::1")]]) == [OK; 2];
        match mode {
            // What is given back after its lease has ended counts for up to a second more.
            "lease" => until("what was given back", || fourth().then_some(())),
            _ => assert!(fourth(), "{mode}"),
        }
        assert_eq!(
            served.codes("shop", &[&[("ip", "::1")]]),
            [OVER; 2],
            "{mode}"
        );
    }
}

#[test]
fn leased_limits_hold_in_redis() {
    let redis = Server::start();
    let lines = "algorithm = \"token_bucket\"\nmode = \"lease\"";
    let served = Served::with(start(lines, &redis_store(&redis)));
    let other = Served::with(start(lines, &redis_store(&redis)));
    let mut admitted = 0;
    for _ in 0..10 {
        for served in [&served, &other] {
            let codes = served.codes("shop", &[&[("ip", "::1")]]);
            admitted += usize::from(codes == [OK; 2]);
        }
    }
    assert_eq!(admitted, 4);
}

#[test]
fn on_error_answers_when_the_store_is_down() {
    let down = "[stores.default]\nurl = \"redis://127.0.0.1:1\"\n";
    let asked: &[&[(&str, &str)]] = &[&[("ip", "::1")]];
    let served = Served::with(start("", down));
    let error = served.ask(request("shop", asked)).expect_err("no store");
    assert_eq!(error.code(), Grpc::Unavailable);
    // What has no limit needs no store.
    assert_eq!(served.codes("shop", &[&[("other", "1")]]), [OK; 2]);
    let served = Served::with(start("on_error = \"allow\"", down));
    assert_eq!(served.codes("shop", asked), [OK; 2]);
    let served = Served::with(start("on_error = \"deny\"", down));
    assert_eq!(served.codes("shop", asked), [OVER; 2]);
}

#[test]
fn v4_log_of_an_outage_says_what_envoy_gets() {
    let down = "[stores.default]\nurl = \"redis://127.0.0.1:1\"\n";
    for (on_error, does) in [
        (
            "error",
            "policies=answered with UNAVAILABLE: envoy-1s, envoy-2592000s,",
        ),
        ("allow", "policies=allowed: envoy-1s, envoy-2592000s,"),
        ("deny", "policies=denied: envoy-1s, envoy-2592000s,"),
    ] {
        let policy = format!(
            "{down}[[policies]]\nname = \"p\"\nlimit = \"1r/s\"\nstore = \"m\"\n[stores.m]\n"
        );
        let served = Served::with(start(&format!("on_error = \"{on_error}\""), &policy));
        let line = served.server.line("the store keeps failing");
        assert!(line.contains(does), "{line}");
    }
}

#[test]
fn files_are_read_again_when_they_change() {
    let served = Served::with(start("", ""));
    let folder = served.server.folder();
    let remaining = |domain: &str| {
        let answer = served.ask(request(domain, &[&[("ip", "::1")]]));
        let status = answer.expect("an answer").statuses.remove(0);
        status
            .current_limit
            .map(|limit| (limit.requests_per_unit, status.limit_remaining))
    };
    assert_eq!(remaining("shop"), Some((4, 3)));
    // A raised limit keeps its count.
    folder.write(
        "limits/shop.yaml",
        SHOP.replace("requests_per_unit: 4", "requests_per_unit: 1000000"),
    );
    let line = served
        .server
        .line("changed: shop.ip: 4/365d -> 1000000/365d");
    assert!(line.contains("INFO"), "{line}");
    let (limit, left) = remaining("shop").expect("a limit");
    assert_eq!((limit, left), (1_000_000, 999_998));
    // Another file is another domain.
    folder.write(
        "limits/web.yml",
        SHOP.replace("domain: shop", "domain: web"),
    );
    served.server.line("changed: web.ip: added, 4/365d");
    assert_eq!(remaining("web"), Some((4, 3)));
    // A bad one is refused whole, with its line.
    folder.write("limits/web.yml", SHOP.replace("unit: year", "unit: eon"));
    let line = served
        .server
        .line("the config is wrong, and the old one stays in force");
    assert!(line.contains("web.yml:5: rate_limit.unit is"), "{line}");
    until("the count", || {
        let metrics = served.server.get("/metrics");
        let metrics = metrics.text();
        metrics
            .contains("tidegate_reload_total{result=\"error\"} 1")
            .then_some(())
    });
    assert_eq!(remaining("web"), Some((4, 2)));
    // So is a domain that another file has.
    folder.write("limits/web.yml", SHOP);
    served.server.line("web.yml:1: domain");
    assert_eq!(remaining("web"), Some((4, 1)));
    std::fs::remove_file(folder.path("limits/web.yml")).expect("a file");
    served.server.line("changed: web.ip: removed");
    assert_eq!(remaining("web"), None);
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
