//! Pitfalls of a store in memory, and corners of it that once went wrong. Those of counting
//! are rows of the conformance suite and of `policies/suite.txt`.

use std::thread;
use std::time::Duration;

use tidegate::{Charge, Cost, Limit, LimitSpec, Limiter, ManualClock, MemoryStore, Rate, WhenFull};

use crate::support::{
    HOUR, KEY, MINUTE, START, Timed, every_algorithm, micros, scaled, small_store,
};

#[test]
fn g7_a_key_twice_at_costs_above_u32_is_refused_for_good() {
    for limit in every_algorithm(10, MINUTE) {
        for charge in [Charge::Nothing, Charge::Admitted, Charge::Always] {
            // The small cost first, and last.
            for costs in [[Cost::ONE, Cost::MAX], [Cost::MAX, Cost::ONE]] {
                let (clock, store) = small_store(|builder| builder);
                let level = store.level("level", limit).unwrap();
                let look = || {
                    store
                        .decide(&[level.check(KEY)], Charge::Nothing)
                        .remaining()
                };
                let twice = || {
                    let checks = costs.map(|cost| level.check(KEY).cost(cost));
                    let decision = store.decide(&checks, charge);
                    let said = (decision.allowed(), decision.retry_after(), decision.limit());
                    assert_eq!(said, (false, None, 10), "{limit}, {charge:?}");
                };
                twice();
                store.reset(&level, KEY);
                let one = store.decide(&[level.check(KEY)], Charge::Admitted);
                assert!(one.allowed());
                // A refusal notes that the clock stepped back, and loses nothing.
                clock.set_us(START - 1);
                twice();
                if charge != Charge::Always {
                    assert_eq!(look(), 9, "{limit}, {charge:?}");
                }
                assert!(store.reset(&level, KEY));
                assert_eq!((look(), store.stats().log_bytes), (10, 0));
            }
        }
    }
}

#[test]
fn a_log_that_grows_while_a_new_key_moves_its_entry_stays_its_own() {
    const LOGS: u32 = 40;
    for round in 0..30 {
        let (clock, store) = small_store(|builder| builder.max_keys(1_000));
        let each = store.level("each", Limit::per_day(5)).unwrap();
        let log = Limit::per_day(100).sliding_log();
        let log = store.level("log", log).unwrap();
        let left = |key: u32, charge| {
            let (key, log_key) = (key.to_le_bytes(), (key % LOGS).to_le_bytes());
            let decision = store.decide(&[each.check(&key), log.check(&log_key)], charge);
            let levels = decision.levels().iter();
            levels.map(|level| level.remaining()).collect::<Vec<_>>()
        };
        for key in 0..20 * LOGS {
            clock.advance(Duration::from_micros(1));
            let left = left(key, Charge::Admitted);
            assert_eq!(left, [4, 99 - key / LOGS], "round {round}, {key}");
        }
        assert_eq!(store.stats().keys, 21 * LOGS as usize);
        for key in 0..20 * LOGS {
            assert_eq!(left(key, Charge::Nothing), [4, 80], "round {round}, {key}");
            assert!(store.reset(&each, key.to_le_bytes()), "round {round}");
        }
        for key in 0..LOGS {
            assert!(store.reset(&log, key.to_le_bytes()), "round {round}");
        }
        let stats = store.stats();
        assert_eq!((stats.keys, stats.log_bytes), (0, 0), "round {round}");
    }
}

#[test]
fn a_check_that_only_notes_a_step_back_needs_no_room_in_the_log() {
    let limit = Limit::per_minute(4).sliding_log();
    let timed = Timed::with(limit, |builder| {
        builder.max_log_bytes(140).when_full(WhenFull::Deny)
    });
    for at_us in 1..=4 {
        assert!(timed.at(at_us).check().allowed());
    }
    timed.clock.set_us(START - HOUR);
    let refused = timed.check();
    assert!(!refused.allowed());
    // The step did not stall the key.
    let wait = refused.retry_after().expect("not for ever");
    timed.clock.advance(wait);
    assert!(timed.check().allowed());
    assert_eq!(timed.limiter.stats().denied_full, 0);
}

fn per_day(requests: u64) -> Limit {
    let rate = Rate::new(requests, Duration::from_secs(86_400)).expect("in range");
    LimitSpec::new(rate).build().expect("in range")
}

#[test]
fn only_limits_that_no_key_was_charged_under_are_forgotten() {
    let timed = Timed::new(Limit::per_day(5));
    assert!(timed.check_cost(5).allowed());
    for requests in 1..=70_000 {
        let limit = per_day(requests);
        timed.limiter.set_limit(limit).expect("few are in use");
    }
    // 5 of 5 used are 5 of 10 used.
    timed.limiter.set_limit(Limit::per_day(10)).unwrap();
    assert_eq!(timed.peek(1).remaining(), 5);
}

