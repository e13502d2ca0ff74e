//! Refunds, resets, looks, explanations, and what cannot be asked.

use std::time::Duration;

use tidegate::{CheckError, Cost, Limit, Policy, PolicyBuilder, Which};

use super::{Timed, remaining};
use crate::support::{HOUR, MINUTE, SECOND, every_algorithm};

const KEY: [(&str, &str); 1] = [("key", "x")];
const ASKED: [(&str, &str); 2] = [("resource", "r"), ("consumer", "c")];

fn api(resource: Limit, consumer: Limit) -> PolicyBuilder {
    Policy::builder("api")
        .level("resource", "{resource}", resource)
        .level("consumer", "{resource}:{consumer}", consumer)
}

#[test]
fn a_refund_gives_back_what_every_level_was_charged() {
    for resource in every_algorithm(20, HOUR) {
        for consumer in every_algorithm(10, HOUR) {
            let timed = Timed::of([api(resource, consumer)]);
            let _ = timed.check_cost("api", &ASKED, 3);
            let receipt = timed.check_cost("api", &ASKED, 4).receipt();
            let receipt = receipt.expect("it was charged");
            assert_eq!(timed.remaining("api", &ASKED), [13, 3]);
            timed
                .limiter
                .refund("api", &ASKED, &receipt)
                .expect("good input");
            assert_eq!(
                timed.remaining("api", &ASKED),
                [17, 7],
                "{resource}, {consumer}"
            );
        }
    }
}

#[test]
fn only_what_was_charged_has_a_receipt() {
    let timed = Timed::of([
        Policy::builder("p").limit(Limit::per_hour(1)),
        Policy::builder("off")
            .limit(Limit::per_hour(1))
            .enabled(false),
    ]);
    assert_eq!(timed.peek("p", &KEY).receipt(), None);
    assert!(timed.check("p", &KEY).receipt().is_some());
    assert_eq!(timed.check("p", &KEY).receipt(), None);
    assert_eq!(timed.check("off", &KEY).receipt(), None);
}

#[test]
fn a_look_charges_nothing_and_sees_what_a_check_would() {
    for limit in every_algorithm(3, MINUTE) {
        let timed = Timed::of([api(limit, Limit::per_minute(2))]);
        for step in 0..30 {
            timed.at(step * 5 * SECOND);
            let looks: Vec<_> = (0..3).map(|_| timed.peek("api", &ASKED)).collect();
            assert_eq!(looks[0], looks[2]);
            let check = timed.check("api", &ASKED);
            assert_eq!(looks[0].allowed(), check.allowed(), "{limit} {step}");
            assert_eq!(looks[0].denied_by(), check.denied_by());
            assert_eq!(looks[0].retry_after(), check.retry_after());
        }
        let timed = Timed::of([api(limit, limit)]);
        let _ = timed.peek("api", &ASKED);
        assert_eq!(timed.keys(), 0);
    }
}

#[test]
fn a_reset_forgets_the_levels_it_names_and_no_other() {
    for limit in every_algorithm(5, HOUR) {
        let timed = Timed::of([api(limit, limit), Policy::builder("p").limit(limit)]);
        let reset = |which| timed.limiter.reset("api", &ASKED, which);
        let other = [("resource", "r"), ("consumer", "d")];
        let fill = || {
            let _ = timed.check_cost("api", &ASKED, 2);
            let _ = timed.check_cost("api", &other, 1);
        };
        fill();
        assert_eq!(reset(Which::Level("consumer")), Ok(1));
        // The resource is other people's, too.
        assert_eq!(timed.remaining("api", &ASKED), [2, 5], "{limit}");
        assert_eq!(timed.remaining("api", &other), [2, 4], "{limit}");
        assert_eq!(reset(Which::Level("consumer")), Ok(0));
        assert_eq!(reset(Which::Level("resource")), Ok(1));
        assert_eq!(timed.remaining("api", &other), [5, 4], "{limit}");
        fill();
        assert_eq!(reset(Which::All), Ok(2));
        assert_eq!(timed.remaining("api", &ASKED), [5, 5], "{limit}");
        assert_eq!(timed.remaining("api", &other), [5, 3], "{limit}");

        let _ = timed.check("p", &KEY);
        assert_eq!(timed.limiter.reset("p", &KEY, Which::Only), Ok(1));
        let _ = timed.check("p", &KEY);
        assert_eq!(timed.limiter.reset("p", &KEY, Which::Level("p")), Ok(1));
        let _ = timed.check("p", &KEY);
        assert_eq!(timed.limiter.reset("p", &KEY, Which::All), Ok(1));
        assert_eq!(timed.limiter.reset("p", &KEY, Which::All), Ok(0));
    }
}

