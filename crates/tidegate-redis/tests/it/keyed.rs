//! One limit for many keys, with the words of the limiter in memory.

use std::time::{Duration, Instant};

use tidegate::{Cost, Decision, Limit, Mode, OnError, Policy, Source, WaitError};
use tidegate_redis::{Limiter, Policies};

use crate::server::Server;
use crate::support::{YEAR, admitted_of, check, every_algorithm, limiter, policy, store};
use tidegate_testkit::process::free_port;

const LONG: Duration = Duration::from_secs(20);

fn over(server: &Server, name: &str, limit: Limit) -> Limiter {
    Limiter::over(store(server), name, limit).expect("a name")
}

/// What must not depend on where the counts are.
fn numbers(decision: &Decision) -> (bool, u32, u32, bool) {
    assert_ne!(decision.source(), Source::ErrorPolicy);
    let is_hopeless = decision.retry_after().is_none();
    (
        decision.allowed(),
        decision.limit(),
        decision.remaining(),
        is_hopeless,
    )
}

#[tokio::test]
async fn answers_are_those_of_the_limiter_in_memory() {
    for server in Server::start_each() {
        for (name, limit) in every_algorithm(5, YEAR) {
            let far = over(&server, name, limit);
            let near = tidegate::Limiter::in_memory(limit);
            assert_eq!(far.limit(), near.limit());
            let (mut far_receipt, mut near_receipt) = (None, None);
            for (step, cost) in [1, 2, 3, 2, 1, 1, 6].map(Cost::of).into_iter().enumerate() {
                let what = format!("{name}, step {step}, cost {}", cost.get());
                let look = far.peek("a", cost).await.expect(&what);
                assert_eq!(numbers(&look), numbers(&near.peek("a", cost)), "{what}");
                let decided = (far.check_cost("a", cost).await, near.check_cost("a", cost));
                assert_eq!(numbers(&decided.0), numbers(&decided.1), "{what}");
                far_receipt = far_receipt.or(decided.0.receipt());
                near_receipt = near_receipt.or(decided.1.receipt());
            }
            let far_receipt = far_receipt.expect("the first is admitted");
            let near_receipt = near_receipt.expect("the first is admitted");
            far.refund("a", &far_receipt).await.expect("a refund");
            assert!(near.refund("a", &near_receipt));
            for _ in 0..2 {
                let decided = (far.check("a").await, near.check("a"));
                assert_eq!(numbers(&decided.0), numbers(&decided.1), "{name}, refunded");
            }
            assert_eq!(far.reset("a").await, Ok(near.reset("a")));
            assert_eq!(far.reset("never").await, Ok(near.reset("never")));
            let decided = (far.check("a").await, near.check("a"));
            assert_eq!(numbers(&decided.0), numbers(&decided.1), "{name}, reset");
        }
    }
}

#[tokio::test]
async fn policies_of_the_same_name_share_the_limit() {
    let server = Server::start();
    for (name, limit) in every_algorithm(3, YEAR) {
        let ours = over(&server, name, limit);
        let theirs = limiter(&server, [policy(name, limit)]);
        assert!(ours.check("a/b").await.allowed(), "{name}");
        assert_eq!(admitted_of(&theirs, name, "a/b", 5).await, 2, "{name}");
        assert!(!ours.check("a/b").await.allowed(), "{name}");

        let pairs = Policy::builder(name).key("{tenant}/{user}").limit(limit);
        let theirs: Policies = limiter(&server, [pairs.build().unwrap()]);
        let pair = [("tenant", "a:b"), ("user", "7")];
        assert!(check(&theirs, name, &pair).await.allowed(), "{name}");
        assert_eq!(ours.check(("a:b", 7_u8)).await.remaining(), 1, "{name}");
    }
}

#[tokio::test]
async fn set_limit_is_seen_by_clones_and_keeps_counts() {
    let server = Server::start();
    let limiter = over(&server, "p", Limit::per(2, YEAR));
    let clone = limiter.clone();
    for _ in 0..2 {
        assert!(clone.check("a").await.allowed());
        assert!(clone.check(("a", "b")).await.allowed());
    }
    assert!(!clone.check("a").await.allowed());
    limiter.set_limit(Limit::per(5, YEAR)).expect("a limit");
    assert_eq!(clone.limit(), Limit::per(5, YEAR));
    assert_eq!(clone.check("a").await.remaining(), 2);
    assert_eq!(clone.check(("a", "b")).await.remaining(), 2);
    assert_eq!(clone.check(("a", "b", "c")).await.remaining(), 4);
    clone.set_limit(Limit::per(3, YEAR)).expect("a limit");
    assert!(!limiter.check("a").await.allowed());
}

#[tokio::test]
async fn check_many_decides_each_key_by_itself() {
    let server = Server::start();
    let limiter = over(&server, "p", Limit::per(1, YEAR));
    let keys: Vec<String> = (0..500).map(|number| format!("{}", number % 400)).collect();
    let decisions = limiter.check_many(&keys).await;
    assert_eq!(decisions.len(), keys.len());
    assert_eq!(decisions.iter().filter(|it| it.allowed()).count(), 400);
    // Those that are there once.
    assert!(decisions[100..400].iter().all(Decision::allowed));
    let none: [&str; 0] = [];
    assert!(limiter.check_many(&none).await.is_empty());
}

