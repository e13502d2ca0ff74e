//! Policies that only watch, are turned off, refuse everything, or count refusals.

use std::time::Duration;

use tidegate::{CheckError, Limit, Policy};

use super::{Timed, remaining};
use crate::support::{HOUR, MINUTE, SECOND, every_algorithm};

const KEY: [(&str, &str); 1] = [("key", "x")];

#[test]
fn a_policy_that_only_watches_counts_as_if_it_were_enforced() {
    for limit in every_algorithm(3, MINUTE) {
        let policy = |name: &str| {
            Policy::builder(name).level("a", "{key}", limit).level(
                "b",
                "",
                Limit::per_hour(5).fixed_window(),
            )
        };
        let timed = Timed::of([policy("enforced"), policy("watching").shadow(true)]);
        for step in 0..60 {
            timed.at(step * 7 * SECOND);
            let enforced = timed.check("enforced", &KEY);
            let watching = timed.check("watching", &KEY);
            assert!(watching.allowed(), "{limit}");
            assert_eq!(watching.would_deny(), !enforced.allowed(), "{limit} {step}");
            assert!(!enforced.would_deny());
            assert_eq!(watching.denied_by(), enforced.denied_by());
            assert_eq!(watching.retry_after(), enforced.retry_after());
            assert_eq!(watching.reset_after(), enforced.reset_after());
            assert_eq!(remaining(&watching), remaining(&enforced));
            assert_eq!(watching.receipt().is_some(), enforced.allowed());
        }
    }
}

#[test]
fn a_policy_that_only_watches_tells_what_would_have_been() {
    let timed = Timed::of([Policy::builder("p")
        .limit(Limit::per_minute(1).fixed_window())
        .shadow(true)]);
    let _ = timed.check("p", &KEY);
    let watched = timed.at(20 * SECOND).check("p", &KEY);
    assert!(watched.allowed() && watched.would_deny());
    assert_eq!(watched.denied_by(), Some("p"));
    assert_eq!(watched.retry_after(), Some(Duration::from_secs(40)));
    assert_eq!((watched.limit(), watched.remaining()), (1, 0));
}

#[test]
fn a_policy_that_is_turned_off_allows_everything_and_measures_nothing() {
    let timed = Timed::read(
        r#"
        [[policies]]
        name = "p"
        key = "{ip}"
        limit = "1r/m"
        enabled = false
        "#,
    );
    for _ in 0..10 {
        assert!(timed.check("p", &[("ip", "x")]).allowed());
    }
    // No attribute is missed, since none is used.
    let decision = timed.check_cost("p", &(), u32::MAX);
    assert_eq!((decision.allowed(), decision.would_deny()), (true, false));
    assert_eq!((decision.denied_by(), decision.levels().len()), (None, 0));
    assert_eq!(decision.retry_after(), Some(Duration::ZERO));
    assert!(timed.peek("p", &()).allowed());
    assert_eq!(timed.keys(), 0);
    // Nothing is counted, so there are no numbers to explain.
    let explained = timed
        .limiter
        .explain("p", &[("ip", "x")])
        .expect("good input");
    assert!(explained[0].numbers.is_none());
}

#[test]
fn a_policy_that_is_turned_off_and_on_again_remembers() {
    let policy = |enabled| {
        Policy::builder("p")
            .limit(Limit::per_hour(5).fixed_window())
            .enabled(enabled)
    };
    let timed = Timed::of([policy(true)]);
    let _ = timed.check_cost("p", &KEY, 4);
    let off = timed.changed([policy(false)]);
    assert_eq!(off.admitted_of(10, "p", &KEY), 10);
    let on = off.changed([policy(true)]);
    assert_eq!(on.admitted_of(10, "p", &KEY), 1);
}

#[test]
fn a_block_refuses_everything_for_ever() {
    let timed = Timed::read(
        r#"
        [[policies]]
        name = "p"
        block = true

        [[policies]]
        name = "levels"
        block = true
        [[policies.levels]]
        name = "a"
        limit = "5r/m"
        [[policies.levels]]
        name = "b"
        key = ""
        limit = "5r/m"
        "#,
    );
    for policy in ["p", "levels"] {
        for at in [0, HOUR] {
            let refused = timed.at(at).check(policy, &KEY);
            assert!(!refused.allowed());
            assert_eq!((refused.retry_after(), refused.limit()), (None, 0));
            assert_eq!((refused.remaining(), refused.receipt()), (0, None));
        }
    }
    assert_eq!(timed.check("levels", &KEY).denied_by(), Some("a"));
    assert_eq!(timed.keys(), 0);
    // It still says what it was not asked with.
    let error = timed.limiter.check("p", &(), tidegate::Cost::ONE);
    assert!(matches!(error, Err(CheckError::MissingAttribute(_))));
}

#[test]
fn count_denied_keeps_persistent_clients_out() {
    let policy = |count_denied| {
        Policy::builder("p")
            .level("a", "{key}", Limit::per_minute(10))
            .level("total", "", Limit::per_minute(1_000).fixed_window())
            .count_denied(count_denied)
    };
    for (count_denied, admitted) in [(false, 9), (true, 0)] {
        let timed = Timed::of([policy(count_denied)]);
        assert_eq!(timed.admitted_of(10, "p", &KEY), 10);
        // One request per second, for the rest of the minute.
        let later: usize = (1..60)
            .map(|second| timed.at(second * SECOND).admitted_of(1, "p", &KEY))
            .sum();
        assert_eq!(later, admitted, "{count_denied}");
        // Only the level that refuses is charged.
        let left = timed.remaining("p", &KEY)[1];
        assert_eq!(left as usize, 1_000 - 10 - admitted);
    }
}

#[test]
fn with_count_denied_a_peek_counts_nothing() {
    let timed = Timed::of([Policy::builder("p")
        .limit(Limit::per_minute(1))
        .count_denied(true)]);
    let _ = timed.check("p", &KEY);
    for _ in 0..10 {
        assert!(!timed.at(30 * SECOND).peek("p", &KEY).allowed());
    }
    assert!(timed.at(MINUTE).check("p", &KEY).allowed());
}
