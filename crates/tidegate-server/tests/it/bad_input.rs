//! What cannot be right: each with its clear answer, and a server that is as well
//! afterwards as it was before.

use crate::process::{Start, Tidegate};

const CONFIG: &str = r#"
[server]
admin_token = "sesame"
gate_headers = ["ip"]

[[policies]]
name = "p"
limit = "1000000/1h"

[[policies]]
name = "api"
[[policies.levels]]
name = "a"
key = "{x}"
limit = "5/10s"
[[policies.levels]]
name = "b"
key = "{x}:{y}"
limit = "5/10s"
"#;

/// Bodies of a check, and their errors.
const CHECKS: &[(&str, u16, &str)] = &[
    ("", 400, "the body: empty: expected a check in JSON"),
    ("  \n ", 400, "the body: empty: expected a check in JSON"),
    (
        "nonsense",
        400,
        "the body: expected ident at line 1 column 2",
    ),
    (
        "{",
        400,
        "the body: EOF while parsing an object at line 1 column 1",
    ),
    (
        "[",
        400,
        "the body: EOF while parsing a list at line 1 column 1",
    ),
    ("[1,", 400, "the body: EOF while parsing a value"),
    ("[{]", 400, "the body: "),
    (
        "\u{feff}{}",
        400,
        "the body: expected value at line 1 column 1",
    ),
    ("{}", 400, "missing field `policy`"),
    ("null", 400, "invalid type: null"),
    ("true", 400, "invalid type: boolean `true`"),
    ("1", 400, "invalid type: integer `1`"),
    ("\"p\"", 400, "invalid type: string \"p\""),
    ("{\"policy\":\"p\"}", 400, "attribute \"key\""),
    (
        "{\"policy\":\"p\",\"key\":\"k\"} x",
        400,
        "trailing characters",
    ),
    (
        "{\"policy\":\"p\",\"key\":\"k\"}{}",
        400,
        "trailing characters",
    ),
    ("{\"policy\":\"p\",\"key\":\"k\",}", 400, "trailing comma"),
    ("{'policy':'p'}", 400, "key must be a string"),
    (
        "{\"policy\":\"q\",\"key\":\"k\"}",
        404,
        "no policy named \"q\"",
    ),
    (
        "{\"policy\":\"\",\"key\":\"k\"}",
        404,
        "no policy named \"\"",
    ),
    (
        "{\"policy\":\"P\",\"key\":\"k\"}",
        404,
        "no policy named \"P\"",
    ),
    (
        "{\"policy\":1,\"key\":\"k\"}",
        400,
        "invalid type: integer `1`, expected a string",
    ),
    (
        "{\"policy\":null,\"key\":\"k\"}",
        400,
        "invalid type: null, expected a string",
    ),
    (
        "{\"policy\":[\"p\"],\"key\":\"k\"}",
        400,
        "invalid type: sequence, expected a string",
    ),
    (
        "{\"policy\":\"p\",\"policy\":\"p\",\"key\":\"k\"}",
        400,
        "duplicate field `policy`",
    ),
    (
        "{\"policy\":\"p\",\"key\":1}",
        400,
        "invalid type: integer `1`, expected a string",
    ),
    (
        "{\"policy\":\"p\",\"key\":{}}",
        400,
        "invalid type: map, expected a string",
    ),
    (
        "{\"policy\":\"p\",\"key\":\"\\ud800\"}",
        400,
        "end of hex escape",
    ),
    ("{\"policy\":\"p\",\"key\":\"\\x\"}", 400, "invalid escape"),
    (
        "{\"policy\":\"p\",\"key\":\"a\nb\"}",
        400,
        "control character",
    ),
    (
        "{\"policy\":\"p\",\"Key\":\"k\"}",
        400,
        "unknown field `Key`, expected one of `policy`, `key`",
    ),
    (
        "{\"policy\":\"p\",\"key\":\"k\",\"attributes\":{\"key\":\"j\"}}",
        400,
        "the attribute \"key\" twice: expected it once",
    ),
    (
        "{\"policy\":\"p\",\"attributes\":{\"key\":\"k\",\"key\":\"k\"}}",
        400,
        "the attribute \"key\" twice",
    ),
    (
        "{\"policy\":\"p\",\"attributes\":{\"key\":\"k\"},\"attributes_b64\":{\"key\":\"aw==\"}}",
        400,
        "the attribute \"key\" twice",
    ),
    (
        "{\"policy\":\"p\",\"attributes\":[]}",
        400,
        "invalid type: sequence, expected an object of strings",
    ),
    (
        "{\"policy\":\"p\",\"attributes\":\"key\"}",
        400,
        "expected an object of strings",
    ),
    (
        "{\"policy\":\"p\",\"attributes\":{\"key\":1}}",
        400,
        "invalid type: integer `1`, expected a string",
    ),
    (
        "{\"policy\":\"p\",\"attributes\":{\"key\":null}}",
        400,
        "invalid type: null, expected a string",
    ),
    (
        "{\"policy\":\"p\",\"attributes_b64\":{\"key\":\"a\"}}",
        400,
        "attributes_b64: \"key\": ",
    ),
    (
        "{\"policy\":\"p\",\"attributes_b64\":{\"key\":\"_-==\"}}",
        400,
        "expected base64",
    ),
    (
        "{\"policy\":\"p\",\"key\":\"k\",\"cost\":0}",
        400,
        "expected a cost, a whole number from 1 to 4294967295",
    ),
    (
        "{\"policy\":\"p\",\"key\":\"k\",\"cost\":-1}",
        400,
        "expected a cost, a whole number",
    ),
    (
        "{\"policy\":\"p\",\"key\":\"k\",\"cost\":1.5}",
        400,
        "expected a cost, a whole number",
    ),
    (
        "{\"policy\":\"p\",\"key\":\"k\",\"cost\":1e2}",
        400,
        "expected a cost, a whole number",
    ),
    (
        "{\"policy\":\"p\",\"key\":\"k\",\"cost\":4294967296}",
        400,
        "expected a cost, a whole number",
    ),
    (
        "{\"policy\":\"p\",\"key\":\"k\",\"cost\":99999999999999999999}",
        400,
        "expected a cost",
    ),
    (
        "{\"policy\":\"p\",\"key\":\"k\",\"cost\":\"1\"}",
        400,
        "expected a cost, a whole number",
    ),
    (
        "{\"policy\":\"p\",\"key\":\"k\",\"cost\":null}",
        400,
        "expected a cost",
    ),
    (
        "{\"policy\":\"p\",\"key\":\"k\",\"peek\":1}",
        400,
        "invalid type: integer `1`, expected a boolean",
    ),
    (
        "{\"policy\":\"p\",\"key\":\"k\",\"peek\":\"true\"}",
        400,
        "expected a boolean",
    ),
    (
        "{\"policy\":\"api\",\"attributes\":{\"x\":\"1\"}}",
        400,
        "attribute \"y\"",
    ),
];

