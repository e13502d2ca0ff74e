//! What a run says: as JSON, in words, and as a page.

use serde_json::json;

use super::{MIDNIGHT, by_address, folder, nginx, simulate};
use crate::process::run;

#[test]
fn json_is_what_the_manual_says() {
    // A minute with three refusals, one with one, and a client that is never refused.
    let folder = folder(&by_address(
        "limit = \"1r/h\"\nalgorithm = \"fixed_window\"",
    ));
    let mut log = nginx(MIDNIGHT, "203.0.113.7");
    for second in [10, 61, 62, 119] {
        log.push_str(&nginx(MIDNIGHT + second, "203.0.113.7"));
    }
    log.push_str("broken\n");
    log.push_str(&nginx(MIDNIGHT + 3_599, "192.0.2.1"));
    folder.write("log", log);
    let mut result = simulate(&folder, &["--config", "tidegate.toml", "log"]);
    let policy = &mut result["policies"][0];
    let over_time = policy["over_time"].take();
    assert_eq!(over_time["start"], "2026-11-16T00:00:00Z");
    let sum = |field: &str| -> u64 {
        let columns = over_time[field].as_array().expect("a list");
        columns
            .iter()
            .map(|it| it.as_u64().expect("a number"))
            .sum()
    };
    assert_eq!((sum("requests"), sum("denied")), (6, 4));
    assert_eq!(
        result,
        json!({
            "lines": 7, "unreadable": 1, "late": 0,
            "from": "2026-11-16T00:00:00Z", "to": "2026-11-16T00:59:59Z",
            "policies": [{
                "name": "p", "requests": 6, "denied": 4, "keys": 2, "keys_denied": 1,
                "worst_minute": {"at": "2026-11-16T00:01:00Z", "denied": 3},
                "top": [{"key": {"ip": "203.0.113.7"}, "requests": 5, "denied": 4}],
                "without_key": 0,
                "levels": [{"name": "p", "key": "{ip}", "limit": "1r/h fixed_window", "denied": 4}],
                "over_time": null,
            }],
            "left_out_lines": [{
                "log": "log", "line": 6, "reason": "no address and a space at the start", "text": "broken",
            }],
            "format": "nginx",
        })
    );
}

#[test]
fn report_says_who_was_refused_and_when() {
    let folder = folder(&format!(
        "{}\n[[policies]]\nname = \"consumer\"\nkey = \"{{consumer}}\"\nlimit = \"1r/s\"\n",
        by_address("limit = \"2r/m\"")
    ));
    let mut log = nginx(MIDNIGHT, "2001:db8::7").repeat(4);
    log.push_str(&nginx(MIDNIGHT + 600, "192.0.2.1"));
    folder.write("log", log);
    let (code, said, _) = run(&folder, &["simulate", "--config", "tidegate.toml", "log"]);
    assert_eq!(code, 0);
    for line in [
        "5 lines from 2026-11-16T00:00:00Z to 2026-11-16T00:10:00Z",
        "p: 2r/m per {ip}",
        "  requests       5",
        "  refused        2 (40.0 %)",
        "  clients        2, 1 of them refused at least once (50.0 %)",
        "  worst minute   2026-11-16T00:00:00Z, 2 refused",
        "             2 of 4           2001:db8::7",
    ] {
        assert!(
            said.lines().any(|other| other.trim_end() == line),
            "{line}\n{said}"
        );
    }
    assert!(said.contains('█'), "{said}");
    assert!(
        said.contains("consumer: left out: its key has the attribute \"consumer\""),
        "{said}"
    );
    // Without a config: ten requests per second for each address.
    let (code, said, _) = run(&folder, &["simulate", "log"]);
    assert_eq!(code, 0);
    assert!(said.contains("default: 10r/s per {key}"), "{said}");
}

#[test]
fn simulated_differences_are_reported() {
    let policies = "[stores.default]\nurl = \"redis://127.0.0.1:1\"\n\
        [[policies]]\nname = \"redis\"\nkey = \"{ip}\"\nlimit = \"1r/s\"\n\
        [[policies]]\nname = \"lease\"\nkey = \"{ip}\"\nlimit = \"1r/s\"\nmode = \"lease\"\n\
        [[policies]]\nname = \"background\"\nkey = \"{ip}\"\nlimit = \"1r/s\"\nmode = \"background\"\n\
        [[policies]]\nname = \"off\"\nkey = \"{ip}\"\nlimit = \"1r/s\"\nenabled = false\n\
        [[policies]]\nname = \"script\"\nkey = \"{ip}\"\nalgorithm = \"script\"\nscript = \"a.lua\"\n";
    let folder = folder(policies);
    folder.write("log", nginx(MIDNIGHT, "::1").repeat(2));
    let result = simulate(&folder, &["--config", "tidegate.toml", "log"]);
    for (number, (denied, note)) in [
        (1, "kept in Redis: simulated as exact"),
        (1, "the mode is lease: simulated as exact"),
        (1, "the mode is background: simulated as exact"),
        (0, "not enabled"),
    ]
    .into_iter()
    .enumerate()
    {
        let policy = &result["policies"][number];
        assert_eq!(policy["denied"], denied, "{policy}");
        let notes = policy["notes"].as_array().expect("a list");
        let found = notes.iter().any(|it| it.as_str().unwrap().contains(note));
        assert!(found, "{note}: {policy}");
    }
    assert_eq!(result["policies"].as_array().unwrap().len(), 4);
    assert_eq!(result["left_out_policies"][0]["name"], "script");
}

#[test]
fn bounds_of_a_store_are_those_of_the_config() {
    let folder = folder(&format!(
        "[stores.default]\nmax_keys = 10\n{}",
        by_address("limit = \"1r/h\"")
    ));
    let log: String = (0..200)
        .map(|client| nginx(MIDNIGHT + client, &format!("192.0.2.{client}")))
        .collect();
    folder.write("log", log);
    let result = simulate(&folder, &["--config", "tidegate.toml", "log"]);
    let notes = result["policies"][0]["notes"].to_string();
    assert!(
        notes.contains("max_keys is too small for this log"),
        "{notes}"
    );
}
