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

/// Wrong bodies and paths, and what they are answered.
fn wrong() -> impl Iterator<Item = (String, u16, &'static str)> {
    let lines = include_str!("bad_input.txt").lines().skip(3);
    lines.map(|line| {
        let (text, answer) = line.split_once(" => ").expect(line);
        let (status, detail) = answer.split_once(' ').expect(line);
        let text = tidegate_testkit::cases::controls(text);
        (text, status.parse().expect(line), detail)
    })
}

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
    for (text, status, detail) in wrong() {
        let answer = match text.starts_with('/') {
            true => connection.ask("GET", &text, &[], b""),
            false => connection.ask("POST", "/v1/check", &[], text.as_bytes()),
        };
        let said = answer.detail();
        assert_eq!(answer.status, status, "{text}: {said}");
        assert!(said.contains(detail), "{text}: {said}");
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
    assert!(wrong().count() + NO_REQUESTS.len() >= 80);
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
