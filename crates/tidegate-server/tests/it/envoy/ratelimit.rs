//! The binary as a replacement for envoyproxy/ratelimit, started with its environment variables.

use std::collections::HashMap;
use std::net::UdpSocket;

use serde_json::json;
use tidegate_testkit::console;

use super::gateway::RLS;
use super::listener::health;
use super::proxy::{Proxy, example};
use super::xds::{Plane, config};
use super::{Client, address, read};
use crate::certificates::Certificates;
use crate::client::{Answer, Connection};
use crate::process::{PATIENCE, Start, Tidegate, until};
use crate::redis_server::Server;

pub(super) const SHOP: &str = "domain: shop
descriptors:
  - key: path
    value: /login
    rate_limit: {unit: year, requests_per_unit: 2}
  - key: ip
    rate_limit: {unit: year, requests_per_unit: 1}
    descriptors:
      - key: user
        shadow_mode: true
        rate_limit: {unit: year, requests_per_unit: 1}
";

/// On free ports, with SHOP as its limits, and counts in this Redis.
fn start(redis: &Server) -> Start {
    let start = bare();
    let folder = start.folder().path("data/ratelimit/config");
    std::fs::create_dir_all(folder).expect("a folder");
    let limits = "data/ratelimit/config/shop.yaml";
    start.folder().write(limits, SHOP);
    let root = start.folder().path("data").display().to_string();
    start
        .variable("REDIS_URL", &format!("127.0.0.1:{}", redis.port()))
        .variable("RUNTIME_ROOT", &root)
        .variable("RUNTIME_SUBDIRECTORY", "ratelimit")
}

/// On free ports.
pub(super) fn bare() -> Start {
    Start::ratelimit().variables(
        "HOST=127.0.0.1 GRPC_HOST=127.0.0.1 DEBUG_HOST=127.0.0.1 PORT=0 GRPC_PORT=0 DEBUG_PORT=0
         LOG_LEVEL=info REDIS_TIMEOUT=5s USE_STATSD=false",
    )
}

fn client(server: &Tidegate) -> Client {
    Client::new(&format!("http://{}", address(server)))
}

fn json(server: &Tidegate, entries: &str) -> Answer {
    let body = format!("{{\"domain\": \"shop\", \"descriptors\": [{{\"entries\": [{entries}]}}]}}");
    server.ask("POST", "/json", &body)
}

/// A page of another listener of the server.
fn page(server: &Tidegate, role: &str, path: &str) -> Answer {
    let line = server.line(role);
    let (_, url) = line.split_once("http://").expect("a url");
    let (address, _) = url.split_once(' ').expect("its end");
    Connection::tcp(address).ask("GET", path, &[], b"")
}

#[test]
fn environment_starts_a_server_that_answers_by_grpc_and_json_and_counts_with_others() {
    let redis = Server::start();
    let server = start(&redis).start();
    let client = client(&server);
    assert_eq!(client.say("shop: path=/login"), "OK: OK 1/2");
    let entry = r#"{"key": "path", "value": "/login"}"#;
    let answer = json(&server, entry);
    assert_eq!(answer.status, 200, "{}", answer.text());
    let mut body = answer.json();
    let status = body["statuses"][0].as_object_mut().expect("a status");
    let reset = status.remove("durationUntilReset").expect("a time");
    assert!(reset.as_str().expect("a text").ends_with('s'), "{reset}");
    let limit = json!({"requestsPerUnit": 2, "unit": "YEAR"});
    let status = json!([{"code": "OK", "currentLimit": limit}]);
    assert_eq!(body, json!({"overallCode": "OK", "statuses": status}));
    let answer = json(&server, entry);
    assert_eq!(answer.status, 429);
    assert_eq!(answer.json()["overallCode"], "OVER_LIMIT");
    let other = start(&redis)
        .variables("REDIS_PERSECOND=true LIMIT_RESPONSE_HEADERS_ENABLED=true")
        .called("ratelimit")
        .start();
    other.line("REDIS_PERSECOND is not supported: all limits count in the Redis of REDIS_URL");
    let others = self::client(&other);
    for client in [&client, &others] {
        assert_eq!(client.say("shop: path=/login"), "OVER: OVER 0/2");
    }
    let answer = others.ask(read("shop: path=/login")).expect("an answer");
    let headers = answer.response_headers_to_add.iter();
    let headers: Vec<_> = headers.map(|it| (&*it.key, &*it.value)).collect();
    let expected = [("RateLimit-Limit", "2"), ("RateLimit-Remaining", "0")];
    assert_eq!(headers[..2], expected);
    let long = "x".repeat(2 << 20);
    for (method, path, body, status) in [
        ("POST", "/json", "no JSON", 400),
        ("POST", "/json", "{\"domain\": \"shop\"}", 400),
        ("POST", "/json", &long, 400),
        ("GET", "/json", "", 405),
        ("GET", "/nope", "", 404),
    ] {
        let answer = server.ask(method, path, body);
        assert_eq!(answer.status, status, "{method} {path}: {}", answer.text());
    }
}

