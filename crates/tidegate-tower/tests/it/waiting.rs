//! Waiting for a turn instead of being refused.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tidegate::{Cost, Limit, ManualClock, MemoryStore, Policy, PolicyLimiter};
use tidegate_tower::{Key, RateLimitBuilder};
use tokio::sync::Notify;
use tower::ServiceExt;

use crate::support::{around_hello, by, request, send, statuses};

/// One request per second and key, on the test's own clock.
fn by_the_second(clock: &ManualClock) -> RateLimitBuilder {
    let store = MemoryStore::builder().clock(clock.clone()).build();
    let policy = Policy::builder("p").key("{k}").limit(Limit::per_second(1));
    let policy = policy.build().expect("a policy");
    let limiter = PolicyLimiter::with_stores([("default", store)], [policy]);
    by(&Arc::new(limiter.expect("one policy")), Key::method())
}

#[tokio::test]
async fn a_turn_within_the_deadline_is_waited_for() {
    let clock = ManualClock::at_us(1_000_000);
    let slept = Arc::new(AtomicUsize::new(0));
    let sleep = {
        let (clock, slept) = (clock.clone(), slept.clone());
        move |duration: Duration| {
            clock.advance(duration);
            slept.fetch_add(1, Ordering::Relaxed);
            std::future::ready(())
        }
    };
    let layer = by_the_second(&clock).wait(Duration::from_millis(1_900), 10, sleep);
    let mut service = around_hello(layer);
    assert_eq!(statuses(&mut service, 4, &[]).await, [200; 4]);
    assert_eq!(slept.load(Ordering::Relaxed), 3);
}

#[tokio::test]
async fn one_after_the_deadline_is_refused_at_once() {
    let clock = ManualClock::at_us(1_000_000);
    let sleep = |_| -> std::future::Ready<()> { panic!("nothing to wait for") };
    let layer = by_the_second(&clock).wait(Duration::from_millis(999), 10, sleep);
    let mut service = around_hello(layer.cost(|head| match head.uri.path() {
        "/never" => Cost::of(2),
        _ => Cost::ONE,
    }));
    assert_eq!(statuses(&mut service, 2, &[]).await, [200, 429]);
    assert_eq!(send(&mut service, request("/never", &[])).await.status, 429);
}

#[tokio::test]
async fn waits_that_add_up_to_more_are_refused() {
    let clock = ManualClock::at_us(1_000_000);
    // Somebody else is always faster: the clock stands still.
    let layer =
        by_the_second(&clock).wait(Duration::from_millis(2_500), 10, |_| std::future::ready(()));
    let mut service = around_hello(layer);
    assert_eq!(statuses(&mut service, 2, &[]).await, [200, 429]);
}

#[tokio::test]
async fn no_more_wait_than_may() {
    let clock = ManualClock::at_us(1_000_000);
    let (asleep, wake) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let sleep = {
        let (clock, asleep, wake) = (clock.clone(), asleep.clone(), wake.clone());
        move |duration| {
            let (clock, asleep, wake) = (clock.clone(), asleep.clone(), wake.clone());
            async move {
                asleep.notify_one();
                wake.notified().await;
                clock.advance(duration);
            }
        }
    };
    let layer = by_the_second(&clock).wait(Duration::from_secs(60), 1, sleep);
    let mut service = around_hello(layer);
    assert_eq!(statuses(&mut service, 1, &[]).await, [200]);
    let first = tokio::spawn(service.clone().oneshot(request("/", &[])));
    asleep.notified().await;
    assert_eq!(statuses(&mut service, 1, &[]).await, [429]);
    wake.notify_one();
    assert_eq!(
        first.await.expect("no panic").expect("an answer").status(),
        200
    );

    // One that goes away makes room.
    let second = tokio::spawn(service.clone().oneshot(request("/", &[])));
    asleep.notified().await;
    second.abort();
    assert!(second.await.expect_err("aborted").is_cancelled());
    let third = tokio::spawn(service.clone().oneshot(request("/", &[])));
    asleep.notified().await;
    wake.notify_one();
    assert_eq!(
        third.await.expect("no panic").expect("an answer").status(),
        200
    );
}
