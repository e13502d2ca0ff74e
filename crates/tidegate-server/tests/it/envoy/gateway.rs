//! Requests through a real Envoy that asks Tidegate: by the rate limit service (RLS), and by
//! the gate (ext_authz).

use super::proxy::{Proxy, example};
use super::{Served, address};
use crate::client::Answer;
use crate::process::Start;

pub(super) const RLS: &str = include_str!("../../../../../examples/envoy/rls.yaml");
pub(super) const EXT_AUTHZ: &str = include_str!("../../../../../examples/envoy/ext_authz.yaml");

/// Three requests per hour for each address; the options are lines of the policy.
fn api(options: &str) -> String {
    format!(
        "[[policies]]\nname = \"api\"\nkey = \"{{remote_address}}\"\nlimit = \"3/1h\"\n\
         algorithm = \"fixed_window\"\n{options}\n"
    )
}

/// The example with one line replaced.
fn changed(text: &str, from: &str, to: &str) -> String {
    assert_eq!(text.matches(from).count(), 1, "{from}");
    text.replace(from, to)
}

fn ask(proxy: &Proxy) -> Answer {
    proxy.connect().ask("GET", "/", &[], b"")
}

fn seconds(answer: &Answer, header: &str) -> u64 {
    let value = answer.header(header);
    let value = value.unwrap_or_else(|| panic!("{header}: {answer:?}"));
    value.parse().expect("whole seconds")
}

#[test]
fn refused_requests_get_a_429_with_headers() {
    let served = Served::start(&api(""));
    let proxy = Proxy::start(&example(RLS, &address(&served.server)));
    for left in [2, 1, 0] {
        let answer = ask(&proxy);
        assert_eq!((answer.status, answer.text()), (200, "hello\n"));
        assert_eq!(
            answer.header("ratelimit-policy"),
            Some("\"api\";q=3;w=3600")
        );
        let ratelimit = answer.header("ratelimit").expect("a header");
        let start = format!("\"api\";r={left};t=");
        assert!(ratelimit.starts_with(&start), "{ratelimit}");
        assert_eq!(answer.header("retry-after"), None);
    }
    let answer = ask(&proxy);
    assert_eq!(answer.status, 429);
    assert_eq!(answer.header("x-envoy-ratelimited"), Some("true"));
    let wait = seconds(&answer, "retry-after");
    assert!((1..=3_600).contains(&wait), "{wait}");
    let ratelimit = answer.header("ratelimit").expect("a header");
    assert_eq!(ratelimit, format!("\"api\";r=0;t={wait}"));
}

/// A policy without headers of its own: Envoy makes them of the statuses.
#[test]
fn envoy_makes_headers_of_the_status() {
    let served = Served::start(&api("headers = \"none\""));
    let line = "failure_mode_deny: false";
    let more = format!(
        "{line}\n              enable_retry_after_header: true\n              \
         enable_x_ratelimit_headers: DRAFT_VERSION_03"
    );
    let config = changed(RLS, line, &more);
    let proxy = Proxy::start(&example(&config, &address(&served.server)));
    for left in [2, 1, 0] {
        let answer = ask(&proxy);
        assert_eq!(answer.status, 200);
        assert_eq!(answer.header("ratelimit"), None);
        assert_eq!(seconds(&answer, "x-ratelimit-remaining"), left);
        assert_eq!(answer.header("retry-after"), None);
    }
    let answer = ask(&proxy);
    assert_eq!(answer.status, 429);
    let limit = answer.header("x-ratelimit-limit");
    assert_eq!(limit, Some("3, 3;w=3600;name=\"api\""));
    let wait = seconds(&answer, "retry-after");
    assert!((1..=3_600).contains(&wait), "{wait}");
    assert_eq!(seconds(&answer, "x-ratelimit-reset"), wait);
}

#[test]
fn two_envoys_share_a_limit() {
    let served = Served::start(&api(""));
    let grpc = address(&served.server);
    let proxies = [(); 2].map(|()| Proxy::start(&example(RLS, &grpc)));
    let statuses = [0, 1, 0, 1, 0].map(|it: usize| ask(&proxies[it]).status);
    assert_eq!(statuses, [200, 200, 200, 429, 429]);
}

/// Two Envoys: one that lets requests pass when nobody answers it, and one that refuses them.
fn open_and_closed(example: &str, line: [&str; 2], address: &str) -> [Proxy; 2] {
    let closed = changed(example, line[0], line[1]);
    [example, &closed].map(|config| Proxy::start(&self::example(config, address)))
}

const FAILURE_MODE: [&str; 2] = ["failure_mode_deny: false", "failure_mode_deny: true"];

#[test]
fn failure_mode_deny_decides_when_the_store_is_down_or_tidegate_is_killed() {
    let store = "[stores.default]\nurl = \"redis://127.0.0.1:1\"\n";
    let served = Served::start(&format!("{store}{}", api("")));
    let [open, closed] = open_and_closed(RLS, FAILURE_MODE, &address(&served.server));
    assert_eq!((ask(&open).status, ask(&closed).status), (200, 500));
    let served = Served::start(&api(""));
    let [open, closed] = open_and_closed(RLS, FAILURE_MODE, &address(&served.server));
    let statuses = [&open, &closed, &open, &closed].map(|proxy| ask(proxy).status);
    assert_eq!(statuses, [200, 200, 200, 429]);
    drop(served);
    for _ in 0..5 {
        let answer = ask(&open);
        assert_eq!((answer.status, answer.header("ratelimit")), (200, None));
        assert_eq!(ask(&closed).status, 500);
    }
}

#[test]
fn gate_answers_ext_authz() {
    let config = "[server]\ngate_headers = [\"ip\"]\n[[policies]]\nname = \"api\"\n\
                  key = \"{ip}\"\nlimit = \"3/1h\"\nalgorithm = \"fixed_window\"\n";
    let server = Start::new(config).start();
    let line = ["failure_mode_allow: true", "failure_mode_allow: false"];
    let [open, closed] = open_and_closed(EXT_AUTHZ, line, server.address());
    for left in [2, 1, 0] {
        let answer = ask(&open);
        assert_eq!((answer.status, answer.text()), (200, "hello\n"));
        let ratelimit = answer.header("ratelimit").expect("a header");
        let start = format!("\"api\";r={left};t=");
        assert!(ratelimit.starts_with(&start), "{ratelimit}");
    }
    // Neither the client's headers nor its query name another key.
    let forged = [("x-tidegate-ip", "203.0.113.7")];
    let path = "/?ip=203.0.113.7&cost=0&deny=599&key=x";
    for proxy in [&open, &closed] {
        let answer = proxy.connect().ask("POST", path, &forged, b"body");
        assert_eq!(answer.status, 429);
        assert!((1..=3_600).contains(&seconds(&answer, "retry-after")));
        assert_eq!(
            answer.header("content-type"),
            Some("application/problem+json")
        );
        assert_eq!(answer.json()["violated-policies"][0], "api");
    }
    drop(server);
    assert_eq!((ask(&open).status, ask(&closed).status), (200, 403));
}