#[test]
fn health_and_limits_of_all_files_are_shown_and_sigterm_drains() {
    let redis = Server::start();
    let start = start(&redis).variable("MERGE_DOMAIN_CONFIG", "true");
    let more = "domain: shop\ndescriptors:\n- {key: host, rate_limit: {unit: day, requests_per_unit: 3}}\n";
    start
        .folder()
        .write("data/ratelimit/config/more.yaml", more);
    let mut server = start.start();
    until("a healthy server", || {
        let answer = server.get("/healthcheck");
        (answer.status == 200 && answer.text() == "OK").then_some(())
    });
    let client = client(&server);
    let services = ["", "ratelimit", "nope"].map(|service| health(&client, service));
    assert_eq!(services, [Ok(1), Ok(1), Err(tonic::Code::NotFound)]);
    let limits = "shop.host: unit=DAY requests_per_unit=3, shadow_mode: false, quota_mode: false
shop.path_/login: unit=YEAR requests_per_unit=2, shadow_mode: false, quota_mode: false
shop.ip: unit=YEAR requests_per_unit=1, shadow_mode: false, quota_mode: false
shop.ip.user: unit=YEAR requests_per_unit=1, shadow_mode: true, quota_mode: false
";
    assert_eq!(server.get("/rlconfig").text(), limits);
    assert_eq!(page(&server, "(debug)", "/rlconfig").text(), limits);
    assert_eq!(page(&server, "(debug)", "/json").status, 405);
    server.signal("TERM");
    until("an unhealthy server", || {
        (server.get("/healthcheck").status == 500).then_some(())
    });
    assert_eq!(client.say("shop: ip=::1"), "OK: OK 0/1", "still answering");
    assert!(server.end().0.success());
}

