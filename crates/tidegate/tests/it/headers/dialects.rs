//! Every dialect, and the numbers in it.

use std::time::Duration;

use tidegate::{Cost, Dialect, Limit, Override, Policy};

use super::{Client, custom, integers, item, login, sent, strings};
use crate::support::KEY;

/// Of one request: the limit, `q` and `w`, `r` and `t`.
const LIMITS: [(&str, [i64; 2], [i64; 2]); 17] = [
    ("100r/s", [100, 1], [99, 1]),
    ("100r/s burst=20", [100, 1], [19, 1]),
    ("100r/s burst=2000", [100, 1], [1_999, 1]),
    ("15r/m burst=3 strict", [15, 60], [2, 5]),
    ("10r/m", [10, 60], [9, 6]),
    ("3r/m fixed_window", [3, 60], [2, 60]),
    ("3r/m fixed_window align=epoch", [3, 60], [2, 60]),
    ("3r/m sliding_window", [3, 60], [2, 120]),
    ("5/10s sliding_log", [5, 10], [4, 10]),
    ("3/500ms", [6, 1], [2, 1]),
    ("7/1500us", [14_000, 3], [6, 1]),
    ("5/1500ms fixed_window", [10, 3], [4, 2]),
    ("1/366d", [1, 31_622_400], [0, 31_622_400]),
    (
        "1000/366d sliding_window",
        [1_000, 31_622_400],
        // Windows began with 1970.
        [999, 2 * 31_622_400 - 1_700_000_040 % 31_622_400],
    ),
    ("4294967295/1ms", [4_294_967_295_000, 1], [4_294_967_294, 1]),
    // 4,294,967,295,000,000 in 1,001 seconds no structured field could say: the whole
    // requests of one second.
    (
        "4294967295/1001us",
        [4_290_676_618_381, 1],
        [4_294_967_294, 1],
    ),
    (
        "4294967295/31622399999999us fixed_window",
        [4_294_967_295, 31_622_400],
        [4_294_967_294, 31_622_400],
    ),
];

#[test]
fn ietf_says_the_quota_and_what_is_left_of_it() {
    for (limit, [q, w], [r, t]) in LIMITS {
        let client = Client::new([login(limit)]);
        let decision = client.login(1);
        let headers = decision.headers();
        let names: Vec<&str> = headers.iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["RateLimit-Policy", "RateLimit"], "{limit}");
        let policy = headers.get("ratelimit-policy").expect("any case will do");
        let expected = item("login", &[("q", q), ("w", w)]);
        assert_eq!(strings(policy), [expected], "{limit}");
        let state = headers.get("RATELIMIT").expect("any case will do");
        let expected = item("login", &[("r", r), ("t", t)]);
        assert_eq!(strings(state), [expected], "{limit}");
    }
}

#[test]
fn draft_06_says_the_same_in_four_headers() {
    for (limit, [q, w], [r, t]) in LIMITS {
        let client = Client::new([login(limit).headers(Dialect::Draft06)]);
        let decision = client.login(1);
        let headers = decision.headers();
        let policy = headers.get("RateLimit-Policy").expect("a policy");
        assert_eq!(
            integers(policy),
            [item(&q.to_string(), &[("w", w)])],
            "{limit}"
        );
        let expected = [
            ("RateLimit-Policy", policy.to_owned()),
            ("RateLimit-Limit", decision.limit().to_string()),
            ("RateLimit-Remaining", r.to_string()),
            ("RateLimit-Reset", t.to_string()),
        ];
        let expected = expected.map(|(name, value)| (name.to_owned(), value));
        assert_eq!(sent(&headers), expected, "{limit}");
    }
}

#[test]
fn x_ratelimit_and_names_of_ones_own_are_three_numbers() {
    let own = ["x-acme-limit", "X-Acme-Reset", "acme.left"];
    let dialects = [
        (
            Dialect::XRateLimit,
            [
                "X-RateLimit-Limit",
                "X-RateLimit-Reset",
                "X-RateLimit-Remaining",
            ],
        ),
        (custom(own), own),
    ];
    for (dialect, [limit_name, reset_name, remaining_name]) in dialects {
        for (limit, _, [r, t]) in LIMITS {
            let client = Client::new([login(limit).headers(dialect.clone())]);
            let decision = client.login(1);
            let expected = [
                (limit_name, decision.limit().to_string()),
                (remaining_name, r.to_string()),
                (reset_name, t.to_string()),
            ];
            let expected = expected.map(|(name, value)| (name.to_owned(), value));
            assert_eq!(sent(&decision.headers()), expected, "{limit}");
        }
    }
}

#[test]
fn none_says_nothing_not_even_of_a_refusal() {
    let client = Client::new([login("1r/m").headers(Dialect::None)]);
    assert_eq!(sent(&client.login(1).headers()), []);
    let refused = client.login(1);
    assert!(!refused.allowed());
    assert_eq!(sent(&refused.headers()), []);
}

#[test]
fn a_policy_that_measures_nothing_has_nothing_to_say() {
    let dialects = [
        Dialect::Ietf,
        Dialect::Draft06,
        Dialect::XRateLimit,
        custom(["a", "b", "c"]),
    ];
    for dialect in dialects {
        let disabled = login("1r/m").enabled(false).headers(dialect.clone());
        let exempt = login("1r/m").overrides(Override::of("key", KEY).exempt());
        for policy in [disabled, exempt.headers(dialect)] {
            let client = Client::new([policy]);
            assert_eq!(sent(&client.login(1).headers()), []);
        }
    }
}

