//! `/v1/keys/{policy}` and `/v1/refund`: looking at a key, forgetting it, and giving
//! back; and who may.

use serde_json::{Value, json};

use crate::client::Answer;
use crate::process::{Start, Tidegate};

const CONFIG: &str = r#"
[server]
admin_token = "env:TOKEN"

[[policies]]
name = "login"
key = "{ip}"
limit = "3/1h"
algorithm = "fixed_window"
[[policies.overrides]]
match = { ip = "10.0.0.1" }
limit = "100/1h"
[[policies.overrides]]
match = { ip = "10.0.0.2" }
enabled = false

[[policies]]
name = "api"
[[policies.levels]]
name = "resource"
key = "{resource}"
limit = "5/1h"
[[policies.levels]]
name = "consumer"
key = "{resource}:{consumer}"
limit = "3/1h"
algorithm = "sliding_log"
"#;

const TOKEN: &str = "sesame";

fn start() -> Tidegate {
    Start::new(CONFIG).variable("TOKEN", TOKEN).start()
}

fn admin(server: &Tidegate, method: &str, path: &str, body: &str) -> Answer {
    let token = format!("Bearer {TOKEN}");
    server.ask_with(method, path, &[("Authorization", &token)], body)
}

fn login(server: &Tidegate, ip: &str, cost: u32) -> Value {
    let question = json!({"policy": "login", "attributes": {"ip": ip}, "cost": cost});
    server.check(&question.to_string()).json()
}

#[test]
fn a_key_is_explained_and_nothing_is_charged() {
    let server = start();
    login(&server, "1", 2);
    for _ in 0..2 {
        let key = server.get("/v1/keys/login?ip=1").json();
        let reset = &key["levels"][0]["reset_after_ms"];
        assert!(reset.as_u64().is_some_and(|reset| reset > 3_500_000));
        let expected = json!({
            "policy": "login", "store": "default", "enabled": true, "shadow": false,
            "levels": [{
                "name": "login", "key": "1", "hash": null,
                "settings": {"algorithm": "fixed_window", "limit": "3r/h", "requests": 3,
                             "window_ms": 3_600_000, "burst": null},
                "overridden_by": null,
                "limit": 3, "remaining": 1, "rate": 2.0, "retry_after_ms": 0,
                "reset_after_ms": reset, "leased_tokens": 0, "leases": 0,
            }],
        });
        assert_eq!(key, expected);
    }
    for (ip, settings, overridden_by) in [
        ("10.0.0.1", json!("100r/h"), json!({"ip": "10.0.0.1"})),
        ("10.0.0.2", json!(null), json!({"ip": "10.0.0.2"})),
    ] {
        let key = server.get(&format!("/v1/keys/login?ip={ip}")).json();
        let level = &key["levels"][0];
        assert_eq!(level["settings"]["limit"], settings, "{key}");
        assert_eq!(level["overridden_by"], overridden_by, "{key}");
    }
    let key = server.get("/v1/keys/api?resource=1&consumer=2").json();
    assert_eq!(key["levels"].as_array().map(Vec::len), Some(2));
}

#[test]
fn changes_need_the_admin_token() {
    let server = start();
    let receipt = login(&server, "1", 1)["receipt"].clone();
    let refund = json!({"receipt": receipt}).to_string();
    for token in [
        "",
        "Bearer",
        "Bearer ",
        "Bearer sesam",
        "Bearer sesame2",
        "Basic sesame",
        "sesame",
        "Bearer  sesame",
    ] {
        for (method, path, body) in [
            ("DELETE", "/v1/keys/login?ip=1", ""),
            ("DELETE", "/v1/keys/nobody", ""),
            ("POST", "/v1/refund", refund.as_str()),
            ("POST", "/v1/refund", "nonsense"),
        ] {
            let headers = [("Authorization", token)];
            let headers = if token.is_empty() { &[][..] } else { &headers };
            let answer = server.ask_with(method, path, headers, body);
            assert_eq!(answer.status, 401, "{token} {path}");
            assert_eq!(answer.header("www-authenticate"), Some("Bearer"));
            assert!(answer.detail().contains("Authorization: Bearer"));
        }
    }
    assert_eq!(
        login(&server, "1", 1)["remaining"],
        1,
        "nothing was changed"
    );
    let headers = [("Authorization", "bearer sesame")];
    let answer = server.ask_with("DELETE", "/v1/keys/login?ip=1", &headers, "");
    assert_eq!(answer.status, 200, "the scheme has no case");

    let nobody = Tidegate::start("");
    for token in [&[][..], &[("Authorization", "Bearer sesame")]] {
        for (method, path) in [("DELETE", "/v1/keys/default?key=1"), ("POST", "/v1/refund")] {
            let answer = nobody.ask_with(method, path, token, "");
            assert_eq!(answer.status, 403, "{path}");
            assert!(answer.detail().contains("no admin_token is configured"));
        }
    }
}

