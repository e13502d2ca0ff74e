//! A limiter over a real Redis does what the one in memory does.

use std::time::Duration;

use tidegate::{Cost, Limit, Policy, Source};
use tidegate_redis::{RedisOptions, RedisStore, SharedLimiter};

use crate::server::Server;

#[tokio::test]
async fn five_a_minute_are_five_a_minute() {
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
