//! Two algorithms on the same requests.

use serde_json::json;

use super::{MIDNIGHT, by_address, folder, json as line, policy, simulate};

#[test]
fn a3_two_counters_differ_from_the_log_where_arithmetic_says() {
    // Ten at 59.9 s and ten at 114 s, at ten per minute. In any 60 s the log admits ten: the
    // second ten come 54.1 s after the first, and are refused. The two counters see 54 s into
    // the second minute: a tenth of the first ten counts, so nine of the second ten pass.
    let mut log = String::new();
    for offset_ms in [59_900, 114_000] {
        log.push_str(&line(MIDNIGHT * 1_000 + offset_ms, "::1").repeat(10));
    }
    log.push_str(&line(MIDNIGHT * 1_000 + 115_000, "192.0.2.1"));
    let folder = folder(&by_address("limit = \"10r/m\"\nburst = 3"));
    folder.write("log", log);
    let flags = ["--config", "tidegate.toml", "--format", "json", "log"];
    let asked = ["--compare", "sliding_window,sliding_log"];
    let result = simulate(&folder, &[&flags[..], &asked].concat());
    let compared = &policy(&result)["compared"];
    assert_eq!(
        compared["algorithms"],
        json!(["sliding_window", "sliding_log"])
    );
    for (field, expected) in [
        ("requests", 21),
        ("both_allowed", 11),
        ("both_denied", 1),
        ("only_first_denied", 0),
        ("only_second_denied", 9),
        ("keys_differ", 1),
    ] {
        assert_eq!(compared[field], expected, "{field}: {compared}");
    }
    assert_eq!(compared["differ_share"], 9.0 / 21.0);
    assert_eq!(
        compared["worst_minute"],
        json!({"at": "2026-11-16T00:01:00Z", "differ": 9})
    );
    assert_eq!(
        compared["top"],
        json!([{"key": {"ip": "::1"}, "requests": 20, "differ": 9}])
    );
    assert_eq!(
        compared["examples"][0],
        json!({"at": "2026-11-16T00:01:54Z", "key": {"ip": "::1"}, "denied_by": "sliding_log"})
    );
}
