//! The mode `background`: nobody waits for the store, and it hears of everything.

use std::time::{Duration, Instant};

use tidegate::{Cost, Limit, Mode, OnError, Policy, Source, Which};
use tidegate_redis::Policies;

use crate::server::Server;
use crate::support::{Named, YEAR, check, every_algorithm, limiter, look};

const KEY: [(&str, &str); 1] = [("key", "a")];

/// Long enough on any machine.
const LONG: Duration = Duration::from_secs(20);

/// Reports to the store every 10 ms.
fn background(name: &str, limit: Limit) -> Policy {
    reporting(name, limit, Duration::from_millis(10))
}

/// Reports to the store once per minute, unless it is flushed.
fn seldom(name: &str, limit: Limit) -> Policy {
    reporting(name, limit, Duration::from_secs(60))
}

fn reporting(name: &str, limit: Limit, interval: Duration) -> Policy {
    let policy = Policy::builder(name).limit(limit).mode(Mode::Background);
    // Nobody waits for the store, so nobody is denied when it fails.
    let policy = policy.sync_interval(interval).on_error(OnError::Deny);
    policy.build().expect("a policy")
}

/// How many requests of this many are admitted, each by this node.
async fn admitted(limiter: &Policies, policy: &str, offered: usize) -> usize {
    let mut admitted = 0;
    for _ in 0..offered {
        let decision = check(limiter, policy, &KEY).await;
        assert_eq!(decision.source(), Source::Background);
        admitted += usize::from(decision.allowed());
    }
    admitted
}