#[tokio::test]
async fn until_ready_waits_for_its_turn_or_fails_at_once() {
    let server = Server::start();
    let window = Duration::from_millis(300);
    let limiter = over(&server, "p", Limit::per(1, window));
    let start = Instant::now();
    for _ in 0..3 {
        let decision = limiter.until_ready("a", LONG).await.expect("a turn");
        assert!(decision.allowed());
    }
    assert!(start.elapsed() >= 2 * window);

    let rare = over(&server, "rare", Limit::per(1, YEAR));
    let wait = tidegate::Wait::within(LONG);
    let never = rare.until_ready("a", wait.cost(Cost::of(2))).await;
    assert!(matches!(never, Err(WaitError::Never(_))));
    assert!(rare.until_ready(("a", 1), LONG).await.is_ok());
    let start = Instant::now();
    let late = rare.until_ready(("a", 1), LONG).await;
    assert!(matches!(late, Err(WaitError::Deadline(_))));
    assert!(start.elapsed() < LONG);
}

#[tokio::test]
async fn background_mode_tells_the_store_on_flush() {
    let server = Server::start();
    let limit = Limit::per(9, YEAR);
    let builder = Limiter::builder("p", limit).mode(Mode::Background);
    let background = builder.sync_interval(LONG).over(store(&server));
    let background = background.expect("settings");
    let exact = over(&server, "p", limit);
    for _ in 0..4 {
        assert!(background.check("a").await.allowed());
        assert!(background.check(("a", "b")).await.allowed());
    }
    assert!(background.flush(LONG).await);
    assert_eq!(exact.peek("a", Cost::ONE).await.unwrap().remaining(), 5);
    let pair = exact.peek(("a", "b"), Cost::ONE).await;
    assert_eq!(pair.unwrap().remaining(), 5);
}

#[tokio::test]
async fn on_error_decides_while_redis_is_down() {
    let url = format!("redis://127.0.0.1:{}", free_port());
    for (on_error, source, allowed) in [
        (OnError::Allow, Source::ErrorPolicy, [true; 3]),
        (OnError::Deny, Source::ErrorPolicy, [false; 3]),
        (OnError::Local, Source::Local, [true, true, false]),
    ] {
        let limiter = Limiter::builder("p", Limit::per(2, YEAR)).on_error(on_error);
        let limiter = limiter.connect(&url).expect("no Redis is needed");
        for allowed in allowed {
            let decision = limiter.check("a").await;
            assert_eq!((decision.allowed(), decision.source()), (allowed, source));
            let is_ready = limiter
                .until_ready("b", Duration::from_millis(200))
                .await
                .is_ok();
            assert!(is_ready || on_error != OnError::Allow);
            if on_error == OnError::Deny {
                assert!(!is_ready && decision.is_unavailable());
                assert!(decision.retry_after().is_some());
                let numbers = (decision.limit(), decision.remaining(), decision.denied_by());
                assert_eq!(numbers, (0, 0, None), "no quota is claimed");
            }
            if source == Source::ErrorPolicy {
                assert_eq!(decision.receipt(), None);
            }
        }
        assert!(limiter.try_check("a", Cost::ONE).await.is_err());
        assert!(limiter.peek("a", Cost::ONE).await.is_err());
        assert!(limiter.reset("a").await.is_err());
    }
}

#[tokio::test]
async fn redis_that_is_back_after_a_restart_is_asked_again() {
    let mut server = Server::start();
    let limiter = Limiter::connect(&server.url(), "p", Limit::per(1_000_000, YEAR));
    let limiter = limiter.expect("a right url");
    let until_asked = async |is_asked: bool| {
        let start = Instant::now();
        while (limiter.check("a").await.source() == Source::Store) != is_asked {
            assert!(start.elapsed() < LONG, "is it asked: {}", !is_asked);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    until_asked(true).await;
    server.kill();
    until_asked(false).await;
    server.restart();
    until_asked(true).await;
}

#[test]
fn unusable_names_and_urls_are_refused() {
    let limit = Limit::per(2, YEAR);
    let wrong = |url: &str, name: &str| {
        let refused = Limiter::connect(url, name, limit);
        refused.expect_err("it cannot be used").to_string()
    };
    let name = wrong("redis://127.0.0.1", "a b");
    assert!(name.starts_with("policy \"a b\": name: "), "{name}");
    let url = wrong("http://:hush@127.0.0.1", "api");
    assert!(url.starts_with("store \"api\": not a Redis URL"), "{url}");
    assert!(!url.contains("hush"), "{url}");
    let lease = Limiter::builder("api", limit.sliding_log()).mode(Mode::Lease);
    assert!(lease.connect("redis://127.0.0.1").is_err());
    let lease = Limiter::builder("api", limit).mode(Mode::Lease);
    let lease = lease
        .connect("redis://127.0.0.1")
        .expect("a limit to lease");
    assert!(lease.set_limit(limit.sliding_log()).is_err());
    assert_eq!(lease.limit(), limit);
}