#[test]
fn a_block_has_no_quota_no_window_and_no_end() {
    let blocked = |dialect| Client::new([login("block").headers(dialect)]);
    let client = blocked(Dialect::Ietf);
    let refused = client.login(1);
    let headers = refused.headers();
    assert_eq!(
        sent(&headers),
        [
            ("RateLimit-Policy".to_owned(), "\"login\";q=0".to_owned()),
            ("RateLimit".to_owned(), "\"login\";r=0".to_owned()),
        ]
    );
    strings(headers.get("RateLimit-Policy").expect("a policy"));
    strings(headers.get("RateLimit").expect("its state"));
    let client = blocked(Dialect::Draft06);
    let names: Vec<_> = sent(&client.login(1).headers());
    let expected = [
        ("RateLimit-Limit", "0"),
        ("RateLimit-Remaining", "0"),
        ("RateLimit-Reset", "0"),
    ];
    assert_eq!(
        names,
        expected.map(|(name, value)| (name.to_owned(), value.to_owned()))
    );
}

#[test]
fn headers_show_the_limit_of_the_override() {
    let vip = Override::of("key", KEY).limit(Limit::per_minute(1_000));
    let client = Client::new([login("5r/m").overrides(vip)]);
    let decision = client.login(1);
    let policy = strings(
        decision
            .headers()
            .get("RateLimit-Policy")
            .expect("a policy"),
    );
    assert_eq!(policy, [item("login", &[("q", 1_000), ("w", 60)])]);
    assert_eq!(decision.limit(), 1_000);
}

#[test]
fn of_several_levels_each_is_an_item_by_its_name() {
    let log = |requests| Limit::per(requests, Duration::from_secs(10)).sliding_log();
    let api = |dialect| {
        Policy::builder("api")
            .level("resource", "{resource}", log(5))
            .level("consumer", "{resource}:{consumer}", log(3))
            .headers(dialect)
    };
    let attributes = [("resource", "12"), ("consumer", "1")];
    let ask = |client: &Client| {
        let decision = client.limiter.check("api", &attributes, Cost::ONE);
        sent(&decision.expect("good input").headers())
    };
    let of = |headers: &[(String, String)], name: &str| {
        let found = headers.iter().find(|(other, _)| other == name);
        found.map(|(_, value)| value.clone()).expect("a header")
    };

    let client = Client::new([api(Dialect::Ietf)]);
    let headers = ask(&client);
    assert_eq!(
        strings(&of(&headers, "RateLimit-Policy")),
        [
            item("api.resource", &[("q", 5), ("w", 10)]),
            item("api.consumer", &[("q", 3), ("w", 10)]),
        ]
    );
    assert_eq!(
        strings(&of(&headers, "RateLimit")),
        [
            item("api.resource", &[("r", 4), ("t", 10)]),
            item("api.consumer", &[("r", 2), ("t", 10)]),
        ]
    );

    // Single numbers are those of the level with the least left.
    let client = Client::new([api(Dialect::Draft06)]);
    let headers = ask(&client);
    assert_eq!(
        integers(&of(&headers, "RateLimit-Policy")),
        [item("5", &[("w", 10)]), item("3", &[("w", 10)])]
    );
    assert_eq!(of(&headers, "RateLimit-Limit"), "3");
    assert_eq!(of(&headers, "RateLimit-Remaining"), "2");
}

#[test]
fn of_several_policies_lists_have_all_items_and_numbers_those_of_the_least_left() {
    let policy = |name: &str, limit, dialect| {
        let limit = Limit::parse(limit).expect("a limit");
        Policy::builder(name).limit(limit).headers(dialect)
    };
    let ask = |client: &Client, names: &[&str]| {
        let decisions = client.limiter.check_all(names, &[("key", KEY)], Cost::ONE);
        sent(&decisions.expect("good input").headers())
    };
    let client = Client::new([
        policy("site", "100r/m", Dialect::Ietf),
        policy("login", "10r/m", Dialect::Ietf),
    ]);
    let headers = ask(&client, &["site", "login"]);
    assert_eq!(
        strings(&headers[0].1),
        [
            item("site", &[("q", 100), ("w", 60)]),
            item("login", &[("q", 10), ("w", 60)]),
        ]
    );
    assert_eq!(
        strings(&headers[1].1),
        [
            item("site", &[("r", 99), ("t", 1)]),
            item("login", &[("r", 9), ("t", 6)]),
        ]
    );
    assert_eq!(headers.len(), 2);

    let client = Client::new([
        policy("site", "100r/m", Dialect::XRateLimit),
        policy("login", "10r/m", Dialect::XRateLimit),
        policy("quiet", "3r/m", Dialect::None),
        policy("new", "2r/m", Dialect::Ietf),
    ]);
    let expected = |limit: &str, remaining: &str, reset: &str| {
        [
            ("X-RateLimit-Limit", limit),
            ("X-RateLimit-Remaining", remaining),
            ("X-RateLimit-Reset", reset),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
    };
    assert_eq!(
        ask(&client, &["site", "login"]),
        expected("10", "9", "6"),
        "the least left"
    );
    // A policy that says nothing, or says it in lists, does not silence another.
    assert_eq!(ask(&client, &["site", "quiet"]), expected("100", "98", "2"));
    let headers = ask(&client, &["site", "new"]);
    assert_eq!(headers[2..], expected("100", "97", "2"));
    assert_eq!(headers[0].0, "RateLimit-Policy");
}
