//! Only charged checks wait for replicas, and a caller that has given up is not
//! charged.

use std::time::Duration;

use tidegate::{Cost, Limit};
use tidegate_redis::{ErrorKind, Policies, RedisOptions, RedisStore};

use crate::server::Server;
use crate::support::{Named, YEAR, limiter_over, look, patient, policy};

/// A limiter with one connection.
fn over(server: &Server, options: RedisOptions) -> Policies {
    let store = RedisStore::new(&server.url(), options.connections(1)).expect("a valid URL");
    limiter_over(store, [policy("p", Limit::per(1, YEAR).fixed_window())])
}

/// One that wants a replica to have every charge, of which there is none.
fn without_replicas(server: &Server, deadline: Duration) -> Policies {
    let options = RedisOptions::default().timeout(deadline);
    over(server, options.replica_acks(1))
}

fn plain(server: &Server) -> Policies {
    over(server, patient())
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
        let plain = plain(&server);
        drop(look(&plain, "p", &[("key", "first")]).await);
        drop(look(&limiter, "p", &[("key", "first")]).await);
        assert_eq!(kind(&limiter, "a").await, Some(ErrorKind::NoReplicas));
        assert_eq!(kind(&limiter, "a").await, None, "refused, and no error");
        // Alike, and in one call: one is charged, and the others are refused.
        let b = || kind(&limiter, "b");
        let kinds = tokio::join!(b(), b(), b());
        assert_eq!(kinds, (Some(ErrorKind::NoReplicas), None, None));
    }

    #[tokio::test]
    async fn caller_that_gives_up_is_not_charged_with_replica_acks() {
        let server = Server::start();
        let limiter = without_replicas(&server, Duration::from_millis(200));
        let plain = plain(&server);
        // The store is connected to.
        drop(look(&limiter, "p", &[("key", "first")]).await);
        let used = async |key: &str| look(&plain, "p", &[("key", key)]).await.rate();
        let callers = (0..8).map(async |number| {
            tokio::time::sleep(Duration::from_millis(number * 10)).await;
            let key = number.to_string();
            let outcome = kind(&limiter, &key).await;
            assert!(outcome.is_some(), "{key} has no replica");
            let used = used(&key).await;
            (key, outcome, used)
        });
        let left = futures_util::future::join_all(callers).await;
        tokio::time::sleep(Duration::from_millis(800)).await;
        for (key, outcome, before) in left {
            let later = used(&key).await;
            assert_eq!(
                later, before,
                "{key} was charged after it left: {outcome:?}"
            );
        }
    }

    /// One thread for everybody, which stands still when a check has just been asked for.
    #[tokio::test(flavor = "current_thread")]
    async fn starved_runtime_sends_nothing_past_the_deadline() {
        let server = Server::start();
        let options = RedisOptions::default().timeout(Duration::from_millis(50));
        let hasty = over(&server, options);
        let plain = plain(&server);
        for round in 0..5 {
            let key = [("key", round.to_string())];
            // Both are connected.
            drop(look(&plain, "p", &key).await);
            while hasty.of("p").peek(&key, Cost::ONE).await.is_err() {}
            let (checked, ()) = tokio::join!(hasty.of("p").try_check(&key, Cost::ONE), async {
                std::thread::sleep(Duration::from_millis(100));
            });
            assert!(checked.is_err(), "answered after its deadline");
            let used = look(&plain, "p", &key).await.rate();
            assert!(used < 0.5, "charged after its deadline");
        }
    }
}
