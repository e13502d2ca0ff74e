//! Waiting for a turn instead of being refused.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tidegate::{Cost, Limit, ManualClock};
use tidegate_tower::{Key, RateLimitBuilder};
use tokio::sync::Notify;
use tower::ServiceExt;

use crate::support::{around_hello, by, on_clock, request, send, statuses};

/// One request per second and key, on the test's own clock.
fn by_the_second(clock: &ManualClock) -> RateLimitBuilder {
    by(&on_clock(clock, Limit::per_second(1)), Key::method())
}

#[tokio::test]
async fn a_turn_is_waited_for_within_the_deadline() {
    for (deadline_ms, time_passes, expected, sleeps) in [
        (1_900, true, [200, 200, 200, 200], 3),
        // What would take too long is refused at once.
        (999, true, [200, 429, 429, 429], 0),
        // Somebody else is always faster, and the waits add up to more.
        (2_500, false, [200, 429, 429, 429], 6),
    ] {
        let clock = ManualClock::at_us(1_000_000);
        let slept = Arc::new(AtomicUsize::new(0));
        let sleep = {
            let (clock, slept) = (clock.clone(), slept.clone());
            move |duration: Duration| {
                slept.fetch_add(1, Ordering::Relaxed);
                if time_passes {
                    clock.advance(duration);
                }
                std::future::ready(())
            }
        };
        let layer = by_the_second(&clock).wait(Duration::from_millis(deadline_ms), 10, sleep);
        let mut service = around_hello(layer.cost(|head| match head.uri.path() {
            "/never" => Cost::of(2),
            _ => Cost::ONE,
        }));
        assert_eq!(statuses(&mut service, 4).await, expected);
        let never = send(&mut service, request("/never", &[])).await;
        assert_eq!(never.status, 429);
        assert_eq!(slept.load(Ordering::Relaxed), sleeps, "{deadline_ms} ms");
    }
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
    assert_eq!(statuses(&mut service, 1).await, [200]);
    let first = tokio::spawn(service.clone().oneshot(request("/", &[])));
    asleep.notified().await;
    assert_eq!(statuses(&mut service, 1).await, [429]);
    wake.notify_one();
    let answer = first.await.expect("no panic");
    assert_eq!(answer.expect("an answer").status(), 200);

    // One that goes away makes room.
    let second = tokio::spawn(service.clone().oneshot(request("/", &[])));
    asleep.notified().await;
    second.abort();
    assert!(second.await.expect_err("aborted").is_cancelled());
    let third = tokio::spawn(service.clone().oneshot(request("/", &[])));
    asleep.notified().await;
    wake.notify_one();
    let answer = third.await.expect("no panic");
    assert_eq!(answer.expect("an answer").status(), 200);
}
