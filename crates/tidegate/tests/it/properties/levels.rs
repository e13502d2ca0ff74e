//! Many levels, one decision: all are charged or none is.
//!
//! The model has a limiter for each level, asks all of them, and only then charges
//! them one by one.

use std::time::Duration;

use proptest::prelude::*;
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

fn levels() -> impl Strategy<Value = Vec<Limit>> {
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
            let builder = Limiter::builder(limit).max_keys(64).clock(clock.clone());
            builder.count_denied(count_denied).build()
        };
        Self {
            store,
            levels,
            models: limits.iter().map(model).collect(),
            clock,
        }
    }

    fn decide(&self, (level, share, costs, keys): &Ask, charge: Charge) -> Decision {
        let window_us = window_us(self.levels[level % self.levels.len()].limit());
        let clock = tidegate::Clock::now_us(&self.clock);
        let now_us = clock + window_us / 1_000 * share;
        self.clock
            .set_us(if now_us < LATEST_US { now_us } else { clock });
        let checks: Vec<_> = self
            .levels
            .iter()
            .zip(keys.chunks(1))
            .zip(costs)
            .map(|((level, key), &cost)| level.check(key).cost(Cost::of(cost)))
            .collect();
        self.store.decide(&checks, charge)
    }
}

type Numbers = (u32, u32, u64, Option<Duration>, Duration);

fn numbers(level: &LevelDecision) -> Numbers {
    let rate = level.rate().to_bits();
    (
        level.limit(),
        level.remaining(),
        rate,
        level.retry_after(),
        level.reset_after(),
    )
}

fn agrees(limits: &[Limit], asks: &[Ask], charge: Charge) -> Result<(), TestCaseError> {
    let both = Both::new(limits, charge == Charge::Always);
    for ask in asks {
        let decision = both.decide(ask, charge);
        let model = |index: usize| (&both.models[index], [ask.3[index]], Cost::of(ask.2[index]));
        let peeks: Vec<Decision> = (0..limits.len())
            .map(model)
            .map(|(model, key, cost)| model.peek(key, cost))
            .collect();
        let refused_by = peeks.iter().position(|peek| !peek.allowed());
        prop_assert_eq!(decision.denied_by(), refused_by);
        prop_assert_eq!(decision.receipt().is_some(), refused_by.is_none());

        let wanted: Vec<Decision> = (0..limits.len())
            .zip(peeks)
            .map(|(index, peek)| {
                let counts = !peek.allowed() && charge == Charge::Always;
                let (model, key, cost) = model(index);
                if refused_by.is_none() || counts {
                    model.check_cost(key, cost)
                } else {
                    peek
                }
            })
            .collect();
        let got: Vec<Numbers> = decision.levels().iter().map(numbers).collect();
        let numbers: Vec<Numbers> = wanted.iter().map(|one| numbers(&one.levels()[0])).collect();
        prop_assert_eq!(got, numbers);
        let longest = wanted
            .iter()
            .map(Decision::retry_after)
            .collect::<Option<Vec<_>>>();
        prop_assert_eq!(
            decision.retry_after(),
            longest.and_then(|waits| waits.into_iter().max())
        );
    }
    Ok(())
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn a_refused_check_charges_nothing(limits in levels(), asks in asks()) {
        agrees(&limits, &asks, Charge::Admitted)?;
    }

    #[test]
    fn with_count_denied_only_the_refusing_levels_are_charged(limits in levels(), asks in asks()) {
        agrees(&limits, &asks, Charge::Always)?;
    }

    #[test]
    fn a_peek_of_many_levels_charges_nothing(limits in levels(), asks in asks()) {
        let both = Both::new(&limits, false);
        for ask in &asks {
            let decision = both.decide(ask, Charge::Nothing);
            prop_assert_eq!(decision.receipt(), None);
            for (level, limit) in decision.levels().iter().zip(&limits) {
                prop_assert!(level.remaining() == level.limit(), "{}", limit);
            }
        }
        prop_assert_eq!(both.store.stats().keys, 0);
    }

    #[test]
    fn a_refund_of_many_levels_undoes_all(limits in levels(), asks in asks()) {
        let both = Both::new(&limits, false);
        for (index, ask) in asks.iter().enumerate() {
            let still = (ask.0, 0, ask.2.clone(), ask.3.clone());
            let before = both.decide(ask, Charge::Nothing);
            let decision = both.decide(&still, Charge::Admitted);
            if let Some(receipt) = decision.receipt().filter(|_| index % 2 == 0) {
                let levels = both.levels.iter().zip(ask.3.chunks(1));
                let checks: Vec<_> = levels.map(|(level, key)| level.check(key)).collect();
                both.store.refund(&checks, &receipt);
                let after = both.decide(&still, Charge::Nothing);
                let numbers = |one: &Decision| one.levels().iter().map(numbers).collect::<Vec<_>>();
                prop_assert_eq!(numbers(&after), numbers(&before));
            }
        }
    }
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
        assert_eq!(
            (decision.allowed(), decision.remaining()),
            (true, 0),
            "{limit}"
        );
        let receipt = decision.receipt().expect("it was charged");
        store.refund(&[level.check("a"), level.check("a")], &receipt);
        assert_eq!(twice(1, 1).remaining(), 3, "{limit}");
    }
}
