//! A limiter over a real Redis does what the one in memory does.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use tidegate::{Cost, Limit, Policy, Source};
use tidegate_redis::{RedisOptions, RedisStore, SharedLimiter};
use tokio::task::JoinSet;

use crate::proxy::{Proxy, Replies};
use crate::server::Server;
use crate::support::{MINUTE, check, limiter_over, patient, policy};

#[tokio::test]
async fn five_per_minute_are_five_per_minute() {
    let server = Server::start();
    let options = RedisOptions::default().timeout(Duration::from_secs(10));
    let store = RedisStore::new(&server.url(), options).unwrap();
    let policy = Policy::builder("login")
        .key("{ip}")
        .limit(Limit::per_minute(5));
    let policies = [policy.build().unwrap()];
    let limiter = SharedLimiter::new([("default", store)], policies).unwrap();
    let attributes = [("ip", "203.0.113.7")];
    for left in (0..5).rev() {
        let decision = limiter
            .check("login", &attributes, Cost::ONE)
            .await
            .unwrap();
        assert!(decision.allowed());
        assert_eq!(
            (decision.remaining(), decision.source()),
            (left, Source::Store)
        );
    }
    let decision = limiter
        .check("login", &attributes, Cost::ONE)
        .await
        .unwrap();
    assert!(!decision.allowed());
    assert_eq!(decision.denied_by(), Some("login"));
}

/// A check of each key, all at once.
fn ask(limiter: &Arc<SharedLimiter>, keys: Range<u32>) -> JoinSet<()> {
    let mut asked = JoinSet::new();
    for key in keys {
        let limiter = Arc::clone(limiter);
        asked.spawn(async move {
            let decision = check(&limiter, "p", &[("key", &*key.to_string())]).await;
            assert!(decision.allowed());
        });
    }
    asked
}

#[tokio::test]
async fn checks_of_a_busy_connection_share_a_call() {
    let server = Server::start();
    let proxy = Proxy::start(server.port()).await;
    let options = patient().connections(1);
    let store = RedisStore::new(&proxy.url(), options).expect("a right url");
    let policies = [policy("p", Limit::per(1_000, MINUTE))];
    let limiter = Arc::new(limiter_over(store.clone(), policies));
    // The server has both scripts, for one check and for many.
    ask(&limiter, 0..1).join_all().await;
    ask(&limiter, 0..2).join_all().await;
    let before = store.stats();
    let sent = || {
        let now = store.stats();
        (now.batches - before.batches, now.commands - before.commands)
    };
    proxy.set(Replies::BlackHole);
    let first = ask(&limiter, 0..1);
    while sent() != (1, 1) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    // They ask before the lane is polled again, however slow the machine is.
    let more = ask(&limiter, 1..17);
    while sent() == (1, 1) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(sent(), (2, 2), "16 checks leave as one call");
    drop((first, more));
}
