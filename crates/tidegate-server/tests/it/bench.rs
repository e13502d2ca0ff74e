//! `tidegate bench`: what it reports of real stores and servers.

use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::observed::metrics;
use crate::process::{Folder, PATIENCE, Start, Tidegate, ended, run, signal, tidegate, until};
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

/// What a bench says when it has ended.
fn end(bench: Child) -> (i32, Value) {
    let (code, said, error) = ended(bench.wait_with_output().expect("a child of ours"));
    assert_eq!(error, "");
    let report = serde_json::from_str(&said).unwrap_or_else(|error| panic!("{error}: {said}"));
    (code, report)
}

fn number(value: &Value) -> f64 {
    value
        .as_f64()
        .unwrap_or_else(|| panic!("{value} is no number"))
}

#[test]
fn three_processes_on_one_redis_keep_one_limit() {
    let redis = Server::start();
    let url = redis.url();
    for (algorithm, keys) in [
        ("token_bucket", "1"),
        ("sliding_log", "3"),
        ("fixed_window", "1"),
    ] {
        let run = format!("--algorithm {algorithm} --keys {keys} --processes 3 --callers 8");
        let (code, report) = bench(&format!("{url} {run} --duration 1500ms --timeout 20s"));
        assert_eq!(code, 0, "{report:#}");
        let verdict = &report["verdict"];
        assert_eq!(verdict["held"], true, "bound broken: {report:#}");
        assert_eq!(verdict["judged"], "all", "{report:#}");
        let level = &verdict["levels"][0];
        assert_eq!(level["keys"], keys.parse::<u64>().expect("a number"));
        let (admitted, bound) = (
            number(&level["admitted_cost"]),
            number(&level["bound_over_run"]),
        );
        let keys: f64 = keys.parse().expect("a number");
        assert!(admitted <= bound, "bound broken: {report:#}");
        assert!(admitted >= 100.0 * keys, "{report:#}");
        assert_eq!(number(&report["admitted"]), admitted);
        let (checks, refused) = (number(&report["checks"]), number(&report["refused"]));
        assert_eq!(checks, admitted + refused);
        assert!(refused > 0.0 && report["failed"] == 0);
        assert_eq!(report["loop"], "closed");
        assert_eq!(report["offered"], Value::Null);
        let offered = report["bins"]["offered"].as_array().expect("a list");
        assert_eq!(offered.iter().map(number).sum::<f64>(), checks);
    }
}

#[test]
fn an_open_loop_counts_from_when_a_check_should_have_begun() {
    let redis = Server::start();
    let folder = Folder::new();
    let load = "--rate 200 --callers 4 --duration 4s --timeout 30s";
    let flags = format!(
        "{} {load} --limit 100000r/s --refusal-memory 0s",
        redis.url()
    );
    let bench = start(&folder, &flags);
    let mut connection = redis.connect();
    until("the first check", || {
        let keys: u64 = redis::cmd("DBSIZE").query(&mut connection).expect("a size");
        (keys > 0).then_some(())
    });
    redis.signal("STOP");
    std::thread::sleep(Duration::from_secs(1));
    redis.signal("CONT");
    let (code, report) = end(bench);
    assert_eq!(code, 0, "{report:#}");
    let offer = &report["offered"];
    assert_eq!(
        (&report["loop"], number(&offer["rate"])),
        (&"open".into(), 200.0)
    );
    assert_eq!(number(&offer["sent"]) + number(&offer["unsent"]), 800.0);
    // A quarter of all should have begun while nothing was answered, and four were
    // asked: from when they did begin, one in two hundred would have been slow.
    let p90 = number(&report["latency_us"]["p90"]);
    assert!(p90 > 200_000.0, "{report:#}");
    assert!(number(&report["latency_us"]["max"]) > 900_000.0);
    assert!(number(&offer["late"]) > 100.0);
}

#[test]
fn what_finds_no_caller_counts_with_its_lateness() {
    let (code, report) = bench("--rate 5000000 --callers 1 --duration 300ms");
    assert_eq!(code, 0, "{report:#}");
    let offer = &report["offered"];
    assert_eq!(offer["reached"], false, "{report:#}");
    let (sent, unsent) = (number(&offer["sent"]), number(&offer["unsent"]));
    assert!(unsent > 0.0);
    assert_eq!(sent + unsent, 1_500_000.0);
    assert_eq!(sent, number(&report["checks"]));
    assert!(number(&offer["lateness_us"]["max"]) > 10_000.0);
    let offered = report["bins"]["offered"].as_array().expect("a list");
    assert_eq!(offered.iter().map(number).sum::<f64>(), 1_500_000.0);
}