/// What the store has of the key, once it is what is expected.
async fn until_used(limiter: &Policies, policy: &str, expected: f64) {
    let start = Instant::now();
    loop {
        let used = look(limiter, policy, &KEY).await.rate();
        if (used - expected).abs() < 0.001 {
            return;
        }
        assert!(
            start.elapsed() < LONG,
            "{policy}: {used} used, {expected} expected"
        );
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn store_counts_what_every_algorithm_has_admitted() {
    let server = Server::start();
    let limits = every_algorithm(5, YEAR);
    let policies = limits.map(|(name, limit)| background(name, limit));
    let nodes = [
        limiter(&server, policies.clone()),
        limiter(&server, policies),
    ];
    for (name, _) in limits {
        assert_eq!(admitted(&nodes[0], name, 3).await, 3, "{name}");
        until_used(&nodes[1], name, 3.0).await;
        assert!(nodes[0].flush(LONG).await);
        // The other node has heard of none of it yet, and admits what it may alone; then
        // all of it is known, and more than the limit.
        assert_eq!(admitted(&nodes[1], name, 9).await, 5, "{name}");
        until_used(&nodes[0], name, 8.0).await;
        assert!(nodes[1].flush(LONG).await);
        assert_eq!(admitted(&nodes[1], name, 3).await, 0, "{name}");
        // The first hears of it when it next has something to tell, or asks.
        let start = Instant::now();
        let mut more = 0;
        while check(&nodes[0], name, &KEY).await.allowed() || more == 0 {
            more += 1;
            assert!(nodes[0].flush(LONG).await && start.elapsed() < LONG);
        }
        assert!(more <= 2, "{name}: {more} more");
    }
}

#[tokio::test]
async fn k2_what_could_not_be_told_is_kept_and_told_again() {
    let mut server = Server::start();
    let limit = Limit::per(100, YEAR).fixed_window();
    let limiter = limiter(&server, [background("p", limit)]);
    assert_eq!(admitted(&limiter, "p", 10).await, 10);
    assert!(limiter.flush(LONG).await);
    until_used(&limiter, "p", 10.0).await;
    server.kill();
    for _ in 0..20 {
        assert_eq!(admitted(&limiter, "p", 2).await, 2);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let never = limiter.check("p", &KEY, Cost::of(101)).await.unwrap();
    assert_eq!((never.allowed(), never.retry_after()), (false, None));
    let is_told = limiter.flush(Duration::from_millis(50)).await;
    assert!(!is_told, "nobody is there to tell");
    server.restart();
    assert!(limiter.flush(LONG).await);
    // The server has lost what it had; what it was not told, it hears now.
    until_used(&limiter, "p", 40.0).await;
    assert_eq!(admitted(&limiter, "p", 100).await, 60);
}

#[tokio::test]
async fn a_request_is_given_back_once_until_the_store_has_been_told() {
    let server = Server::start();
    for (name, limit) in every_algorithm(2, YEAR) {
        let limiter = limiter(&server, [seldom(name, limit)]);
        // The first is reported at once, the next ones only after an interval.
        assert_eq!(admitted(&limiter, name, 1).await, 1);
        assert!(limiter.flush(LONG).await);
        let receipt = check(&limiter, name, &KEY).await.receipt().unwrap();
        assert_eq!(admitted(&limiter, name, 1).await, 0);
        for is_first in [true, false] {
            let refund = limiter.of(name).refund(&KEY, &receipt).await;
            assert_eq!(refund.unwrap(), is_first, "{name}");
        }
        let receipt = check(&limiter, name, &KEY).await.receipt().unwrap();
        assert_eq!(admitted(&limiter, name, 1).await, 0);
        assert!(limiter.flush(LONG).await);
        assert!(!limiter.of(name).refund(&KEY, &receipt).await.unwrap());
        until_used(&limiter, name, 2.0).await;
    }
}

#[tokio::test]
async fn a_reset_forgets_what_was_counted_here_too() {
    let server = Server::start();
    let limiter = limiter(&server, [background("p", Limit::per(3, YEAR))]);
    assert_eq!(admitted(&limiter, "p", 5).await, 3);
    assert!(limiter.flush(LONG).await);
    limiter.of("p").reset(&KEY, Which::Only).await.unwrap();
    assert_eq!(admitted(&limiter, "p", 5).await, 3);
}

#[tokio::test]
async fn other_policies_go_on_with_what_was_counted() {
    let server = Server::start();
    let first = limiter(&server, [background("p", Limit::per(10, YEAR))]);
    assert_eq!(admitted(&first, "p", 8).await, 8);
    let second = first.changed([seldom("p", Limit::per(9, YEAR))]).unwrap();
    drop(first);
    assert_eq!(admitted(&second, "p", 8).await, 1);
    // Charges of a policy that was removed are reported too, and at once.
    let exact = Policy::builder("p").limit(Limit::per(20, YEAR)).build();
    let exact = second.changed([exact.unwrap()]).unwrap();
    drop(second);
    until_used(&exact, "p", 9.0).await;
}

#[tokio::test]
async fn a_key_that_is_blocked_by_a_change_is_blocked() {
    let server = Server::start();
    for (name, limit) in every_algorithm(5, YEAR) {
        let first = limiter(&server, [background(name, limit)]);
        assert_eq!(admitted(&first, name, 3).await, 3);
        let blocked = Policy::builder(name).block(true).mode(Mode::Background);
        let blocked = first.changed([blocked.build().unwrap()]).unwrap();
        let decision = check(&blocked, name, &KEY).await;
        assert_eq!((decision.allowed(), decision.retry_after()), (false, None));
        assert_eq!((decision.limit(), decision.remaining()), (0, 0), "{name}");
        assert!(decision.decided_at_us() > 0);
    }
}

#[test]
fn a_runtime_that_ends_takes_nothing_along() {
    let server = Server::start();
    let limiter = limiter(&server, [seldom("p", Limit::per(10, YEAR))]);
    for _ in 0..3 {
        let runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = { runtime }.enable_all().build().unwrap();
        assert_eq!(runtime.block_on(admitted(&limiter, "p", 2)), 2);
    }
    let runtime = tokio::runtime::Runtime::new().unwrap();
    assert!(runtime.block_on(limiter.flush(LONG)));
    runtime.block_on(until_used(&limiter, "p", 6.0));
}

/// What takes a window.
mod timing {
    use super::*;

    #[tokio::test]
    async fn a_request_of_a_window_that_is_over_is_not_given_back() {
        let server = Server::start();
        // Longer than a machine stalls: another window must not begin in between.
        let window = Duration::from_secs(4);
        let given_back = async |limit: Limit| {
            let limiter = limiter(&server, [seldom("p", limit)]);
            // The first is reported at once, the others are not.
            assert_eq!(admitted(&limiter, "p", 1).await, 1);
            assert!(limiter.flush(LONG).await);
            let receipt = check(&limiter, "p", &KEY).await.receipt().unwrap();
            tokio::time::sleep(window + window / 10).await;
            let before = admitted(&limiter, "p", 3).await;
            limiter.of("p").refund(&KEY, &receipt).await.unwrap();
            assert_eq!(
                (before, admitted(&limiter, "p", 3).await),
                (2, 0),
                "{limit}"
            );
        };
        let limit = Limit::per(2, window);
        tokio::join!(
            given_back(limit.fixed_window()),
            given_back(limit.sliding_log())
        );
    }
}
