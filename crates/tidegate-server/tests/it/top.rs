//! Who is limited: `/v1/top`.

use serde_json::json;

use crate::process::{Start, Tidegate};

const CONFIG: &str = r#"
[server]
admin_token = "sesame"

[[policies]]
name = "login"
key = "{ip}"
limit = "3/1h"

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

[[policies]]
name = "watched"
limit = "1/1h"
shadow = true
"#;

const ADMIN: (&str, &str) = ("Authorization", "Bearer sesame");

fn top(server: &Tidegate, path: &str) -> serde_json::Value {
    let answer = server.ask_with("GET", path, &[ADMIN], "");
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.json()
}

#[test]
fn keys_are_listed_by_refusals_and_by_requests() {
    let server = Tidegate::start(CONFIG);
    for (ip, count) in [("203.0.113.7", 8), ("2001:db8::1", 5), ("198.51.100.1", 2)] {
        for _ in 0..count {
            server.get(&format!("/v1/gate/login?ip={ip}"));
        }
    }
    let expected = json!({
        "policy": "login", "by": "denied", "window_s": 60, "error": 0,
        "keys": [
            {"key": {"ip": "203.0.113.7"}, "requests": 8, "denied": 5},
            {"key": {"ip": "2001:db8::1"}, "requests": 5, "denied": 2},
        ],
    });
    assert_eq!(top(&server, "/v1/top/login"), expected);
    let hour = top(&server, "/v1/top/login?by=requests&window=1h&n=1");
    let expected = json!({
        "policy": "login", "by": "requests", "window_s": 3_600, "error": 0,
        "keys": [{"key": {"ip": "203.0.113.7"}, "requests": 8, "denied": 5}],
    });
    assert_eq!(hour, expected);
    // Looks are no requests.
    server.get("/v1/keys/login?ip=192.0.2.1");
    let all = top(&server, "/v1/top/login?by=requests");
    assert_eq!(all["keys"].as_array().map(Vec::len), Some(3));
    for _ in 0..4 {
        server.check(
            "{\"policy\":\"api\",\"attributes\":{\"resource\":\"r\",\"consumer\":\"\\u00e9\"}}",
        );
        server.check("[{\"policy\":\"watched\",\"key\":\"k\"}]");
    }
    let expected = json!([{"key": {"resource": "r", "consumer": "é"}, "requests": 4, "denied": 1}]);
    assert_eq!(top(&server, "/v1/top/api")["keys"], expected);
    let expected = json!([{"key": {"key": "k"}, "requests": 4, "denied": 3}]);
    assert_eq!(top(&server, "/v1/top/watched")["keys"], expected);
}

#[test]
fn keys_are_shown_to_operators_only() {
    let server = Tidegate::start(CONFIG);
    for header in [&[][..], &[("Authorization", "Bearer wrong")]] {
        let answer = server.ask_with("GET", "/v1/top/login", header, "");
        assert_eq!(answer.status, 401);
    }
    let open = Tidegate::start("");
    let answer = open.ask_with("GET", "/v1/top/default", &[ADMIN], "");
    assert_eq!(answer.status, 403);
    assert_eq!(
        answer.detail(),
        "no admin_token is configured: expected one for requests that change state or list keys"
    );
}

#[test]
fn questions_that_are_wrong_are_told_what_is_expected() {
    let server = Tidegate::start(CONFIG);
    for (path, status, detail) in [
        (
            "/v1/top/login?by=x",
            400,
            "by: \"x\": expected denied or requests",
        ),
        (
            "/v1/top/login?window=1d",
            400,
            "window: \"1d\": expected 1m or 1h",
        ),
        (
            "/v1/top/login?n=0",
            400,
            "n: \"0\": expected a whole number from 1 to 100",
        ),
        (
            "/v1/top/login?n=101",
            400,
            "n: \"101\": expected a whole number from 1 to 100",
        ),
        (
            "/v1/top/login?n=x",
            400,
            "n: \"x\": expected a whole number from 1 to 100",
        ),
        (
            "/v1/top/login?ip=1",
            400,
            "the query: \"ip\": expected only by, window and n",
        ),
        (
            "/v1/top/login?cost=1",
            400,
            "the query: \"cost\" is reserved and has no meaning here",
        ),
        ("/v1/top/nope", 404, "no policy named \"nope\""),
    ] {
        let answer = server.ask_with("GET", path, &[ADMIN], "");
        assert_eq!(
            (answer.status, &*answer.detail()),
            (status, detail),
            "{path}"
        );
    }
    let answer = server.ask_with("POST", "/v1/top/login", &[ADMIN], "");
    assert_eq!(answer.status, 405);
}

#[test]
fn reload_keeps_the_counts_of_the_same_keys() {
    let server = Start::new(CONFIG).start();
    for _ in 0..5 {
        server.get("/v1/gate/login?ip=1");
        server.check("{\"policy\":\"watched\",\"key\":\"k\"}");
    }
    let changed = CONFIG
        .replace("limit = \"3/1h\"", "limit = \"9/1h\"")
        .replace(
            "name = \"watched\"",
            "name = \"watched\"\nkey = \"{other}\"",
        );
    server.folder().write("tidegate.toml", changed);
    server.signal("HUP");
    server.line("the config is in force");
    assert_eq!(top(&server, "/v1/top/login")["keys"][0]["denied"], 2);
    let other = top(&server, "/v1/top/watched?by=requests");
    assert_eq!(other["keys"], json!([]), "keys of another shape");
}
