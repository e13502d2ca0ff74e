//! Clients of Redis, unmodified: redis-cli, redis-benchmark, redis-py and ioredis.

use std::process::Command;

use super::{Served, lines, peer};
use crate::observed::metrics;

const CONFIG: &str = "[[policies]]\nname = \"api\"\nlimit = \"3/1h\"\n";

#[test]
fn redis_cli_works() {
    let served = Served::start(CONFIG);
    let throttle = ["CL.THROTTLE", "user123", "15", "30", "60"];
    assert_eq!(served.cli(&throttle), ["0", "16", "15", "-1", "2"]);
    let three = [&["-3"][..], &throttle].concat();
    assert_eq!(served.cli(&three)[..3], ["0", "16", "14"]);
    let checked = served.cli(&["-3", "TG.CHECK", "api", "KEY", "a"]);
    assert!(checked.contains(&"remaining 2".to_owned()), "{checked:?}");
    assert_eq!(served.cli(&["--raw", "PING"]), ["PONG"]);
    assert!(served.cli(&["COMMAND", "COUNT"])[0].parse::<u32>().is_ok());
    // Commands from a file, all at once.
    let script = "printf 'THROTTLE k 3 1 60\\nTHROTTLE k 3 1 60\\nPING\\n'";
    let run = |flags: &str| {
        let script = format!("{script} | redis-cli -p {} {flags}", served.port());
        lines(Command::new("sh").args(["-c", &script]))
    };
    let replies = run("");
    assert_eq!(replies[..3], ["1", "3", "2"]);
    assert_eq!(replies[5..8], ["1", "3", "1"]);
    assert_eq!(replies[10], "PONG");
    let piped = run("--pipe").join("\n");
    assert!(piped.contains("errors: 0, replies: 3"), "{piped}");
}

#[test]
fn redis_benchmark_works() {
    let served = Served::start(CONFIG);
    for (pipeline, words) in [
        (
            "1",
            &["THROTTLE", "key:__rand_int__", "100", "10", "60"][..],
        ),
        ("32", &["CL.THROTTLE", "key:__rand_int__", "99", "10", "60"]),
        ("16", &["TG.CHECK", "api", "KEY", "key:__rand_int__"]),
    ] {
        let mut benchmark = Command::new("redis-benchmark");
        benchmark.args(["-p", served.port(), "-c", "20", "-n", "4800", "-r", "1000"]);
        benchmark.args(["-P", pipeline, "--csv"]).args(words);
        let report = lines(&mut benchmark).join("\n");
        assert!(!report.to_lowercase().contains("error"), "{report}");
    }
    let counted = metrics(&served.server);
    let sum = |policy: &str| -> f64 {
        let name = format!("tidegate_decisions_total{{policy=\"{policy}\"");
        let series = counted
            .iter()
            .filter(|(series, _)| series.starts_with(&name));
        series.map(|(_, count)| count).sum()
    };
    assert_eq!((sum("adhoc"), sum("api")), (9_600.0, 4_800.0));
}

#[test]
fn redis_py_works() {
    let served = Served::start(CONFIG);
    let mut python = Command::new("python3");
    python.args(["-c", include_str!("client.py"), served.port()]);
    python.env("PYTHONPATH", peer("python"));
    assert_eq!(lines(&mut python), ["done"]);
}

#[test]
fn ioredis_works() {
    let served = Served::start(CONFIG);
    let file = served
        .server
        .folder()
        .write("ask.js", include_str!("client.js"));
    let mut node = Command::new("node");
    node.arg(file).arg(served.port());
    node.env("NODE_PATH", peer("node/node_modules"));
    assert_eq!(lines(&mut node), ["done"]);
}

/// The programs of a page in one language.
fn snippets(language: &str) -> Vec<String> {
    let page = include_str!("../../../../../docs/resp.md");
    let fence = format!("```{language}\n");
    let blocks = page.split(&fence).skip(1);
    let blocks = blocks.map(|rest| rest.split("```").next().expect("an end"));
    blocks.map(str::to_owned).collect()
}

#[test]
fn snippets_of_the_page_work() {
    let served = Served::start(CONFIG);
    let here = |text: &str| text.replace("6380", served.port());
    // The second line of the first one: the server runs already.
    let shell = snippets("sh");
    let cli = shell[0].lines().nth(1).expect("redis-cli");
    let mut command = Command::new("sh");
    assert_eq!(lines(command.args(["-c", &here(cli)]))[1], "16");
    // Another limit leaves the key hours that its own has to wait off.
    let debt = served.ask("CL.THROTTLE user:42 999 1 60 600");
    assert_eq!(debt.numbers()[0], 0);
    let mut python = Command::new("python3");
    python.args(["-c", &here(&snippets("python")[0])]);
    let refused = lines(python.env("PYTHONPATH", peer("python")));
    assert!(refused[0].starts_with("429, Retry-After: "), "{refused:?}");
    let file = served
        .server
        .folder()
        .write("page.js", here(&snippets("js")[0]));
    let mut node = Command::new("node");
    node.arg(file).env("NODE_PATH", peer("node/node_modules"));
    let refused = lines(&mut node);
    assert!(refused[0].starts_with("429, Retry-After: "), "{refused:?}");
    // Every row of the table names a client and sends this call, or a check.
    let page = include_str!("../../../../../docs/resp.md");
    for language in ["shell", "Python", "Node", "Go", "Java", "PHP", "Ruby"] {
        assert!(page.contains(&format!("| {language} | ")), "{language}");
    }
}
