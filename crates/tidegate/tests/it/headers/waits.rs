//! `Retry-After`: how long a client should wait.

use std::time::Duration;

use tidegate::{Cost, Dialect, Limit, Override, Policy};

use super::{Client, custom, item, login, sent, strings};
use crate::support::KEY;

/// A limit of one request, and the seconds to wait for the second one.
const WAITS: [(&str, &str); 9] = [
    ("1/1ms", "1"),
    ("1/999ms", "1"),
    ("1/1s", "1"),
    ("1/1001ms", "2"),
    ("1/1000001us", "2"),
    ("1r/m fixed_window", "60"),
    ("1/1500ms sliding_log", "2"),
    ("1/366d", "31622400"),
    ("2r/m burst=1 strict", "60"),
];

#[test]
fn p2_retry_after_is_rounded_up_and_at_least_1() {
    let dialects = [
        Dialect::Ietf,
        Dialect::Draft06,
        Dialect::XRateLimit,
        custom(["a", "b", "c"]),
    ];
    for (limit, wait) in WAITS {
        for dialect in dialects.clone() {
            let client = Client::new([login(limit).headers(dialect)]);
            assert_eq!(client.login(1).headers().get("Retry-After"), None);
            let refused = client.login(1);
            let headers = refused.headers();
            assert_eq!(headers.get("retry-after"), Some(wait), "{limit}");
            let last = sent(&headers).pop();
            assert_eq!(last.expect("a header").0, "Retry-After");
            // A client that waits that long is admitted.
            let seconds = wait.parse().expect("seconds");
            client.clock.advance(Duration::from_secs(seconds));
            assert!(client.login(1).allowed(), "{limit}");
        }
    }
}

#[test]
fn p2_t_is_at_least_1_even_of_a_full_quota() {
    for limit in ["100r/s", "3r/m fixed_window", "5/10s sliding_log"] {
        let client = Client::new([login(limit)]);
        let seen = client.limiter.peek("login", &[("key", KEY)], Cost::ONE);
        let seen = seen.expect("good input");
        assert_eq!(seen.reset_after(), Duration::ZERO);
        let state = strings(seen.headers().get("RateLimit").expect("its state"));
        let parameters = [("r", seen.limit().into()), ("t", 1)];
        assert_eq!(state, [item("login", &parameters)], "{limit}");
    }
}

#[test]
fn a_level_that_refuses_tells_its_wait_and_the_others_when_they_are_as_new() {
    let policy = Policy::builder("api")
        .level("second", "{key}", Limit::per_second(2))
        .level("minute", "{key}", Limit::per_minute(2).fixed_window())
        .level("hour", "{key}", Limit::per_hour(100).fixed_window());
    let client = Client::new([policy]);
    let ask = || {
        let decision = client.limiter.check("api", &[("key", KEY)], Cost::ONE);
        decision.expect("good input")
    };
    let _ = ask();
    let _ = ask();
    client.clock.advance(Duration::from_millis(400));
    let refused = ask();
    let headers = refused.headers();
    // The bucket waits 100 ms, and is as new after 600 ms; the window waits for 59.6 s,
    // the hour does not refuse.
    assert_eq!(
        strings(headers.get("RateLimit").expect("its state")),
        [
            item("api.second", &[("r", 0), ("t", 1)]),
            item("api.minute", &[("r", 0), ("t", 60)]),
            item("api.hour", &[("r", 98), ("t", 3_600)]),
        ]
    );
    assert_eq!(headers.get("Retry-After"), Some("60"));
    client.clock.advance(Duration::from_secs(3));
    assert_eq!(ask().headers().get("Retry-After"), Some("57"));
}

#[test]
fn a_bucket_that_refuses_tells_its_wait_and_not_when_it_is_full() {
    let client = Client::new([login("60r/m")]);
    let _ = client.login(60);
    let refused = client.login(1);
    let headers = refused.headers();
    let state = strings(headers.get("RateLimit").expect("its state"));
    assert_eq!(state, [item("login", &[("r", 0), ("t", 1)])]);
    assert_eq!(headers.get("Retry-After"), Some("1"));
    assert_eq!(refused.reset_after(), Duration::from_secs(60));
}

