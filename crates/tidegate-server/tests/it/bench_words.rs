//! What `tidegate bench` calls things, and what it says to those who ask for the
//! impossible.

use std::time::{Duration, Instant};

use serde_json::Value;

use crate::bench::bench;
use crate::process::{Folder, run};

/// The names of all fields, as `a.b`; what a list has stands for all of it.
fn names(value: &Value, path: &str, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                let path = format!("{path}.{name}");
                found.push(path.trim_start_matches('.').to_owned());
                names(value, &path, found);
            }
        }
        Value::Array(values) => {
            if let Some(first) = values.first() {
                names(first, path, found);
            }
        }
        _ => {}
    }
}

#[test]
fn the_names_in_json_are_those_of_the_page() {
    let (_, report) = bench(&["--duration", "100ms", "--rate", "500", "--limit", "1000r/s"]);
    let mut found = Vec::new();
    names(&report, "", &mut found);
    let page = include_str!("../../../../docs/bench.md");
    for name in &found {
        assert!(
            page.contains(&format!("| `{name}` |")),
            "docs/bench.md does not explain {name}"
        );
    }
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `"));
    let rows = rows.filter_map(|row| row.split_once("` |"));
    for (name, _) in rows.filter(|(name, _)| !name.starts_with("--")) {
        let is_optional = name.contains('<')
            || name.starts_with("sources.background")
            || name.starts_with("verdict.background.")
            || name.starts_with("verdict.levels.broken.");
        assert!(
            is_optional || found.iter().any(|it| it == name),
            "there is no {name}"
        );
    }
}

#[test]
fn contradictory_flags_are_one_line() {
    let folder = Folder::new();
    let cases: &[(&[&str], &str)] = &[
        (
            &["--rate", "0"],
            "expected checks per second, from 0.001 to 100000000",
        ),
        (&["--rate", "nan"], "expected checks per second"),
        (
            &["--algorithm", "leaky"],
            "--algorithm \"leaky\": expected token_bucket, fixed_window, sliding_window, sliding_log",
        ),
        (
            &["--algorithm", "script"],
            "--algorithm script: expected --config",
        ),
        (
            &["--algorithm", "sliding_log", "--burst", "3"],
            "only token_bucket has a burst",
        ),
        (
            &["--limit", "100"],
            "--limit \"100\": expected a rate such as 100r/s",
        ),
        (&["--limit", "block"], "--limit \"block\": expected a rate"),
        (&["--burst", "0"], "burst 0: expected 1 to 4294967295"),
        (
            &["http://127.0.0.1:1", "--limit", "5r/s"],
            "--limit with the URL of a server: expected --policy NAME",
        ),
        (
            &["http://127.0.0.1:1", "--config", "x"],
            "--config with the URL of a server: expected --policy NAME",
        ),
        (
            &["http://127.0.0.1:1"],
            "no server answers at http://127.0.0.1:1: is `tidegate serve` running?",
        ),
        (
            &["https://127.0.0.1:1"],
            "no server answers at https://127.0.0.1:1: is `tidegate serve` running?",
        ),
        (
            &["https://127.0.0.1:1", "--ca", "none.pem"],
            "--ca none.pem: expected a PEM file",
        ),
        (
            &["--attr", "key"],
            "expected NAME=VALUE, such as resource=12",
        ),
        (
            &["--attr", "user=1"],
            "--attr user: policy \"bench\" has no such attribute: expected one of key",
        ),
        (
            &["--attr", "key=1", "--attr", "key=2"],
            "--attr key twice: expected it once",
        ),
        (&["ftp://secret@host"], "the URL: \"ftp:…\": expected "),
        (&["redis://u:secret@"], "the URL: \"redis://…\": expected "),
        (
            &["--processes", "2"],
            "--processes 2: memory: is the memory of one process: expected 1",
        ),
        (
            &["--policy", "p"],
            "--policy p: expected --config with it, or the URL of a server",
        ),
        (&["--config", "none.toml"], "none.toml: No such file"),
        (
            &["--config", "x", "--burst", "3"],
            "--burst with --config: expected one of them",
        ),
        (
            &["--sync-interval", "5ms"],
            "--sync-interval: 5ms: only mode = \"background\" has one",
        ),
        (
            &["--refusal-memory", "5x"],
            "--refusal-memory: \"5x\": expected ",
        ),
        (
            &["--mode", "fast"],
            "--mode: \"fast\": expected one of \"exact\", ",
        ),
        (
            &["--timeout", "1s"],
            "--timeout: expected a Redis store, or a server: a memory store has no timeout",
        ),
        (
            &["--duration", "10"],
            "expected a time from 10ms to 24h, such as 10s",
        ),
        (&["--keys", "0"], "0 is not in 1..=10000000"),
        (&["--zipf", "99"], "expected an exponent from 0 to 10"),
        (
            &["--cost", "0"],
            "expected a whole number from 1 to 4294967295",
        ),
        (
            &["--plot", "no/folder.svg"],
            "--plot no/folder.svg: No such file",
        ),
    ];
    for (arguments, message) in cases {
        let begun = Instant::now();
        let (code, said, error) = run(&folder, &[&["bench"], *arguments].concat());
        assert_eq!((code, said.as_str()), (2, ""), "{arguments:?}");
        assert_eq!(error.lines().count(), 1, "{error}");
        assert!(
            error.starts_with("tidegate: ") && error.contains(message),
            "{arguments:?}: {error}"
        );
        assert!(!error.contains("secret"), "{error}");
        assert!(
            begun.elapsed() < Duration::from_secs(9),
            "before the run: {arguments:?}"
        );
    }
    let (_, help, _) = run(&folder, &["--help"]);
    assert!(
        help.contains("bench") && !help.contains("bench-worker"),
        "{help}"
    );
    let (code, _, error) = run(&folder, &["bench-worker"]);
    assert_eq!(code, 2);
    assert!(
        error.contains("this command is for `tidegate bench`"),
        "{error}"
    );
}
