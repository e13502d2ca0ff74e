//! The pitfalls of keys and stores: each test is named after its id.

use std::collections::HashSet;

use redis::{Commands, RedisResult};
use tidegate::{Cost, Limit, OnError, Policy, Source, Which};
use tidegate_redis::{ErrorKind, RedisStore};

use crate::monitor::Monitor;
use crate::server::Server;
use crate::support::{
    Named, YEAR, all_keys, check, every_algorithm, every_policy, levels, limiter, limiter_over,
    look, policy, store, suffix,
};
use crate::user::kind;

/// Two levels that share a resource, and limits of every algorithm.
fn two_levels(name: &str, first: Limit, second: Limit) -> Policy {
    Policy::builder(name)
        .level("resource", "{resource}", first)
        .level("consumer", "{resource}:{consumer}", second)
        .build()
        .expect("a policy")
}

#[tokio::test]
async fn c3_every_key_that_a_script_touches_is_declared() {
    let server = Server::start();
    let limits = every_algorithm(100, YEAR).map(|(_, limit)| limit);
    let mixed = [&limits[..], &[Limit::per(5_000, YEAR).sliding_log()]].concat();
    let limiter = limiter(&server, [levels("mixed", &mixed)]);
    let mut monitor = Monitor::start(&server);
    let key = [("key", "c3")];
    for _ in 0..5 {
        let decision = check(&limiter, "mixed", &key).await;
        let _ = look(&limiter, "mixed", &key).await;
        let receipt = decision.receipt().unwrap();
        limiter.of("mixed").refund(&key, &receipt).await.unwrap();
        let _ = check(&limiter, "mixed", &key).await;
    }
    let (mut declared, mut touched) = (Vec::new(), 0);
    for command in monitor.commands() {
        match command.name.as_str() {
            "EVAL" | "EVALSHA" => declared = command.declared(),
            "TIME" => {}
            _ => {
                assert!(command.by_script, "{command:?}");
                assert!(declared.contains(&command.text(0)), "{command:?}");
                touched += 1;
            }
        }
    }
    assert!(touched > 100, "{touched}");
}

#[tokio::test]
async fn a5_b5_c6_d4_no_key_is_ever_without_an_expiry() {
    let server = Server::start();
    let mut limits: Vec<_> = every_algorithm(70, YEAR).into();
    limits.push(("short", Limit::per(5, YEAR).sliding_log()));
    let policies = limits.iter().map(|(name, limit)| policy(name, *limit));
    let limiter = limiter(&server, policies);
    let mut monitor = Monitor::start(&server);
    for (name, _) in &limits {
        let key = [("key", "a5")];
        for _ in 0..80 {
            let _ = check(&limiter, name, &key).await;
        }
    }
    // What creates a key sets its expiry in the same command; what extends one does so in
    // the same script.
    let (mut extended, mut created) = (None, HashSet::new());
    for command in monitor.commands() {
        match command.name.as_str() {
            // A window that lasts keeps the expiry it was created with.
            "SET" if command.text(2) == "KEEPTTL" => {
                assert!(created.contains(&command.text(0)), "{command:?}");
            }
            "SET" => {
                assert_eq!(command.text(2), "PXAT", "{command:?}");
                created.insert(command.text(0));
            }
            "SETRANGE" => extended = Some(command.text(0)),
            "PEXPIREAT" => {
                assert_eq!(extended.take(), Some(command.text(0)));
            }
            "EVALSHA" | "EVAL" => assert_eq!(extended, None),
            _ => {}
        }
    }
    assert_eq!(extended, None);
    let mut redis = server.connect();
    for key in all_keys(&mut redis) {
        let left: i64 = redis.pttl(&key).unwrap();
        assert!(left > 0, "{key}: {left}");
    }
}

/// How many errors of each kind a store has seen, but for kinds without any.
fn counted(store: &RedisStore) -> Vec<(ErrorKind, u64)> {
    let errors = store.stats().errors.into_iter();
    errors.filter(|(_, count)| *count > 0).collect()
}