#[test]
fn where_waiting_never_helps_there_is_no_retry_after() {
    for limit in [
        "5r/m",
        "5r/m burst=3 strict",
        "5r/m burst=4",
        "5r/m fixed_window",
        "5r/m sliding_window",
        "5r/m sliding_log",
        "block",
    ] {
        for dialect in [Dialect::Ietf, Dialect::Draft06, Dialect::XRateLimit] {
            let client = Client::new([login(limit).headers(dialect)]);
            let refused = client.login(6);
            assert_eq!((refused.allowed(), refused.retry_after()), (false, None));
            assert_eq!(refused.headers().get("Retry-After"), None, "{limit}");
        }
    }
    // Nor where it helps one level and not the other.
    let policy = Policy::builder("api")
        .level("five", "{key}", Limit::per_minute(5))
        .level("ten", "{key}", Limit::per_minute(10).fixed_window());
    let client = Client::new([policy]);
    let ask = |cost| {
        let decision = client.limiter.check("api", &[("key", KEY)], Cost::of(cost));
        decision.expect("good input")
    };
    let _ = ask(5);
    let refused = ask(6);
    assert_eq!(refused.headers().get("Retry-After"), None);
    assert_eq!(refused.retry_after(), None);
}

#[test]
fn shadow_policy_sends_no_retry_after() {
    for dialect in [Dialect::Ietf, Dialect::Draft06, Dialect::XRateLimit] {
        let client = Client::new([login("1r/m").shadow(true).headers(dialect.clone())]);
        let _ = client.login(1);
        let watched = client.login(1);
        assert!(watched.allowed() && watched.would_deny());
        assert_eq!(watched.headers().get("Retry-After"), None);
        if dialect == Dialect::Ietf {
            let state = strings(watched.headers().get("RateLimit").expect("its state"));
            assert_eq!(state, [item("login", &[("r", 0), ("t", 60)])]);
        }
    }
}

#[test]
fn the_policy_that_refuses_says_how_long() {
    let policy = |name: &str, limit| Policy::builder(name).limit(limit);
    let client = Client::new([
        policy("watch", Limit::per_day(1)).shadow(true),
        policy("site", Limit::per_hour(100)),
        policy("login", Limit::per_minute(1)).headers(Dialect::XRateLimit),
        policy("never", Limit::per_second(1)),
    ]);
    let ask = || {
        let names = ["watch", "site", "login", "never"];
        let decisions = client.limiter.check_all(&names, &[("key", KEY)], Cost::ONE);
        sent(&decisions.expect("good input").headers())
    };
    assert!(ask().iter().all(|(name, _)| name != "Retry-After"));
    let headers = ask();
    let expected = [
        ("X-RateLimit-Limit", "1"),
        ("X-RateLimit-Remaining", "0"),
        ("X-RateLimit-Reset", "60"),
        ("Retry-After", "60"),
    ];
    let expected = expected.map(|(name, value)| (name.to_owned(), value.to_owned()));
    assert_eq!(headers[2..], expected);
    // Those that were not asked have no item.
    let names: Vec<String> = strings(&headers[0].1).into_iter().map(|it| it.0).collect();
    assert_eq!(names, ["watch", "site"]);
}

#[test]
fn headers_name_the_refusing_policy_even_if_another_has_less_left() {
    let policy = |name: &str, limit| Policy::builder(name).limit(limit);
    let client = Client::new([
        policy("small", Limit::per_hour(5)).headers(Dialect::XRateLimit),
        policy("large", Limit::per_minute(100).fixed_window()).headers(Dialect::XRateLimit),
    ]);
    let ask = |names: &[&str], cost| {
        let decisions = client
            .limiter
            .check_all(names, &[("key", KEY)], Cost::of(cost));
        sent(&decisions.expect("good input").headers())
    };
    ask(&["large"], 97);
    let expected = [
        ("X-RateLimit-Limit", "100"),
        ("X-RateLimit-Remaining", "3"),
        ("X-RateLimit-Reset", "60"),
        ("Retry-After", "60"),
    ];
    let expected = expected.map(|(name, value)| (name.to_owned(), value.to_owned()));
    assert_eq!(ask(&["small", "large"], 5), expected);
}

#[test]
fn an_exempt_level_has_no_item_and_the_others_keep_their_names() {
    let policy = Policy::builder("api")
        .level("total", "", Limit::per_minute(10))
        .level("each", "{key}", Limit::per_minute(1))
        .overrides(Override::of("key", KEY).level("each").exempt());
    let client = Client::new([policy]);
    let decision = client.limiter.check("api", &[("key", KEY)], Cost::ONE);
    let decision = decision.expect("good input");
    let state = strings(decision.headers().get("RateLimit").expect("its state"));
    assert_eq!(state, [item("api.total", &[("r", 9), ("t", 6)])]);
}
