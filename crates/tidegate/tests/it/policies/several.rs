//! Several policies on one request.

use tidegate::{CheckError, Cost, Decisions, Limit, Policy};

use super::Timed;
use crate::support::{HOUR, SECOND, every_algorithm};

const KEY: [(&str, &str); 1] = [("key", "x")];

fn policy(name: &str, limit: Limit) -> tidegate::PolicyBuilder {
    Policy::builder(name).limit(limit)
}

fn names<'d>(decisions: &'d Decisions<'_>) -> Vec<&'d str> {
    let decisions = decisions.as_slice().iter();
    decisions.map(|decision| decision.policy().name()).collect()
}

#[test]
fn they_are_asked_in_order_and_the_first_refusal_ends_it() {
    let timed = Timed::of([
        policy("a", Limit::per_hour(5)),
        policy("b", Limit::per_hour(1)),
        policy("c", Limit::per_hour(1)),
    ]);
    let ask = |order: &[&str]| {
        let decisions = timed.limiter.check_all(order, &KEY, Cost::ONE);
        decisions.expect("good input")
    };
    let all = ask(&["c", "a", "b"]);
    assert!(all.allowed() && all.refusal().is_none());
    assert_eq!(names(&all), ["c", "a", "b"]);
    let refused = ask(&["a", "b", "c"]);
    assert!(!refused.allowed());
    assert_eq!(names(&refused), ["a", "b"]);
    assert_eq!(refused.refusal().and_then(|it| it.denied_by()), Some("b"));
    assert_eq!(names(&ask(&["c", "b", "a"])), ["c"]);
    let none = ask(&[]);
    assert!(none.allowed() && none.as_slice().is_empty());
    assert_eq!(none.headers().iter().len(), 0);
}

#[test]
fn a_refusal_gives_back_what_the_policies_before_it_had_charged() {
    for first in every_algorithm(10, HOUR) {
        for second in every_algorithm(20, HOUR) {
            let timed = Timed::of([
                Policy::builder("first")
                    .level("a", "{key}", first)
                    .level("b", "", second),
                policy("second", second),
                policy("last", Limit::per_hour(3).sliding_log()),
            ]);
            let all = ["first", "second", "last"];
            let ask = |cost| {
                let decisions = timed.limiter.check_all(&all, &KEY, Cost::of(cost));
                decisions.expect("good input").allowed()
            };
            assert!(ask(2));
            timed.at(3 * SECOND);
            let left = || all.map(|name| timed.remaining(name, &KEY));
            let before = left();
            for _ in 0..20 {
                assert!(!ask(2), "{first}, {second}");
                assert_eq!(left(), before, "{first}, {second}");
            }
            assert!(ask(1));
        }
    }
}

#[test]
fn a_policy_that_is_asked_twice_is_charged_twice_or_not_at_all() {
    let timed = Timed::of([policy("p", Limit::per_hour(3).fixed_window())]);
    let ask = || {
        let decisions = timed.limiter.check_all(&["p", "p"], &KEY, Cost::ONE);
        decisions.expect("good input").allowed()
    };
    assert!(ask());
    assert_eq!(timed.remaining("p", &KEY), [1]);
    assert!(!ask());
    assert_eq!(timed.remaining("p", &KEY), [1]);
}

#[test]
fn bad_input_charges_nothing() {
    let timed = Timed::of([
        policy("p", Limit::per_hour(3)),
        Policy::builder("q").key("{ip}").limit(Limit::per_hour(3)),
    ]);
    let ask = |order: &[&str]| timed.limiter.check_all(order, &KEY, Cost::ONE).map(|_| ());
    assert!(matches!(
        ask(&["p", "q"]),
        Err(CheckError::MissingAttribute(_))
    ));
    assert_eq!(ask(&["p", "r"]), Err(CheckError::UnknownPolicy("r".into())));
    assert_eq!(timed.keys(), 0);
}

