//! What the manual says, held against the code: files are read, the table of errors is
//! that of the kinds, keys and states are those a server has, and the script works.

use std::path::Path;

use tidegate::{Limit, Policy};
use tidegate_config::Config;
use tidegate_redis::{ErrorKind, Policies};

use crate::server::Server;
use crate::support::{check, limiter, policy, stats, suffix};
use tidegate_testkit::cluster::run;

const MANUAL: &str = include_str!("../../../../docs/redis.md");
const SCRIPTS: &str = include_str!("../../../../docs/scripts.md");

/// The fenced blocks of a kind on a page.
fn blocks(page: &'static str, kind: &str) -> Vec<&'static str> {
    let fence = format!("\n```{kind}\n");
    let blocks = page.split(&fence).skip(1);
    let blocks = blocks.map(|block| block.split("```\n").next().expect("every block ends"));
    blocks.collect()
}

/// The rows of a table, by the beginning of its first line.
fn rows(header: &str) -> Vec<Vec<&'static str>> {
    let table = &MANUAL[MANUAL.find(header).expect(header)..];
    let lines = table.lines().skip(2);
    let rows = lines.map_while(|line| line.strip_prefix("| ")?.strip_suffix('|'));
    rows.map(|row| row.split(" | ").map(str::trim).collect())
        .collect()
}

/// The first piece of code in a text.
fn code(text: &'static str) -> &'static str {
    text.split('`').nth(1).expect(text)
}

#[test]
fn files_are_read_without_a_warning() {
    let files = blocks(MANUAL, "toml");
    assert!(files.len() > 3);
    for file in &files {
        let config = file.parse::<Config>();
        let config = config.unwrap_or_else(|errors| panic!("{errors}\n\nin:\n{file}"));
        assert_eq!(config.warnings(), [""; 0], "{file}");
    }
    assert_eq!(files[0], include_str!("../../examples/shared.toml"));
}

#[test]
fn the_table_of_errors_has_every_kind_and_what_is_done_about_it() {
    let rows = rows("| kind |");
    assert_eq!(rows.len(), ErrorKind::ALL.len());
    for (row, kind) in rows.iter().zip(ErrorKind::ALL) {
        let yes_or_no = |yes| if yes { "yes" } else { "no" };
        assert_eq!(code(row[0]), kind.as_str());
        let (again, counts) = (row[2], row[3]);
        assert_eq!(again, yes_or_no(kind.is_worth_retrying()), "{kind}");
        assert_eq!(counts, yes_or_no(kind.speaks_of_the_store()), "{kind}");
    }
}

#[tokio::test]
async fn states_are_as_large_as_the_table_says() {
    let server = Server::start();
    let mut redis = server.connect();
    let hour = Limit::per_hour(100);
    let rows = rows("| algorithm | bytes |");
    let limits = [
        hour,
        hour.fixed_window(),
        hour.sliding_window(),
        hour.sliding_log(),
    ];
    assert_eq!(rows.len(), limits.len());
    for (row, limit) in rows.iter().zip(limits) {
        assert_eq!(code(row[0]), limit.algorithm().to_string());
        let name = code(row[0]);
        let limiter = limiter(&server, [policy(name, limit)]);
        assert!(check(&limiter, name, &[("key", "k")]).await.allowed());
        let key = format!("tg:{{k}}:{name}:{name}{}", suffix(&limit));
        let length: usize = run(&mut redis, &format!("STRLEN {key}"));
        let numbers = row[1].split(|c: char| !c.is_ascii_digit());
        let said: usize = numbers.filter_map(|it| it.parse::<usize>().ok()).sum();
        assert_eq!(length, said, "{name}");
        let left: i64 = run(&mut redis, &format!("PTTL {key}"));
        assert!(left > 0, "{name}: {left}");
    }
}

#[test]
fn keys_are_named_as_the_table_says() {
    let limit = Limit::per_second(1);
    let search = Policy::builder("search")
        .key("{tenant}/{user}")
        .limit(limit);
    let login = Policy::builder("login")
        .level("total", "", limit)
        .level("address", "{ip}", limit);
    let attributes = [("tenant", "a:b"), ("user", "7"), ("ip", "203.0.113.7")];
    let mut keys = Vec::new();
    for policy in [search.clone(), search.tag("{tenant}"), login] {
        let policy = policy.build().expect("a policy that is right");
        let levels = policy.keys(&attributes).expect("all attributes are there");
        keys.extend(levels.iter().map(|key| key.stored("tg")));
    }
    let said: Vec<_> = rows("| policy | check |")
        .iter()
        .map(|row| code(row[2]))
        .collect();
    assert_eq!(keys, said);
}

#[tokio::test]
async fn the_script_of_the_manual_answers_with_the_headers_shown() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
    let file = include_str!("../../examples/custom.toml");
    assert_eq!(blocks(SCRIPTS, "toml"), [file]);
    let script = include_str!("../../examples/scripts/fixed_window.lua");
    assert_eq!(blocks(SCRIPTS, "lua"), [script]);

    let server = Server::start();
    let store = format!("{}\"\ntimeout = \"10s", server.url());
    let config = file.replace("redis://127.0.0.1:6379", &store);
    let config: Config = config.parse().expect("the file is right");
    let limiter = Policies::from_config(&config, &folder).expect("the script is there");
    assert_eq!(limiter.verify_scripts().await, []);
    let user = [("user", "alice")];
    let first = check(&limiter, "custom", &user).await;
    let headers = first.headers();
    let lines = headers
        .iter()
        .map(|(name, value)| format!("{name}: {value}\n"));
    assert_eq!([&*lines.collect::<String>()], blocks(SCRIPTS, "http")[..]);
    for _ in 1..10 {
        assert!(check(&limiter, "custom", &user).await.allowed());
    }
    let refused = check(&limiter, "custom", &user).await;
    assert!(!refused.allowed());
    let headers = refused.headers();
    assert_eq!(headers.get("X-RateLimit-Remaining"), Some("0"));
    // The script is found beside its config only, and another config with the same store
    // goes on with its connections and counts.
    assert!(Policies::from_config(&config, Path::new("/nowhere")).is_err());
    let same = limiter.reconfigured(&config, &folder).expect("a config");
    let questions = stats(&limiter).questions;
    assert!(!check(&same, "custom", &user).await.allowed());
    assert_eq!(stats(&same).questions, questions + 1);
}
