//! Lines that cannot be read are counted and shown; files and flags that are wrong end it.

use serde_json::json;

use super::{MIDNIGHT, by_address, counts, folder, nginx, policy, simulate};
use crate::process::run;

const LIMIT: &str = "limit = \"1r/s\"";

#[test]
fn unreadable_lines_are_counted_and_the_first_are_shown() {
    let good = nginx(MIDNIGHT, "192.0.2.1");
    let broken: [(&[u8], &str); 10] = [
        (b"", "an empty line"),
        (b"192.0.2.1 - - [16/Nov/2026:00:00", "no time in brackets"),
        (
            b"192.0.2.1 - - [16/Nov/2026:00:00:00] \"GET / HTTP/1.1\" 200 1",
            "not a time with a zone",
        ),
        (
            b"192.0.2.1 - - [31/Feb/2026:00:00:00 +0000] \"GET / HTTP/1.1\" 200 1",
            "not a time with a zone",
        ),
        (
            b"192.0.2.1 - - [16/Nov/2026:00:00:00 +0000] \"GET / HTTP",
            "no request in quotes",
        ),
        (
            b"192.0.2.1 - - [16/Nov/2026:00:00:00 +0000] \"GET /\" OK 1",
            "the status is not a number",
        ),
        (
            b"192.0.2.1 - - [16/Nov/2026:00:00:00 +0000] \"GET /\" 200 many",
            "the number of bytes is not a number",
        ),
        (b"\x00\xff\xfe", "no address"),
        (b"{\"time\":1}", "no address"),
        (
            b"192.0.2.1 - - [16/Nov/2026:00:00:00 +0000] \"\\\" 200 1",
            "no request in quotes",
        ),
    ];
    let folder = folder(&by_address(LIMIT));
    let mut log = good.clone().into_bytes();
    for (line, _) in &broken {
        log.extend_from_slice(line);
        log.push(b'\n');
    }
    // Requests that are none are lines that can be read: somebody sent them.
    log.extend_from_slice(
        b"192.0.2.1 - - [16/Nov/2026:00:00:00 +0000] \"\\x16\\x03\" 400 0 \"-\" \"-\"\r\n",
    );
    log.extend_from_slice(b"192.0.2.1 - a [b] c [16/Nov/2026:00:00:00 +0000] \"-\" 400 -\n");
    // One that is not ended, as of a log that is still written.
    log.extend_from_slice(good.trim_end().as_bytes());
    folder.write("log", &log);
    let result = simulate(&folder, &["--config", "tidegate.toml", "log"]);
    assert_eq!(result["lines"], 14);
    assert_eq!(result["unreadable"], 10, "{result}");
    assert_eq!(counts(policy(&result))[0], 4);
    let shown = result["left_out_lines"].as_array().expect("a list");
    assert_eq!(shown.len(), 5);
    for (number, (shown, (_, reason))) in shown.iter().zip(&broken).enumerate() {
        assert_eq!(shown["line"], number + 2, "{shown}");
        assert!(
            shown["reason"].as_str().unwrap().contains(reason),
            "{shown}"
        );
    }
    // The others, one at a time.
    for (line, reason) in &broken {
        folder.write("one", line);
        let result = simulate(&folder, &["--config", "tidegate.toml", "one"]);
        if line.is_empty() {
            assert_eq!(result["lines"], 0);
            continue;
        }
        assert_eq!(
            (&result["lines"], &result["unreadable"]),
            (&json!(1), &json!(1))
        );
        let said = &result["left_out_lines"][0]["reason"];
        assert!(said.as_str().unwrap().contains(reason), "{said}");
        assert_eq!(result["from"], json!(null));
    }
    let (code, said, _) = run(&folder, &["simulate", "--config", "tidegate.toml", "one"]);
    assert_eq!(code, 0);
    assert!(said.contains("is --format right?"), "{said}");
    assert!(said.contains("one:1: no request in quotes"), "{said}");
}

#[test]
fn broken_json_is_unreadable() {
    let folder = folder(&by_address(LIMIT));
    let lines = [
        r#"{"time":1795000000,"ip":"::1"}"#,
        r#"{"time":1795000000,"ip":"::1""#,
        r#"{"time":1795000000,"ip":"::1"} x"#,
        r#"{"ip":"::1"}"#,
        r#"{"time":"soon","ip":"::1"}"#,
        r#"{"time":null,"ip":"::1"}"#,
        r#"{"time":-5,"ip":"::1"}"#,
        r#"[1,2]"#,
        r#"{"time":1795000000,"ip":{"v6":"::1"}}"#,
    ];
    folder.write("log", lines.join("\n"));
    let flags = ["--config", "tidegate.toml", "--format", "json", "log"];
    let result = simulate(&folder, &flags);
    assert_eq!(
        (&result["lines"], &result["unreadable"]),
        (&json!(9), &json!(7)),
        "{result}"
    );
    assert_eq!(policy(&result)["requests"], 1);
    assert_eq!(policy(&result)["without_key"], 1);
}

#[test]
fn endless_line_does_not_fill_the_memory() {
    let folder = folder(&by_address(LIMIT));
    let log = format!("{}\n{}", "x".repeat(3 << 20), nginx(MIDNIGHT, "::1"));
    folder.write("log", log);
    let result = simulate(&folder, &["--config", "tidegate.toml", "log"]);
    assert_eq!(result["unreadable"], 1);
    assert_eq!(result["left_out_lines"][0]["reason"], "longer than 1 MiB");
    assert_eq!(policy(&result)["requests"], 1);
}

