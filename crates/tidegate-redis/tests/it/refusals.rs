//! Refusals that are remembered: fewer questions, the same answers.

use std::time::{Duration, Instant, SystemTime};

use tidegate::{Cost, Limit, Policy, Source, Which};
use tidegate_redis::RedisStore;

use crate::monitor::Monitor;
use crate::proxy::{Proxy, Replies};
use crate::server::Server;
use crate::support::{
    Named, YEAR, assert_used_by, check, check_cost, limiter, limiter_over, patient,
};

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
    let mut monitor = Monitor::start(&server);
    let mut admitted = 0;
    let start = Instant::now();
    let mut asked = 0;
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
    // NOSCRIPT, the first time.
    let sent = monitor.commands().into_iter();
    let calls = sent.filter(|it| it.name.starts_with("EVAL")).count();
    assert!(calls as u64 <= asked + 1, "{calls} calls");
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
    let limiter = limiter(
        &server,
        [Policy::builder("p")
            .level("all", "", Limit::per(100, YEAR))
            .level("one", "{key}", Limit::per(1, YEAR))
            .build()
            .unwrap()],
    );
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
    assert!(
        headers
            .get("RateLimit")
            .unwrap()
            .starts_with("\"p.one\";r=0;t=")
    );
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

/// Limits that come back while somebody asks.
mod timing {
    use super::*;

    /// Elsewhere a block lasts to the end of the window, and half of the limit is lost.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn b2_under_overload_the_limit_is_used() {
        let server = Server::start();
        let nodes = [0; 3].map(|_| limiter(&server, [remembering(Limit::per_second(100))]));
        assert_used_by(nodes, 12, Duration::from_secs(4), 100).await;
    }

    /// Elsewhere the end of a block counts from when the request came, and a slow answer
    /// carries the refusal over into the next window.
    #[tokio::test]
    async fn b9_a_slow_answer_does_not_refuse_for_longer() {
        let server = Server::start();
        let proxy = Proxy::start(server.port()).await;
        let far = RedisStore::new(&proxy.url(), patient()).unwrap();
        let window = Duration::from_millis(900);
        let policy = remembering(Limit::per(2, window).fixed_window());
        let limiter = limiter_over(far, [policy]);
        let delay = Duration::from_millis(300);
        let (sent, refused) = loop {
            proxy.set(Replies::Pass);
            while check(&limiter, "p", &KEY).await.remaining() > 0 {}
            proxy.set(Replies::Delay(delay));
            let sent = Instant::now();
            let refused = check(&limiter, "p", &KEY).await;
            // On a machine that stops, the next window may have begun.
            if !refused.allowed() && refused.source() == Source::Store {
                break (sent, refused);
            }
        };
        let wait = refused.retry_after().unwrap();
        let wait_us = u64::try_from(wait.as_micros()).unwrap();
        let delay_us = u64::try_from(delay.as_micros()).unwrap();
        // The store runs on this machine, and by its clock.
        let now_us = || {
            let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
            u64::try_from(now.unwrap().as_micros()).unwrap()
        };
        proxy.set(Replies::Pass);
        let ended = loop {
            let before_us = now_us();
            let decision = check(&limiter, "p", &KEY).await;
            if decision.source() == Source::Store {
                break sent.elapsed();
            }
            assert!(!decision.allowed());
            // Since the store decided; the delay is what must not count.
            let most_us = refused.decided_at_us() + wait_us + delay_us / 10;
            assert!(
                before_us < most_us,
                "remembered for longer than the store said"
            );
            tokio::task::yield_now().await;
        };
        assert!(ended >= wait, "{ended:?} of {wait:?}");
    }
}
