//! The mode `lease`: tokens are taken out of the store and spent here, and all nodes
//! together keep to the limit.

use std::time::Duration;

use tidegate::{Cost, Limit, Mode, OnError, Policy, Source};
use tidegate_redis::{RedisOptions, RedisStore, SharedLimiter};

use crate::proxy::{Proxy, Replies};
use crate::server::Server;
use crate::support::{YEAR, check, limiter, limiter_over, look, policy};

const KEY: [(&str, &str); 1] = [("key", "a")];

fn lease(name: &str, limit: Limit) -> Policy {
    let policy = Policy::builder(name).limit(limit).mode(Mode::Lease);
    policy.build().expect("a policy")
}

/// Checks until one is refused, at most so many: how many are admitted, and how many of
/// these from a lease.
async fn spend(limiter: &SharedLimiter, policy: &str, most: u32) -> (u32, u32) {
    let (mut admitted, mut leased) = (0, 0);
    while admitted < most {
        let decision = check(limiter, policy, &KEY).await;
        if !decision.allowed() {
            break;
        }
        admitted += 1;
        leased += u32::from(decision.source() == Source::Lease);
    }
    (admitted, leased)
}

#[tokio::test]
async fn nodes_that_lease_admit_the_limit_together_and_no_more() {
    let server = Server::start();
    for limit in [
        Limit::per(1_000, YEAR),
        Limit::per(1_000, YEAR).fixed_window(),
    ] {
        let name = format!("p-{}", limit.algorithm());
        let nodes = [0; 3].map(|_| limiter(&server, [lease(&name, limit)]));
        let exact = limiter(&server, [policy(&name, limit)]);
        let (mut admitted, mut leased) = (0, 0);
        for round in 0..6 {
            for node in &nodes {
                let (more, of_leases) = spend(node, &name, 40 + round).await;
                admitted += more;
                leased += of_leases;
            }
            // A node in the mode exact counts along.
            admitted += spend(&exact, &name, 10).await.0;
        }
        for node in &nodes {
            assert!(node.flush(Duration::from_secs(20)).await);
        }
        // Everything is returned: what is left is there for anybody.
        let look = look(&exact, &name, &KEY).await;
        assert_eq!(look.remaining(), 1_000 - admitted, "{limit}");
        admitted += spend(&exact, &name, 2_000).await.0;
        assert_eq!(admitted, 1_000, "{limit}");
        assert!(leased > 0, "{limit}: nothing came from leases");
        let stats = nodes[0].lease_stats(&name).expect("the mode lease");
        assert_eq!(stats.leased_tokens, 0, "{stats:?}");
    }
}

#[tokio::test]
async fn receipt_of_a_leased_token_is_refunded_once() {
    let server = Server::start();
    let limit = Limit::per(1_000, YEAR);
    let node = limiter(&server, [lease("p", limit)]);
    let exact = limiter(&server, [policy("p", limit)]);
    let mut admitted = 1;
    let mut open = check(&node, "p", &KEY).await;
    while open.source() != Source::Lease {
        assert!(admitted < 900, "it never leases");
        open = check(&node, "p", &KEY).await;
        admitted += 1;
    }
    let later = check(&node, "p", &KEY).await;
    admitted += 1;
    // One while its lease is open, one after that; and both a second time.
    for receipt in [open.receipt(), later.receipt()] {
        let receipt = receipt.expect("a charge");
        for _ in 0..2 {
            node.refund("p", &KEY, &receipt).await.expect("a store");
        }
        assert!(node.flush(Duration::from_secs(20)).await);
    }
    let used = look(&exact, "p", &KEY).await.rate();
    assert!(
        (used - f64::from(admitted - 2)).abs() < 0.01,
        "{used} of {admitted}"
    );
}

#[tokio::test]
async fn tokens_of_a_level_go_back_when_another_level_refuses() {
    let server = Server::start();
    let levels = |mode: Mode| {
        let policy = Policy::builder("p").mode(mode);
        let policy = policy.level("all", "", Limit::per(1_000, YEAR));
        let policy = policy.level("one", "{key}", Limit::per(30, YEAR));
        policy.build().expect("a policy")
    };
    let (node, exact) = (
        limiter(&server, [levels(Mode::Lease)]),
        limiter(&server, [levels(Mode::Exact)]),
    );
    let mut admitted = 0;
    for _ in 0..120 {
        admitted += u32::from(check(&node, "p", &KEY).await.allowed());
    }
    assert!(admitted <= 30);
    assert!(node.flush(Duration::from_secs(20)).await);
    let look = look(&exact, "p", &KEY).await;
    let used: Vec<f64> = look.levels().map(|level| level.numbers().rate()).collect();
    assert_eq!(used.len(), 2);
    for used in used {
        assert!(
            (used - f64::from(admitted)).abs() < 0.01,
            "{used} of {admitted}"
        );
    }
}

#[tokio::test]
async fn on_error_decides_when_leases_have_run_out() {
    let server = Server::start();
    let proxy = Proxy::start(server.port()).await;
    let options = RedisOptions::default().timeout(Duration::from_millis(200));
    let store = RedisStore::new(&proxy.url(), options).expect("a url");
    let policy = Policy::builder("p").limit(Limit::per(100_000, YEAR));
    let policy = policy.mode(Mode::Lease).on_error(OnError::Deny);
    let node = limiter_over(store, [policy.build().expect("a policy")]);
    for _ in 0..50 {
        // On a machine that stalls, the deadline may come first.
        drop(node.check("p", &KEY, Cost::ONE).await.expect("a policy"));
    }
    proxy.set(Replies::BlackHole);
    let mut sources = Vec::new();
    for _ in 0..3_000 {
        let decision = node.check("p", &KEY, Cost::ONE).await.expect("a policy");
        sources.push(decision.source());
        if decision.source() == Source::ErrorPolicy {
            assert!(!decision.allowed());
            break;
        }
    }
    assert_eq!(sources.last(), Some(&Source::ErrorPolicy));
}

#[tokio::test]
async fn tokens_of_a_node_that_is_gone_are_charged_and_drain() {
    let server = Server::start();
    let limit = Limit::per_second(100);
    let exact = limiter(&server, [policy("p", limit)]);
    let node = limiter(&server, [lease("p", limit)]);
    // The node ends with its runtime: nothing is returned.
    let leased = std::thread::spawn(move || {
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        runtime.block_on(async {
            for _ in 0..60 {
                drop(check(&node, "p", &KEY).await);
                let stats = node.lease_stats("p").expect("the mode lease");
                if stats.leased_tokens > 0 {
                    return stats.leased_tokens;
                }
            }
            0
        })
    });
    assert!(leased.join().expect("a node") > 0);
    let full_in = look(&exact, "p", &KEY).await.reset_after();
    assert!(full_in <= Duration::from_secs(2), "{full_in:?}");
    tokio::time::sleep(full_in + Duration::from_millis(20)).await;
    assert_eq!(look(&exact, "p", &KEY).await.remaining(), 100);
}

#[tokio::test]
async fn other_algorithms_cannot_lease() {
    for limit in ["5r/s sliding_log", "5r/s sliding_window"] {
        let limit = Limit::parse(limit).expect("a limit");
        let policy = Policy::builder("p").limit(limit).mode(Mode::Lease).build();
        let error = policy.expect_err("it cannot lease").to_string();
        let expected = format!(
            "policy \"p\": mode: \"lease\" with {}: only token_bucket and fixed_window can lease",
            limit.algorithm()
        );
        assert_eq!(error, expected);
    }
}