#[test]
fn limits_in_use_are_bounded() {
    let store = MemoryStore::new();
    let level = |requests| store.level("level", per_day(requests));
    let levels: Vec<_> = (1..=32_767)
        .map(|requests| level(requests).unwrap())
        .collect();
    assert_eq!(
        level(40_000).unwrap_err().to_string(),
        "more than 32767 different limits in use in one store: expected fewer"
    );
    drop(levels);
    assert!(level(40_000).is_ok());
}

#[test]
fn p5_two_million_keys_stay_within_the_bound_when_the_oldest_are_forgotten() {
    const MAX_KEYS: usize = 10_000;
    let timed = Timed::with(Limit::per_hour(5), |builder| {
        builder.max_keys(MAX_KEYS).when_full(WhenFull::Evict)
    });
    let keys = scaled(2_000_000);
    for key in 0..keys {
        timed.clock.advance(Duration::from_micros(1));
        assert!(timed.limiter.check(key.to_le_bytes()).allowed(), "{key}");
        assert!(timed.limiter.stats().keys <= MAX_KEYS);
    }
    let stats = timed.limiter.stats();
    let evicted = u64::from(keys) - MAX_KEYS as u64;
    assert_eq!((stats.keys, stats.evicted), (MAX_KEYS, evicted));
    assert_eq!(stats.denied_full, 0);
}

#[test]
fn dead_keys_make_room_before_live_ones() {
    // One key in a hundred is dead, and three quarters as many new ones come. A live key
    // goes only where neither its shard nor the next few have a dead one left: before,
    // about half of the new keys evicted one.
    let clock = ManualClock::at_us(START);
    let store = MemoryStore::builder()
        .max_keys(20_000)
        .when_full(WhenFull::Evict)
        .clock(clock.clone())
        .build();
    let limiter = Limiter::over(&store, Limit::per_hour(10)).unwrap();
    for key in 0..20_000_u32 {
        // A charge of 1 is gone after 6 minutes, one of 5 after half an hour.
        let cost = Cost::of(if key % 100 == 0 { 1 } else { 5 });
        assert!(limiter.check_cost(key, cost).allowed());
    }
    clock.advance(Duration::from_mins(7));
    for key in 20_000..20_150_u32 {
        assert!(limiter.check_cost(key, Cost::of(5)).allowed());
    }
    let evicted = limiter.stats().evicted;
    assert!(evicted <= 7, "{evicted} of 150 new keys evicted a live one");
    // What was evicted is forgotten, and nothing else that lives.
    let known = |key: &u32| limiter.peek(*key, Cost::ONE).remaining() < 10;
    let live = (0..20_150_u32).filter(|key| key % 100 != 0 || *key >= 20_000);
    assert_eq!(live.filter(|key| !known(key)).count() as u64, evicted);
}

#[test]
fn p6_one_keys_decisions_never_go_back_in_time() {
    const THREADS: usize = 4;
    const CHECKS: usize = 5_000;
    let limiter = Limiter::in_memory(Limit::per_day(u32::MAX).fixed_window());
    let mut decided: Vec<(u32, u64)> = thread::scope(|scope| {
        let ask = || {
            let checks = (0..CHECKS).map(|_| limiter.check("one"));
            let numbers = checks.map(|one| (one.remaining(), one.decided_at_us()));
            numbers.collect::<Vec<_>>()
        };
        let asking = [(); THREADS].map(|()| scope.spawn(ask));
        let decided = asking.map(|thread| thread.join().expect("no panic"));
        decided.concat()
    });
    // `remaining` shrinks by one per check: that is the order they were made in.
    decided.sort_unstable_by(|a, b| b.cmp(a));
    assert_eq!(decided.len(), THREADS * CHECKS);
    for (index, pair) in decided.windows(2).enumerate() {
        assert_eq!(pair[0].0, pair[1].0 + 1, "{index}");
        assert!(pair[0].1 <= pair[1].1, "{index}: {pair:?}");
    }
}

#[test]
fn the_clock_is_the_one_that_was_given_or_the_systems() {
    let timed = Timed::new(Limit::per_second(1));
    assert_eq!(timed.at(7).check().decided_at_us(), START + 7);
    let wall = micros(std::time::UNIX_EPOCH.elapsed().expect("after 1970"));
    let limiter = Limiter::in_memory(Limit::per_second(1));
    let decided = limiter.check(KEY).decided_at_us();
    // The wall clock itself may be set while this runs, but not by an hour.
    assert!(decided.abs_diff(wall) < HOUR, "{wall} {decided}");
}
