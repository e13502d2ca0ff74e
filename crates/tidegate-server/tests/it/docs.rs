//! What the manual of HTTP says, held against the server: its commands are run, and
//! answer what stands below them; its numbers are those of the code.

use std::process::Command;

use serde_json::Value;

use crate::process::{Start, Tidegate};

const MANUAL: &str = include_str!("../../../../docs/http.md");

/// The fenced blocks of a kind.
fn blocks(kind: &str) -> Vec<&'static str> {
    let fence = format!("\n```{kind}\n");
    let blocks = MANUAL.split(&fence).skip(1);
    let blocks = blocks.map(|block| block.split("```\n").next().expect("every block ends"));
    blocks.collect()
}

fn shell(server: &Tidegate, command: &str) -> String {
    let command = command.replace("http://127.0.0.1:8080", server.url());
    let output = Command::new("sh")
        .args(["-c", &command])
        .env("TIDEGATE_ADMIN_TOKEN", "sesame")
        .output();
    let output = output.expect("a shell");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(!text.is_empty(), "{command}: {output:?}");
    text.replace("\r\n", "\n")
}

/// Whether a line is what the manual says: `…` stands for anything.
fn is_like(line: &str, pattern: &str) -> bool {
    let mut rest = line;
    for (index, part) in pattern.split('…').enumerate() {
        match rest.find(part) {
            Some(at) if index > 0 || at == 0 => rest = &rest[at + part.len()..],
            _ => return false,
        }
    }
    rest.is_empty() || pattern.ends_with('…')
}

#[test]
fn commands_answer_what_stands_below_them() {
    let start = Start::new(blocks("toml")[0]).variable("TIDEGATE_ADMIN_TOKEN", "sesame");
    let server = start.start();
    let sessions = blocks("console");
    assert!(sessions.len() >= 8);
    for session in sessions {
        assert!(session.starts_with("$ "), "{session}");
        for entry in session.split("$ ").skip(1) {
            let mut lines = entry.lines();
            let mut command = lines.next().expect("a command").to_owned();
            while let Some(start) = command.strip_suffix('\\') {
                command = format!("{start}{}", lines.next().expect("its rest").trim_start());
            }
            let expected: Vec<&str> = lines.collect();
            let said = shell(&server, &command);
            for pattern in expected {
                let found = said.lines().any(|line| is_like(line.trim_end(), pattern));
                assert!(found, "{command}\nsays\n{said}\nand not\n{pattern}");
            }
        }
    }
}

#[test]
fn fields_are_those_of_a_decision() {
    let server = Tidegate::start("");
    let decision = server
        .check("{\"policy\":\"default\",\"key\":\"k\"}")
        .json();
    let table = &MANUAL[MANUAL.find("| field |").expect("a table")..];
    let rows = table
        .lines()
        .skip(2)
        .map_while(|line| line.strip_prefix("| `"));
    let fields: Vec<&str> = rows
        .map(|row| row.split('`').next().expect("a field"))
        .collect();
    let Value::Object(decision) = decision else {
        panic!("{decision}");
    };
    for field in decision.keys() {
        assert!(
            fields.contains(&field.as_str()),
            "{field} is not in the table"
        );
    }
    for field in fields {
        assert!(decision.contains_key(field) || field == "answer", "{field}");
    }
}

#[test]
fn numbers_are_those_of_the_code() {
    const BODY: &str = include_str!("../../src/api/body.rs");
    const CHECK: &str = include_str!("../../src/api/check.rs");
    const QUERY: &str = include_str!("../../src/api/query.rs");
    const CONNECTION: &str = include_str!("../../src/api/door.rs");
    const SERVE: &str = include_str!("../../src/serve/mod.rs");
    const TIMES: &str = include_str!("../../src/serve/connection.rs");
    const OUTGOING: &str = include_str!("../../src/api/outgoing.rs");
    const SECTION: &str = include_str!("../../src/section.rs");
    for (source, line, said) in [
        (BODY, "MAX_BODY: u32 = 1 << 20;", "| body | 1 MiB |"),
        (
            BODY,
            "PATIENCE: Duration = Duration::from_secs(10);",
            "| time to receive a body | 10 s |",
        ),
        (
            BODY,
            "Semaphore::new(64 << 20)",
            "| all bodies above 16 KiB | 64 MiB |",
        ),
        (
            CHECK,
            "MAX_BATCH: usize = 1_000;",
            "| checks in a batch | 1,000 |",
        ),
        (
            QUERY,
            "MAX_ATTRIBUTES: usize = 64;",
            "| attributes per check | 64 |",
        ),
        (
            CONNECTION,
            "MAX_HEAD: usize = 64 << 10;",
            "| request head | 64 KiB |",
        ),
        (
            CONNECTION,
            "MAX_STREAMS: u32 = 250;",
            "| concurrent requests per HTTP/2 connection | 250 |",
        ),
        (
            SERVE,
            "MAX_CONNECTIONS: usize = 10_000;",
            "| connections | 10,000 |",
        ),
        (
            SERVE,
            "SPARE_CONNECTIONS: usize = 500;",
            "| 500 more get one answer within a second",
        ),
        (
            TIMES,
            "HEAD: Duration = Duration::from_secs(10);",
            "| time to receive a request head, or for a TLS handshake | 10 s |",
        ),
        (
            TIMES,
            "TAKE: Duration = Duration::from_secs(30);",
            "| time for a client to read a response | 30 s |",
        ),
        (
            OUTGOING,
            "MAX_UNSENT: usize = 32 << 20;",
            "| all unsent responses above 16 KiB | 32 MiB |",
        ),
        (
            SECTION,
            "idle: Duration::from_secs(75),",
            "| time without a request on a connection | 75 s |",
        ),
    ] {
        assert!(
            source.contains(line),
            "another number now, or place: {line}"
        );
        assert!(MANUAL.contains(said), "{said}");
    }
}
