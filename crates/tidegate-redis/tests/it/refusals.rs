//! Refusals that are remembered: fewer questions, the same answers.

use std::time::{Duration, Instant};

use tidegate::{Cost, Limit, Policy, Source, Which};

use crate::server::Server;
use crate::support::{Named, YEAR, check, check_cost, limiter, stats};

const KEY: [(&str, &str); 1] = [("key", "a")];

/// A policy that remembers refusals for as long as one does by default.
fn remembering(limit: Limit) -> Policy {
    let policy = Policy::builder("p").limit(limit);
    policy.build().expect("a policy")
}

#[tokio::test]
async fn a_refused_key_is_asked_for_once_and_others_as_ever() {
    let server = Server::start();
    let limiter = limiter(&server, [remembering(Limit::per(5, YEAR))]);
    let (mut admitted, mut asked, start) = (0, 0, Instant::now());
    for _ in 0..500 {
        let decision = check(&limiter, "p", &KEY).await;
        admitted += u32::from(decision.allowed());
        asked += u64::from(decision.source() == Source::Store);
        if decision.source() == Source::RefusalMemory {
            assert_eq!((decision.allowed(), decision.remaining()), (false, 0));
            assert_eq!(decision.denied_by(), Some("p"));
            assert!(decision.retry_after().unwrap() > Duration::ZERO);
        }
    }
    // One call per admitted check, and one per second for refused ones.
    let seconds = start.elapsed().as_secs() + 1;
    assert_eq!(admitted, 5);
    assert!(asked <= 5 + seconds, "{asked} questions in {seconds} s");
    assert_eq!(stats(&limiter).questions, asked);
    assert!(check(&limiter, "p", &[("key", "b")]).await.allowed());
    // Another cost is another question, and a look asks.
    let dear = check_cost(&limiter, "p", &KEY, 2).await;
    assert_eq!((dear.allowed(), dear.source()), (false, Source::Store));
    let look = limiter.of("p").peek(&KEY, Cost::ONE).await.unwrap();
    assert_eq!((look.allowed(), look.source()), (false, Source::Store));
}

#[tokio::test]
async fn a_refund_or_a_reset_here_is_seen_at_once() {
    let server = Server::start();
    let limiter = limiter(&server, [remembering(Limit::per(1, YEAR).fixed_window())]);
    let receipt = check(&limiter, "p", &KEY).await.receipt().unwrap();
    assert!(!check(&limiter, "p", &KEY).await.allowed());
    limiter.of("p").refund(&KEY, &receipt).await.unwrap();
    assert!(check(&limiter, "p", &KEY).await.allowed());
    assert!(!check(&limiter, "p", &KEY).await.allowed());
    assert_eq!(limiter.of("p").reset(&KEY, Which::Only).await.unwrap(), 1);
    assert!(check(&limiter, "p", &KEY).await.allowed());
    assert!(!check(&limiter, "p", &KEY).await.allowed());
    let changed = limiter.changed([remembering(Limit::per(2, YEAR).fixed_window())]);
    assert!(check(&changed.unwrap(), "p", &KEY).await.allowed());
}

#[tokio::test]
async fn of_two_levels_the_one_that_refused_answers() {
    let server = Server::start();
    let policy = Policy::builder("p")
        .level("all", "", Limit::per(100, YEAR))
        .level("one", "{key}", Limit::per(1, YEAR));
    let limiter = limiter(&server, [policy.build().unwrap()]);
    assert!(check(&limiter, "p", &KEY).await.allowed());
    let first = check(&limiter, "p", &KEY).await;
    assert_eq!((first.source(), first.levels().len()), (Source::Store, 2));
    let mut second = check(&limiter, "p", &KEY).await;
    // A machine that stops for a second forgets it, and has to ask again.
    while second.source() == Source::Store {
        second = check(&limiter, "p", &KEY).await;
    }
    let names: Vec<&str> = second.levels().map(|level| level.name()).collect();
    assert_eq!(second.source(), Source::RefusalMemory);
    assert_eq!((second.denied_by(), names), (Some("one"), vec!["one"]));
    let headers = second.headers();
    let rate_limit = headers.get("RateLimit").unwrap();
    assert!(rate_limit.starts_with("\"p.one\";r=0;t="), "{rate_limit}");
    assert!(headers.get("Retry-After").is_some());
}

#[tokio::test]
async fn counted_refusals_are_told_to_the_store() {
    let server = Server::start();
    let policy = Policy::builder("p")
        .limit(Limit::per(1, YEAR))
        .count_denied(true);
    let limiter = limiter(&server, [policy.build().unwrap()]);
    for _ in 0..5 {
        let decision = check(&limiter, "p", &KEY).await;
        assert_eq!(decision.source(), Source::Store);
    }
}