#[test]
fn a_limit_that_is_loosened_meanwhile_is_broken_and_an_interrupt_ends_the_run() {
    let config = |limit: &str| format!("[[policies]]\nname = \"p\"\nlimit = \"{limit}\"\n");
    let server = Tidegate::start(&config("5/1h"));
    let folder = Folder::new();
    let flags = "--policy p --processes 2 --callers 2 --duration 1h";
    let bench = start(&folder, &format!("{} {flags}", server.url()));
    let allowed = || {
        let name = "tidegate_decisions_total{policy=\"p\",result=\"allowed\"}";
        metrics(&server).get(name).copied().unwrap_or_default()
    };
    until("all five are admitted", || (allowed() >= 5.0).then_some(()));
    server.folder().write("tidegate.toml", config("1000000/1h"));
    server.signal("HUP");
    until("more are admitted", || (allowed() >= 20.0).then_some(()));
    signal(bench.id(), "INT");
    let (code, report) = end(bench);
    assert_eq!(code, 1, "{report:#}");
    assert_eq!(report["interrupted"], true);
    let verdict = &report["verdict"];
    assert_eq!(verdict["held"], false);
    let level = &verdict["levels"][0];
    assert_eq!(
        (&level["limit"], &level["broken_keys"]),
        (&"5r/h".into(), &1.into())
    );
    assert_eq!(
        (&level["broken"]["admitted"], &level["broken"]["bound"]),
        (&6.into(), &5.into())
    );
}

#[test]
fn a_server_is_asked_by_http_and_by_socket() {
    let config = "[[policies]]\nname = \"other\"\nlimit = \"1r/s\"\n\
        [[policies]]\nname = \"api\"\n\
        [[policies.levels]]\nname = \"one\"\nkey = \"{resource}\"\nlimit = \"50/1h\"\n\
        [[policies.levels]]\nname = \"two\"\nkey = \"{resource}:{user}\"\nlimit = \"20/1h\"\nalgorithm = \"fixed_window\"\n";
    let unix = Start::configured(config)
        .argument("--http")
        .argument("unix:s")
        .start();
    let socket = format!("unix:{}", unix.folder().path("s").display());
    let tcp = Tidegate::start(config);
    for url in [tcp.url(), &socket] {
        let flags = "--policy api --keys 3 --duration 2500ms --callers 4 --cost 2";
        let (code, report) = bench(&format!("{url} {flags}"));
        assert_eq!(code, 0, "{report:#}");
        assert_eq!(number(&report["admitted"]), 30.0, "{report:#}");
        assert_eq!(report["sources"]["store"]["admitted"], 30);
        let limits = report["limits"].as_array().expect("a list");
        assert_eq!(limits.len(), 2);
        let costs = report["verdict"]["levels"].as_array().expect("a list");
        assert!(costs.iter().all(|level| level["admitted_cost"] == 60));
    }
}

#[test]
fn a_server_that_goes_away_is_no_reason_to_hang() {
    let mut server = Some(Start::without_config().start());
    let folder = Folder::new();
    let url = server
        .as_ref()
        .map(|server| server.url().to_owned())
        .unwrap_or_default();
    let bench = start(
        &folder,
        &format!("{url} --callers 3 --duration 1h --timeout 1s"),
    );
    until("it is asked", || {
        let name = "tidegate_decisions_total{policy=\"default\",result=\"allowed\"}";
        let asked = metrics(server.as_ref()?).get(name).copied();
        asked.filter(|count| *count >= 1.0)
    });
    drop(server.take());
    std::thread::sleep(Duration::from_secs(1));
    signal(bench.id(), "INT");
    let begun = Instant::now();
    let (code, report) = end(bench);
    assert!(begun.elapsed() < PATIENCE);
    assert_eq!(code, 0, "{report:#}");
    assert!(number(&report["failures"]["connect"]) > 0.0, "{report:#}");
    let verdict = &report["verdict"];
    assert_eq!(
        (&verdict["held"], &verdict["judged"]),
        (&true.into(), &"partial".into())
    );
}

