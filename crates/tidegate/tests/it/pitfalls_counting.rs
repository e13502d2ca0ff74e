//! The pitfalls of counting: each test is named after its id.

use std::time::Duration;

use tidegate::{Limit, LimitError, LimitSpec, Rate, WhenFull};

use crate::support::{
    DAY, ExactBucket, KEY, MINUTE, SECOND, Timed, every_algorithm, micros, most_in_any, scaled,
};

#[test]
fn a1_fifty_at_once_at_limit_ten_admits_ten() {
    for limit in every_algorithm(10, MINUTE) {
        assert_eq!(Timed::new(limit).admitted_of(50), 10, "{limit}");
    }
}

/// What each of ten minutes admits of 12 requests, one every 5 s.
fn twelve_per_minute(limit: Limit, count_denied: bool) -> Vec<usize> {
    let timed = Timed::with(limit, |builder| builder.count_denied(count_denied));
    let admitted = timed.admitted_at((0..120).map(|index| index * 5 * SECOND));
    (0..10)
        .map(|minute| admitted.iter().filter(|&&at| at / MINUTE == minute).count())
        .collect()
}

#[test]
fn a2_refused_requests_cost_nothing_unless_asked() {
    for limit in every_algorithm(10, MINUTE) {
        let minutes = twelve_per_minute(limit, false);
        assert!(
            minutes.iter().all(|&count| count >= 9),
            "{limit} {minutes:?}"
        );
        assert!(minutes.iter().sum::<usize>() <= 110, "{limit} {minutes:?}");
    }
    // With `count_denied`, a client that does not slow down stays refused.
    for limit in [
        Limit::per_minute(10),
        Limit::per_minute(10).sliding_window(),
    ] {
        let minutes = twelve_per_minute(limit, true);
        assert!(minutes[0] >= 10, "{limit} {minutes:?}");
        assert_eq!(minutes[7..], [0, 0, 0], "{limit} {minutes:?}");
    }
}

#[test]
fn a3_ten_late_and_ten_early_pass_two_counters_but_not_the_log() {
    let bursts = |limit| {
        let timed = Timed::new(limit);
        [59_900_000, 114 * SECOND, 119_900_000].map(|at| timed.at(at).admitted_of(10))
    };
    // Documented: below 2N within a window's length.
    assert_eq!(bursts(Limit::per_minute(10).sliding_window())[..2], [10, 9]);
    assert_eq!(bursts(Limit::per_minute(10).sliding_log()), [10, 0, 10]);
}

#[test]
fn b3_one_per_second_offered_three_admits_one() {
    // The two counters admit less: a full window blocks the whole next one.
    let admitted = [50, 50, 60, 30, 50];
    for (limit, admitted) in every_algorithm(1, SECOND).into_iter().zip(admitted) {
        let instants = Timed::new(limit).admitted_at((0..200).map(|index| index * 300_000));
        assert_eq!(instants.len(), admitted, "{limit}");
        let mut seconds: Vec<u64> = instants.iter().map(|at| at / SECOND).collect();
        seconds.dedup();
        assert_eq!(seconds.len(), admitted, "{limit}: two in one second");
    }
}

#[test]
fn c1_refill_is_exact_at_any_arrival_pattern() {
    for period in [1_003, 7_777, 33_333, 90_000, 99_999, 100_000, 110_000] {
        for burst in [1, 2, 10] {
            let timed = Timed::new(Limit::per_second(10).burst(burst));
            let mut exact = ExactBucket::new(10, SECOND, burst);
            for at in (0..10 * SECOND).step_by(period) {
                let wanted = exact.step(at, 1).admitted;
                assert_eq!(
                    timed.at(at).check().allowed(),
                    wanted,
                    "{period} {burst} {at}"
                );
            }
        }
    }
    // In figures: 10 a second and a burst of 10 pass 109 of 112 in 10 s, and
    // nobody below the limit is refused.
    let offered = |period| (0..10 * SECOND).step_by(period);
    let admitted = |period| Timed::new(Limit::per_second(10)).admitted_at(offered(period));
    assert_eq!(admitted(90_000).len(), 109);
    assert_eq!(admitted(110_000).len(), offered(110_000).count());
}

#[test]
fn c4_d2_lowering_five_to_three_with_five_used_refuses_until_below_three() {
    // Until a request fits: three of five tokens must drain; the window must
    // end; and, of two counters, the older must fade to two.
    let waits = [60, 60, 60, 96, 60];
    let limits = every_algorithm(5, MINUTE).into_iter();
    for ((old, new), wait) in limits.zip(every_algorithm(3, MINUTE)).zip(waits) {
        let timed = Timed::new(old);
        assert_eq!(timed.admitted_of(5), 5);
        timed.limiter.set_limit(new).unwrap();
        assert_eq!(timed.admitted_of(100), 0, "{new}");
        let refused = timed.check();
        assert_eq!((refused.remaining(), refused.limit()), (0, 3), "{new}");
        assert_eq!(
            refused.retry_after(),
            Some(Duration::from_secs(wait)),
            "{new}"
        );
        assert_eq!(timed.at(wait * SECOND - 1).admitted_of(100), 0, "{new}");
        let admitted = timed.at(wait * SECOND).admitted_of(100);
        assert!((1..=3).contains(&admitted), "{new}: {admitted}");
    }
}

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
fn d1_c9_fifty_thousand_per_minute_admits_fifty_thousand() {
    for limit in every_algorithm(50_000, MINUTE) {
        assert_eq!(Timed::new(limit).admitted_of(51_000), 50_000, "{limit}");
    }
    // Some in the same microsecond, most not.
    let timed = Timed::new(Limit::per_minute(50_000).sliding_log());
    let admitted = timed.admitted_at((0..51_000).map(|index| index / 3));
    assert_eq!(admitted.len(), 50_000);
}

