//! Only charged checks wait for replicas, and a caller that has given up is not
//! charged.

use std::sync::Arc;
use std::time::Duration;

use tidegate::{Cost, Limit};
use tidegate_redis::{ErrorKind, Policies, RedisOptions, RedisStore};

use crate::server::Server;
use crate::support::{Named, YEAR, limiter, limiter_over, look, policy, store};

/// A server without replicas, and a limiter that wants one to have every charge.
fn without_replicas(server: &Server, deadline: Duration) -> Policies {
    let options = RedisOptions::default().timeout(deadline).connections(1);
    let store = RedisStore::new(&server.url(), options.replica_acks(1)).expect("a valid URL");
    limiter_over(store, [policy("p", Limit::per(1, YEAR).fixed_window())])
}

async fn kind(limiter: &Policies, key: &str) -> Option<ErrorKind> {
    let key = [("key", key)];
    match limiter.of("p").try_check(&key, Cost::ONE).await {
        Ok(decision) => {
            assert!(!decision.allowed());
            None
        }
        Err(error) => Some(crate::user::kind(&error)),
    }
}

/// Deadlines that pass.
mod timing {
    use super::*;

    #[tokio::test]
    async fn refused_checks_wait_for_no_replica() {
        let server = Server::start();
        // Longer than a machine stalls.
        let limiter = without_replicas(&server, Duration::from_secs(3));
        // Its connection and its script are there.
        let plain = limiter_over(
            store(&server),
            [policy("p", Limit::per(1, YEAR).fixed_window())],
        );
        drop(look(&plain, "p", &[("key", "first")]).await);
        drop(look(&limiter, "p", &[("key", "first")]).await);
        assert_eq!(kind(&limiter, "a").await, Some(ErrorKind::NoReplicas));
        assert_eq!(kind(&limiter, "a").await, None, "refused, and no error");
        // Alike, and in one call: one is charged, and the others are refused.
        let checks = [0, 1, 2].map(|_| kind(&limiter, "b"));
        let [a, b, c] = checks;
        let kinds = tokio::join!(a, b, c);
        assert_eq!(kinds, (Some(ErrorKind::NoReplicas), None, None));
    }

    #[tokio::test]
    async fn caller_that_gives_up_is_not_charged_with_replica_acks() {
        let server = Server::start();
        let limiter = Arc::new(without_replicas(&server, Duration::from_millis(200)));
        // The store is connected to.
        drop(look(&limiter, "p", &[("key", "first")]).await);
        let limit = Limit::per(1, YEAR).fixed_window();
        let plain = Arc::new(limiter_over(store(&server), [policy("p", limit)]));
        let mut callers = tokio::task::JoinSet::new();
        for number in 0..8 {
            let (limiter, plain) = (Arc::clone(&limiter), Arc::clone(&plain));
            callers.spawn(async move {
                tokio::time::sleep(Duration::from_millis(number * 10)).await;
                let key = number.to_string();
                let outcome = kind(&limiter, &key).await;
                let used = look(&plain, "p", &[("key", &*key)]).await.rate();
                (key, outcome, used)
            });
        }
        let left = callers.join_all().await;
        tokio::time::sleep(Duration::from_millis(800)).await;
        for (key, outcome, used) in left {
            assert!(outcome.is_some(), "{key} has no replica");
            let later = look(&plain, "p", &[("key", &*key)]).await.rate();
            assert_eq!(
                later, used,
                "{key} was charged after it had left: {outcome:?}"
            );
        }
    }

    /// One thread for everybody, which stands still when a check has just been asked for.
    #[tokio::test(flavor = "current_thread")]
    async fn starved_runtime_sends_nothing_past_the_deadline() {
        let server = Server::start();
        let options = RedisOptions::default().timeout(Duration::from_millis(50));
        let store = RedisStore::new(&server.url(), options.connections(1)).expect("a valid URL");
        let hasty = Arc::new(limiter_over(store, [policy("p", Limit::per(9, YEAR))]));
        let patient = limiter(&server, [policy("p", Limit::per(9, YEAR))]);
        for round in 0..5 {
            let key = round.to_string();
            // Both are connected.
            drop(look(&patient, "p", &[("key", &*key)]).await);
            while hasty
                .of("p")
                .peek(&[("key", &*key)], Cost::ONE)
                .await
                .is_err()
            {}
            let check = tokio::spawn({
                let (hasty, key) = (Arc::clone(&hasty), key.clone());
                async move {
                    let key = [("key", &*key)];
                    hasty.of("p").try_check(&key, Cost::ONE).await.map(|_| ())
                }
            });
            let busy = tokio::spawn(async { std::thread::sleep(Duration::from_millis(100)) });
            busy.await.expect("no panic");
            let checked = check.await.expect("no panic");
            let used = look(&patient, "p", &[("key", &*key)]).await.rate();
            assert!(checked.is_err(), "answered after its deadline");
            assert!(used < 0.5, "charged after its deadline");
        }
    }
}
