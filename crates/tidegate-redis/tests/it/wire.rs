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
    limiter_over, patient, policy, store,
};

fn names(commands: &[Command], by_script: bool) -> Vec<&str> {
    let commands = commands.iter().filter(|it| it.by_script == by_script);
    commands.map(|command| command.name.as_str()).collect()
}

#[tokio::test]
async fn d5_a_check_is_one_call_that_reads_the_time_once() {
    for server in Server::start_each() {
        let limits = every_algorithm(100, YEAR).map(|(_, limit)| limit);
        let mut policies = every_policy(100, YEAR);
        policies.push(policy("short", Limit::per(5, YEAR).sliding_log()));
        policies.push(levels("mixed", &limits));
        let all: Vec<(String, usize)> = policies
            .iter()
            .map(|policy| (policy.name().to_owned(), policy.levels().len()))
            .collect();
        let limiter = limiter(&server, policies);
        let mut monitor = Monitor::start(&server);
        for (name, levels) in &all {
            let _ = check(&limiter, name, &[("key", "d5")]).await;
            let _ = check(&limiter, name, &[("key", "d5")]).await;
            monitor.commands();
            // The third has loaded its script and made its log.
            let _ = check(&limiter, name, &[("key", "d5")]).await;
            let commands = monitor.commands();
            assert_eq!(names(&commands, false), ["EVALSHA"], "{name}");
            let inside = names(&commands, true);
            assert_eq!(inside[0], "TIME", "{name}");
            assert_eq!(
                inside.iter().filter(|it| **it == "TIME").count(),
                1,
                "{name}"
            );
            // All is read before anything is written; but a log that grows, and has been
            // looked into already, is then read as a whole.
            let is_write = |name: &&str| !["TIME", "GET", "GETRANGE"].contains(name);
            let first = inside.iter().position(is_write).unwrap();
            let late = inside[first..].iter().filter(|it| !is_write(it));
            assert!(late.clone().all(|it| *it == "GET"), "{name}: {inside:?}");
            assert!(late.count() <= 1, "{name}: {inside:?}");
            assert!(inside.len() - first >= *levels, "{name}: {inside:?}");
        }
    }
}

#[tokio::test]
async fn a_refusal_and_a_look_write_nothing() {
    let server = Server::start();
    let limiter = limiter(&server, every_policy(2, YEAR));
    let mut monitor = Monitor::start(&server);
    for (name, _) in every_algorithm(2, YEAR) {
        let _ = check_cost(&limiter, name, &[("key", "full")], 2).await;
        monitor.commands();
        assert!(!check(&limiter, name, &[("key", "full")]).await.allowed());
        let _ = crate::support::look(&limiter, name, &[("key", "new")]).await;
        let commands = monitor.commands();
        let inside: HashSet<&str> = names(&commands, true).into_iter().collect();
        let reads = HashSet::from(["TIME", "GET", "GETRANGE"]);
        assert!(inside.is_subset(&reads), "{name}: {inside:?}");
    }
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
        let calls = names(&commands, false);
        assert!(calls.len() <= 10, "{name}: {} calls", calls.len());
        // 59 to 0 once each, and 40 that are refused.
        let mut left: Vec<u32> = answers.iter().filter(|it| it.0).map(|it| it.1).collect();
        left.sort_unstable();
        assert_eq!(left, (0..60).collect::<Vec<_>>(), "{name}");
        assert_eq!(
            answers.iter().filter(|it| !it.0 && it.1 == 0).count(),
            40,
            "{name}"
        );
        // Each can give its own back.
        for receipt in answers.iter().filter_map(|it| it.2.as_ref()) {
            limiter
                .of(name)
                .refund(&[("key", "alike")], receipt)
                .await
                .unwrap();
        }
        let seen = crate::support::look(&limiter, name, &[("key", "alike")]).await;
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
        let receipt = check_cost(&limiter, name, &[("key", "back")], 5)
            .await
            .receipt();
        limiter
            .of(name)
            .refund(&[("key", "back")], &receipt.unwrap())
            .await
            .unwrap();
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
    let stores = [
        ("zero", with(&servers[0].url(), "tg")),
        ("three", with(&format!("{}3", servers[0].url()), "tg")),
        ("other-prefix", with(&servers[0].url(), "shop:eu")),
        ("other-server", store(&servers[1])),
    ];
    let policies = stores.each_ref().map(|(name, _)| {
        let policy = Policy::builder(*name)
            .key("{key}")
            .limit(Limit::per(3, YEAR));
        policy.store(*name).build().unwrap()
    });
    let limiter = Policies::new(stores, policies).unwrap();
    for (count, name) in (1..).zip(["zero", "three", "other-prefix", "other-server"]) {
        for left in (3 - count.min(3)..3).rev() {
            assert_eq!(
                check(&limiter, name, &[("key", "k")]).await.remaining(),
                left,
                "{name}"
            );
        }
    }
    let keys = |server: &Server, database: u8| {
        let mut redis = server.connect();
        run::<()>(&mut redis, &format!("SELECT {database}"));
        let mut keys = all_keys(&mut redis);
        keys.sort_unstable();
        keys
    };
    assert_eq!(
        keys(&servers[0], 0),
        ["shop:eu:{k}:other-prefix:other-prefix", "tg:{k}:zero:zero"]
    );
    assert_eq!(keys(&servers[0], 3), ["tg:{k}:three:three"]);
    assert_eq!(keys(&servers[1], 0), ["tg:{k}:other-server:other-server"]);
}
