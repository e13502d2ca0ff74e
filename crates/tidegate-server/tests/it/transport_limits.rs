//! What nobody can make the server read or keep. What it waits for is in
//! `src/serve/in_memory`.

use std::sync::LazyLock;

use crate::client::request;
use crate::process::Tidegate;

static SERVER: LazyLock<Tidegate> =
    LazyLock::new(|| Tidegate::start("[[policies]]\nname = \"default\"\nlimit = \"10/1h\"\n"));

const BODY: usize = 1 << 20;

/// A check of exactly this many bytes.
fn check_of(length: usize) -> String {
    let (start, end) = ("{\"policy\":\"default\",\"key\":\"", "\"}");
    let key = "k".repeat(length - start.len() - end.len());
    format!("{start}{key}{end}")
}

#[test]
fn a_body_has_a_longest() {
    let mut connection = SERVER.connect();
    let answer = connection.ask("POST", "/v1/check", &[], check_of(BODY).as_bytes());
    assert_eq!(answer.status, 200);
    for length in [BODY + 1, 2 * BODY, 4 * BODY] {
        let answer = connection.ask("POST", "/v1/check", &[], check_of(length).as_bytes());
        assert_eq!(answer.status, 413, "{length}");
        assert_eq!(answer.detail(), "the body: expected at most 1048576 bytes");
    }
    let answer = connection.ask("GET", "/healthz", &[], b"");
    assert_eq!(answer.status, 200, "what was too long was read to its end");
}

#[test]
fn a_body_that_only_claims_to_be_long_is_refused_at_once() {
    for length in ["4194305", "9223372036854775807"] {
        let mut connection = SERVER.connect();
        let head = format!(
            "POST /v1/check HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n"
        );
        connection.send(head.as_bytes());
        assert_eq!(connection.receive("POST").expect("an answer").status, 413);
        assert!(connection.has_ended());
    }
    let mut connection = SERVER.connect();
    connection
        .send(b"POST /v1/check HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n");
    let chunk = [b"10000\r\n", &[b' '; 0x10000][..], b"\r\n"].concat();
    for _ in 0..65 {
        connection.send(&chunk);
    }
    let answer = connection.receive("POST");
    assert!(answer.is_none_or(|answer| answer.status == 413));
}

#[test]
fn a_head_has_a_longest() {
    let long = "x".repeat(60_000);
    let answer = SERVER.ask_with("GET", "/healthz", &[("X-Long", &long)], "");
    assert_eq!(answer.status, 200);
    let longer = "x".repeat(70_000);
    let mut connection = SERVER.connect();
    connection.send(&request("GET", "/healthz", &[("X-Long", &longer)], b""));
    let answer = connection.receive("GET");
    assert!(answer.is_none_or(|answer| answer.status == 431));
    let mut connection = SERVER.connect();
    connection.send(&request("GET", &format!("/{longer}"), &[], b""));
    let answer = connection.receive("GET");
    assert!(answer.is_none_or(|answer| [414, 431].contains(&answer.status)));
    let mut connection = SERVER.connect();
    let many = [("a", "b"); 200];
    connection.send(&request("GET", "/healthz", &many, b""));
    assert_eq!(connection.receive("GET").expect("an answer").status, 431);
}

#[test]
fn attributes_have_a_greatest_number() {
    let query = |count: usize| {
        let names: String = (1..count).map(|number| format!("&a{number}=1")).collect();
        format!("/v1/gate/default?key=k{names}")
    };
    let body = |count: usize| {
        let names: String = (1..count)
            .map(|number| format!("\"a{number}\":\"1\","))
            .collect();
        format!("{{\"policy\":\"default\",\"attributes\":{{{names}\"key\":\"k\"}}}}")
    };
    assert_eq!(SERVER.get(&query(64)).status, 200);
    assert_eq!(SERVER.check(&body(64)).status, 200);
    let refused = SERVER.get(&query(65));
    assert_eq!(refused.status, 400);
    assert_eq!(
        refused.detail(),
        "the query: expected at most 64 attributes"
    );
    let refused = SERVER.check(&body(65));
    assert_eq!(refused.status, 400);
    assert!(refused.detail().contains("expected at most 64 attributes"));
}

#[test]
fn a_batch_has_a_thousand_questions_at_most_and_charges_none_if_it_has_more() {
    let question = |key: usize| format!("{{\"policy\":\"default\",\"key\":\"{key}\"}}");
    let batch = |count| {
        let questions: Vec<String> = (0..count).map(question).collect();
        format!("[{}]", questions.join(","))
    };
    let refused = SERVER.check(&batch(1_001));
    assert_eq!(refused.status, 400);
    let expected = "the body: 1001 checks: expected at most 1000";
    assert_eq!(refused.detail(), expected);
    let answers = SERVER.check(&batch(1_000)).json();
    let answers = answers.as_array().expect("a list");
    assert_eq!(answers.len(), 1_000);
    assert!(answers.iter().all(|answer| answer["remaining"] == 9));
}