/// It can be looked at, and decides nothing: it has no memory left.
#[test]
fn a_store_that_decides_nothing_ends_the_run_at_once() {
    let redis = Server::start_with(&["--maxmemory", "1"]);
    let start = Instant::now();
    let flags = ["--duration", "10m", "--limit", "5/1h"];
    let (code, said, error) = run(
        &Folder::new(),
        &[&["bench", &redis.url()][..], &flags].concat(),
    );
    assert_eq!((code, said.as_str()), (2, ""), "{error}");
    assert!(
        error.contains("the store has answered nothing (") && error.contains("out_of_memory"),
        "{error}"
    );
    assert!(start.elapsed() < PATIENCE, "it went on");
}

#[test]
fn checks_that_memory_answers_are_counted_apart() {
    let redis = Server::start();
    let url = redis.url();
    let flags = format!("{url} --limit 5/1h --duration 500ms --timeout 5s");
    let (code, report) = bench(&flags);
    assert_eq!(code, 0, "{report:#}");
    let (store, memory) = (&report["decided_by_store"], &report["answered_from_memory"]);
    let checks = |part: &Value| number(&part["checks"]);
    assert_eq!(checks(store) + checks(memory), number(&report["checks"]));
    let remembered = &report["sources"]["refusal_memory"]["refused"];
    assert_eq!(checks(memory), number(remembered));
    assert!(
        checks(memory) > checks(store) && checks(store) >= 5.0,
        "{report:#}"
    );
    assert!(number(&store["latency_us"]["p50"]) > number(&memory["latency_us"]["p50"]));
    let folder = Folder::new();
    let flags: Vec<&str> = flags.split(' ').collect();
    let (_, said, _) = run(&folder, &[&["bench"], &flags[..]].concat());
    for part in [
        "\n  by store ",
        "\n  by memory ",
        "without asking the store\n",
        "\nby store ",
    ] {
        assert!(said.contains(part), "{part:?} is not in\n{said}");
    }
}

#[test]
fn u3_a_key_is_judged_by_the_limit_in_force_for_it() {
    let config = "[[policies]]\nname = \"p\"\n\
                  [[policies.levels]]\nname = \"tier\"\nkey = \"{tier}\"\nlimit = \"5/1h\"\n\
                  [[policies.levels]]\nname = \"client\"\nkey = \"{tier}:{ip}\"\nlimit = \"3/1h\"\n\
                  [[policies.overrides]]\nmatch = { tier = \"pro\" }\nlimit = \"40/1h\"\n\
                  [[policies.overrides]]\nmatch = { tier = \"half\" }\nlevel = \"tier\"\nenabled = false\n\
                  [[policies.overrides]]\nmatch = { tier = \"staff\" }\nenabled = false\n";
    let server = Tidegate::start(config);
    let split = Start::new(config)
        .argument("--admin")
        .argument("127.0.0.1:0")
        .start();
    let folder = Folder::new();
    folder.write("t.toml", config);
    for (tier, limits, admitted) in [
        ("free", json!(["5r/h", "3r/h"]), Some(3)),
        ("pro", json!(["40r/h", "40r/h"]), Some(40)),
        ("half", json!(["3r/h"]), Some(3)),
        ("staff", json!([]), None),
    ] {
        let flags = format!("--policy p --yes --duration 1s --attr tier={tier}");
        for target in [server.url(), "--config t.toml", split.url()] {
            let (code, report) = end(start(&folder, &format!("{target} {flags}")));
            let is_known = admitted.is_some() && target != split.url();
            assert_eq!(code, if is_known { 0 } else { 2 }, "{report:#}");
            if is_known {
                assert_eq!(report["limits"], limits, "{report:#}");
                assert_eq!(report["admitted"].as_u64(), admitted);
                assert_eq!(report["verdict"]["held"], true);
            } else {
                let reason = report["verdict"]["reasons"].to_string();
                assert!(reason.contains("an override"), "{report:#}");
            }
        }
    }
}

#[test]
fn a_policy_of_a_config_is_put_to_the_test() {
    let folder = Folder::new();
    folder.write(
        "t.toml",
        "[[policies]]\nname = \"p\"\n\
         [[policies.levels]]\nname = \"all\"\nkey = \"\"\nlimit = \"40/1h\"\n\
         [[policies.levels]]\nname = \"each\"\nkey = \"{ip}\"\nlimit = \"15/1h\"\nalgorithm = \"sliding_log\"\n\
         [[policies]]\nname = \"off\"\nlimit = \"1r/s\"\nenabled = false\n",
    );
    let run = |policy: &str| {
        let flags = format!("--config t.toml --duration 1s --keys 4 --policy {policy}");
        end(start(&folder, &flags))
    };
    let (code, report) = run("p");
    assert_eq!(code, 0, "{report:#}");
    assert_eq!(report["admitted"], 40);
    let levels = report["verdict"]["levels"].as_array().expect("a list");
    assert_eq!(
        (&levels[0]["keys"], &levels[1]["level"]),
        (&1.into(), &"each".into())
    );
    assert_eq!(
        levels[0]["use_of_bound"].as_f64().map(f64::round),
        Some(1.0)
    );
    let (code, report) = run("off");
    assert_eq!(
        (code, &report["verdict"]["reasons"][0]),
        (2, &"the policy is switched off".into())
    );
}

