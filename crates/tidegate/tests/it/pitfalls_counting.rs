//! The pitfalls of counting: each test is named after its id.

use std::time::Duration;

use tidegate::{Limit, LimitError, LimitSpec, Rate, WhenFull};

use crate::support::{DAY, KEY, MINUTE, SECOND, Timed, every_algorithm, micros, scaled};

#[test]
fn c5_e2_e3_a_limit_of_nothing_is_an_error_and_block_refuses_everything() {
    for text in ["0r/s", "0.5r/s", "-1r/s", "5/0s", "5/-1s", "5/0.5s", "0/0s"] {
        assert!(Limit::parse(text).is_err(), "{text}");
    }
    let second = Duration::from_secs(1);
    assert_eq!(Rate::new(0, second), Err(LimitError::Requests(0)));
    let zero = Duration::ZERO;
    assert_eq!(Rate::new(5, zero), Err(LimitError::Window(zero)));
    let spec = LimitSpec::new(Rate::new(5, second).unwrap());
    let no_burst = LimitSpec {
        burst: Some(0),
        ..spec
    };
    assert_eq!(no_burst.build(), Err(LimitError::Burst(0)));

    let blocked = Timed::new(Limit::block());
    assert_eq!(blocked.admitted_of(100), 0);
    assert_eq!(blocked.at(400 * DAY).admitted_of(100), 0);
    assert_eq!(blocked.check().retry_after(), None);
}

#[test]
#[should_panic(expected = "requests out of range")]
fn c5_a_limit_of_nothing_in_the_source_does_not_pass() {
    let _ = Limit::per_second(0);
}

#[test]
#[should_panic(expected = "window out of range")]
fn e2_a_window_of_nothing_in_the_source_does_not_pass() {
    let _ = Limit::per(1, Duration::ZERO);
}

#[test]
fn d6_a_million_events_expire_at_once_or_in_part() {
    let events = scaled(1_000_000);
    let timed = Timed::new(Limit::per_minute(events).sliding_log());
    for at in 0..events {
        assert!(timed.at(at.into()).check().allowed(), "{at}");
    }
    assert!(!timed.check().allowed());
    let quarter = events / 4;
    let part = timed.at(MINUTE + u64::from(quarter) - 1).check();
    assert_eq!((part.allowed(), part.remaining()), (true, quarter - 1));
    let all = timed.at(3 * MINUTE).check();
    assert_eq!((all.allowed(), all.remaining()), (true, events - 1));
    // The ring gives its memory back bit by bit and loses nothing by it.
    for index in 2..100 {
        timed.clock.advance(Duration::from_micros(1));
        assert_eq!(timed.check().remaining(), events - index);
    }
}

#[test]
fn t1_key_is_kept_until_its_quota_is_full() {
    // Others come and go all the time, and may take only the places of keys
    // that are fully refilled.
    let crowd = |timed: &Timed| {
        for other in 0..200_u32 {
            let _ = timed.limiter.check(format!("other {other}"));
        }
    };
    let small = |limit| {
        Timed::with(limit, |builder| {
            builder.max_keys(16).when_full(WhenFull::Deny)
        })
    };
    let timed = small(Limit::per_second(1).burst(1_000));
    let admitted: Vec<usize> = (0..4)
        .map(|blast| {
            let admitted = timed.at(blast * 3 * SECOND).admitted_of(2_000);
            crowd(&timed);
            admitted
        })
        .collect();
    assert_eq!(admitted, [1_000, 3, 3, 3]);

    for limit in every_algorithm(10, MINUTE) {
        let timed = small(limit);
        timed.admitted_of(10);
        let reset = micros(timed.peek(1).reset_after());
        for at in [1, reset / 3, reset - 1] {
            crowd(timed.at(at));
            assert!(timed.peek(1).remaining() < 10, "{limit} {at}");
        }
        assert_eq!(timed.at(reset).limiter.check(KEY).remaining(), 9, "{limit}");
    }
}
