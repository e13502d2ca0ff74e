//! A policy decides as a bare store with the same levels does, and threads get exactly
//! what there is.

use std::thread;
use std::time::Duration;

use proptest::prelude::*;
use tidegate::{
    Charge, Cost, Decision, Level, LevelDecision, Limit, ManualClock, MemoryStore, Policy,
    PolicyDecision,
};

use super::Timed;
use crate::properties::{config, limits, window_us};
use crate::support::{HOUR, START, every_algorithm};

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
    prop_assert_eq!(policy.allowed(), bare.allowed());
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
        let mut policy = Policy::builder("p").count_denied(count_denied);
        for (index, limit) in limits.iter().enumerate() {
            policy = policy.level(format!("level-{index}"), TEMPLATES[index], *limit);
        }
        let timed = Timed::of([policy]);
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
            let look = timed.limiter.peek("p", &attributes, Cost::of(cost)).expect("good input");
            agree(&look, &bare.decide(&checks, Charge::Nothing))?;
            let charge = if count_denied { Charge::Always } else { Charge::Admitted };
            agree(&timed.check_cost("p", &attributes, cost), &bare.decide(&checks, charge))?;
        }
    }
}

/// How many requests eight threads get through, each asking as often as this.
fn admitted(policy: Policy, each: usize, consumer: impl Fn(usize) -> String + Sync) -> usize {
    let store = MemoryStore::builder()
        .clock(ManualClock::at_us(START))
        .build();
    let limiter = tidegate::PolicyLimiter::with_stores([("default", store)], [policy]);
    let limiter = limiter.expect("one policy");
    thread::scope(|scope| {
        let threads: Vec<_> = (0..8)
            .map(|number| {
                let (limiter, consumer) = (&limiter, consumer(number));
                scope.spawn(move || {
                    let attributes = [("resource", "r"), ("consumer", consumer.as_str())];
                    let ask = |_: &usize| {
                        let decision = limiter.check("api", &attributes, Cost::ONE);
                        decision.expect("good input").allowed()
                    };
                    (0..each).filter(ask).count()
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().expect("no panic"))
            .sum()
    })
}

#[test]
fn eight_threads_get_exactly_the_limit() {
    for (resource, consumer) in every_algorithm(2_000, HOUR)
        .into_iter()
        .zip(every_algorithm(300, HOUR))
    {
        let api = |resource, consumer| {
            Policy::builder("api")
                .level("resource", "{resource}", resource)
                .level("consumer", "{resource}:{consumer}", consumer)
                .build()
                .expect("right")
        };
        // Everyone for himself: what the resource has. All as one: what he has.
        let own = |number: usize| format!("consumer {number}");
        assert_eq!(
            admitted(api(resource, consumer), 400, own),
            2_000,
            "{resource}"
        );
        let same = |_| "consumer".to_owned();
        assert_eq!(
            admitted(api(resource, consumer), 400, same),
            300,
            "{consumer}"
        );
        let wide = Limit::per_hour(1_000_000).fixed_window();
        assert_eq!(admitted(api(wide, consumer), 400, own), 2_400, "{consumer}");
    }
}
