//! The mode `lease`: tokens are taken out of the store and spent here, and all nodes
//! together keep to the limit.

use std::time::{Duration, Instant};

use tidegate::{Cost, Limit, Mode, OnError, OnLease, Policy, Source};
use tidegate_redis::{Policies, RedisOptions, RedisStore};

use crate::proxy::{Proxy, Replies};
use crate::server::Server;
use crate::support::{Named, YEAR, check, limiter, limiter_over, look, policy};

const KEY: [(&str, &str); 1] = [("key", "a")];
const LONG: Duration = Duration::from_secs(20);

fn lease(name: &str, limit: Limit) -> Policy {
    let policy = Policy::builder(name).limit(limit).mode(Mode::Lease);
    policy.build().expect("a policy")
}

/// Checks until one is refused, at most this many: how many are admitted, and how many of
/// these from a lease.
async fn spend(limiter: &Policies, policy: &str, most: u32) -> (u32, u32) {
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
            assert!(node.flush(LONG).await);
        }
        // Everything is returned: what is left is there for anybody.
        let look = look(&exact, &name, &KEY).await;
        assert_eq!(look.remaining(), 1_000 - admitted, "{limit}");
        admitted += spend(&exact, &name, 2_000).await.0;
        assert_eq!(admitted, 1_000, "{limit}");
        assert!(leased > 0, "{limit}: nothing came from leases");
        assert_eq!(tokens_of(&nodes[0], &name), 0);
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
        for is_first in [true, false] {
            let refund = node.of("p").refund(&KEY, &receipt).await;
            assert_eq!(refund.expect("a store"), is_first);
        }
        assert!(node.flush(LONG).await);
    }
    let used = look(&exact, "p", &KEY).await.rate();
    assert!(
        (used - f64::from(admitted - 2)).abs() < 0.01,
        "{used} of {admitted}"
    );
}

/// The node knows of a refusal, and would repeat it without asking for a while.
#[tokio::test]
async fn refund_is_seen_at_once_by_the_node_that_was_refused() {
    let server = Server::start();
    let node = limiter(&server, [lease("p", Limit::per(200, YEAR))]);
    let mut receipts = Vec::new();
    let refused = loop {
        let decision = check(&node, "p", &KEY).await;
        match decision.receipt() {
            Some(receipt) => receipts.push(receipt),
            None => break decision,
        }
    };
    assert!(receipts.len() <= 200, "{}", receipts.len());
    assert!(!refused.allowed());
    let again = check(&node, "p", &KEY).await;
    assert_eq!(again.source(), Source::Lease, "it repeats the refusal");
    // The first ones were charged by the store, and go back to it.
    for receipt in &receipts[..2] {
        node.of("p").refund(&KEY, receipt).await.expect("a store");
    }
    assert!(check(&node, "p", &KEY).await.allowed());
}

#[tokio::test]
async fn tokens_of_a_level_go_back_when_another_level_refuses() {
    let server = Server::start();
    let [node, exact] = [Mode::Lease, Mode::Exact].map(|mode| {
        let policy = Policy::builder("p").mode(mode);
        let policy = policy.level("all", "", Limit::per(1_000, YEAR));
        let policy = policy.level("one", "{key}", Limit::per(30, YEAR));
        limiter(&server, [policy.build().expect("a policy")])
    });
    let mut admitted = 0;
    for _ in 0..120 {
        admitted += u32::from(check(&node, "p", &KEY).await.allowed());
    }
    assert!(admitted <= 30);
    assert!(node.flush(LONG).await);
    let look = look(&exact, "p", &KEY).await;
    let used = look.levels().map(|level| level.numbers().rate());
    let wrong = used.filter(|used| (used - f64::from(admitted)).abs() > 0.01);
    assert_eq!(wrong.collect::<Vec<f64>>(), [0.0; 0], "not {admitted}");
}

fn tokens_of(node: &Policies, policy: &str) -> u64 {
    let stats = node.of(policy).lease_stats().expect("the mode lease");
    stats.leased_tokens
}

/// Below what is used and out, nothing is granted or admitted; leases run on.
#[tokio::test]
async fn a_look_tells_what_is_out_and_a_lowered_limit_waits_for_it() {
    let server = Server::start();
    // A lease is returned when nobody spends it for half a second, so what was seen counts
    // only if the machine did not stall meanwhile.
    let mut seen = 0;
    for number in 0..40 {
        let (name, start) = (format!("p{number}"), Instant::now());
        let limit = |requests| match number % 2 {
            0 => Limit::per(requests, YEAR),
            _ => Limit::per(requests, YEAR).fixed_window(),
        };
        let node = limiter(&server, [lease(&name, limit(1_000))]);
        let exact = limiter(&server, [policy(&name, limit(1_000))]);
        while tokens_of(&node, &name) < 2 {
            assert_eq!(spend(&node, &name, 1).await.0, 1, "it never leases");
        }
        let out = on_lease(&exact, &name).await;
        let look = look(&exact, &name, &KEY).await;
        let looked = look.levels().next().expect("a level").numbers().on_lease();
        // As much as is used and out together, so there is no room at all.
        let lower = limit(1_000 - look.remaining());
        let exact = exact.changed([policy(&name, lower)]).expect("policies");
        let refused = spend(&exact, &name, 1).await;
        let other = limiter(&server, [lease(&name, lower)]);
        let refused_too = spend(&other, &name, 1).await;
        let stats = other.of(&name).lease_stats().expect("the mode lease");
        // The node that has tokens goes on with them under the lower limit.
        let here = tokens_of(&node, &name);
        let node = node.changed([lease(&name, lower)]).expect("policies");
        let spent = spend(&node, &name, 1).await;
        assert!(node.flush(LONG).await);
        if start.elapsed() > Duration::from_millis(350) {
            continue;
        }
        // What is spent of a lease is out until the store has heard of it.
        assert!(u64::from(out.tokens) >= here, "{out:?}, {here} here");
        assert!((1..=2).contains(&out.leases), "{out:?}");
        assert_eq!(out, looked, "{name}");
        assert_eq!((refused, refused_too, stats.grants), ((0, 0), (0, 0), 0));
        assert_eq!(spent, (1, 1), "{name}");
        assert_eq!(on_lease(&exact, &name).await, OnLease::default());
        // What it returns can be admitted again, and no more.
        let left = spend(&exact, &name, 2_000).await.0;
        assert_eq!(u64::from(left), here - 1, "{name}");
        seen += 1;
        if seen == 4 {
            return;
        }
    }
    panic!("the machine stalls all the time");
}

/// What is on lease, as a peek reports it.
async fn on_lease(limiter: &Policies, policy: &str) -> OnLease {
    let explained = limiter.of(policy).explain(&KEY).await.expect("a store");
    explained[0].numbers.expect("it counts").on_lease()
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
    for _ in 0..3_000 {
        let decision = node.check("p", &KEY, Cost::ONE).await.expect("a policy");
        if decision.source() == Source::ErrorPolicy {
            assert!(!decision.allowed());
            return;
        }
    }
    panic!("leases never run out");
}