#[test]
fn a_reset_must_say_which_level_it_means() {
    let timed = Timed::of([api(Limit::per_hour(5), Limit::per_hour(5))]);
    let _ = timed.check("api", &ASKED);
    let message = |attributes: &[(&str, &str)], which| {
        let error = timed.limiter.reset("api", attributes, which);
        error.expect_err("it cannot be meant").to_string()
    };
    assert_eq!(
        message(&ASKED, Which::Only),
        "policy \"api\" has several levels: expected one of resource, consumer, or all"
    );
    assert_eq!(
        message(&ASKED, Which::Level("total")),
        "policy \"api\" has no level named \"total\": expected one of resource, consumer"
    );
    // A level needs only the attributes of its own key; all need all, before any is gone.
    let resource = [("resource", "r")];
    assert!(message(&resource, Which::All).contains("\"consumer\" is missing"));
    assert!(message(&resource, Which::Level("consumer")).contains("\"consumer\" is missing"));
    assert_eq!(timed.keys(), 2);
    assert_eq!(
        timed
            .limiter
            .reset("api", &resource, Which::Level("resource")),
        Ok(1)
    );
}

#[test]
fn an_explanation_has_every_levels_settings_and_numbers() {
    let timed = Timed::of([api(
        Limit::per_minute(5).sliding_log(),
        Limit::per_minute(3).fixed_window(),
    )]);
    let odd = [("resource", "a/b"), ("consumer", "")];
    let _ = timed.check_cost("api", &odd, 2);
    for _ in 0..2 {
        let explained = timed.limiter.explain("api", &odd).expect("good input");
        let levels: Vec<_> = explained
            .iter()
            .map(|one| {
                let numbers = one.numbers.expect("it counts");
                let limit = one.limit.expect("it counts").to_string();
                (
                    one.level.name(),
                    &*one.key,
                    limit,
                    numbers.remaining(),
                    numbers.reset_after(),
                )
            })
            .collect();
        let minute = Duration::from_secs(60);
        assert_eq!(
            levels,
            [
                (
                    "resource",
                    "a%2Fb",
                    "5r/m sliding_log".to_owned(),
                    3,
                    minute
                ),
                (
                    "consumer",
                    "a%2Fb:%",
                    "3r/m fixed_window".to_owned(),
                    1,
                    minute
                ),
            ]
        );
        assert!(explained.iter().all(|one| one.overridden_by.is_none()));
    }
}

#[test]
fn an_unknown_policy_is_named_in_one_short_line() {
    let timed = Timed::of([api(Limit::per_hour(5), Limit::per_hour(5))]);
    let long = "x".repeat(1 << 16);
    for (name, expected) in [
        ("login", "no policy named \"login\"".to_owned()),
        ("", "no policy named \"\"".to_owned()),
        ("API", "no policy named \"API\"".to_owned()),
        (
            "a\n\"b\0\u{1b}[31m",
            r#"no policy named "a\n\"b\0\u{1b}[31m""#.to_owned(),
        ),
        (&long, format!("no policy named \"{}…\"", "x".repeat(64))),
    ] {
        let errors = [
            timed.limiter.check(name, &ASKED, Cost::ONE).map(|_| ()),
            timed.limiter.peek(name, &ASKED, Cost::ONE).map(|_| ()),
            timed
                .limiter
                .check_all(&["api", name], &ASKED, Cost::ONE)
                .map(|_| ()),
            timed.limiter.reset(name, &ASKED, Which::All).map(|_| ()),
            timed.limiter.explain(name, &ASKED).map(|_| ()),
        ];
        for error in errors {
            let error = error.expect_err("no such policy");
            assert!(matches!(error, CheckError::UnknownPolicy(_)));
            assert_eq!(error.to_string(), expected);
        }
    }
    assert_eq!(timed.keys(), 0);
    let level = timed.limiter.reset("api", &ASKED, Which::Level(&long));
    assert!(level.expect_err("no such level").to_string().len() < 200);
}

#[test]
fn a_missing_attribute_is_named_and_charges_nothing() {
    let timed = Timed::of([api(Limit::per_hour(5), Limit::per_hour(5))]);
    for (attributes, missing) in [
        (vec![], "resource"),
        (vec![("resource", "r")], "consumer"),
        (vec![("consumer", "c")], "resource"),
        (vec![("Resource", "r"), ("consumer", "c")], "resource"),
    ] {
        let error = timed.limiter.check("api", &attributes, Cost::ONE);
        let error = error.expect_err("an attribute is missing");
        assert_eq!(
            error.to_string(),
            format!(
                "the attribute \"{missing}\" is missing: policy \"api\" expects resource, consumer"
            )
        );
        let CheckError::MissingAttribute(error) = error else {
            panic!("{error}");
        };
        assert_eq!(error.attribute(), missing);
    }
    assert_eq!(timed.keys(), 0);
    // What no key is made of does not matter.
    let more = [
        ("resource", "r"),
        ("other", "o"),
        ("consumer", "c"),
        ("resource", "s"),
    ];
    assert_eq!(remaining(&timed.check("api", &more)), [4, 4]);
    assert_eq!(timed.remaining("api", &ASKED), [4, 4]);
}
