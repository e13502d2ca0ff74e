//! Policies that change while keys live.

use tidegate::{Limit, PoliciesError, Policy, PolicyLimiter};

use super::{Timed, built, config};
use crate::support::{HOUR, MINUTE, every_algorithm};

const KEY: [(&str, &str); 1] = [("key", "x")];

fn policy(limit: Limit) -> tidegate::PolicyBuilder {
    Policy::builder("p").limit(limit)
}

#[test]
fn used_stays_used() {
    for before in every_algorithm(10, HOUR) {
        for requests in [8, 20, 1_000] {
            let kinds = every_algorithm(10, HOUR)
                .into_iter()
                .zip(every_algorithm(requests, HOUR));
            let (_, after) = kinds
                .into_iter()
                .find(|(kind, _)| *kind == before)
                .expect("it is one");
            let timed = Timed::of([policy(before)]);
            let _ = timed.check_cost("p", &KEY, 6);
            let timed = timed.changed([policy(after)]);
            let seen = timed.peek("p", &KEY);
            assert_eq!(
                (seen.limit(), seen.remaining()),
                (requests, requests - 6),
                "{after}"
            );
            assert_eq!(
                timed.admitted_of(2_000, "p", &KEY),
                requests as usize - 6,
                "{after}"
            );
        }
    }
}

#[test]
fn lowering_5_to_3_with_5_used_refuses() {
    for (before, after) in every_algorithm(5, MINUTE)
        .into_iter()
        .zip(every_algorithm(3, MINUTE))
    {
        let timed = Timed::of([policy(before)]);
        assert_eq!(timed.admitted_of(9, "p", &KEY), 5);
        let timed = timed.changed([policy(after)]);
        assert_eq!(timed.admitted_of(1_000, "p", &KEY), 0, "{after}");
        let reset = timed.peek("p", &KEY).reset_after();
        timed.clock.advance(reset);
        assert_eq!(timed.admitted_of(1_000, "p", &KEY), 3, "{after}");
    }
}

#[test]
fn a_policy_that_was_gone_for_a_while_goes_on() {
    let timed = Timed::of([policy(Limit::per_hour(5).fixed_window())]);
    let _ = timed.check_cost("p", &KEY, 4);
    let without = timed.changed([Policy::builder("q").limit(Limit::per_hour(1))]);
    assert!(without.check("q", &KEY).allowed());
    let again = without.changed([policy(Limit::per_hour(5).fixed_window())]);
    assert_eq!(again.remaining("p", &KEY), [1]);
}

#[test]
fn receipts_survive_a_change_that_leaves_their_limit_alone() {
    let limit = Limit::per_hour(5).fixed_window();
    let timed = Timed::of([policy(limit)]);
    let receipts = [(); 2].map(|()| timed.check("p", &KEY).receipt().expect("it was charged"));
    let same = timed.changed([policy(limit)]);
    let refund = |timed: &Timed, receipt| {
        let refund = timed.limiter.refund("p", &KEY, receipt);
        refund.expect("good input")
    };
    assert!(refund(&same, &receipts[0]));
    assert_eq!(same.remaining("p", &KEY), [4]);
    // Under another limit, nobody knows what the charge is worth.
    let other = same.changed([policy(Limit::per_hour(6).fixed_window())]);
    refund(&other, &receipts[1]);
    assert_eq!(other.remaining("p", &KEY), [5]);
}

#[test]
fn a_change_that_cannot_be_made_changes_nothing() {
    let timed = Timed::of([policy(Limit::per_hour(5).fixed_window())]);
    let receipt = timed.check("p", &KEY).receipt().expect("it was charged");
    let twice = built([policy(Limit::per_hour(1)), policy(Limit::per_hour(2))]);
    let error = timed.limiter.changed(twice).expect_err("two of one name");
    assert_eq!(error, PoliciesError::Duplicate("p".into()));
    let elsewhere = built([policy(Limit::per_hour(1)).store("other")]);
    let error = timed.limiter.changed(elsewhere).expect_err("no such store");
    assert_eq!(
        error.to_string(),
        "policy \"p\": no store is named \"other\""
    );
    timed
        .limiter
        .refund("p", &KEY, &receipt)
        .expect("good input");
    assert_eq!(timed.remaining("p", &KEY), [5]);
}

const FILE: &str = r#"
    [stores.default]
    max_keys = 1000000

    [[policies]]
    name = "p"
    limit = "5/1h"
    algorithm = "fixed_window"
"#;

#[test]
fn another_config_goes_on_with_the_counts_of_this_one() {
    let timed = Timed::read(FILE);
    let receipt = timed
        .check_cost("p", &KEY, 5)
        .receipt()
        .expect("it was charged");
    let lower = config(&FILE.replace("5/1h", "3/1h"));
    let limiter = lower.limiter_after(&timed.limiter).expect("few limits");
    let lowered = Timed {
        clock: timed.clock.clone(),
        limiter,
    };
    assert_eq!(lowered.admitted_of(10, "p", &KEY), 0);
    lowered
        .limiter
        .refund("p", &KEY, &receipt)
        .expect("good input");
    assert_eq!(lowered.remaining("p", &KEY), [0]);
    assert_eq!(lowered.at(HOUR).admitted_of(10, "p", &KEY), 3);
}

#[test]
fn a_store_grows_in_place() {
    let limiter = config(FILE).limiter().expect("few limits");
    let allowed = |limiter: &PolicyLimiter| {
        let decision = limiter.check("p", &KEY, tidegate::Cost::of(5));
        decision.expect("good input").allowed()
    };
    assert!(allowed(&limiter) && !allowed(&limiter));
    let same = config(FILE).limiter_after(&limiter).expect("few limits");
    assert!(!allowed(&same));
    let larger = config(&FILE.replace("1000000", "2000000"));
    let other = larger.limiter_after(&same).expect("few limits");
    assert!(!allowed(&other));
    let bounds: Vec<_> = other.stores().map(|(_, store)| store.bounds()).collect();
    assert_eq!(bounds[0].0, 2_000_000);
}
