//! Pitfalls of limits as they are written in a file, each under its id: what counts is
//! what is admitted at run time.

use super::Timed;
use crate::support::{DAY, HOUR, MINUTE, SECOND};

fn one(limit: &str, algorithm: &str) -> String {
    format!(
        r#"
        [[policies]]
        name = "p"
        limit = "{limit}"
        algorithm = "{algorithm}"
        "#
    )
}

/// A text, how many are admitted at once, and the window in microseconds.
const TEXTS: [(&str, usize, u64); 15] = [
    ("10r/s", 10, SECOND),
    ("10r/m", 10, MINUTE),
    ("10r/h", 10, HOUR),
    ("10r/d", 10, DAY),
    ("100r/s", 100, SECOND),
    ("1r/s", 1, SECOND),
    ("5/10s", 5, 10 * SECOND),
    ("1000/1h", 1_000, HOUR),
    ("3/500ms", 3, SECOND / 2),
    ("7/1500us", 7, 1_500),
    ("2/1ms", 2, 1_000),
    ("2/90m", 2, 90 * MINUTE),
    ("2/36h", 2, 36 * HOUR),
    ("2/7d", 2, 7 * DAY),
    ("2/366d", 2, 366 * DAY),
];

#[test]
fn b4_a_text_gives_its_numbers_at_run_time() {
    let key = [("key", "x")];
    for (text, requests, window_us) in TEXTS {
        for algorithm in ["fixed_window", "sliding_log"] {
            let timed = Timed::read(&one(text, algorithm));
            assert_eq!(
                timed.admitted_of(requests + 5, "p", &key),
                requests,
                "{text}"
            );
            let early = timed.at(window_us - 1).admitted_of(5, "p", &key);
            assert_eq!(early, 0, "{text} {algorithm}");
            let next = timed.at(window_us).admitted_of(requests + 5, "p", &key);
            assert_eq!(next, requests, "{text} {algorithm}");
        }
    }
}

#[test]
fn p1_per_second_means_so_many_each_second() {
    // A bucket gives one request back each window / requests, rounded up to the next
    // microsecond.
    let key = [("key", "x")];
    for (text, requests, window_us) in TEXTS {
        let timed = Timed::read(&one(text, "token_bucket"));
        assert_eq!(
            timed.admitted_of(requests + 5, "p", &key),
            requests,
            "{text}"
        );
        let each_us = window_us.div_ceil(requests as u64);
        assert_eq!(timed.at(each_us - 1).admitted_of(1, "p", &key), 0, "{text}");
        assert_eq!(timed.at(each_us).admitted_of(2, "p", &key), 1, "{text}");
        let again = timed.at(window_us + each_us);
        assert_eq!(
            again.admitted_of(requests + 5, "p", &key),
            requests,
            "{text}"
        );
    }
}

#[test]
fn p1_burst_and_strict_are_what_they_say() {
    let timed = Timed::read(
        r#"
        [[policies]]
        name = "bursty"
        limit = "10r/s"
        burst = 30

        [[policies]]
        name = "smooth"
        limit = "10r/s"
        burst = 1

        [[policies]]
        name = "strict"
        limit = "10r/s"
        burst = 5
        strict = true
        "#,
    );
    let key = [("key", "x")];
    for (policy, burst, in_a_second) in [("bursty", 30, 10), ("smooth", 1, 10), ("strict", 5, 5)] {
        assert_eq!(
            timed.at(0).admitted_of(100, policy, &key),
            burst,
            "{policy}"
        );
        let after: usize = (1..=1_000)
            .map(|ms| timed.at(ms * 1_000).admitted_of(2, policy, &key))
            .sum();
        assert_eq!(after, in_a_second, "{policy}");
    }
}