#[tokio::test]
async fn e11_a_key_of_another_type_is_an_error_of_its_own_kind() {
    for server in Server::start_each() {
        let mut redis = server.connect();
        for on_error in [OnError::Allow, OnError::Deny] {
            for (name, limit) in every_algorithm(100, YEAR) {
                let policy = Policy::builder(name).limit(limit).on_error(on_error);
                let store = store(&server);
                let limiter = limiter_over(store.clone(), [policy.build().unwrap()]);
                for (junk, errors) in [("list", 2), ("text", 4), ("empty", 6)] {
                    let stored = format!("tg:{{{junk}}}:{name}:{name}{}", suffix(&limit));
                    let made: RedisResult<()> = match junk {
                        "list" => redis.rpush(&stored, "1"),
                        "text" => redis.set(&stored, "this is none of ours"),
                        _ => redis.set(&stored, ""),
                    };
                    made.ok();
                    let key = [("key", junk)];
                    let decision = limiter.check(name, &key, Cost::ONE).await.unwrap();
                    if junk == "empty" && name == "log" {
                        // A log cannot be told from none at all: it starts anew.
                        assert_eq!(decision.source(), Source::Store);
                        continue;
                    }
                    let said = (decision.source(), decision.allowed());
                    let expected = (Source::ErrorPolicy, on_error == OnError::Allow);
                    assert_eq!(said, expected, "{name} {junk}");
                    let asked = limiter.of(name).try_check(&key, Cost::ONE).await;
                    let kind = kind(&asked.expect_err(junk));
                    assert_eq!(kind, ErrorKind::WrongType, "{name} {junk}");
                    assert_eq!(counted(&store), [(ErrorKind::WrongType, errors)], "{name}");
                }
            }
        }
    }
}

#[tokio::test]
async fn level_that_fails_leaves_the_others_uncharged() {
    let server = Server::start();
    let mut redis = server.connect();
    for (name, limit) in every_algorithm(100, YEAR) {
        let limiter = limiter(&server, [two_levels(name, Limit::per(9, YEAR), limit)]);
        let attributes = [("resource", "r"), ("consumer", name)];
        let broken = format!("tg:{{r}}:{name}:consumer{}:r:{name}", suffix(&limit));
        let _: () = redis.rpush(&broken, "1").unwrap();
        for _ in 0..3 {
            let asked = limiter.of(name).try_check(&attributes, Cost::ONE).await;
            assert_eq!(
                kind(&asked.expect_err(name)),
                ErrorKind::WrongType,
                "{name}"
            );
        }
        let _: () = redis.del(&broken).unwrap();
        let seen = look(&limiter, name, &attributes).await;
        let first = seen.levels().next().expect("a level");
        assert_eq!(first.numbers().remaining(), 9, "{name}");
    }
}

#[tokio::test]
async fn f1_scripts_that_are_lost_are_reloaded_unseen() {
    for server in Server::start_each() {
        let mut redis = server.connect();
        let store = store(&server);
        let limiter = limiter_over(store.clone(), every_policy(100, YEAR));
        for round in 1..=3 {
            for (name, _) in every_algorithm(100, YEAR) {
                let _: () = redis::cmd("SCRIPT").arg("FLUSH").query(&mut redis).unwrap();
                let decision = check(&limiter, name, &[("key", "f1")]).await;
                assert_eq!(decision.remaining(), 100 - round, "{name}");
            }
        }
        assert_eq!(counted(&store), []);
    }
}

#[tokio::test]
async fn f3_a_reset_touches_only_its_own_keys() {
    let server = Server::start();
    let mut redis = server.connect();
    let _: () = redis.set("tg:of others", "1").unwrap();
    let _: () = redis.set("others", "1").unwrap();
    let limit = Limit::per(9, YEAR);
    let api = two_levels("api", limit, limit.sliding_log());
    let limiter = limiter(&server, [api, policy("other", limit)]);
    let mine = [("resource", "r"), ("consumer", "mine")];
    let yours = [("resource", "r"), ("consumer", "yours")];
    let _ = check(&limiter, "api", &mine).await;
    let _ = check(&limiter, "api", &yours).await;
    let _ = check(&limiter, "other", &[("key", "r")]).await;
    let before: HashSet<String> = all_keys(&mut redis).into_iter().collect();
    assert_eq!(before.len(), 6);
    let mut monitor = Monitor::start(&server);
    let gone = async |which: Which<'_>| limiter.of("api").reset(&mine, which).await.unwrap();

    assert_eq!(gone(Which::Level("consumer")).await, 1);
    let after: HashSet<String> = all_keys(&mut redis).into_iter().collect();
    let missing: Vec<_> = before.difference(&after).collect();
    assert_eq!(missing, ["tg:{r}:api:consumer~sl:r:mine"]);

    assert_eq!(gone(Which::All).await, 1);
    let after: HashSet<String> = all_keys(&mut redis).into_iter().collect();
    assert_eq!(before.difference(&after).count(), 2);
    assert_eq!(gone(Which::All).await, 0);

    let sent = monitor.commands();
    let sent = sent.iter().filter(|command| command.name != "KEYS");
    let names: HashSet<&str> = sent.map(|command| command.name.as_str()).collect();
    assert_eq!(names, HashSet::from(["DEL"]));
}
