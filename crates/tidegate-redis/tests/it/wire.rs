//! What travels, and what is left in the server: one call per check, checks alike
//! together, names and expiries of keys.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use tidegate::{Limit, Policy, Which};
use tidegate_redis::{Policies, RedisStore};
use tidegate_testkit::cluster::run;
use tokio::task::JoinSet;

use crate::monitor::{Command, Monitor};
use crate::proxy::{Proxy, Replies};
use crate::server::Server;
use crate::support::{
    Named, YEAR, all_keys, check, check_cost, every_algorithm, every_policy, levels, limiter,
    limiter_over, look, patient, policy, store,
};

/// What a server is told, held to what holds of every call.
struct Spy {
    monitor: Monitor,
    created: HashSet<String>,
}

impl Spy {
    /// The question that was sent since the last time, and what its script did. It touches
    /// only keys that the question declares. What creates a key sets its expiry in the same
    /// command; what extends one does so in the same script.
    fn call(&mut self) -> (Command, Vec<Command>) {
        let commands = self.monitor.commands().into_iter();
        let (inside, mut asked): (Vec<_>, Vec<_>) = commands.partition(|it| it.by_script);
        // Of the test.
        asked.retain(|it| it.name != "TIME");
        let names: Vec<&str> = asked.iter().map(|it| it.name.as_str()).collect();
        assert_eq!(names, ["EVALSHA"]);
        let asked = asked.remove(0);
        let mut extended = None;
        for command in inside.iter().filter(|it| it.name != "TIME") {
            let key = command.arguments[0].clone();
            assert!(asked.declared().contains(&key), "{command:?}");
            match command.name.as_str() {
                // A window that lasts keeps the expiry it was created with.
                "SET" if command.arguments[2] == "KEEPTTL" => {
                    assert!(self.created.contains(&key), "{command:?}");
                }
                "SET" => {
                    assert_eq!(command.arguments[2], "PXAT", "{command:?}");
                    self.created.insert(key);
                }
                "SETRANGE" => extended = Some(key),
                "PEXPIREAT" => assert_eq!(extended.take(), Some(key)),
                _ => {}
            }
        }
        assert_eq!(extended, None);
        (asked, inside)
    }
}

fn is_read(command: &Command) -> bool {
    ["TIME", "GET", "GETRANGE"].contains(&command.name.as_str())
}

#[tokio::test]
async fn a5_b5_c3_c6_d4_d5_check_is_one_call_that_reads_the_time_and_sets_every_expiry() {
    for server in Server::start_each() {
        let limits = every_algorithm(70, YEAR).map(|(_, limit)| limit);
        let mut policies = every_policy(70, YEAR);
        policies.push(policy("short", Limit::per(5, YEAR).sliding_log()));
        policies.push(policy("long", Limit::per(5_000, YEAR).sliding_log()));
        policies.push(levels("mixed", &limits));
        let all: Vec<(String, usize)> = policies
            .iter()
            .map(|policy| (policy.name().to_owned(), policy.levels().len()))
            .collect();
        let limiter = limiter(&server, policies);
        let mut redis = server.connect();
        let mut spy = Spy {
            monitor: Monitor::start(&server),
            created: HashSet::new(),
        };
        let key = [("key", "k")];
        for (name, levels) in &all {
            // The scripts are loaded, and a log is begun.
            let receipt = check(&limiter, name, &key).await.receipt();
            let receipt = receipt.expect("a charge");
            let refund = limiter.of(name).refund(&key, &receipt).await;
            assert_eq!(refund, Ok(true), "{name}");
            drop(look(&limiter, name, &key).await);
            drop(check(&limiter, name, &key).await);
            let mut made = spy.monitor.commands();
            made.retain(|it| it.name == "SET" && it.arguments[2] == "PXAT");
            let made = made.into_iter().map(|mut it| it.arguments.remove(0));
            spy.created.extend(made);
            let mut questions = Vec::new();
            for number in 0..80 {
                let before_us = time_us(&mut redis);
                let decision = check(&limiter, name, &key).await;
                let times_us = before_us..=time_us(&mut redis);
                let (asked, inside) = spy.call();
                // No clock but the server's: the same question is the same bytes at any time.
                assert!(times_us.contains(&decision.decided_at_us()), "{name}");
                questions.push(asked);
                let times = inside.iter().filter(|it| it.name == "TIME").count();
                assert_eq!((&*inside[0].name, times), ("TIME", 1), "{name}");
                let first = inside.iter().position(|it| !is_read(it));
                // A refusal writes nothing.
                assert_eq!(first.is_some(), decision.allowed(), "{name}");
                let Some(first) = first else { continue };
                assert!(inside.len() - first >= *levels, "{name}: {inside:?}");
                // All is read before anything is written; but a log that grows, and has been
                // looked into already, is then read as a whole.
                let late = inside[first..].iter().filter(|it| is_read(it));
                let late: Vec<&str> = late.map(|it| it.name.as_str()).collect();
                let is_right = late.len() <= 1 && late.iter().all(|it| *it == "GET");
                assert!(is_right, "{name}, {number}: {inside:?}");
            }
            let first = &questions[0];
            assert!(questions.iter().all(|it| it == first), "{name}");
            let receipt = look(&limiter, name, &key).await.receipt();
            assert!(
                receipt.is_none() && spy.call().1.iter().all(is_read),
                "{name}"
            );
        }
        for key in all_keys(&mut redis) {
            let left: i64 = run(&mut redis, &format!("PTTL {key}"));
            assert!(left > 0, "{key}: {left}");
        }
    }
}