#[test]
fn a_key_is_forgotten_level_by_level_or_as_a_whole() {
    let server = start();
    let api = |cost: u32| {
        let question = json!({"policy": "api", "attributes": {"resource": "1", "consumer": "2"}, "cost": cost});
        let levels = server.check(&question.to_string()).json()["levels"].clone();
        (
            levels[0]["remaining"].clone(),
            levels[1]["remaining"].clone(),
        )
    };
    let forget = |query: &str| {
        let path = format!("/v1/keys/api?resource=1&consumer=2{query}");
        admin(&server, "DELETE", &path, "")
    };
    assert_eq!(api(3), (json!(2), json!(0)));
    for (query, detail) in [
        (
            "",
            "policy \"api\" has several levels: expected one of resource, consumer, or all",
        ),
        ("&all=false", "policy \"api\" has several levels"),
        (
            "&level=nobody",
            "policy \"api\" has no level named \"nobody\"",
        ),
        (
            "&level=consumer&all=true",
            "level and all: expected one of them",
        ),
        ("&all=yes", "all: \"yes\": expected true or false"),
        ("&cost=1", "\"cost\" is reserved and has no meaning here"),
    ] {
        let answer = forget(query);
        assert_eq!(answer.status, 400, "{query}");
        let said = answer.detail();
        assert!(said.contains(detail), "{query}: {said}");
    }
    assert_eq!(forget("&level=consumer").json(), json!({"forgotten": 1}));
    assert_eq!(api(1), (json!(1), json!(2)));
    assert_eq!(forget("&all=true").json(), json!({"forgotten": 2}));
    assert_eq!(forget("&all=true").json(), json!({"forgotten": 0}));
    assert_eq!(api(1), (json!(4), json!(2)));
    assert_eq!(
        admin(&server, "DELETE", "/v1/keys/nobody?ip=1", "").status,
        404
    );
}

#[test]
fn a_receipt_gives_back_once_what_was_charged() {
    let server = start();
    let refund = |receipt: &str| {
        let body = json!({"receipt": receipt}).to_string();
        admin(&server, "POST", "/v1/refund", &body)
    };
    let decision = login(&server, "é", 2);
    let receipt = decision["receipt"].as_str().expect("a receipt").to_owned();
    assert_eq!(login(&server, "é", 1)["remaining"], 0);
    let answer = refund(&receipt);
    assert_eq!((answer.status, answer.body.as_slice()), (204, &b""[..]));
    assert_eq!(login(&server, "é", 1)["remaining"], 1);

    let other = start();
    let body = json!({"receipt": receipt}).to_string();
    let answer = admin(&other, "POST", "/v1/refund", &body);
    assert_eq!(answer.status, 409, "{answer:?}");
    assert!(answer.detail().contains("issued by another server"));

    for (receipt, detail) in [
        ("", "receipt: expected the receipt of a decision"),
        ("AAAA", "receipt: expected"),
        ("no receipt", "receipt: expected"),
    ] {
        let answer = refund(receipt);
        assert_eq!(answer.status, 400);
        assert!(answer.detail().contains(detail), "{receipt}");
    }
    for (body, detail) in [
        ("{}", "missing field `receipt`"),
        ("{\"receipt\":1}", "invalid type: integer `1`"),
        ("{\"receipt\":\"AA\",\"x\":1}", "unknown field `x`"),
        ("", "EOF while parsing"),
    ] {
        let answer = admin(&server, "POST", "/v1/refund", body);
        assert_eq!(answer.status, 400);
        let said = answer.detail();
        assert!(said.contains(detail), "{body}: {said}");
    }
    // Receipts that were tampered with may be of no use, and never do harm.
    for index in 0..receipt.len() {
        let mut bytes = receipt.clone().into_bytes();
        bytes[index] = if bytes[index] == b'A' { b'_' } else { b'A' };
        let tampered = String::from_utf8(bytes).expect("ASCII");
        let status = refund(&tampered).status;
        assert!([204, 400, 404, 409].contains(&status), "{index}: {status}");
    }
    assert!(login(&server, "new", 1)["allowed"] == true);
}