/// Queries, and their errors.
const QUERIES: &[(&str, u16, &str)] = &[
    ("/v1/gate/p", 400, "attribute \"key\""),
    ("/v1/gate/p?", 400, "attribute \"key\""),
    (
        "/v1/gate/p?key",
        400,
        "the query: \"key\": expected name=value",
    ),
    ("/v1/gate/p?Key=1", 400, "attribute \"key\""),
    (
        "/v1/gate/p?key=1&key=1",
        400,
        "the query: \"key\" twice: expected it once",
    ),
    (
        "/v1/gate/p?key=%",
        400,
        "the query: \"%\": expected two hexadecimal digits after each %",
    ),
    ("/v1/gate/p?key=%4", 400, "expected two hexadecimal digits"),
    ("/v1/gate/p?key=%zz", 400, "expected two hexadecimal digits"),
    ("/v1/gate/p?%=1", 400, "expected two hexadecimal digits"),
    (
        "/v1/gate/p?%ff=1",
        400,
        "the query: a name that is not UTF-8",
    ),
    (
        "/v1/gate/p?key=1&deny=200",
        400,
        "deny: \"200\": expected a status from 400 to 599",
    ),
    (
        "/v1/gate/p?key=1&deny=600",
        400,
        "deny: \"600\": expected a status from 400 to 599",
    ),
    (
        "/v1/gate/p?key=1&deny=",
        400,
        "deny: \"\": expected a status",
    ),
    (
        "/v1/gate/p?key=1&deny=%2B403",
        400,
        "deny: \"+403\": expected a status",
    ),
    ("/v1/gate/p?key=1&deny=403&deny=403", 400, "\"deny\" twice"),
    (
        "/v1/gate/p?key=1&body=no",
        400,
        "body: \"no\": expected none",
    ),
    (
        "/v1/gate/p?key=1&cost=0",
        400,
        "cost: \"0\": expected a whole number from 1 to 4294967295",
    ),
    (
        "/v1/gate/p?key=1&cost=",
        400,
        "cost: \"\": expected a whole number",
    ),
    (
        "/v1/gate/p?key=1&cost=-1",
        400,
        "cost: \"-1\": expected a whole number",
    ),
    (
        "/v1/gate/p?key=1&cost=1e3",
        400,
        "cost: \"1e3\": expected a whole number",
    ),
    (
        "/v1/gate/p?key=1&cost=4294967296",
        400,
        "cost: \"4294967296\": expected a whole number",
    ),
    (
        "/v1/gate/p?key=1&level=x",
        400,
        "\"level\" is reserved and has no meaning here",
    ),
    ("/v1/gate/q?key=1", 404, "no policy named \"q\""),
    ("/v1/gate/?key=1", 404, "no policy named \"\""),
    ("/v1/gate/p/?key=1", 404, "no policy named \"p/\""),
    ("/v1/gate/%ff?key=1", 404, "no policy named \"\u{fffd}\""),
    ("/v1/gate/api?x=1", 400, "attribute \"y\""),
    ("/v1/keys/p", 400, "attribute \"key\""),
    ("/v1/keys/q?key=1", 404, "no policy named \"q\""),
    (
        "/v1/keys/p?key=1&all=true",
        400,
        "\"all\" is reserved and has no meaning here",
    ),
    ("/v1/keys/", 404, "no policy named \"\""),
    (
        "/v1/keys",
        404,
        "\"/v1/keys\": no such path: expected one of those in /openapi.json",
    ),
    ("/v2/check", 404, "\"/v2/check\": no such path"),
    ("/v1/check", 405, "GET: expected POST"),
    ("/../etc/passwd", 404, "\"/../etc/passwd\": no such path"),
];

