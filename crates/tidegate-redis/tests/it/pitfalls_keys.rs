//! The pitfalls of keys and stores: each test is named after its id.

use std::collections::BTreeSet;

use redis::Commands;
use tidegate::{Cost, Limit, Policy, Which};
use tidegate_redis::ErrorKind;

use crate::monitor::Monitor;
use crate::server::Server;
use crate::support::{
    Named, YEAR, all_keys, check, every_algorithm, limiter, look, policy, suffix,
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
async fn f3_a_reset_touches_only_its_own_keys_of_every_algorithm() {
    let server = Server::start();
    let mut redis = server.connect();
    let _: () = redis.set("tg:of others", "1").unwrap();
    let _: () = redis.set("others", "1").unwrap();
    let limit = Limit::per(9, YEAR);
    let api = |consumer: Limit| two_levels("api", limit, consumer);
    let mine = [("resource", "r"), ("consumer", "mine")];
    let yours = [("resource", "r"), ("consumer", "yours")];
    // The algorithm is part of the key; a window on the clock is counted as one that opens
    // with a request.
    for (_, limit) in every_algorithm(9, YEAR) {
        let limiter = limiter(&server, [api(limit), policy("other", limit)]);
        let _ = check(&limiter, "api", &mine).await;
        let _ = check(&limiter, "api", &yours).await;
        let _ = check(&limiter, "other", &[("key", "r")]).await;
    }
    let limiter = limiter(&server, [api(limit)]);
    let mut monitor = Monitor::start(&server);
    let mut gone = async |which: Which<'_>| {
        let before: BTreeSet<String> = all_keys(&mut redis).into_iter().collect();
        let count = limiter.of("api").reset(&mine, which).await.unwrap();
        let after: BTreeSet<String> = all_keys(&mut redis).into_iter().collect();
        let missing: Vec<String> = before.difference(&after).cloned().collect();
        assert_eq!(missing.len(), count);
        missing
    };
    let consumer = ["", "~fw", "~sl", "~sw"].map(|it| format!("tg:{{r}}:api:consumer{it}:r:mine"));
    assert_eq!(gone(Which::Level("consumer")).await, consumer);
    assert_eq!(gone(Which::All).await, ["tg:{r}:api:resource"]);
    assert_eq!(gone(Which::All).await, [""; 0]);

    let sent = monitor.commands();
    let sent = sent.iter().filter(|command| command.name != "KEYS");
    assert!(sent.clone().count() > 0 && sent.clone().all(|it| it.name == "DEL"));
}