#[test]
fn u9_reset_of_a_level_logs_the_hash_of_that_level_alone() {
    let config = "[server]\nadmin_token = \"env:TOKEN\"\n\
                  [[policies]]\nname = \"api\"\n\
                  [[policies.levels]]\nname = \"site\"\nkey = \"{site}\"\nlimit = \"5r/m\"\n\
                  [[policies.levels]]\nname = \"user\"\nkey = \"{site}:{user}\"\nlimit = \"3r/m\"\n";
    let start = Start::new(config).variable("TOKEN", TOKEN);
    let server = start.argument("--log-format").argument("json").start();
    let explained = admin(&server, "GET", "/v1/keys/api?site=a&user=b", "").json();
    let hash = |level: usize| explained["levels"][level]["hash"].clone();
    let both = [hash(0), hash(1)].map(|it| it.as_str().expect("a hash").to_owned());
    for (query, level, expected) in [
        // The other level's attributes are not needed.
        ("site=a&level=site", "site", hash(0)),
        ("site=a&user=b&level=user", "user", hash(1)),
        ("site=a&user=b&all=true", "all", both.join(" ").into()),
    ] {
        let answer = admin(&server, "DELETE", &format!("/v1/keys/api?{query}"), "");
        assert_eq!(answer.status, 200);
        let line = server.line(&format!("\"level\":\"{level}\""));
        let line: Value = serde_json::from_str(&line).expect("JSON");
        assert_eq!(line["key"], expected, "{line}");
    }
}

#[test]
fn s6_hash_of_logs_and_records_is_shown_only_with_the_admin_token() {
    let record = "record.jsonl";
    let start = Start::new(CONFIG).variable("TOKEN", TOKEN);
    let start = start
        .argument("--record")
        .argument(record)
        .argument("--drain")
        .argument("0s");
    let mut server = start
        .argument("--log")
        .argument("debug")
        .argument("--log-format")
        .argument("json")
        .start();
    login(&server, "203.0.113.9", 1);
    let line: Value = serde_json::from_str(&server.line("\"decided\"")).expect("JSON");
    let path = "/v1/keys/login?ip=203.0.113.9";
    let wrong = [("Authorization", "Bearer wrong")];
    for answer in [server.get(path), server.ask_with("GET", path, &wrong, "")] {
        assert_eq!(answer.json()["levels"][0]["hash"], Value::Null);
    }
    let key = admin(&server, "GET", path, "").json();
    let hash = key["levels"][0]["hash"]
        .as_str()
        .expect("a hash")
        .to_owned();
    assert_eq!(line["key"], hash.as_str());
    // A reset leaves a line with the same hash.
    let answer = admin(&server, "DELETE", path, "");
    assert_eq!(answer.status, 200);
    let line: Value = serde_json::from_str(&server.line("a key was reset")).expect("JSON");
    assert_eq!(line["policy"], "login");
    assert_eq!(line["key"], hash.as_str());
    assert_eq!(line["forgotten"], 1);
    server.signal("TERM");
    server.end();
    let record = std::fs::read_to_string(server.folder().path(record)).expect("a record");
    let recorded: Value =
        serde_json::from_str(record.lines().next().expect("a line")).expect("JSON");
    assert_eq!(recorded["key"], hash.as_str());
}
