//! One limit for many keys, with the words of the limiter in memory.

use std::time::{Duration, Instant};

use tidegate::{Cost, Decision, Limit, Mode, OnError, Policy, Source, WaitError};
use tidegate_redis::Limiter;

use crate::server::Server;
use crate::support::{YEAR, check, every_algorithm, limiter, policy, store};
use tidegate_testkit::process::free_port;

const LONG: Duration = Duration::from_secs(20);

fn over(server: &Server, name: &str, limit: Limit) -> Limiter {
    Limiter::over(store(server), name, limit).expect("a name")
}

/// What must not depend on where the counts are.
fn numbers(decision: &Decision) -> (bool, u32, u32, bool) {
    let is_hopeless = decision.retry_after().is_none();
    let numbers = (decision.limit(), decision.remaining());
    (decision.allowed(), numbers.0, numbers.1, is_hopeless)
}

#[tokio::test]
async fn answers_are_those_of_the_limiter_in_memory() {
    let server = Server::start();
    for (name, limit) in every_algorithm(5, YEAR) {
        let (far, near) = (
            over(&server, name, limit),
            tidegate::Limiter::in_memory(limit),
        );
        assert_eq!(far.limit(), near.limit());
        let ask = async |cost: u32| {
            let cost = Cost::of(cost);
            let look = far.peek("a", cost).await.expect(name);
            assert_eq!(numbers(&look), numbers(&near.peek("a", cost)), "{name}");
            let decided = [far.check_cost("a", cost).await, near.check_cost("a", cost)];
            assert_eq!(numbers(&decided[0]), numbers(&decided[1]), "{name}");
            decided.map(|decision| decision.receipt())
        };
        let [far_receipt, near_receipt] = ask(1).await.map(|it| it.expect("a charge"));
        for cost in [2, 3, 2, 1, 6] {
            ask(cost).await;
        }
        let is_back = far.refund("a", &far_receipt).await;
        assert_eq!(is_back, Ok(near.refund("a", &near_receipt)), "{name}");
        ask(1).await;
        for key in ["a", "never"] {
            assert_eq!(far.reset(key).await, Ok(near.reset(key)), "{name}");
        }
        ask(1).await;
    }
}

#[tokio::test]
async fn policies_of_the_same_name_share_the_limit() {
    let server = Server::start();
    for (name, limit) in every_algorithm(3, YEAR) {
        let ours = over(&server, name, limit);
        let theirs = limiter(&server, [policy(name, limit)]);
        assert!(ours.check("a/b").await.allowed(), "{name}");
        let key = [("key", "a/b")];
        assert_eq!(check(&theirs, name, &key).await.remaining(), 1, "{name}");

        let pairs = Policy::builder(name).key("{tenant}/{user}").limit(limit);
        let theirs = limiter(&server, [pairs.build().unwrap()]);
        let pair = [("tenant", "a:b"), ("user", "7")];
        assert!(check(&theirs, name, &pair).await.allowed(), "{name}");
        assert_eq!(ours.check(("a:b", 7_u8)).await.remaining(), 1, "{name}");
    }
}

#[tokio::test]
async fn set_limit_is_seen_by_clones_and_keeps_counts_of_keys_of_any_length() {
    let server = Server::start();
    let limiter = Limiter::builder("p", Limit::per(2, YEAR)).mode(Mode::Background);
    let limiter = limiter.sync_interval(LONG).over(store(&server));
    let limiter = limiter.expect("settings");
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
    assert!(limiter.flush(LONG).await);
    let exact = over(&server, "p", Limit::per(9, YEAR));
    assert_eq!(exact.check("a").await.remaining(), 5);
    assert_eq!(exact.check(("a", "b")).await.remaining(), 5);
    exact.set_limit(Limit::per(4, YEAR)).expect("a limit");
    assert!(!exact.check("a").await.allowed());
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
            let wait = limiter.until_ready("b", Duration::from_millis(200));
            assert!(wait.await.is_ok() || on_error != OnError::Allow);
            assert!(source == Source::Local || decision.receipt().is_none());
            if on_error == OnError::Deny {
                assert!(decision.is_unavailable() && decision.retry_after().is_some());
                let numbers = (decision.limit(), decision.remaining(), decision.denied_by());
                assert_eq!(numbers, (0, 0, None), "no quota is claimed");
            }
        }
        assert!(limiter.try_check("a", Cost::ONE).await.is_err());
        assert!(limiter.peek("a", Cost::ONE).await.is_err());
        assert!(limiter.reset("a").await.is_err());
    }
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
    let lease = |limit| {
        let lease = Limiter::builder("api", limit).mode(Mode::Lease);
        lease.connect("redis://127.0.0.1")
    };
    assert!(lease(limit.sliding_log()).is_err());
    let lease = lease(limit).expect("a limit to lease");
    assert!(lease.set_limit(limit.sliding_log()).is_err());
    assert_eq!(lease.limit(), limit);
}
