//! `GET /v1/policies`: what is in force, secrets left out.

use serde_json::json;

use crate::process::{Start, Tidegate};

#[test]
fn without_a_config_there_is_one_policy_and_a_command_to_try() {
    let server = Start::without_config().start();
    let policies = server.get("/v1/policies").json();
    assert_eq!(policies[0]["name"], "default");
    assert_eq!(policies[0]["levels"][0]["key"], "{key}");
    let limit = &policies[0]["levels"][0]["limit"];
    assert_eq!(
        *limit,
        json!({"algorithm": "token_bucket", "limit": "10r/s", "requests": 10, "window_ms": 1000, "burst": 10})
    );
    let line = server.line("try: ");
    let command = line.split("try: ").nth(1).expect("a command");
    let output = std::process::Command::new("sh")
        .args(["-c", command])
        .output();
    let output = output.expect("a shell");
    let decision: serde_json::Value = serde_json::from_slice(&output.stdout).expect("a decision");
    assert_eq!(decision["allowed"], true, "{command}");
}

#[test]
fn every_setting_of_a_policy_is_listed() {
    let server = Tidegate::start(
        r#"
[stores.other]
max_keys = 5

[[policies]]
name = "a"
key = "{ip}"
limit = "100r/s"
burst = 20
on_error = "deny"
headers = ["l", "r", "m"]
store = "other"
count_denied = true
[[policies.overrides]]
match = { ip = "10.1.2.3" }
limit = "1000r/s"

[[policies]]
name = "b"
enabled = false
shadow = true
headers = "draft-06"
[[policies.levels]]
name = "x"
key = "{k}"
limit = "5/10s"
algorithm = "sliding_log"
[[policies.levels]]
name = "y"
key = "{k}:{l}"
block = true
"#,
    );
    let limit = |algorithm: &str,
                 limit: &str,
                 requests: u32,
                 window_ms: u32,
                 burst: Option<u32>| {
        json!({"algorithm": algorithm, "limit": limit, "requests": requests, "window_ms": window_ms, "burst": burst})
    };
    let expected = json!([
        {
            "name": "a", "store": "other", "mode": "exact", "on_error": "deny", "enabled": true,
            "shadow": false, "trial_of": null, "count_denied": true, "headers": ["l", "r", "m"], "tag": ["ip"],
            "script": false,
            "levels": [{"name": "a", "key": "{ip}", "limit": limit("token_bucket", "100r/s", 100, 1_000, Some(20)), "overrides": 1}],
        },
        {
            "name": "b", "store": "default", "mode": "exact", "on_error": "local", "enabled": false,
            "shadow": true, "trial_of": null, "count_denied": false, "headers": "draft-06", "tag": ["k"],
            "script": false,
            "levels": [
                {"name": "x", "key": "{k}", "limit": limit("sliding_log", "5/10s", 5, 10_000, None), "overrides": 0},
                {"name": "y", "key": "{k}:{l}", "overrides": 0,
                 "limit": {"algorithm": "block", "limit": null, "requests": 0, "window_ms": 0, "burst": null}},
            ],
        },
    ]);
    assert_eq!(server.get("/v1/policies").json(), expected);
}
