//! The pitfalls of input: text and numbers. Keys without end and clocks are in
//! `pitfalls_store.rs`.

use std::time::Duration;

use tidegate::{Cost, Limit, LimitError, LimitSpec, Rate};

use crate::support::{DAY, HOUR, MINUTE, SECOND, Timed, micros};

#[test]
fn b4_a_rate_means_what_it_says() {
    for (text, requests, window_us) in [
        ("10r/s", 10, SECOND),
        ("10r/m", 10, MINUTE),
        ("10r/h", 10, HOUR),
        ("10r/d", 10, DAY),
        ("5/10s", 5, 10 * SECOND),
        ("3/500ms", 3, 500_000),
        ("7/1500us", 7, 1_500),
        ("2/366d", 2, 366 * DAY),
        ("4294967295/1ms", u32::MAX, 1_000),
    ] {
        let rate: Rate = text.parse().expect(text);
        assert_eq!(
            (rate.requests(), rate.window_us()),
            (requests, window_us),
            "{text}"
        );
        let limit = Limit::parse(text).expect(text);
        assert_eq!(
            limit,
            Limit::per(requests, Duration::from_micros(window_us)),
            "{text}"
        );
    }
}

const RATE: &str = "expected a rate such as 100r/s, 100r/m, 100r/h or 100r/d, \
                    or a count per window such as 5/10s or 3/500ms";
const OPTION: &str = "expected a rate, then any of token_bucket, fixed_window, sliding_window, \
                      sliding_log, burst=N, strict, align=epoch, each once";

#[test]
fn b4_what_is_not_a_rate_is_refused_and_told_why() {
    for text in [
        "",
        " ",
        "100",
        "r/s",
        "/s",
        "/",
        "10",
        "10r",
        "10r/",
        "10/",
        "10r/fortnight",
        "10r/w",
        "10r/S",
        "10R/s",
        "10r/ms",
        "10r/us",
        "10r/sec",
        "10r/10s",
        "10/s",
        "10/10",
        "10//s",
        "10r/s/m",
        "10 r/s",
        "10r /s",
        "10r/ s",
        " 10r/s",
        "+10r/s",
        "-10r/s",
        "10.5r/s",
        "1e3r/s",
        "0x10r/s",
        "1_000r/s",
        "1,000r/s",
        "٣r/s",
        "10r\\s",
        "10rps",
        "5/1.5s",
        "5/-1s",
        "5/+1s",
        "5/1 s",
        "5/1s\n",
        "10r/s\0",
        "unlimited",
        "inf",
        "NaN",
        "Block",
    ] {
        let error = Limit::parse(text).expect_err(text).to_string();
        assert_eq!(error, format!("{text:?}: {RATE}"));
        assert!(text.parse::<Rate>().is_err(), "{text}");
    }
}

#[test]
fn b4_what_is_not_an_option_is_refused_and_told_why() {
    for text in [
        "10r/s ",
        "10r/s  burst=2",
        "10r/s burst",
        "10r/s burst=",
        "10r/s burst=-1",
        "10r/s burst=1.5",
        "10r/s burst=2 burst=3",
        "10r/s strict strict",
        "10r/s Strict",
        "10r/s token_bucket fixed_window",
        "10r/s align=first align=epoch",
        "10r/s align=now",
        "10r/s leaky",
        "10r/s block",
        "10r/s sliding_log\t",
    ] {
        let error = Limit::parse(text).expect_err(text).to_string();
        assert_eq!(error, format!("{text:?}: {OPTION}"));
    }
}

#[test]
fn b4_a_long_wrong_text_is_not_repeated_at_length() {
    let text = "9".repeat(100_000);
    let error = Limit::parse(&text).unwrap_err().to_string();
    assert!(error.len() < 300, "{}", error.len());
    assert!(error.starts_with("\"9999"), "{error}");
}

#[test]
fn p1_names_mean_what_they_say() {
    for (limit, requests, window_us) in [
        (Limit::per_second(3), 3, SECOND),
        (Limit::per_minute(3), 3, MINUTE),
        (Limit::per_hour(3), 3, HOUR),
        (Limit::per_day(3), 3, DAY),
        (Limit::per(3, Duration::from_secs(7)), 3, 7 * SECOND),
    ] {
        let rate = limit.spec().expect("not blocked").rate;
        assert_eq!((rate.requests(), rate.window_us()), (requests, window_us));
        let timed = Timed::new(limit.sliding_log());
        assert_eq!(timed.admitted_of(10), 3, "{limit}");
        assert_eq!(timed.at(window_us - 1).admitted_of(10), 0, "{limit}");
        assert_eq!(timed.at(window_us).admitted_of(10), 3, "{limit}");
    }
}

