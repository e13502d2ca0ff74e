//! What code can do to policies and a text cannot, and thousands of overrides.

use std::fmt::Write;

use tidegate::{Cost, Limit, PoliciesError, Policy, PolicyBuilder};

use super::{Timed, built, config};

const KEY: [(&str, &str); 1] = [("key", "x")];

fn hourly(name: &str, requests: u32) -> PolicyBuilder {
    Policy::builder(name).limit(Limit::per_hour(requests).fixed_window())
}

#[test]
fn a_change_that_cannot_be_made_changes_nothing() {
    let timed = Timed::of([hourly("p", 5)]);
    assert_eq!(timed.left("p", &KEY, 1), Some((4, 5)));
    let twice = built([hourly("p", 1), hourly("p", 2)]);
    let error = timed.limiter.changed(twice).expect_err("two of one name");
    assert_eq!(error, PoliciesError::Duplicate("p".into()));
    let elsewhere = built([hourly("p", 1).store("other")]);
    let error = timed.limiter.changed(elsewhere).expect_err("no such store");
    assert_eq!(
        error.to_string(),
        "policy \"p\": no store is named \"other\""
    );
    assert_eq!(timed.left("p", &KEY, 1), Some((3, 5)));
}

/// A refusal that has to write (here: of a limit that was lowered) voids receipts for
/// keys that lie near its own, one in about a thousand: not that of the policy before it.
#[test]
fn a_refusal_under_a_lowered_limit_gives_back_all_the_same() {
    let timed = Timed::of([hourly("first", 100), hourly("last", 5)]);
    let keys: Vec<String> = (0..50).map(|number| number.to_string()).collect();
    for key in &keys {
        assert!(timed.left("last", &[("key", key)], 5).is_some());
    }
    let lowered = built([hourly("first", 100), hourly("last", 3)]);
    let lowered = timed.limiter.changed(lowered).expect("few limits");
    let lost = keys.iter().filter(|key| {
        let key = [("key", key)];
        let refused = lowered.check_all(&["first", "last"], &key, Cost::ONE);
        assert!(!refused.expect("good input").allowed());
        let first = lowered.handle("first").expect("its name");
        let first = first.peek(&key, Cost::ONE).expect("good input");
        first.remaining() < 100
    });
    let lost = lost.count();
    assert!(lost <= 2, "{lost} of 50 were not given back");
}

#[test]
fn thousands_of_overrides_are_told_apart() {
    const COUNT: u32 = 5_000;
    let mut text = String::from("[[policies]]\nname = \"p\"\nlimit = \"1/1h\"\n");
    for number in 1..=COUNT {
        let limit = number + 1;
        let matched = format!("[[policies.overrides]]\nmatch = {{ key = \"user-{number}\" }}\n");
        writeln!(text, "{matched}limit = \"{limit}/1h\"").expect("text");
        if number % 1_000 == 0 {
            // One that comes too late.
            writeln!(text, "{matched}block = true").expect("text");
        }
    }
    let timed = Timed::with(config(&text).policies);
    for number in 0..=COUNT {
        let key = [("key", format!("user-{number}"))];
        assert_eq!(timed.left("p", &key, 1), Some((number, number + 1)));
    }
    assert_eq!(timed.keys(), COUNT as usize + 1);
}