/// Bytes that are no request: a status, or nothing but an end.
const NO_REQUESTS: &[(&[u8], Option<u16>)] = &[
    (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", Some(400)),
    (b"\0\0\0\0\r\n\r\n", Some(400)),
    (b"GET\r\n\r\n", Some(400)),
    (b"GET /healthz\r\n\r\n", Some(400)),
    (b"GET /healthz HTTP/9.9\r\n\r\n", Some(400)),
    (b"GET /a b HTTP/1.1\r\nHost: x\r\n\r\n", Some(400)),
    (b"G\xffT /healthz HTTP/1.1\r\nHost: x\r\n\r\n", Some(400)),
    (b"GET /\xff HTTP/1.1\r\nHost: x\r\n\r\n", Some(400)),
    (b"GET /healthz HTTP/1.1\r\nHost: x\r\nno colon\r\n\r\n", Some(400)),
    (b"GET /healthz HTTP/1.1\r\nHost: x\r\n: empty\r\n\r\n", Some(400)),
    (b"GET /healthz HTTP/1.1\r\nHost: x\r\nA: b\0c\r\n\r\n", Some(400)),
    (
        b"POST /v1/check HTTP/1.1\r\nHost: [::1]\r\nContent-Length: -1\r\n\r\n",
        Some(400),
    ),
    (
        b"POST /v1/check HTTP/1.1\r\nHost: [::1]\r\nContent-Length: x\r\n\r\n",
        Some(400),
    ),
    (
        b"POST /v1/check HTTP/1.1\r\nHost: [::1]\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n{}",
        Some(400),
    ),
    (
        b"POST /v1/check HTTP/1.1\r\nHost: [::1]\r\nTransfer-Encoding: gzip\r\n\r\n",
        Some(400),
    ),
    (
        b"POST /v1/check HTTP/1.1\r\nHost: [::1]\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        Some(400),
    ),
    (
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\nnonsense after the preface",
        None,
    ),
    (b"", None),
];

fn fail_all(server: &Tidegate) {
    let mut connection = server.connect();
    for (body, status, detail) in CHECKS {
        let answer = connection.ask("POST", "/v1/check", &[], body.as_bytes());
        let said = answer.detail();
        assert_eq!(answer.status, *status, "{body}: {said}");
        assert!(said.contains(detail), "{body}: {said}");
    }
    for (path, status, detail) in QUERIES {
        let answer = connection.ask("GET", path, &[], b"");
        let said = answer.detail();
        assert_eq!(answer.status, *status, "{path}: {said}");
        assert!(said.contains(detail), "{path}: {said}");
    }
    let not_text = b"{\"policy\":\"p\",\"key\":\"\xff\"}";
    let answer = connection.ask("POST", "/v1/check", &[], not_text);
    assert!(answer.detail().contains("invalid unicode code point"));
    for (bytes, status) in NO_REQUESTS {
        let mut connection = server.connect();
        connection.send(bytes);
        connection.finish();
        let shown = String::from_utf8_lossy(bytes);
        match status {
            Some(status) => {
                let answer = connection.receive("GET");
                let answer = answer.unwrap_or_else(|| panic!("{shown:?}: no answer"));
                assert_eq!(answer.status, *status, "{shown:?}");
            }
            None => drop(connection),
        }
    }
}

#[test]
fn a_hundred_wrong_requests_have_clear_answers_and_leave_nothing_behind() {
    assert!(CHECKS.len() + QUERIES.len() + NO_REQUESTS.len() >= 100);
    let mut server = Tidegate::start(CONFIG);
    fail_all(&server);
    let before = server.resident_kb();
    for _ in 0..10 {
        fail_all(&server);
    }
    let after = server.resident_kb();
    assert!(after < before + 4 * 1024, "{before} kB, then {after} kB");
    assert!(server.is_running());
    let decision = server.check("{\"policy\":\"p\",\"key\":\"k\"}").json();
    assert_eq!(decision["remaining"], 999_999, "none of them was charged");
    let log = server.log();
    assert!(
        !log.iter().any(|line| line.contains("panicked")),
        "{log:#?}"
    );
}

#[test]
fn what_is_repeated_in_an_answer_stays_short() {
    let server = Tidegate::start(CONFIG);
    let long = "\\u0001".repeat(100_000);
    for body in [
        format!("{{\"{long}\":1}}"),
        format!("{{\"policy\":\"{long}\"}}"),
        format!("{{\"policy\":\"p\",\"key\":\"k\",\"peek\":\"{long}\"}}"),
        format!("{{\"policy\":\"p\",\"attributes_b64\":{{\"{long}\":\"?\"}}}}"),
        format!("{{\"policy\":\"p\",\"attributes\":{{\"{long}\":\"\",\"{long}\":\"\"}}}}"),
    ] {
        let answer = server.check(&body);
        assert!(answer.status >= 400);
        assert!(answer.body.len() < 2_500, "{}", answer.body.len());
    }
    for path in [
        format!("/{}", "x".repeat(50_000)),
        format!("/v1/gate/{}", "x".repeat(50_000)),
        format!("/v1/gate/p?{}", "x".repeat(50_000)),
        format!("/v1/gate/p?cost={}", "x".repeat(50_000)),
        format!("/v1/gate/p?deny={}", "x".repeat(50_000)),
    ] {
        let answer = server.get(&path);
        assert!(answer.status >= 400);
        assert!(answer.body.len() < 1_000, "{}", answer.body.len());
    }
}

#[test]
fn deep_and_wide_bodies_are_refused_without_harm() {
    let server = Start::new(CONFIG).start();
    for body in [
        "[".repeat(500_000),
        format!("{}{}", "[".repeat(400_000), "]".repeat(400_000)),
        format!("{{\"policy\":{}", "{\"a\":".repeat(100_000)),
        format!(
            "{{\"policy\":\"p\",\"attributes\":{}}}",
            "[".repeat(100_000)
        ),
        format!("[{}0]", "0,".repeat(500_000)),
        format!(
            "{{\"policy\":\"p\",\"key\":\"k\",\"cost\":{}}}",
            "9".repeat(500_000)
        ),
    ] {
        let answer = server.check(&body);
        assert!([200, 400].contains(&answer.status), "{}", answer.status);
        if answer.status == 200 {
            assert!(answer.json()[0]["error"]["detail"].is_string());
        }
    }
    assert_eq!(server.get("/healthz").status, 200);
}
