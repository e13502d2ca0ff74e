//! `POST /v1/check`: one question, or a thousand.

use serde_json::{Value, json};

use crate::process::Tidegate;

const CONFIG: &str = r#"
[[policies]]
name = "login"
key = "{ip}"
limit = "3/60s"
algorithm = "fixed_window"

[[policies]]
name = "api"
[[policies.levels]]
name = "resource"
key = "{resource}"
limit = "5/10s"
algorithm = "sliding_log"
[[policies.levels]]
name = "consumer"
key = "{resource}:{consumer}"
limit = "3/10s"
algorithm = "sliding_log"

[[policies]]
name = "plain"
limit = "10/1h"

[[policies]]
name = "watched"
limit = "1/1h"
shadow = true

[[policies]]
name = "off"
limit = "1/1h"
enabled = false

[[policies]]
name = "closed"
block = true
"#;

#[test]
fn the_decision_has_every_field_of_the_contract() {
    let server = Tidegate::start(CONFIG);
    let question = r#"{"policy":"api","attributes":{"resource":"12","consumer":"1"},"cost":1}"#;
    let mut last = json!(null);
    for allowed in [true, true, true, false] {
        let answer = server.check(question);
        assert_eq!(answer.status, 200);
        assert_eq!(answer.header("content-type"), Some("application/json"));
        assert_eq!(answer.header("cache-control"), Some("no-store"));
        last = answer.json();
        assert_eq!(last["allowed"], allowed);
        assert_eq!(last["receipt"].is_string(), allowed, "{last}");
    }
    let at = last["decided_at_us"].as_u64().expect("a time");
    let now = std::time::SystemTime::UNIX_EPOCH.elapsed().expect("after");
    assert!(now.as_micros().abs_diff(u128::from(at)) < 60_000_000);
    let wait = &last["retry_after_ms"];
    assert!((1..=10_000).contains(&wait.as_u64().expect("a wait")));
    let (rate, reset) = (&last["rate"], &last["reset_after_ms"]);
    let resource = &last["levels"][0];
    let expected = json!({
        "allowed": false, "policy": "api", "denied_by": "consumer", "limit": 3, "remaining": 0,
        "rate": rate, "retry_after_ms": wait, "reset_after_ms": reset, "source": "store",
        "shadow": false, "would_deny": false, "decided_at_us": at, "receipt": null,
        "levels": [
            {"name": "resource", "limit": 5, "remaining": 2, "rate": 3.0, "retry_after_ms": 0,
             "reset_after_ms": resource["reset_after_ms"]},
            {"name": "consumer", "limit": 3, "remaining": 0, "rate": 3.0, "retry_after_ms": wait,
             "reset_after_ms": reset},
        ],
    });
    assert_eq!(last, expected);
}

#[test]
fn questions_in_any_form_are_about_the_same_key() {
    let server = Tidegate::start(CONFIG);
    for (remaining, question) in [
        (9, r#"{"policy":"plain","key":"x"}"#),
        (8, r#"{"policy":"plain","attributes":{"key":"x"}}"#),
        (7, r#"{"policy":"plain","attributes_b64":{"key":"eA=="}}"#),
        (
            6,
            " \n\t{ \"key\" : \"\\u0078\" , \"policy\" : \"plain\" } \r\n",
        ),
        (
            5,
            r#"{"policy":"plain","key":"x","attributes":{"other":"1"},"attributes_b64":{}}"#,
        ),
        (
            4,
            r#"{"policy":"plain","key":"x","attributes":null,"attributes_b64":null}"#,
        ),
        (2, r#"{"policy":"plain","key":"x","cost":2,"peek":false}"#),
        // Looking charges nothing, and says what would be left.
        (2, r#"{"policy":"plain","key":"x","peek":true}"#),
        (2, r#"{"policy":"plain","key":"x","peek":true,"cost":3}"#),
        (2, r#"{"policy":"plain","key":"x","cost":3}"#),
        (0, r#"{"policy":"plain","key":"x","cost":2}"#),
    ] {
        let decision = server.check(question).json();
        assert_eq!(decision["remaining"], remaining, "{question}: {decision}");
        if question.contains("true") {
            assert_eq!(decision["receipt"], Value::Null);
        }
    }
}

#[test]
fn a_batch_is_answered_in_order_with_what_is_wrong_in_its_place() {
    let server = Tidegate::start(CONFIG);
    let answer = server.check(
        r#"[{"policy":"login","attributes":{"ip":"1"}},
            {"policy":"nobody","key":"1"},
            {"policy":"login","attributes":{"ip":"1"},"cost":2},
            {"policy":"login"},
            {"policy":"login","attributes":{"ip":"1"},"pek":true},
            {"policy":"login","attributes":{"ip":"1"}},
            "login", 5, null, [], {}]"#,
    );
    assert_eq!(answer.status, 200);
    assert_eq!(answer.header("ratelimit"), None, "of which one?");
    let answers = answer.json();
    let answers = answers.as_array().expect("a list");
    assert_eq!(answers.len(), 11);
    for (index, allowed) in [(0, true), (2, true), (5, false)] {
        assert_eq!(answers[index]["allowed"], allowed, "{index}");
    }
    for (index, status, detail) in [
        (1, 404, "no policy named \"nobody\""),
        (3, 400, "attribute \"ip\""),
        (4, 400, "unknown field `pek`"),
        (6, 400, "invalid type: string \"login\""),
        (7, 400, "invalid type: integer `5`"),
        (8, 400, "invalid type: null"),
        (9, 400, "invalid length 0"),
        (10, 400, "missing field `policy`"),
    ] {
        let error = &answers[index]["error"];
        assert_eq!(error["status"], status, "{index}: {error}");
        assert_eq!(error["type"], "about:blank");
        let said = error["detail"].as_str().expect("a detail");
        assert!(said.contains(detail), "{index}: {said}");
    }
}

#[test]
fn a_thousand_at_once_and_not_one_more() {
    let server = Tidegate::start(CONFIG);
    let batch = |count: usize| {
        let questions = (0..count).map(|key| json!({"policy": "plain", "key": key.to_string()}));
        Value::from_iter(questions).to_string()
    };
    let answers = server.check(&batch(1_000)).json();
    let answers = answers.as_array().expect("a list");
    assert_eq!(answers.len(), 1_000);
    assert!(answers.iter().all(|answer| answer["remaining"] == 9));
    let refused = server.check(&batch(1_001));
    assert_eq!(refused.status, 400);
    assert_eq!(
        refused.detail(),
        "the body: 1001 checks: expected at most 1000"
    );
    assert_eq!(server.check("[]").json(), json!([]));
    let first = server
        .check(r#"{"policy":"plain","key":"0","peek":true}"#)
        .json();
    assert_eq!(
        first["remaining"], 9,
        "a batch that is too long charges nothing"
    );
}