#[test]
fn d3_five_per_second_is_five_in_any_second() {
    for limit in [
        Limit::per_second(5).sliding_log(),
        Limit::per_second(5).burst(2).strict(),
    ] {
        let admitted = Timed::new(limit).admitted_at((967_000..4 * SECOND).step_by(1_000));
        assert!(most_in_any(&admitted, SECOND) <= 5, "{limit}: {admitted:?}");
        // And it is used: the strict bucket refills with three of the five.
        assert!(admitted.len() >= 11, "{limit}: {}", admitted.len());
    }
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
fn e1_a_bucket_never_gives_more_than_its_burst_at_once() {
    let limit = Limit::per(20, Duration::from_secs(4)).burst(2);
    let timed = Timed::new(limit);
    assert_eq!(timed.admitted_of(20), 2);
    assert_eq!(timed.at(3 * SECOND).admitted_of(20), 2);
    assert_eq!(timed.at(400 * DAY).admitted_of(20), 2);
    assert_eq!(timed.peek(3).retry_after(), None);
}

#[test]
fn e4_e5_e7_e9_the_numbers_of_a_refusal_are_exact_and_agree() {
    // Seconds until one more request fits, and until the key is as new.
    let expected = [(1, 5), (5, 5), (5, 5), (6, 10), (5, 5)];
    for (limit, (retry, reset)) in every_algorithm(5, 5 * SECOND).into_iter().zip(expected) {
        let timed = Timed::new(limit);
        timed.admitted_of(5);
        let refused = timed.check();
        assert!(!refused.allowed());
        assert_eq!(refused.remaining(), 0, "{limit}");
        assert_eq!(
            refused.retry_after(),
            Some(Duration::from_secs(retry)),
            "{limit}"
        );
        assert_eq!(refused.reset_after(), Duration::from_secs(reset), "{limit}");
        assert!((refused.rate() - 5.0).abs() < 1e-9, "{limit}");
        assert!(!timed.at(retry * SECOND - 1).check().allowed(), "{limit}");
        assert!(
            timed.peek(1).retry_after() == Some(Duration::from_micros(1)),
            "{limit}"
        );
        assert!(timed.at(retry * SECOND).check().allowed(), "{limit}");
        // A cost above what remains is refused with the true remainder.
        let fresh = Timed::new(limit);
        fresh.admitted_of(3);
        let refused = fresh.check_cost(3);
        assert_eq!(
            (refused.allowed(), refused.remaining()),
            (false, 2),
            "{limit}"
        );
        assert_eq!(fresh.check_cost(6).retry_after(), None, "{limit}");
    }
}

#[test]
fn e8_remaining_stays_within_a_lowered_limit() {
    for used in 0..=10_u32 {
        let limits = every_algorithm(10, MINUTE).into_iter();
        for (old, new) in limits.zip(every_algorithm(3, MINUTE)) {
            let timed = Timed::new(old);
            timed.admitted_of(used as usize);
            timed.limiter.set_limit(new).unwrap();
            let seen = timed.peek(1);
            assert_eq!(seen.remaining(), 3_u32.saturating_sub(used), "{new} {used}");
            assert_eq!(seen.limit(), 3);
        }
    }
}

#[test]
fn e10_a_burst_above_the_limit_has_right_numbers_or_is_refused() {
    let timed = Timed::new(Limit::per_second(10).burst(20));
    assert_eq!(timed.admitted_of(50), 20);
    let refused = timed.check();
    assert_eq!(refused.retry_after(), Some(Duration::from_millis(100)));
    assert_eq!(refused.reset_after(), Duration::from_secs(2));
    let waited = timed.at(SECOND).admitted_of(50);
    assert_eq!(waited, 10);

    for (text, problem) in [
        (
            "10r/s burst=20 strict",
            "strict with burst 20 of 10 requests: expected a burst below 10",
        ),
        (
            "10r/s strict",
            "strict with burst 10 of 10 requests: expected a burst below 10",
        ),
        (
            "10r/s fixed_window burst=20",
            "burst 20 with fixed_window: only token_bucket has a burst",
        ),
    ] {
        let error = Limit::parse(text).unwrap_err().to_string();
        assert_eq!(error, format!("{text:?}: {problem}"));
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