/// The server's time.
fn time_us(redis: &mut redis::Connection) -> u64 {
    let (seconds, micros): (u64, u64) = run(redis, "TIME");
    seconds * 1_000_000 + micros
}

#[tokio::test]
async fn checks_alike_travel_as_one_call_and_each_has_its_own_numbers() {
    let server = Server::start();
    let one = RedisStore::new(&server.url(), patient().connections(1)).unwrap();
    let limiter = Arc::new(limiter_over(one.clone(), every_policy(60, YEAR)));
    let mut monitor = Monitor::start(&server);
    for (name, _) in every_algorithm(60, YEAR) {
        let _ = check(&limiter, name, &[("key", "warm")]).await;
        monitor.commands();
        let mut tasks = JoinSet::new();
        for _ in 0..100 {
            let limiter = Arc::clone(&limiter);
            tasks.spawn(async move {
                let decision = check(&limiter, name, &[("key", "alike")]).await;
                (decision.allowed(), decision.remaining(), decision.receipt())
            });
        }
        let answers = tasks.join_all().await;
        let commands = monitor.commands();
        let calls = commands.iter().filter(|it| !it.by_script).count();
        assert!(calls <= 10, "{name}: {calls} calls");
        // 59 to 0 once each, and 40 that are refused.
        let mut left: Vec<u32> = answers.iter().filter(|it| it.0).map(|it| it.1).collect();
        left.sort_unstable();
        assert_eq!(left, (0..60).collect::<Vec<_>>(), "{name}");
        let refused = answers.iter().filter(|it| !it.0 && it.1 == 0);
        assert_eq!(refused.count(), 40, "{name}");
        // Each can give its own back.
        for receipt in answers.iter().filter_map(|it| it.2.as_ref()) {
            let refund = limiter.of(name).refund(&[("key", "alike")], receipt);
            assert_eq!(refund.await, Ok(true), "{name}");
        }
        let seen = look(&limiter, name, &[("key", "alike")]).await;
        // Of a bucket's charge, what has drained meanwhile is not given back.
        let least = if name == "bucket" { 59 } else { 60 };
        assert!(seen.remaining() >= least, "{name}: {seen:?}");
        monitor.commands();
    }
    let stats = one.stats();
    assert!(stats.commands < stats.questions, "{stats:?}");
}

#[tokio::test]
async fn a_refund_of_all_that_was_charged_leaves_no_key() {
    let server = Server::start();
    let limiter = limiter(&server, every_policy(50, YEAR));
    for (name, _) in every_algorithm(50, YEAR) {
        let key = [("key", "back")];
        let receipt = check_cost(&limiter, name, &key, 5).await.receipt();
        let refund = limiter.of(name).refund(&key, &receipt.unwrap()).await;
        assert_eq!(refund, Ok(true), "{name}");
        // Its quota is full now, so the key is gone within a millisecond.
        tokio::time::sleep(Duration::from_millis(5)).await;
        let mut keys = all_keys(&mut server.connect());
        // But for the marker, which says that it was refunded.
        keys.retain(|key| !key.contains("~refunded:"));
        assert_eq!(keys, [""; 0], "{name}");
    }
}

