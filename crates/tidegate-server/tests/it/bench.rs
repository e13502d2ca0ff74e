//! `tidegate bench`: what it reports of a Redis that many ask, and of an open loop. Runs whose
//! numbers are known beforehand are cases of tests/cmd/bench.txt.

use std::process::{Child, Stdio};
use std::time::Duration;

use serde_json::Value;
use tidegate_testkit::page::{code, rows};

use crate::process::{Folder, ended, tidegate, until};
use crate::redis_server::Server;

/// Runs a bench to its end, with flags in words: the exit code, and the report.
pub(crate) fn bench(flags: &str) -> (i32, Value) {
    end(start(&Folder::new(), flags))
}

/// A bench that goes on.
fn start(folder: &Folder, flags: &str) -> Child {
    let mut command = tidegate(folder.root());
    command
        .args(["bench", "--json"])
        .args(flags.split_whitespace());
    let command = command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().expect("the binary")
}

/// What a bench says when it has ended: parts of a report add up.
fn end(bench: Child) -> (i32, Value) {
    let (code, said, error) = ended(bench.wait_with_output().expect("a child of ours"));
    assert_eq!(error, "");
    let report: Value =
        serde_json::from_str(&said).unwrap_or_else(|error| panic!("{error}: {said}"));
    let sum = |parts: &[&str]| parts.iter().map(|part| number(&report, part)).sum::<f64>();
    let checks = sum(&["/checks"]);
    assert_eq!(
        checks,
        sum(&["/admitted", "/refused", "/failed"]),
        "{report:#}"
    );
    let places = ["/decided_by_store/checks", "/answered_from_memory/checks"];
    if sum(&["/failed"]) == 0.0 && report["mode"] == "exact" {
        assert_eq!(checks, sum(&places), "{report:#}");
    }
    let unsent = report["offered"]["unsent"].as_f64().unwrap_or_default();
    let offered = report["bins"]["offered"].as_array().expect("a list").iter();
    let offered: f64 = offered.map(|bin| bin.as_f64().expect("a number")).sum();
    assert_eq!(offered, checks + unsent, "{report:#}");
    (code, report)
}

fn number(report: &Value, pointer: &str) -> f64 {
    let number = report.pointer(pointer).and_then(Value::as_f64);
    number.unwrap_or_else(|| panic!("{pointer}: no number in {report:#}"))
}

#[test]
fn three_processes_on_one_redis_keep_one_limit() {
    let redis = Server::start();
    for (algorithm, keys) in [("token_bucket", 1), ("sliding_log", 3), ("fixed_window", 1)] {
        let run = format!("--algorithm {algorithm} --keys {keys} --processes 3 --callers 8");
        let (code, report) = bench(&format!(
            "{} {run} --duration 1500ms --timeout 20s",
            redis.url()
        ));
        let number = |pointer| number(&report, pointer);
        let verdict = (&report["verdict"]["held"], &report["verdict"]["judged"]);
        assert_eq!(
            (code, verdict),
            (0, (&true.into(), &"all".into())),
            "{report:#}"
        );
        assert_eq!(number("/verdict/levels/0/keys"), f64::from(keys));
        let admitted = number("/verdict/levels/0/admitted_cost");
        let bounds = f64::from(100 * keys)..=number("/verdict/levels/0/bound_over_run");
        assert!(bounds.contains(&admitted), "bound broken: {report:#}");
        assert_eq!(number("/admitted"), admitted);
        assert!(number("/refused") > 0.0 && number("/failed") == 0.0);
        assert_eq!(
            (&report["loop"], &report["offered"]),
            (&"closed".into(), &Value::Null)
        );
    }
}

#[test]
fn three_processes_that_decide_on_their_own_keep_to_the_formula() {
    let redis = Server::start();
    for algorithm in ["token_bucket", "fixed_window", "sliding_log"] {
        let load = "--processes 3 --rate 3000 --duration 2s --sync-interval 20ms";
        let mode = format!("--mode background --algorithm {algorithm}");
        let (code, report) = bench(&format!("{} {load} {mode}", redis.url()));
        let number = |pointer: &str| number(&report, pointer);
        let held = &report["verdict"]["held"];
        assert_eq!((code, held), (0, &true.into()), "{report:#}");
        let admitted = number("/sources/background/admitted");
        let decided = admitted + number("/sources/background/refused");
        assert_eq!(decided, number("/checks"), "{report:#}");
        let bounds = 100.0..=number("/verdict/levels/0/bound_over_run");
        assert!(bounds.contains(&admitted), "{report:#}");
        let figure = |name: &str| number(&format!("/verdict/background/{name}"));
        let (interval, round_trip) = (figure("sync_interval_us"), figure("round_trip_us"));
        assert!(interval == 20_000.0 && round_trip > 0.0, "{report:#}");
        // A key is reported again once its last report was answered.
        let waited = if round_trip > interval {
            round_trip
        } else {
            0.0
        };
        let staleness = 2.0 * (interval + round_trip) + waited + figure("outage_us");
        assert_eq!(figure("staleness_us"), staleness, "{report:#}");
        let offered = report["verdict"]["background"]["offered"].as_array();
        let offered = offered.expect("one per process").iter();
        assert_eq!(offered.filter(|it| it.as_f64() >= Some(1.0)).count(), 3);
    }
}