#[test]
fn a_policy_that_only_watches_or_is_turned_off_ends_nothing() {
    let timed = Timed::of([
        policy("watch", Limit::per_hour(1).fixed_window()).shadow(true),
        policy("off", Limit::per_hour(1)).key("{ip}").enabled(false),
        policy("last", Limit::per_hour(2).fixed_window()),
    ]);
    let ask = || {
        let order = ["watch", "off", "last"];
        let decisions = timed.limiter.check_all(&order, &KEY, Cost::ONE);
        decisions.expect("good input")
    };
    assert!(ask().allowed());
    let second = ask();
    assert!(second.allowed() && second.as_slice()[0].would_deny());
    let third = ask();
    assert_eq!(third.refusal().map(|it| it.policy().name()), Some("last"));
    // What it would have charged without the refusal it has not charged.
    timed.at(HOUR);
    assert!(ask().allowed());
    timed
        .limiter
        .reset("watch", &KEY, tidegate::Which::Only)
        .expect("one level");
    let _ = timed.check("last", &KEY);
    assert!(!ask().allowed());
    assert_eq!(timed.remaining("watch", &KEY), [1]);
}

#[test]
fn with_count_denied_only_the_policy_that_refuses_is_charged() {
    let timed = Timed::of([
        policy("before", Limit::per_hour(100).fixed_window()),
        policy("counts", Limit::per_hour(2)).count_denied(true),
    ]);
    let ask_at = |at| {
        let order = ["before", "counts"];
        let decisions = timed.at(at).limiter.check_all(&order, &KEY, Cost::ONE);
        decisions.expect("good input").allowed()
    };
    assert!(ask_at(0) && ask_at(0));
    // Half of a request comes back, and is spent on a refusal.
    assert!(!ask_at(HOUR / 4));
    assert!(!ask_at(HOUR / 2));
    assert_eq!(timed.remaining("before", &KEY), [98]);
}

#[test]
fn policies_of_different_stores_can_be_asked_together() {
    let clock = tidegate::ManualClock::at_us(crate::support::START);
    let store = || {
        tidegate::MemoryStore::builder()
            .max_keys(64)
            .clock(clock.clone())
            .build()
    };
    let policies = super::built([
        policy("here", Limit::per_hour(5).fixed_window()),
        policy("there", Limit::per_hour(1).fixed_window()).store("other"),
    ]);
    let stores = [("default", store()), ("other", store())];
    let limiter = tidegate::PolicyLimiter::with_stores(stores, policies).expect("both are there");
    let ask = || {
        let decisions = limiter.check_all(&["here", "there"], &KEY, Cost::ONE);
        decisions.expect("good input").allowed()
    };
    assert!(ask() && !ask());
    let left = limiter.peek("here", &KEY, Cost::ONE).expect("good input");
    assert_eq!(left.remaining(), 4);
    let keys: Vec<_> = limiter
        .stores()
        .map(|(name, store)| (name, store.stats().keys))
        .collect();
    assert_eq!(keys, [("default", 1), ("other", 1)]);
}

/// A refusal that has to write (here: of a limit that was lowered) voids receipts for
/// keys that lie near its own, one in about a thousand: not that of the policy before it.
#[test]
fn a_refusal_under_a_lowered_limit_gives_back_all_the_same() {
    let timed = Timed::of([
        policy("first", Limit::per_hour(100).fixed_window()),
        policy("last", Limit::per_hour(5).fixed_window()),
    ]);
    let keys: Vec<String> = (0..50).map(|number| number.to_string()).collect();
    for key in &keys {
        let spent = timed.limiter.check("last", &[("key", key)], Cost::of(5));
        assert!(spent.expect("good input").allowed());
    }
    let lowered = timed.limiter.changed([
        policy("first", Limit::per_hour(100).fixed_window())
            .build()
            .unwrap(),
        policy("last", Limit::per_hour(3).fixed_window())
            .build()
            .unwrap(),
    ]);
    let lowered = lowered.expect("few limits");
    let lost = keys.iter().filter(|key| {
        let key = [("key", key)];
        let refused = lowered.check_all(&["first", "last"], &key, Cost::ONE);
        assert!(!refused.expect("good input").allowed());
        let first = lowered.peek("first", &key, Cost::ONE);
        first.expect("good input").remaining() < 100
    });
    let lost = lost.count();
    assert!(lost <= 2, "{lost} of 50 were not given back");
}
