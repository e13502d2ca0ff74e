//! Time: lines out of order, several logs, packed logs.

use std::io::Write;
use std::process::Stdio;

use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::{Value, json};

use super::{MIDNIGHT, Random, by_address, counts, folder, json, lines, nginx, policy, simulate};
use crate::process::{ended, tidegate};

const LIMIT: &str = "limit = \"5/10s\"\nalgorithm = \"sliding_log\"";

fn traffic(seed: u64, count: usize) -> Vec<(u64, String)> {
    let mut random = Random(seed);
    let mut at_ms = MIDNIGHT * 1_000;
    let event = |_| {
        at_ms += 1 + random.below(400);
        (at_ms, format!("192.0.2.{}", random.below(5)))
    };
    (0..count).map(event).collect()
}

fn log(events: &[(u64, String)]) -> String {
    lines(events, |(at_ms, ip)| json(*at_ms, ip))
}

const FLAGS: [&str; 4] = ["--config", "tidegate.toml", "--format", "json"];

#[test]
fn lines_out_of_order_are_put_in_their_place() {
    let events = traffic(1, 2_000);
    let folder = folder(&by_address(LIMIT));
    folder.write("sorted", log(&events));
    let mut shuffled = events.clone();
    let mut random = Random(9);
    for at in (1..shuffled.len()).rev() {
        shuffled.swap(
            at,
            usize::try_from(random.below(at as u64 + 1)).expect("small"),
        );
    }
    assert_ne!(shuffled, events);
    folder.write("shuffled", log(&shuffled));
    let sorted = simulate(&folder, &[&FLAGS[..], &["sorted"]].concat());
    assert!(counts(policy(&sorted))[1] > 0);
    assert_eq!(
        simulate(&folder, &[&FLAGS[..], &["shuffled"]].concat()),
        sorted
    );
}

#[test]
fn lines_far_too_late_are_counted_and_left_out() {
    // A window of 32,768 lines is sorted while the next one is read. After both, nothing of
    // the first can be changed any more.
    let events = traffic(2, 70_000);
    let folder = folder(&by_address(LIMIT));
    folder.write("whole", log(&events));
    let late = [(MIDNIGHT * 1_000, "192.0.2.99".to_owned())];
    folder.write("late", log(&events) + &log(&late));
    let whole = simulate(&folder, &[&FLAGS[..], &["whole"]].concat());
    let result = simulate(&folder, &[&FLAGS[..], &["late"]].concat());
    assert_eq!(
        (&result["late"], &result["unreadable"]),
        (&json!(1), &json!(0))
    );
    assert_eq!(result["lines"], 70_001);
    assert_eq!(result["policies"], whole["policies"]);
    let shown = &result["left_out_lines"][0];
    assert_eq!(
        (&shown["log"], &shown["line"]),
        (&json!("late"), &json!(70_001))
    );
    assert!(
        shown["reason"]
            .as_str()
            .unwrap()
            .contains("s older than lines far before it")
    );
}

#[test]
fn several_logs_are_one_in_time() {
    let events = traffic(3, 3_000);
    let folder = folder(&by_address(LIMIT));
    folder.write("all", log(&events));
    let all = simulate(&folder, &[&FLAGS[..], &["all"]].concat());
    // One after the other, in the wrong order, and side by side.
    let (early, late) = events.split_at(1_234);
    folder.write("early", log(early));
    folder.write("late", log(late));
    let part = |rest: usize| -> Vec<(u64, String)> {
        let some = events.iter().enumerate();
        let some = some.filter(|(number, _)| number % 3 == rest);
        some.map(|(_, event)| event.clone()).collect()
    };
    for rest in 0..3 {
        folder.write(&format!("part-{rest}"), log(&part(rest)));
    }
    folder.write("empty", "");
    for logs in [
        &["late", "early"][..],
        &["part-2", "part-0", "empty", "part-1"],
    ] {
        assert_eq!(
            simulate(&folder, &[&FLAGS[..], logs].concat()),
            all,
            "{logs:?}"
        );
    }
}

#[test]
fn seconds_of_several_logs_are_spread_together() {
    // Two in each of two logs, in one second: 250 ms apart. Under 4r/s, one at once, all
    // pass; spread per log, two would come at the same instant.
    let folder = folder(&by_address("limit = \"4r/s\"\nburst = 1"));
    let two = nginx(MIDNIGHT, "192.0.2.1").repeat(2);
    folder.write("a", &two);
    folder.write("b", &two);
    let result = simulate(&folder, &["--config", "tidegate.toml", "a", "b"]);
    assert_eq!(counts(policy(&result)), [4, 0, 1, 0]);
}

#[test]
fn packed_logs_and_standard_input_are_read_by_content() {
    let events = traffic(4, 500);
    let folder = folder(&by_address(LIMIT));
    let plain = log(&events);
    folder.write("plain.gz", &plain);
    let (head, tail) = plain.split_at(plain.len() / 2);
    // Two members in one file, as after `cat a.gz b.gz`.
    let mut gzip = Vec::new();
    for part in [head, tail] {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(part.as_bytes()).unwrap();
        gzip.extend(encoder.finish().unwrap());
    }
    folder.write("gzip.log", &gzip);
    let mut zstd = zstd::encode_all(head.as_bytes(), 1).unwrap();
    zstd.extend(zstd::encode_all(tail.as_bytes(), 1).unwrap());
    folder.write("zstd", &zstd);
    let expected = simulate(&folder, &[&FLAGS[..], &["plain.gz"]].concat());
    assert_eq!(expected["lines"], 500);
    for file in ["gzip.log", "zstd"] {
        assert_eq!(
            simulate(&folder, &[&FLAGS[..], &[file]].concat()),
            expected,
            "{file}"
        );
    }
    for bytes in [plain.as_bytes(), &gzip, &zstd] {
        let mut command = tidegate(&folder.path(""));
        command.args(["simulate", "--json"]).args(FLAGS).arg("-");
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut process = command.spawn().expect("the binary");
        let mut input = process.stdin.take().expect("a pipe");
        input.write_all(bytes).expect("a reader");
        drop(input);
        let (code, said, error) = ended(process.wait_with_output().expect("an end"));
        assert_eq!((code, error.as_str()), (0, ""));
        assert_eq!(serde_json::from_str::<Value>(&said).unwrap(), expected);
    }
}