#[test]
fn statistics_have_the_names_of_the_reference() {
    let redis = Server::start();
    let statsd = UdpSocket::bind("127.0.0.1:0").expect("a free port");
    statsd.set_read_timeout(Some(PATIENCE)).expect("a time");
    let port = statsd.local_addr().expect("an address").port();
    let server = start(&redis)
        .variables("USE_PROMETHEUS=true PROMETHEUS_ADDR=127.0.0.1:0 USE_STATSD=true")
        .variables("STATSD_HOST=127.0.0.1 STATS_FLUSH_INTERVAL=100ms")
        .variable("STATSD_PORT", &port.to_string())
        .start();
    let client = client(&server);
    for _ in 0..3 {
        client.say("shop: path=/login");
        client.say("shop: ip=::1,user=ann");
    }
    let text = page(&server, "(statistics)", "/metrics").text().to_owned();
    for line in [
        "total_hits{domain=\"shop\",key1=\"path_/login\"} 3",
        "over_limit{domain=\"shop\",key1=\"path_/login\"} 1",
        "within_limit{domain=\"shop\",key1=\"path_/login\"} 2",
        "near_limit{domain=\"shop\",key1=\"path_/login\"} 1",
        "shadow_mode{domain=\"shop\",key1=\"ip\",key2=\"user\"} 2",
        "over_limit_with_local_cache{domain=\"shop\",key1=\"ip\",key2=\"user\"} 0",
    ] {
        let line = format!("\nratelimit_service_rate_limit_{line}\n");
        assert!(text.contains(&line), "{line}: {text}");
    }
    assert!(text.contains("\nratelimit_service_config_load_success 1\n"));
    assert!(text.contains("\nratelimit_service_config_load_error 0\n"));
    assert!(text.contains("\ntidegate_decisions_total{policy=\"envoy\""));
    // Datagrams have what was added since the last one, whole lines each.
    let mut counts = HashMap::new();
    let mut datagram = [0; 2_000];
    let names = ["path_/login.total_hits", "ip.user.shadow_mode"];
    let names = names.map(|name| format!("ratelimit.service.rate_limit.shop.{name}"));
    while names.each_ref().map(|name| counts.get(name)) != [Some(&3), Some(&2)] {
        let length = statsd.recv(&mut datagram).expect("a datagram");
        let text = std::str::from_utf8(&datagram[..length]).expect("text");
        for line in text.lines() {
            let (name, count) = line.split_once(':').expect("a name and a count");
            let count = count.strip_suffix("|c").expect("a counter");
            let count: u64 = count.parse().expect("a number");
            *counts.entry(name.to_owned()).or_default() += count;
        }
    }
}

#[test]
fn server_starts_without_limits_loads_changed_files_and_keeps_them_when_one_is_wrong() {
    let start = bare()
        .variables("FORCE_START_WITHOUT_INITIAL_CONFIG=true")
        .variables("USE_PROMETHEUS=true PROMETHEUS_ADDR=127.0.0.1:0");
    let root = start.folder().path("").display().to_string();
    let server = start.variable("RUNTIME_ROOT", &root).start();
    server.line("starting without limits");
    server.line("REDIS_URL is not set: counts are in the memory of this process");
    let client = client(&server);
    assert_eq!(client.say("shop: ip=::1"), "OK: OK -");
    // The folder is never seen without its file.
    let folder = server.folder();
    std::fs::create_dir(folder.path("new")).expect("a folder");
    folder.write("new/shop.yaml", SHOP);
    std::fs::rename(folder.path("new"), folder.path("config")).expect("a folder");
    let file = "config/shop.yaml";
    server.line("changed: shop.ip: added");
    assert_eq!(client.say("shop: ip=::1 *2"), "OVER: OVER 0/1");
    let ip = "  - key: ip\n    rate_limit: {unit: year, requests_per_unit: ";
    let raised = SHOP.replace(&format!("{ip}1"), &format!("{ip}4"));
    folder.write(file, &raised);
    server.line("changed: shop.ip: 1");
    assert_eq!(client.say("shop: ip=::1"), "OK: OK 1/4");
    folder.write(file, "domain: shop\nnope: 1\n");
    server.line("the config is wrong, and the old one stays in force");
    assert_eq!(client.say("shop: ip=::1"), "OK: OK 0/4");
    let text = page(&server, "(statistics)", "/metrics").text().to_owned();
    // The first error is the start without a folder.
    for (result, count) in [("success", 2), ("error", 2)] {
        let line = format!("\nratelimit_service_config_load_{result} {count}\n");
        assert!(text.contains(&line), "{line}: {text}");
    }
}

#[test]
fn envoy_asks_it_like_the_reference() {
    let redis = Server::start();
    let start = start(&redis);
    let limits = "domain: api\ndescriptors:\n- key: remote_address\n  rate_limit: {unit: year, requests_per_unit: 2}\n";
    start
        .folder()
        .write("data/ratelimit/config/api.yaml", limits);
    let server = start.start();
    let proxy = Proxy::start(&example(RLS, &address(&server)));
    let statuses = [(); 4].map(|()| proxy.connect().ask("GET", "/", &[], b"").status);
    assert_eq!(statuses, [200, 200, 429, 429]);
}

