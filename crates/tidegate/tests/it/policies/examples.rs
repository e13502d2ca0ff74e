//! Examples that people know from other limiters, as policies of a file.

use super::{Timed, remaining};
use crate::support::{MINUTE, SECOND, most_in_any};

#[test]
fn a_resource_and_its_consumers() {
    let timed = Timed::read(
        r#"
        [[policies]]
        name = "api"
        [[policies.levels]]
        name = "resource"
        key = "{resource}"
        limit = "5/10s"
        algorithm = "sliding_log"
        [[policies.levels]]
        name = "consumer"
        key = "{resource}:{consumer}"
        limit = "3/10s"
        algorithm = "sliding_log"
        "#,
    );
    let ask = |consumer: &str| {
        let attributes = [("resource", "12"), ("consumer", consumer)];
        let decision = timed.check("api", &attributes);
        (decision.denied_by(), remaining(&decision))
    };
    let first: Vec<_> = (0..5).map(|_| ask("c1")).collect();
    let consumer = Some("consumer");
    assert_eq!(
        first,
        [
            (None, vec![4, 2]),
            (None, vec![3, 1]),
            (None, vec![2, 0]),
            (consumer, vec![2, 0]),
            (consumer, vec![2, 0]),
        ]
    );
    let second: Vec<_> = (0..4).map(|_| ask("c2")).collect();
    let resource = Some("resource");
    assert_eq!(
        second,
        [
            (None, vec![1, 2]),
            (None, vec![0, 1]),
            (resource, vec![0, 1]),
            (resource, vec![0, 1]),
        ]
    );
    // Both refuse the first one now, and the resource is named: it comes first.
    assert_eq!(ask("c1"), (resource, vec![0, 0]));
    // Another resource is another counter.
    let other = [("resource", "13"), ("consumer", "c1")];
    assert!(timed.check("api", &other).allowed());
    timed.at(10 * SECOND - 1);
    assert!(ask("c1").0.is_some());
    timed.at(10 * SECOND);
    assert_eq!(ask("c1"), (None, vec![4, 2]));
}

#[test]
fn a_fixed_window_of_three() {
    let timed = Timed::read(
        r#"
        [[policies]]
        name = "three"
        limit = "3/60s"
        algorithm = "fixed_window"
        headers = ["x-ratelimit-limit", "x-ratelimit-reset", "x-ratelimit-remaining"]
        "#,
    );
    let answers: Vec<(bool, u32, Option<String>)> = (0..5)
        .map(|_| {
            let decision = timed.check("three", &[("key", "a")]);
            let left = decision
                .headers()
                .get("x-ratelimit-remaining")
                .map(str::to_owned);
            (decision.allowed(), decision.remaining(), left)
        })
        .collect();
    let expected = [(true, 2), (true, 1), (true, 0), (false, 0), (false, 0)];
    let expected = expected.map(|(allowed, left)| (allowed, left, Some(left.to_string())));
    assert_eq!(answers, expected);
    assert_eq!(timed.at(MINUTE).admitted_of(5, "three", &[("key", "a")]), 3);
}

#[test]
fn fifteen_per_minute_and_three_at_once() {
    let timed = Timed::read(
        r#"
        [[policies]]
        name = "smooth"
        limit = "15/60s"
        burst = 3
        strict = true
        "#,
    );
    let key = [("key", "a")];
    assert_eq!(timed.admitted_of(20, "smooth", &key), 3);
    // A token each five seconds.
    assert!(!timed.at(5 * SECOND - 1).check("smooth", &key).allowed());
    assert!(timed.at(5 * SECOND).check("smooth", &key).allowed());
    let mut admitted = vec![0, 0, 0, 5 * SECOND];
    // Greedy for a while, then a pause, then greedy again.
    let instants = (51..2_000)
        .chain(2_700..4_000)
        .map(|tick| tick * SECOND / 10);
    for at in instants {
        let count = timed.at(at).admitted_of(3, "smooth", &key);
        admitted.extend(std::iter::repeat_n(at, count));
    }
    // With both ends of the minute, which a bucket's bound includes.
    assert_eq!(most_in_any(&admitted, MINUTE + 1), 15);
    assert!(most_in_any(&admitted, 1) <= 3);
}

#[test]
fn six_before_and_one_now_is_a_rate_of_six() {
    let timed = Timed::read(
        r#"
        [[policies]]
        name = "content"
        key = "{token}"
        limit = "10r/m"
        algorithm = "sliding_window"
        "#,
    );
    let token = [("token", "a")];
    assert_eq!(timed.admitted_of(6, "content", &token), 6);
    let decision = timed.at(MINUTE + 10 * SECOND).check("content", &token);
    assert!(decision.allowed());
    assert!((decision.rate() - 6.0).abs() < f64::EPSILON);
    assert_eq!(decision.remaining(), 4);
}

#[test]
fn hundred_logins_per_second_and_address() {
    let timed = Timed::read(
        r#"
        [[policies]]
        name = "login"
        key = "{ip}"
        limit = "100r/s"
        "#,
    );
    let ip = [("ip", "203.0.113.7")];
    assert_eq!(timed.admitted_of(150, "login", &ip), 100);
    assert_eq!(
        timed.admitted_of(150, "login", &[("ip", "203.0.113.8")]),
        100
    );
    assert_eq!(timed.at(10_000).admitted_of(10, "login", &ip), 1);
    assert_eq!(
        timed.at(SECOND + 10_000).admitted_of(150, "login", &ip),
        100
    );
}

#[test]
fn two_per_minute_and_four_requests_in_a_row() {
    for algorithm in [
        "token_bucket",
        "fixed_window",
        "sliding_window",
        "sliding_log",
    ] {
        let timed = Timed::read(&format!(
            r#"
            [[policies]]
            name = "slow"
            limit = "2r/m"
            algorithm = "{algorithm}"
            "#
        ));
        let answers: Vec<bool> = (0..4)
            .map(|index| {
                timed
                    .at(index * SECOND / 5)
                    .check("slow", &[("key", "a")])
                    .allowed()
            })
            .collect();
        assert_eq!(answers, [true, true, false, false], "{algorithm}");
    }
}

#[test]
fn methods_are_keys_of_their_own() {
    let timed = Timed::read(
        r#"
        [[policies]]
        name = "methods"
        key = "{method}:{path}"
        limit = "2r/m"
        "#,
    );
    for method in ["GET", "HEAD", "PUT", "get"] {
        for path in ["/", "/a", "/:a"] {
            let attributes = [("method", method), ("path", path)];
            assert_eq!(
                timed.admitted_of(4, "methods", &attributes),
                2,
                "{method} {path}"
            );
        }
    }
}