#[tokio::test]
async fn checks_of_different_keys_that_wait_together_leave_as_one_call() {
    let server = Server::start();
    let proxy = Proxy::start(server.port()).await;
    let store = RedisStore::new(&proxy.url(), patient().connections(1)).expect("a right url");
    let limiter = Arc::new(limiter_over(
        store.clone(),
        [policy("p", Limit::per(9, YEAR))],
    ));
    let ask = |keys: Range<u32>| {
        let mut asked = JoinSet::new();
        for key in keys {
            let limiter = Arc::clone(&limiter);
            asked.spawn(async move {
                let _ = check(&limiter, "p", &[("key", &*key.to_string())]).await;
            });
        }
        asked
    };
    // The server has both scripts, for one check and for many.
    ask(0..1).join_all().await;
    ask(0..2).join_all().await;
    let before = store.stats();
    let sent = || {
        let now = store.stats();
        (now.batches - before.batches, now.commands - before.commands)
    };
    proxy.set(Replies::BlackHole);
    let first = ask(0..1);
    while sent() != (1, 1) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    // They ask before the lane is polled again, however slow the machine is.
    let more = ask(1..17);
    while sent() == (1, 1) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(sent(), (2, 2), "16 checks leave as one call");
    drop((first, more));
}

/// Resets share no call.
#[tokio::test]
async fn calls_that_wait_together_leave_together() {
    let server = Server::start();
    let proxy = Proxy::start(server.port()).await;
    let store = RedisStore::new(&proxy.url(), patient().connections(1)).expect("a right url");
    let limiter = Arc::new(limiter_over(store, [policy("p", Limit::per(9, YEAR))]));
    let _ = check(&limiter, "p", &[("key", "connected")]).await;
    proxy.set(Replies::Delay(Duration::from_millis(200)));
    let mut asked = JoinSet::new();
    for key in 0..400 {
        let limiter = Arc::clone(&limiter);
        asked.spawn(async move {
            let key = key.to_string();
            limiter.of("p").reset(&[("key", &*key)], Which::Only).await
        });
    }
    let answers = tokio::time::timeout(Duration::from_secs(10), asked.join_all()).await;
    let answers = answers.expect("a few round trips, not one for each");
    assert!(answers.iter().all(|answer| *answer == Ok(0)), "{answers:?}");
}

#[tokio::test]
async fn databases_prefixes_and_stores_are_apart() {
    let servers = [Server::start(), Server::start()];
    let with = |url: &str, prefix: &str| {
        RedisStore::new(url, patient().prefix(prefix)).expect("a right url")
    };
    let limiter = Policies::new(
        [
            ("zero", with(&servers[0].url(), "tg")),
            ("three", with(&format!("{}3", servers[0].url()), "tg")),
            ("prefix", with(&servers[0].url(), "shop:eu")),
            ("server", store(&servers[1])),
        ],
        ["zero", "three", "prefix", "server"].map(|name| {
            let policy = Policy::builder(name).limit(Limit::per(3, YEAR));
            policy.key("{key}").store(name).build().unwrap()
        }),
    );
    let limiter = limiter.unwrap();
    let keys = |server: &Server, database: u8| {
        let mut redis = server.connect();
        run::<()>(&mut redis, &format!("SELECT {database}"));
        all_keys(&mut redis)
    };
    for (name, server, database, key) in [
        ("zero", 0, 0, "tg:{k}:zero:zero"),
        ("three", 0, 3, "tg:{k}:three:three"),
        ("server", 1, 0, "tg:{k}:server:server"),
        ("prefix", 0, 0, "shop:eu:{k}:prefix:prefix"),
    ] {
        assert_eq!(check(&limiter, name, &[("key", "k")]).await.remaining(), 2);
        let keys = keys(&servers[server], database);
        assert!(keys.contains(&key.to_owned()), "{keys:?}");
        assert_eq!(keys.len(), 1 + usize::from(name == "prefix"), "{keys:?}");
    }
}
