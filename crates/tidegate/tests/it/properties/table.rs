//! The table forgets only what is as good as forgotten, and keeps keys apart.

use std::collections::HashMap;

use proptest::prelude::*;
use tidegate::{Cost, Decision, Limit, Limiter, ManualClock, MemoryStore, WhenFull};

use super::{Case, Run, config, for_each_algorithm, limits, window_us};
use crate::support::KEY;

for_each_algorithm!(refilled_key_that_was_dropped_behaves_as_if_it_had_stayed);

fn refilled_key_that_was_dropped_behaves_as_if_it_had_stayed(
    case: &Case,
) -> Result<(), TestCaseError> {
    let mut kept = Run::new(case);
    let mut dropped = Run::with(case, |builder| builder.max_keys(2));
    let mut others = 0_u32;
    for step in &case.steps {
        kept.advance(step.advance);
        dropped.set(kept.now_us);
        if kept.peek(1).reset_after().is_zero() {
            if step.extra % 2 == 0 {
                dropped.limiter.reset(KEY);
            } else {
                for _ in 0..5 {
                    others += 1;
                    let _ = dropped.limiter.check(others.to_le_bytes());
                }
            }
        }
        let cost = kept.cost(step.take);
        prop_assert_eq!(dropped.check(cost), kept.check(cost));
    }
    Ok(())
}

/// (key, thousandths of the window that pass first, cost)
type Ask = (u8, u64, u32);

fn asks() -> impl Strategy<Value = Vec<Ask>> {
    let share = prop_oneof![3 => Just(0), 2 => 0..50_u64, 1 => 0..1_500_u64];
    prop::collection::vec((0..40_u8, share, 1..4_u32), 1..100)
}

/// A crowded table, and a table for each key.
struct Crowd {
    clock: ManualClock,
    limit: Limit,
    table: Limiter,
    alone: HashMap<u8, Limiter>,
}

impl Crowd {
    fn new(limit: Limit, max_keys: usize, when_full: WhenFull) -> Self {
        let clock = ManualClock::at_us(0);
        let builder = MemoryStore::builder().clock(clock.clone());
        let store = builder.max_keys(max_keys).when_full(when_full).build();
        let table = Limiter::over(&store, limit).expect("one limit");
        Self {
            clock,
            limit,
            table,
            alone: HashMap::new(),
        }
    }

    fn alone(&mut self, key: u8) -> &Limiter {
        self.alone.entry(key).or_insert_with(|| {
            let builder = MemoryStore::builder().max_keys(1);
            let store = builder.clock(self.clock.clone()).build();
            Limiter::over(&store, self.limit).expect("one limit")
        })
    }

    fn pass(&self, share: u64) {
        let by_us = window_us(&self.limit) / 1_000 * share;
        if tidegate::Clock::now_us(&self.clock) + by_us < 1_000_000_000_000_000 {
            self.clock.advance(std::time::Duration::from_micros(by_us));
        }
    }
}

/// Room for some of the keys, and for all of them.
const MAX_KEYS: usize = 12;
const ALL_KEYS: usize = 40;

proptest! {
    #![proptest_config(config())]

    #[test]
    fn when_full_and_denying_only_new_keys_are_refused(limit in limits::any(), asks in asks()) {
        let mut crowd = Crowd::new(limit, MAX_KEYS, WhenFull::Deny);
        for (key, share, cost) in asks {
            crowd.pass(share);
            let cost = Cost::of(cost);
            let decision = crowd.table.check_cost([key], cost);
            let keys = crowd.table.stats().keys;
            prop_assert!(keys <= MAX_KEYS);
            let alone = crowd.alone(key);
            let seen = alone.peek([key], cost);
            if seen.allowed() && !decision.allowed() {
                prop_assert!(keys == MAX_KEYS && seen.reset_after().is_zero(), "{:?}", seen);
                prop_assert!(decision.retry_after().is_some_and(|wait| !wait.is_zero()));
            } else {
                prop_assert_eq!(decision, alone.check_cost([key], cost));
            }
        }
        prop_assert_eq!(crowd.table.stats().evicted, 0);
    }

    #[test]
    fn when_full_and_evicting_a_key_is_known_or_new_and_nothing_else(
        limit in limits::any(),
        asks in asks(),
        max_keys in prop::sample::select(&[MAX_KEYS, ALL_KEYS][..]),
    ) {
        let mut crowd = Crowd::new(limit, max_keys, WhenFull::Evict);
        let mut forgotten = 0;
        for (key, share, cost) in asks {
            crowd.pass(share);
            let cost = Cost::of(cost);
            if share == 0 && cost == Cost::of(3) && max_keys == ALL_KEYS {
                let in_use = !crowd.alone(key).peek([key], Cost::ONE).reset_after().is_zero();
                crowd.alone(key).reset([key]);
                let existed = crowd.table.reset([key]);
                prop_assert!(existed || !in_use);
                prop_assert!(!crowd.table.reset([key]));
            }
            let decision = crowd.table.check_cost([key], cost);
            let known: Decision = crowd.alone(key).check_cost([key], cost);
            if decision != known {
                forgotten += 1;
                crowd.alone.remove(&key);
                prop_assert_eq!(decision, crowd.alone(key).check_cost([key], cost));
            }
            prop_assert!(crowd.table.stats().keys <= max_keys);
        }
        let evicted = crowd.table.stats().evicted;
        prop_assert!(forgotten <= evicted);
        prop_assert!(evicted == 0 || max_keys < ALL_KEYS, "keys that fit stay");
    }

}
