//! Many levels, one decision: all are charged or none is.
//!
//! The model has a limiter for each level, asks all of them, and only then charges
//! them one by one.

use std::time::Duration;

use proptest::prelude::*;
use tidegate::algorithm::Outcome;
use tidegate::{
    Charge, Cost, Decision, Level, LevelDecision, Limit, Limiter, ManualClock, MemoryStore,
};

use super::{config, limits, window_us};

/// The most a clock may show so that no wait passes the end of time.
const LATEST_US: u64 = 1_000_000_000_000_000;

/// (the level whose window to advance by, thousandths of it, costs, keys)
type Ask = (usize, u64, Vec<u32>, Vec<u8>);

fn asks() -> impl Strategy<Value = Vec<Ask>> {
    let costs = prop::collection::vec(1..5_u32, 4);
    let keys = prop::collection::vec(0..3_u8, 4);
    prop::collection::vec((0..4_usize, 0..500_u64, costs, keys), 1..40)
}

/// The limits of one to four levels.
pub(crate) fn levels() -> impl Strategy<Value = Vec<Limit>> {
    let limit = prop_oneof![
        9 => limits::any(),
        // Small ones refuse often.
        9 => (1..6_u32, 0..5_usize)
            .prop_map(|(requests, kind)| crate::support::every_algorithm(requests, 60_000_000)[kind]),
        1 => Just(Limit::block()),
    ];
    prop::collection::vec(limit, 1..=4)
}

struct Both {
    clock: ManualClock,
    store: MemoryStore,
    levels: Vec<Level>,
    models: Vec<Limiter>,
}

impl Both {
    fn new(limits: &[Limit], count_denied: bool) -> Self {
        let clock = ManualClock::at_us(0);
        let store = MemoryStore::builder()
            .max_keys(64)
            .clock(clock.clone())
            .build();
        let name = |index: usize| format!("level {index}");
        let levels = limits
            .iter()
            .enumerate()
            .map(|(index, &limit)| store.level(&name(index), limit).expect("a few"))
            .collect();
        let model = |&limit| {
            let builder = MemoryStore::builder().max_keys(64).clock(clock.clone());
            let limiter = Limiter::over(&builder.build(), limit).expect("one limit");
            limiter.count_denied(count_denied)
        };
        Self {
            store,
            levels,
            models: limits.iter().map(model).collect(),
            clock,
        }
    }

    fn pass(&self, level: usize, thousandths: u64) {
        let window_us = window_us(self.levels[level % self.levels.len()].limit());
        let now_us = self.store.now_us() + window_us / 1_000 * thousandths;
        if now_us < LATEST_US {
            self.clock.set_us(now_us);
        }
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn many_levels_decide_as_each_alone_would(
        limits in levels(),
        asks in asks(),
        count_denied in any::<bool>(),
    ) {
        decide_as_each_alone(&limits, &asks, count_denied)?;
    }
}

fn decide_as_each_alone(
    limits: &[Limit],
    asks: &[Ask],
    count_denied: bool,
) -> Result<(), TestCaseError> {
    let both = Both::new(limits, count_denied);
    let charge = if count_denied {
        Charge::Always
    } else {
        Charge::Admitted
    };
    for (step, (level, thousandths, costs, keys)) in asks.iter().enumerate() {
        both.pass(*level, *thousandths);
        let levels = both.levels.iter().zip(keys.chunks(1)).zip(costs);
        let checks = levels.map(|((level, key), &cost)| level.check(key).cost(Cost::of(cost)));
        let checks: Vec<_> = checks.collect();
        let models = both.models.iter().zip(keys).zip(costs);
        let models = models.map(|((model, key), &cost)| (model, [*key], Cost::of(cost)));
        let models: Vec<_> = models.collect();

        let peeks = models
            .iter()
            .map(|(model, key, cost)| model.peek(key, *cost));
        let peeks: Vec<Decision> = peeks.collect();
        let look = both.store.decide(&checks, Charge::Nothing);
        prop_assert_eq!(look.receipt(), None);
        agree(&look, &peeks)?;

        let refused = peeks.iter().any(|peek| !peek.allowed());
        let alone = models.iter().zip(peeks).map(|((model, key, cost), peek)| {
            let counts = !peek.allowed() && count_denied;
            match !refused || counts {
                true => model.check_cost(key, *cost),
                false => peek,
            }
        });
        let alone: Vec<Decision> = alone.collect();
        let decision = both.store.decide(&checks, charge);
        prop_assert_eq!(decision.receipt().is_some(), !refused);
        agree(&decision, &alone)?;

        if let Some(receipt) = decision.receipt().filter(|_| step % 3 == 0) {
            both.store.refund(&checks, &receipt);
            for ((model, key, _), alone) in models.iter().zip(&alone) {
                model.refund(key, &alone.receipt().expect("it was charged"));
            }
        }
    }
    Ok(())
}

/// Each level has the numbers of its own limiter, the first that refuses is named, and the
/// longest wait is told.
fn agree(decision: &Decision, alone: &[Decision]) -> Result<(), TestCaseError> {
    let numbers = |one: &Decision| one.levels()[0].outcome();
    let numbers: Vec<Outcome> = alone.iter().map(numbers).collect();
    let levels = decision.levels().iter().map(LevelDecision::outcome);
    prop_assert_eq!(levels.collect::<Vec<_>>(), numbers);
    let refused_by = alone.iter().position(|one| !one.allowed());
    prop_assert_eq!(decision.denied_by(), refused_by);
    let waits = alone.iter().map(Decision::retry_after);
    let waits: Option<Vec<Duration>> = waits.collect();
    let longest = waits.and_then(|waits| waits.into_iter().max());
    prop_assert_eq!(decision.retry_after(), longest);
    Ok(())
}

#[test]
fn a_key_that_occurs_twice_is_charged_both_costs() {
    let store = MemoryStore::builder()
        .max_keys(64)
        .clock(ManualClock::at_us(0))
        .build();
    for limit in crate::support::every_algorithm(10, 60_000_000) {
        let level = store.level(&limit.to_string(), limit).unwrap();
        let twice = |first, second| {
            let checks = [("a", first), ("a", second)]
                .map(|(key, cost)| level.check(key).cost(Cost::of(cost)));
            store.decide(&checks, Charge::Admitted)
        };
        assert_eq!(twice(2, 3).remaining(), 5, "{limit}");
        assert!(!twice(3, 3).allowed(), "{limit}");
        let decision = twice(3, 2);
        assert!(decision.allowed(), "{limit}");
        assert_eq!(decision.remaining(), 0, "{limit}");
        let receipt = decision.receipt().expect("it was charged");
        store.refund(&[level.check("a"), level.check("a")], &receipt);
        assert_eq!(twice(1, 1).remaining(), 3, "{limit}");
    }
}
