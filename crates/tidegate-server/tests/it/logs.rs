//! Log lines: what they tell, and what they keep to themselves.

use serde_json::Value;

use crate::process::{Start, Tidegate};

const KEY: &str = "203.0.113.77";

fn start(format: &str, log_keys: bool) -> Tidegate {
    let config = format!(
        "[server]\nlog_keys = {log_keys}\n\
         [[policies]]\nname = \"p\"\nkey = \"{{ip}}\"\nlimit = \"1/1h\"\n\
         [[policies]]\nname = \"w\"\nkey = \"{{ip}}\"\nlimit = \"1/1h\"\nshadow = true\n"
    );
    let start = Start::new(&config).argument("--log").argument("debug");
    start.argument("--log-format").argument(format).start()
}

#[test]
fn keys_are_told_apart_and_not_shown() {
    let server = start("json", false);
    let mut keys = Vec::new();
    for (number, ip) in [KEY, KEY, "203.0.113.78"].into_iter().enumerate() {
        server.get(&format!("/v1/gate/p?ip={ip}"));
        let line = server.nth_line("\"decided\"", number);
        let line: Value = serde_json::from_str(&line).expect("JSON");
        assert_eq!(
            (&line["policy"], &line["level"]),
            (&"p".into(), &"DEBUG".into())
        );
        assert_eq!(line["allowed"], number != 1);
        assert_eq!(line["source"], "store");
        keys.push(line["key"].as_str().expect("a key").to_owned());
    }
    assert_eq!(keys[0], keys[1]);
    assert_ne!(keys[0], keys[2]);
    server.get(&format!("/v1/gate/nobody?ip={KEY}"));
    server.check(&format!("{{\"policy\":\"p\",\"key\":\"{KEY}\"}}"));
    server.get(&format!("/v1/keys/p?ip={KEY}"));
    for line in server.log() {
        assert!(!line.contains("203.0.113"), "{line}");
        let line: Value = serde_json::from_str(&line).expect("every line is JSON");
        assert!(line["timestamp"].is_string() && line["message"].is_string());
    }
    // Another process makes something else of it: nobody can try all addresses.
    let other = start("json", false);
    other.get(&format!("/v1/gate/p?ip={KEY}"));
    let line: Value = serde_json::from_str(&other.line("\"decided\"")).expect("JSON");
    assert_ne!(line["key"], keys[0].as_str());
}

#[test]
fn keys_are_shown_when_asked_for_and_cannot_forge_a_line() {
    let server = start("text", true);
    server.get(&format!("/v1/gate/p?ip={KEY}"));
    assert!(server.line("decided").contains(KEY));
    server.get("/v1/gate/p?ip=%0AERROR%1b[31mforged%0d");
    let line = server.nth_line("decided", 1);
    assert!(
        line.contains("forged") && !line.contains('\u{1b}'),
        "{line}"
    );
    server.check("{\"\\nERROR forged\":1}");
    server.line("cannot be answered");
    assert!(!server.log().iter().any(|line| line.starts_with("ERROR")));
}

#[test]
fn request_ids_stand_in_every_line_about_the_request() {
    for format in ["text", "json"] {
        let server = start(format, false);
        let headers = [("X-Request-Id", "id-4711")];
        server.ask_with("GET", "/v1/gate/p?ip=1", &headers, "");
        assert!(server.line("decided").contains("id-4711"));
        server.ask_with("GET", "/nowhere", &headers, "");
        assert!(server.line("cannot be answered").contains("id-4711"));
        for _ in 0..2 {
            server.ask_with("GET", "/v1/gate/w?ip=1", &headers, "");
        }
        assert!(server.line("would have refused").contains("id-4711"));
    }
}

#[test]
fn what_a_policy_that_watches_would_refuse_is_logged_now_and_then() {
    let config = "[[policies]]\nname = \"w\"\nlimit = \"1/1h\"\nshadow = true\n";
    let server = Tidegate::start(config);
    for _ in 0..200 {
        assert_eq!(server.get("/v1/gate/w?key=k").status, 200);
    }
    let line = server.line("a policy in shadow mode would have refused");
    assert!(
        line.contains("INFO") && line.contains("policy=\"w\""),
        "{line}"
    );
    let log = server.log();
    let lines = log
        .iter()
        .filter(|line| line.contains("would have refused"));
    assert!(lines.count() <= 6, "{log:#?}");
    assert!(
        !log.iter().any(|line| line.contains("decided")),
        "that is for debug"
    );
    assert!(
        !log.iter().any(|line| line.contains('\u{1b}')),
        "no colors in a file"
    );
}

#[test]
fn a_level_leaves_out_what_is_below_it() {
    let start = Start::configured("[server]\nhttp = \"unix:s\"\n").variable("TIDEGATE_LOG", "warn");
    let path = start.folder().path("s");
    // Flags beat the environment.
    let server = start.argument("--log").argument("info").start();
    assert!(path.exists());
    assert!(server.log().iter().all(|line| !line.contains("DEBUG")));
    server.line("try: curl");
}
