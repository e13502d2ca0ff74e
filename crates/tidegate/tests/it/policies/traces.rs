//! A policy decides as a bare store with the same levels does, and one that only watches
//! says the same and allows everything.

use std::time::Duration;

use proptest::prelude::*;
use tidegate::{
    Charge, Cost, Decision, Level, LevelDecision, Limit, MemoryStore, Policy, PolicyDecision,
};

use super::Timed;
use crate::properties::{config, limits, window_us};
use crate::support::{START, every_algorithm};

const TEMPLATES: [&str; 4] = ["", "{a}", "{a}:{b}", "{b}"];

/// (the level whose window to advance by, thousandths of it, cost, values of a and b)
type Ask = (usize, u64, u32, [u8; 2]);

fn asks() -> impl Strategy<Value = Vec<Ask>> {
    let ask = (0..4_usize, 0..800_u64, 1..5_u32, [0..3_u8, 0..3_u8]);
    prop::collection::vec(ask, 1..40)
}

fn some_levels() -> impl Strategy<Value = Vec<Limit>> {
    let limit = prop_oneof![
        9 => limits::any(),
        9 => (1..6_u32, 0..5_usize)
            .prop_map(|(requests, kind)| every_algorithm(requests, 60_000_000)[kind]),
        1 => Just(Limit::block()),
    ];
    prop::collection::vec(limit, 1..=4)
}

type Numbers = (u32, u32, u64, Option<Duration>, Duration);

fn numbers(level: &LevelDecision) -> Numbers {
    let rate = level.rate().to_bits();
    let (retry_after, reset_after) = (level.retry_after(), level.reset_after());
    (
        level.limit(),
        level.remaining(),
        rate,
        retry_after,
        reset_after,
    )
}

fn agree(policy: &PolicyDecision<'_>, bare: &Decision) -> Result<(), TestCaseError> {
    let levels: Vec<Numbers> = policy
        .levels()
        .map(|level| numbers(level.numbers()))
        .collect();
    let wanted: Vec<Numbers> = bare.levels().iter().map(numbers).collect();
    prop_assert_eq!(levels, wanted);
    let watches = policy.policy().name() == "watches";
    prop_assert_eq!(policy.allowed(), watches || bare.allowed());
    prop_assert_eq!(policy.would_deny(), watches && !bare.allowed());
    let denied_by = bare.denied_by().map(|index| format!("level-{index}"));
    prop_assert_eq!(policy.denied_by(), denied_by.as_deref());
    let top = (policy.limit(), policy.remaining(), policy.rate().to_bits());
    prop_assert_eq!(top, (bare.limit(), bare.remaining(), bare.rate().to_bits()));
    prop_assert_eq!(policy.retry_after(), bare.retry_after());
    prop_assert_eq!(policy.reset_after(), bare.reset_after());
    prop_assert_eq!(policy.decided_at_us(), bare.decided_at_us());
    prop_assert_eq!(policy.receipt().is_some(), bare.receipt().is_some());
    let reported = policy.reported().expect("there are levels");
    prop_assert_eq!(reported.numbers().remaining(), bare.remaining());
    Ok(())
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn a_policy_decides_as_a_bare_store_does(
        limits in some_levels(),
        asks in asks(),
        count_denied in any::<bool>(),
    ) {
        let policies = [("p", false), ("watches", true)].map(|(name, shadow)| {
            let policy = Policy::builder(name).count_denied(count_denied).shadow(shadow);
            let levels = limits.iter().enumerate();
            levels.fold(policy, |policy, (index, limit)| {
                policy.level(format!("level-{index}"), TEMPLATES[index], *limit)
            })
        });
        let timed = Timed::of(policies);
        let bare = MemoryStore::builder().max_keys(64).clock(timed.clock.clone()).build();
        let levels: Vec<Level> = limits
            .iter()
            .enumerate()
            .map(|(index, &limit)| bare.level(&index.to_string(), limit).expect("few limits"))
            .collect();
        let mut now_us = START;
        for (level, share, cost, [a, b]) in asks {
            now_us += window_us(&limits[level % limits.len()]) / 1_000 * share;
            timed.clock.set_us(now_us);
            let keys = [vec![], vec![a], vec![a, b], vec![b]];
            let checks: Vec<_> = levels
                .iter()
                .zip(&keys)
                .map(|(level, key)| level.check(key).cost(Cost::of(cost)))
                .collect();
            let attributes = [("a", [a]), ("b", [b])];
            let charge = if count_denied { Charge::Always } else { Charge::Admitted };
            let (limiter, cost) = (&timed.limiter, Cost::of(cost));
            let looked = bare.decide(&checks, Charge::Nothing);
            let decided = bare.decide(&checks, charge);
            for policy in ["p", "watches"] {
                agree(&limiter.peek(policy, &attributes, cost).expect("good input"), &looked)?;
                agree(&limiter.check(policy, &attributes, cost).expect("good input"), &decided)?;
            }
        }
    }
}