#[test]
fn the_report_is_for_people_and_the_picture_for_everyone() {
    let folder = Folder::new();
    let flags = "bench --duration 800ms --keys 10 --zipf 1.2 --plot p.svg";
    let (code, said, error) = run(&folder, &flags.split(' ').collect::<Vec<_>>());
    assert_eq!((code, error.as_str()), (0, ""), "{said}");
    for part in [
        "memory:, policy bench: 100r/s, exact\n1 process with 64 callers, 10 keys by Zipf's law (1.2), cost 1, ",
        "\nclosed loop: ",
        "\nchecks ",
        " per second\nadmitted ",
        "latency       mean      p50      p90      p99    p99.9      max\n",
        " %  ####",
        "\nbench 100r/s: admitted ",
        " that the bound allows over the run (",
        "\n  held for 10 keys; closest to the bound: key ",
        "\nverdict: the limit held\n",
    ] {
        assert!(said.contains(part), "{part:?} is not in\n{said}");
    }
    assert!(!said.contains('\u{1b}'));
    let picture = std::fs::read_to_string(folder.path("p.svg")).expect("a picture");
    let parsed = roxmltree::Document::parse(&picture).expect("XML");
    let root = parsed.root_element();
    assert_eq!(root.tag_name().name(), "svg");
    let texts: Vec<&str> = parsed
        .descendants()
        .filter_map(|node| node.text())
        .map(str::trim)
        .collect();
    for text in [
        "tidegate bench: 100r/s",
        "offered",
        "admitted",
        "the limit of all keys",
        "p50",
        "p99",
        "99.9 %",
    ] {
        assert!(texts.contains(&text), "{text:?} is not in {texts:?}");
    }
    let lines = parsed
        .descendants()
        .filter(|node| node.has_tag_name("polyline"));
    assert!(lines.count() >= 7);
    // It needs nothing from elsewhere.
    let links = parsed.descendants().flat_map(|node| node.attributes());
    assert!(links.filter(|it| it.name().contains("href")).count() == 0);
}

#[test]
fn three_processes_that_decide_on_their_own_keep_to_the_formula() {
    let redis = Server::start();
    let url = redis.url();
    for algorithm in ["token_bucket", "fixed_window", "sliding_log"] {
        let load = "--processes 3 --rate 3000 --duration 2s --sync-interval 20ms";
        let mode = format!("--mode background --algorithm {algorithm}");
        let (code, report) = bench(&format!("{url} {load} {mode}"));
        assert_eq!(code, 0, "{report:#}");
        assert_eq!(report["mode"], "background");
        let verdict = &report["verdict"];
        assert_eq!(verdict["held"], true);
        let decided = &report["sources"]["background"];
        let admitted = number(&decided["admitted"]);
        assert_eq!(
            admitted + number(&decided["refused"]),
            number(&report["checks"])
        );
        let level = &verdict["levels"][0];
        assert!(admitted >= 100.0 && admitted <= number(&level["bound_over_run"]));
        let figures = &verdict["background"];
        let figure = |name: &str| number(&figures[name]);
        assert_eq!(figure("sync_interval_us"), 20_000.0);
        assert!(figure("round_trip_us") > 0.0);
        let (interval, round_trip) = (figure("sync_interval_us"), figure("round_trip_us"));
        // A key is reported again once its last report was answered.
        let waited = if round_trip > interval {
            round_trip
        } else {
            0.0
        };
        assert_eq!(
            figure("staleness_us"),
            2.0 * (interval + round_trip) + waited + figure("outage_us"),
            "{report:#}"
        );
        let offered = figures["offered"].as_array().expect("a list");
        assert_eq!(offered.len(), 3);
        assert!(offered.iter().all(|offered| number(offered) >= 1.0));
    }
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
    let (_, report) = bench("--duration 100ms --rate 500 --limit 1000r/s");
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