#[test]
fn wrong_files_and_flags_end_with_2_and_say_why() {
    let script = "[stores.default]\nurl = \"redis://127.0.0.1:1\"\n\
                  [[policies]]\nname = \"s\"\nkey = \"{ip}\"\nalgorithm = \"script\"\nscript = \"a.lua\"\n";
    let folder = folder(&by_address(LIMIT));
    folder.write("log", nginx(MIDNIGHT, "::1"));
    folder.write("script.toml", script);
    folder.write(
        "wrong.toml",
        "[[policies]]\nname = \"p\"\nlimit = \"often\"\n",
    );
    folder.write(
        "consumer.toml",
        "[[policies]]\nname = \"c\"\nkey = \"{consumer}\"\nlimit = \"1r/s\"\n",
    );
    // The beginning of a packed log.
    folder.write(
        "cut.gz",
        b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03\x4b\x4c",
    );
    folder.write("cut.zst", b"\x28\xb5\x2f\xfd\x04\x58");
    for (arguments, message) in [
        (&["none.log"][..], "none.log: No such file"),
        (&["."], ".: is a directory"),
        (&["cut.gz"], "cut.gz:"),
        (&["cut.zst"], "cut.zst:"),
        (&["--config", "none.toml", "log"], "none.toml"),
        (
            &["--config", "wrong.toml", "log"],
            "wrong.toml:3:9: policies.p.limit",
        ),
        (
            &["--config", "tidegate.toml", "--policy", "q", "log"],
            "no policy named \"q\": expected one of p",
        ),
        (
            &["--config", "script.toml", "log"],
            "policy \"s\" cannot be simulated: a script decides",
        ),
        (
            &["--config", "consumer.toml", "log"],
            "its key has the attribute \"consumer\": no field named \"consumer\": expected one of remote_addr",
        ),
        (&["--format", "iis", "log"], "invalid value 'iis'"),
        (&["--pattern", "(", "log"], "--pattern: unclosed group"),
        (
            &["--pattern", "(?P<ip>.*)", "log"],
            "--pattern has no group named \"time\": it has ip",
        ),
        (
            &["--pattern", "(?P<time>.*)", "--format", "json", "log"],
            "cannot be used with",
        ),
        (
            &["--attr", "ip=nothing", "log"],
            "--attr ip=nothing: no field named \"nothing\"",
        ),
        (&["--attr", "ip", "log"], "expected NAME=FIELD"),
        (&["--time", "x", "log"], "--time: lines of this format"),
        (
            &["--suggest", "101%", "log"],
            "expected a share from 0% to 100%",
        ),
        (&["--of", "clients", "log"], "--suggest"),
        (&["--compare", "a,b", "log"], "expected two of token_bucket"),
        (
            &["--html", "no/such/folder", "log"],
            "--html no/such/folder",
        ),
        (&["-", "-"], "standard input is named twice"),
        (&[], "<LOG>"),
    ] {
        let (code, said, error) = run(&folder, &[&["simulate"], arguments].concat());
        assert_eq!((code, said.as_str()), (2, ""), "{arguments:?}: {error}");
        assert_eq!(error.lines().count(), 1, "{error}");
        assert!(
            error.starts_with("tidegate: ") && error.contains(message),
            "{error}"
        );
    }
}

#[test]
fn random_bytes_are_lines_like_any_other() {
    let seeds = [
        nginx(MIDNIGHT, "192.0.2.1"),
        format!("{{\"ts\":{MIDNIGHT}.5,\"ip\":\"::1\",\"request\":{{\"uri\":\"/\\u00e4\"}}}}\n"),
        "[2026-11-16T00:00:00.310Z] \"GET / HTTP/2\" 204 - 154 0 226 100 \"::1\" \"a\" \"b\" \"c\" \"d\"\n".into(),
    ];
    let mut random = super::Random(5);
    let mut log = Vec::new();
    for number in 0..3_000 {
        let mut line = seeds[number % 3].clone().into_bytes();
        for _ in 0..random.below(4) {
            let at = usize::try_from(random.below(line.len() as u64)).expect("small");
            match random.below(3) {
                0 => drop(line.remove(at)),
                1 => line.insert(
                    at,
                    b"\"[]{}\\:. -\0\xff9"[usize::try_from(random.below(13)).expect("small")],
                ),
                _ => line.truncate(at + 1),
            }
            line.retain(|byte| *byte != b'\n');
            line.push(b'\n');
        }
        log.extend(line);
    }
    let folder = folder(&by_address(LIMIT));
    folder.write("log", &log);
    for format in [
        "nginx", "combined", "common", "json", "caddy", "traefik", "envoy",
    ] {
        let result = simulate(
            &folder,
            &["--config", "tidegate.toml", "--format", format, "log"],
        );
        let number = |field: &str| super::number(&result[field]);
        assert_eq!(number("lines"), 3_000, "{format}");
        let body = policy(&result);
        let asked = super::number(&body["requests"]) + super::number(&body["without_key"]);
        assert_eq!(
            asked + number("unreadable") + number("late"),
            3_000,
            "{format}"
        );
        assert!(
            number("unreadable") > 0 && number("unreadable") < 3_000,
            "{format}"
        );
    }
}