#[test]
fn p2_refusal_never_says_to_wait_for_zero() {
    // Far less than a microsecond a token, and a year less a microsecond.
    for limit in [
        Limit::per(u32::MAX, Duration::from_millis(1)),
        Limit::per(u32::MAX, Duration::from_millis(1)).burst(7),
        Limit::per(999, Duration::from_millis(1)),
        Limit::per(1, Duration::from_hours(366 * 24)),
    ] {
        let timed = Timed::new(limit);
        let all = timed.peek(1).limit();
        assert!(timed.check_cost(all).allowed());
        for cost in [1, all] {
            let refused = timed.check_cost(cost);
            assert!(!refused.allowed(), "{limit} {cost}");
            let wait = refused.retry_after().expect("not for ever");
            assert!(wait >= Duration::from_micros(1), "{limit} {cost} {wait:?}");
        }
        let wait = micros(timed.check().retry_after().expect("not for ever"));
        assert!(timed.at(wait).check().allowed(), "{limit}");
    }
}

/// A text that is a rate, but of numbers that no limit can have.
const OUT_OF_RANGE: &[(&str, &str)] = &[
    (
        "0r/s",
        "0 requests: expected 1 to 4294967295 (to refuse everything, use `block`)",
    ),
    (
        "4294967296r/s",
        "4294967296 requests: expected 1 to 4294967295 (to refuse everything, use `block`)",
    ),
    (
        "99999999999999999999r/s",
        "18446744073709551615 requests: expected 1 to 4294967295 (to refuse everything, use `block`)",
    ),
    (
        "5/0s",
        "a window of 0ns: expected 1ms to 366d, in whole microseconds",
    ),
    (
        "5/999us",
        "a window of 999µs: expected 1ms to 366d, in whole microseconds",
    ),
    (
        "5/367d",
        "a window of 31708800s: expected 1ms to 366d, in whole microseconds",
    ),
    (
        "5/31622400000001us",
        "a window of 31622400.000001s: expected 1ms to 366d, in whole microseconds",
    ),
    (
        "5/99999999999999999999d",
        "a window of 18446744073709.551615s: expected 1ms to 366d, in whole microseconds",
    ),
    ("5/1s burst=0", "burst 0: expected 1 to 4294967295"),
    (
        "5/1s burst=4294967296",
        "burst 4294967296: expected 1 to 4294967295",
    ),
    (
        "1/366d burst=100",
        "burst 100 takes more than 100 years to refill: expected at most 99",
    ),
    (
        "1/1d burst=36526",
        "burst 36526 takes more than 100 years to refill: expected at most 36525",
    ),
    (
        "268435457r/s sliding_window",
        "268435457 requests with sliding_window: expected at most 268435456",
    ),
    (
        "1000001r/s sliding_log",
        "1000001 requests with sliding_log: expected at most 1000000",
    ),
    (
        "5/1s sliding_log burst=3",
        "burst 3 with sliding_log: only token_bucket has a burst",
    ),
    (
        "5/1s sliding_window strict",
        "strict with sliding_window: only token_bucket can be strict",
    ),
    (
        "5/1s align=epoch",
        "align = \"epoch\" with token_bucket: only fixed_window can be aligned",
    ),
];

#[test]
fn p4_numbers_out_of_range_are_refused_and_named() {
    for (text, problem) in OUT_OF_RANGE {
        let error = Limit::parse(text).expect_err(text).to_string();
        assert_eq!(error, format!("{text:?}: {problem}"));
    }
    for cost in [0, 1 << 32, u64::MAX] {
        assert_eq!(Cost::new(cost), Err(LimitError::Cost(cost)));
    }
    for nanos in [1, 1_000_000_001, 1_000_500] {
        let window = Duration::from_nanos(nanos);
        assert_eq!(Rate::new(1, window), Err(LimitError::Window(window)));
    }
    assert!(Rate::new(1, Duration::MAX).is_err());
    // At the ends of the ranges, all is well.
    for text in [
        "1/366d burst=99",
        "1/1d burst=36525",
        "1000000r/s sliding_log",
        "268435456r/s sliding_window",
    ] {
        assert!(Limit::parse(text).is_ok(), "{text}");
    }
}

#[test]
fn p4_the_largest_limits_do_limit() {
    let widest = Rate::new(u32::MAX.into(), Duration::from_millis(1)).unwrap();
    let limit = LimitSpec::new(widest).build().unwrap();
    for limit in [limit, limit.fixed_window()] {
        let timed = Timed::new(limit);
        assert!(timed.check_cost(u32::MAX - 1).allowed());
        assert_eq!(timed.admitted_of(3), 1, "{limit}");
    }
    for (limit, most) in [
        (Limit::per_second(1 << 28).sliding_window(), 1 << 28),
        (Limit::per_second(1_000_000).sliding_log(), 1_000_000),
    ] {
        let timed = Timed::new(limit);
        assert_eq!(timed.check_cost(most + 1).retry_after(), None, "{limit}");
        assert!(timed.check_cost(most - 1).allowed());
        assert_eq!(timed.admitted_of(3), 1, "{limit}");
    }
}
