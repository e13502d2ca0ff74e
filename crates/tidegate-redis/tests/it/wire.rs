//! What travels, and what is left in the server: one call per check, checks alike
//! together, names and expiries of keys.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use redis::Commands;
use tidegate::{Limit, Policy};
use tidegate_redis::{RedisStore, SharedLimiter};
use tokio::task::JoinSet;

use crate::monitor::{Command, Monitor};
use crate::server::Server;
use crate::support::{
    YEAR, all_keys, check, check_cost, every_algorithm, every_policy, levels, limiter,
    limiter_over, patient, policy, store, suffix,
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
                .refund(name, &[("key", "alike")], receipt)
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
async fn keys_have_the_names_that_are_promised() {
    let server = Server::start();
    let limit = Limit::per(9, YEAR);
    let api = Policy::builder("api")
        .level("resource", "{resource}", limit)
        .level("consumer", "{resource}:{consumer}", limit);
    let mixed = Policy::builder("mixed")
        .level("all", "", limit)
        .level("ip", "{ip}", limit);
    let policies = [
        policy("login", limit),
        api.build().unwrap(),
        mixed.build().unwrap(),
    ];
    let limiter = limiter(&server, policies);
    let _ = check(&limiter, "login", &[("key", "203.0.113.7")]).await;
    let _ = check(&limiter, "login", &[("key", "")]).await;
    let _ = check(
        &limiter,
        "api",
        &[("resource", "1:2"), ("consumer", "caf\u{e9}")],
    )
    .await;
    let _ = check(&limiter, "mixed", &[("ip", "::1")]).await;
    let mut keys = all_keys(&mut server.connect());
    keys.sort_unstable();
    assert_eq!(
        keys,
        [
            "tg:{%}:login:login",
            "tg:{1%3A2}:api:consumer:1%3A2:caf%C3%A9",
            "tg:{1%3A2}:api:resource",
            "tg:{203.0.113.7}:login:login",
            "tg:{mixed}:mixed:all",
            "tg:{mixed}:mixed:ip:%3A%3A1",
        ]
    );
}

#[tokio::test]
async fn every_key_expires_in_the_millisecond_its_quota_is_full() {
    let server = Server::start();
    let mut redis = server.connect();
    let mut limits: Vec<(&str, Limit)> = every_algorithm(40, Duration::from_secs(3)).into();
    limits.push((
        "long",
        Limit::per(100, Duration::from_secs(2)).sliding_log(),
    ));
    limits.push(("slow", Limit::per_minute(7).burst(100)));
    let policies = limits.iter().map(|(name, limit)| policy(name, *limit));
    let limiter = limiter(&server, policies);
    let mut random = 88_172_645_463_325_252_u64;
    let mut below = |end: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random % end
    };
    for _ in 0..600 {
        let (name, limit) = limits[usize::try_from(below(7)).unwrap()];
        let user = format!("user {}", below(5));
        let key = [("key", user.as_str())];
        let cost = u32::try_from(1 + below(9)).unwrap();
        let decision = check_cost(&limiter, name, &key, cost).await;
        if below(4) == 0
            && let Some(receipt) = decision.receipt()
        {
            limiter.refund(name, &key, &receipt).await.unwrap();
        } else {
            let stored = format!(
                "tg:{{user%20{}}}:{name}:{name}{}",
                &user[5..],
                suffix(&limit)
            );
            let expires_ms: i64 = redis::cmd("PEXPIRETIME")
                .arg(&stored)
                .query(&mut redis)
                .unwrap();
            let (s, us): (u64, u64) = redis::cmd("TIME").query(&mut redis).unwrap();
            let reset_us = u64::try_from(decision.reset_after().as_micros()).unwrap();
            let fresh_ms = (decision.decided_at_us() + reset_us).div_ceil(1_000);
            match u64::try_from(expires_ms) {
                Ok(expires_ms) => assert_eq!(expires_ms, fresh_ms, "{name} {decision:?}"),
                // Gone, as it has to be by now.
                Err(_) => assert!(s * 1_000 + us / 1_000 >= fresh_ms, "{name} {decision:?}"),
            }
        }
        for key in all_keys(&mut redis) {
            let left_ms: i64 = redis.pttl(&key).unwrap();
            // -2: gone since it was listed.
            assert!(left_ms >= 0 || left_ms == -2, "{key}: {left_ms}");
        }
    }
    // And when the time has come, they are gone.
    let fast = ["fixed", "epoch", "sliding", "log", "long", "bucket"];
    tokio::time::sleep(Duration::from_millis(6_050)).await;
    let left = all_keys(&mut redis);
    let stays = |key: &String| {
        fast.iter()
            .any(|name| key.contains(&format!(":{name}:{name}")))
    };
    assert!(!left.iter().any(stays), "{left:?}");
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
            .refund(name, &[("key", "back")], &receipt.unwrap())
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
    let limiter = SharedLimiter::new(stores, policies).unwrap();
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
        let _: () = redis::cmd("SELECT")
            .arg(database)
            .query(&mut redis)
            .unwrap();
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
