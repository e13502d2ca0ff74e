//! Waiting instead of being refused.

use std::cell::RefCell;
use std::future::ready;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tidegate::{Clock, Cost, Decision, Limit, Wait, WaitError};

use crate::support::{KEY, MINUTE, SECOND, START, Timed, every_algorithm};

/// Runs a future that is never pending for long.
fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let mut context = Context::from_waker(Waker::noop());
    for _ in 0..1_000 {
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return output;
        }
    }
    panic!("still pending");
}

type Answer = Result<Decision, Box<WaitError>>;
type WaitFn = fn(&Timed, Duration) -> Answer;

/// Both ways to wait.
fn waits() -> [(&'static str, WaitFn); 2] {
    [
        ("until_ready", |timed, deadline| {
            timed.limiter.until_ready(KEY, deadline).map_err(Box::new)
        }),
        ("until_ready_with", |timed, deadline| {
            let sleep = |duration| {
                timed.clock.advance(duration);
                ready(())
            };
            let wait = timed.limiter.until_ready_with(KEY, deadline, sleep);
            block_on(wait).map_err(Box::new)
        }),
    ]
}

const LONG: Duration = Duration::from_hours(24);

#[test]
fn it_waits_exactly_as_long_as_needed_and_spends_once() {
    // Seconds after the start at which the third and fourth request go on.
    let expected = [(30, 60), (60, 60), (60, 60), (90, 120), (60, 60)];
    for (name, wait) in waits() {
        for (limit, (third, fourth)) in every_algorithm(2, MINUTE).into_iter().zip(expected) {
            let timed = Timed::new(limit);
            let decided: Vec<u64> = (0..4)
                .map(|_| wait(&timed, LONG).expect("in time"))
                .map(|decision| (decision.decided_at_us() - START) / 1_000_000)
                .collect();
            assert_eq!(decided, [0, 0, third, fourth], "{name} {limit}");
            assert_eq!(timed.peek(1).remaining(), 0, "{name} {limit}");
        }
    }
}

#[test]
fn it_fails_at_once_when_the_deadline_is_too_short() {
    for (name, wait) in waits() {
        for limit in every_algorithm(2, MINUTE) {
            let timed = Timed::new(limit);
            // What is free is taken without a deadline to spare.
            assert!(
                (0..2).all(|_| wait(&timed, Duration::ZERO).is_ok()),
                "{name} {limit}"
            );
            let needed = timed.peek(1).retry_after().expect("not for ever");
            let before = timed.peek(1);

            let short = needed - Duration::from_micros(1);
            let error = wait(&timed, short).expect_err("too short");
            assert_eq!(
                *error,
                WaitError::Deadline(Box::new(before.clone())),
                "{name} {limit}"
            );
            let text = format!("it would take {needed:?}, longer than the deadline");
            assert_eq!(error.to_string(), text);
            // No time was lost and nothing was charged.
            assert_eq!(timed.peek(1), before, "{name} {limit}");

            assert!(wait(&timed, needed).is_ok(), "{name} {limit}");
        }
    }
}

#[test]
fn it_fails_at_once_when_waiting_will_never_help() {
    for (name, wait) in waits() {
        let timed = Timed::new(Limit::block());
        let error = wait(&timed, Duration::MAX).expect_err("blocked");
        assert!(matches!(*error, WaitError::Never(_)), "{name}");
        assert_eq!(error.to_string(), "waiting will never help");
        assert_eq!(timed.clock.now_us(), START, "{name}");
    }
}

#[test]
fn waiting_is_not_counted_even_where_refusals_are() {
    for (name, wait) in waits() {
        let timed = Timed::new(Limit::per_minute(2)).count_denied(true);
        timed.admitted_of(2);
        timed.at(29_000_000);
        let ready = wait(&timed, LONG).expect("in time");
        assert_eq!(ready.decided_at_us(), START + 30_000_000, "{name}");
    }
}

#[test]
fn who_is_overtaken_waits_again_within_the_same_deadline() {
    let timed = Timed::new(Limit::per_minute(1));
    let _ = timed.check();
    let slept = RefCell::new(Vec::new());
    let wait = |deadline, overtaken: usize| {
        slept.borrow_mut().clear();
        let sleep = |duration| {
            slept.borrow_mut().push(duration);
            timed.clock.advance(duration);
            if slept.borrow().len() <= overtaken {
                assert!(timed.check().allowed(), "somebody else is first");
            }
            ready(())
        };
        let wait = timed.limiter.until_ready_with(KEY, deadline, sleep);
        block_on(wait).map_err(Box::new)
    };
    let minute = Duration::from_secs(60);
    assert!(wait(3 * minute, 2).is_ok());
    assert_eq!(*slept.borrow(), [minute; 3]);
    let error = wait(3 * minute, 3).expect_err("overtaken once too often");
    assert!(matches!(*error, WaitError::Deadline(_)));
    assert_eq!(*slept.borrow(), [minute; 3]);
}

#[test]
fn a_wait_has_a_cost_and_jitter_that_never_misses_the_deadline() {
    let timed = Timed::new(Limit::per_second(10));
    let within = |wait: Wait| {
        let before_us = timed.limiter.now_us();
        let ready = timed.limiter.until_ready(KEY, wait.cost(Cost::of(10)));
        let _ = ready.expect("in time");
        timed.limiter.now_us() - before_us
    };
    let wait = Wait::within(Duration::from_secs(2));
    assert_eq!([within(wait), within(wait)], [0, SECOND]);
    let waited_us = within(wait.jitter(Duration::from_millis(100)));
    assert!(
        (SECOND..=SECOND + 100_000).contains(&waited_us),
        "{waited_us}"
    );
    let exactly = Wait::within(Duration::from_secs(1));
    assert_eq!(within(exactly.jitter(Duration::from_mins(1))), SECOND);
}