#[test]
fn without_its_redis_it_answers_with_errors_and_stays_healthy() {
    let mut redis = Server::start();
    let server = start(&redis).variable("REDIS_TIMEOUT", "200ms").start();
    let client = client(&server);
    until("a healthy server", || {
        (server.get("/healthcheck").status == 200).then_some(())
    });
    redis.kill();
    let error = client.say("shop: ip=::1");
    assert!(error.starts_with("Unavailable: "), "{error}");
    let answer = json(&server, r#"{"key": "ip", "value": "::1"}"#);
    assert_eq!(answer.status, 400);
    assert_eq!(json(&server, r#"{"key": "other"}"#).status, 200, "no limit");
    assert_eq!(server.get("/healthcheck").status, 200);
}

#[test]
fn wrong_variables_flags_and_files_are_refused() {
    console::check(include_str!("../../cmd/ratelimit.txt"), 4, &[]);
}

/// What Envoy Gateway does: limits by xDS, certificates, and a server that starts without.
#[test]
fn control_plane_gives_limits() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let redis = Server::start();
    let certificates = Certificates::make();
    let file = |name: &str| certificates.path(name).to_string();
    let mut plane = runtime.block_on(Plane::start(None));
    let server = bare()
        .variable("REDIS_URL", &format!("127.0.0.1:{}", redis.port()))
        .variable("CONFIG_GRPC_XDS_SERVER_URL", &plane.address.to_string())
        .variables("CONFIG_TYPE=GRPC_XDS_SOTW CONFIG_GRPC_XDS_NODE_ID=envoy-ratelimit")
        .variables("FORCE_START_WITHOUT_INITIAL_CONFIG=true GRPC_SERVER_USE_TLS=true")
        .variable("GRPC_SERVER_TLS_CERT", &file("server.crt"))
        .variable("GRPC_SERVER_TLS_KEY", &file("server.key"))
        .variable("GRPC_CLIENT_TLS_CACERT", &file("authority.crt"))
        .start();
    let line = server.line("listening on grpcs://");
    let (_, grpc) = line.rsplit_once("://").expect("a url");
    let client = Client::secure(grpc.trim(), &certificates, true);
    let ask = || client.say("shop: user=ann");
    assert_eq!(ask(), "OK: OK -", "no limits yet");
    let mut stream = runtime.block_on(plane.stream());
    let first = runtime.block_on(stream.request());
    assert_eq!(first.node.expect("a node").id, "envoy-ratelimit");
    stream.send("1", "a", &[config("shop")]);
    let answer = runtime.block_on(stream.request());
    assert_eq!((&*answer.version_info, answer.error_detail), ("1", None));
    // The limit is five per minute: a window ends within six requests once at most.
    let over = (0..11).filter(|_| ask() == "OVER: OVER 0/5").count();
    assert!(over >= 1, "{over}");
    let mut wrong = config("shop");
    wrong.descriptors[0].key.clear();
    stream.send("2", "b", &[wrong]);
    let answer = runtime.block_on(stream.request());
    assert_eq!(answer.version_info, "1");
    assert!(answer.error_detail.is_some());
    assert_eq!(
        server.get("/rlconfig").text(),
        "shop.user: unit=MINUTE requests_per_unit=5, shadow_mode: false, quota_mode: false\n"
    );
}

#[test]
fn server_waits_for_the_first_limits_of_a_control_plane() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let mut plane = runtime.block_on(Plane::start(None));
    let start = bare()
        .variable("CONFIG_TYPE", "GRPC_XDS_SOTW")
        .variable("CONFIG_GRPC_XDS_SERVER_URL", &plane.address.to_string());
    let starting = std::thread::spawn(move || start.start());
    let mut stream = runtime.block_on(plane.stream());
    runtime.block_on(stream.request());
    assert!(!starting.is_finished(), "it does not listen yet");
    stream.send("1", "a", &[config("shop")]);
    let server = starting.join().expect("a server");
    assert!(server.get("/rlconfig").text().starts_with("shop.user: "));
}