#[test]
fn an_open_loop_counts_from_when_a_check_should_have_begun() {
    let redis = Server::start();
    let folder = Folder::new();
    let load = "--rate 200 --callers 4 --duration 4s --timeout 30s";
    let flags = "--limit 100000r/s --refusal-memory 0s";
    let bench = start(&folder, &format!("{} {load} {flags}", redis.url()));
    let mut connection = redis.connect();
    until("the first check", || {
        let keys: u64 = redis::cmd("DBSIZE").query(&mut connection).expect("a size");
        (keys > 0).then_some(())
    });
    redis.signal("STOP");
    std::thread::sleep(Duration::from_secs(1));
    redis.signal("CONT");
    let (code, report) = end(bench);
    let number = |pointer| number(&report, pointer);
    assert_eq!((code, &report["loop"]), (0, &"open".into()), "{report:#}");
    assert_eq!(number("/offered/rate"), 200.0);
    assert_eq!(number("/offered/sent") + number("/offered/unsent"), 800.0);
    // A quarter of all should have begun while nothing was answered, and four were
    // asked: from when they did begin, one in two hundred would have been slow.
    assert!(number("/latency_us/p90") > 200_000.0, "{report:#}");
    assert!(number("/latency_us/max") > 900_000.0, "{report:#}");
    assert!(number("/offered/late") > 100.0, "{report:#}");
}

#[test]
fn what_finds_no_caller_counts_with_its_lateness() {
    let (code, report) = bench("--rate 5000000 --callers 1 --duration 300ms");
    let number = |pointer| number(&report, pointer);
    assert_eq!(
        (code, &report["offered"]["reached"]),
        (0, &false.into()),
        "{report:#}"
    );
    let (sent, unsent) = (number("/offered/sent"), number("/offered/unsent"));
    assert!(unsent > 0.0 && sent == number("/checks"), "{report:#}");
    assert_eq!(sent + unsent, 1_500_000.0);
    assert!(number("/offered/lateness_us/max") > 10_000.0, "{report:#}");
}

#[test]
fn checks_that_memory_answers_are_counted_apart() {
    let redis = Server::start();
    let (code, report) = bench(&format!(
        "{} --limit 5/1h --duration 500ms --timeout 5s",
        redis.url()
    ));
    let number = |pointer| number(&report, pointer);
    assert_eq!(code, 0, "{report:#}");
    let by_store = number("/decided_by_store/checks");
    let by_memory = number("/answered_from_memory/checks");
    assert_eq!(by_memory, number("/sources/refusal_memory/refused"));
    assert!(by_memory > by_store && by_store >= 5.0, "{report:#}");
    let slow = number("/decided_by_store/latency_us/p50");
    assert!(
        slow > number("/answered_from_memory/latency_us/p50"),
        "{report:#}"
    );
}

#[test]
fn picture_is_whole_and_needs_nothing_from_elsewhere() {
    let folder = Folder::new();
    let (code, _) = end(start(&folder, "--duration 800ms --keys 10 --plot p.svg"));
    assert_eq!(code, 0);
    let picture = std::fs::read_to_string(folder.path("p.svg")).expect("a picture");
    let parsed = roxmltree::Document::parse(&picture).expect("XML");
    assert!(parsed.root_element().has_tag_name("svg"));
    let texts = parsed.descendants().filter_map(|node| node.text());
    let texts: Vec<&str> = texts.map(str::trim).collect();
    let title = "tidegate bench: 100r/s";
    let limit = "the limit of all keys";
    for text in [title, "offered", "admitted", limit, "p50", "p99", "99.9 %"] {
        assert!(texts.contains(&text), "{text:?} is not in {texts:?}");
    }
    let is_line = |node: &roxmltree::Node<'_, '_>| node.has_tag_name("polyline");
    assert!(parsed.descendants().filter(is_line).count() >= 7);
    let mut links = parsed.descendants().flat_map(|node| node.attributes());
    assert!(!links.any(|it| it.name().contains("href")));
}

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
        Value::Array(values) => values.iter().take(1).for_each(|it| names(it, path, found)),
        _ => {}
    }
}

/// `a.{b,c}` as `a.b` and `a.c`.
fn expanded(name: &str) -> Vec<String> {
    let Some((before, rest)) = name.split_once('{') else {
        return vec![name.to_owned()];
    };
    let (choices, after) = rest.split_once('}').expect("a brace that closes");
    let names = choices.split(',');
    names
        .flat_map(|choice| expanded(&format!("{before}{choice}{after}")))
        .collect()
}

#[test]
fn the_names_in_json_are_those_of_the_page() {
    let (_, report) = bench("--duration 100ms --rate 500 --limit 1000r/s");
    let mut found = Vec::new();
    names(&report, "", &mut found);
    let page = include_str!("../../../../docs/bench.md");
    let rows = rows(page, "| name | meaning |");
    let rows = rows.iter().flat_map(|row| code(row[0])).flat_map(expanded);
    let rows: Vec<String> = rows.collect();
    for name in &found {
        assert!(rows.contains(name), "docs/bench.md does not explain {name}");
    }
    // Not in every report.
    let optional = [
        "sources.background",
        "verdict.background.",
        "verdict.levels.broken.",
    ];
    for name in &rows {
        let is_optional = optional.iter().any(|start| name.starts_with(start));
        assert!(is_optional || found.contains(name), "there is no {name}");
    }
}
