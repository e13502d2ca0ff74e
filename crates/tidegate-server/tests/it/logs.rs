//! Log lines: how many there are, and what they keep to themselves. Single lines are in
//! `requests/observed.txt`.

use serde_json::Value;

use crate::process::{Start, Tidegate};

const KEY: &str = "203.0.113.77";

fn start() -> Tidegate {
    let start = Start::new("[[policies]]\nname = \"p\"\nkey = \"{ip}\"\nlimit = \"1/1h\"\n");
    let start = start.argument("--log").argument("debug");
    start.argument("--log-format").argument("json").start()
}

#[test]
fn keys_are_told_apart_and_not_shown() {
    let server = start();
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
    let other = start();
    other.get(&format!("/v1/gate/p?ip={KEY}"));
    let line: Value = serde_json::from_str(&other.line("\"decided\"")).expect("JSON");
    assert_ne!(line["key"], keys[0].as_str());
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
