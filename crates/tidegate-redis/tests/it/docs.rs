//! What the manual says, held against the code: the table of errors is that of the kinds,
//! keys and states are those a server has, and the script works.

use std::path::Path;

use tidegate::{Limit, Policy};
use tidegate_config::Config;
use tidegate_redis::{ErrorKind, Policies};

use crate::server::Server;
use crate::support::{check, limiter, policy, stats, suffix};
use tidegate_testkit::cluster::run;
use tidegate_testkit::page::{blocks, code, rows};

const MANUAL: &str = include_str!("../../../../docs/redis.md");
const SCRIPTS: &str = include_str!("../../../../docs/scripts.md");

#[test]
fn the_table_of_errors_has_every_kind_and_what_is_done_about_it() {
    let rows = rows(MANUAL, "| kind |");
    assert_eq!(rows.len(), ErrorKind::ALL.len());
    for (row, kind) in rows.iter().zip(ErrorKind::ALL) {
        let yes_or_no = |yes| if yes { "yes" } else { "no" };
        assert_eq!(code(row[0]), [kind.as_str()]);
        let done = [kind.is_worth_retrying(), kind.speaks_of_the_store()];
        assert_eq!(row[2..4], done.map(yes_or_no), "{kind}");
    }
}

#[tokio::test]
async fn states_are_as_large_as_the_table_says() {
    let server = Server::start();
    let mut redis = server.connect();
    let rows = rows(MANUAL, "| algorithm | bytes |");
    assert_eq!(rows.len(), 4);
    for row in rows {
        let name = code(row[0])[0];
        let limit = Limit::parse(&format!("100r/h {name}")).expect("an algorithm");
        let limiter = limiter(&server, [policy(name, limit)]);
        assert!(check(&limiter, name, &[("key", "k")]).await.allowed());
        let key = format!("tg:{{k}}:{name}:{name}{}", suffix(&limit));
        let length: usize = run(&mut redis, &format!("STRLEN {key}"));
        let numbers = row[1].split(|c: char| !c.is_ascii_digit());
        let said: usize = numbers.filter_map(|it| it.parse::<usize>().ok()).sum();
        assert_eq!(length, said, "{name}");
    }
}

/// The first number of a text.
fn number(text: &str) -> Option<u64> {
    let mut words = text.split(' ').map(|word| word.replace(',', ""));
    words.find_map(|word| word.parse().ok())
}

#[tokio::test]
async fn keys_take_about_as_much_memory_as_the_table_says() {
    const KEYS: u64 = 4_000;
    let copy = format!("for n = 1, {KEYS} do redis.call('COPY', KEYS[1], KEYS[1] .. n) end");
    let server = Server::start();
    let mut redis = server.connect();
    for row in rows(MANUAL, "| state | bytes per key |") {
        let (requests, said) = (number(row[0]), number(row[1]).expect("a size"));
        let hour = Limit::per_hour(1_000);
        let limits = match requests {
            Some(_) => vec![hour.sliding_log()],
            None => vec![hour, hour.fixed_window(), hour.sliding_window()],
        };
        for limit in limits {
            run::<()>(&mut redis, "FLUSHALL");
            let limiter = limiter(&server, [policy("p", limit)]);
            for _ in 0..requests.unwrap_or(1) {
                assert!(check(&limiter, "p", &[("key", "k")]).await.allowed());
            }
            let mut used = || {
                let info: String = run(&mut redis, "INFO memory");
                let line = info.lines().find_map(|it| it.strip_prefix("used_memory:"));
                line.and_then(number).expect("a figure")
            };
            let before = used();
            let key = format!("tg:{{k}}:p:p{}", suffix(&limit));
            let mut copies = redis::cmd("EVAL");
            let copies = copies.arg(&copy).arg(1).arg(key);
            copies.query::<()>(&mut server.connect()).expect("copies");
            let took = (used() - before) / KEYS;
            println!("{} under {limit}: {took} bytes per key", row[0]);
            assert!(
                took.abs_diff(said) * 4 <= said,
                "{limit}: {took}, not {said}"
            );
        }
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
    let rows = rows(MANUAL, "| policy | check |");
    assert_eq!(
        keys,
        rows.iter().map(|row| code(row[2])[0]).collect::<Vec<_>>()
    );
}

#[tokio::test]
async fn examples_are_the_manuals_and_the_script_answers_with_the_headers_shown() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
    let file = include_str!("../../examples/custom.toml");
    let script = include_str!("../../examples/scripts/fixed_window.lua");
    let first = include_str!("../../examples/shared.toml");
    assert_eq!(blocks(MANUAL)[0].text, first);
    let texts: Vec<&str> = blocks(SCRIPTS).iter().map(|block| block.text).collect();
    assert_eq!(texts[..2], [file, script]);

    let server = Server::start();
    let store = format!("{}\"\ntimeout = \"10s", server.url());
    let config = file.replace("redis://127.0.0.1:6379", &store);
    let config: Config = config.parse().expect("the file is right");
    let limiter = Policies::from_config(&config, &folder).expect("the script is there");
    let user = [("user", "alice")];
    let first = check(&limiter, "custom", &user).await;
    let headers = first.headers();
    let lines = headers
        .iter()
        .map(|(name, value)| format!("{name}: {value}\n"));
    assert_eq!(lines.collect::<String>(), texts[2]);
    for _ in 1..10 {
        assert!(check(&limiter, "custom", &user).await.allowed());
    }
    assert!(!check(&limiter, "custom", &user).await.allowed());
    // The script is found beside its config only, and another config with the same store
    // goes on with its connections and counts.
    assert!(Policies::from_config(&config, Path::new("/nowhere")).is_err());
    let same = limiter.reconfigured(&config, &folder).expect("a config");
    let questions = stats(&limiter).questions;
    assert!(!check(&same, "custom", &user).await.allowed());
    assert_eq!(stats(&same).questions, questions + 1);
}
