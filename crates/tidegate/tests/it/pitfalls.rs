//! Pitfalls of a store in memory, and what a close reading of it found. Those of counting are
//! rows of the conformance suite.

use std::collections::HashSet;
use std::thread;
use std::time::Duration;

use tidegate::{Charge, Cost, Limit, LimitSpec, Limiter, ManualClock, MemoryStore, Rate, WhenFull};

use crate::support::{
    HOUR, KEY, MINUTE, START, Timed, every_algorithm, micros, scaled, small_store,
};

fn confusable_keys() -> Vec<Vec<u8>> {
    let texts = [
        "", " ", "q", "q-t", "q-", "-t", "Q", "a:b", "a", "b", ":", "::", "}x", "{x}", "%", "%25",
        "0", "00", "null", "\0", "\0\0", "\n", "q\0", "\0q", "é", "e\u{301}",
    ];
    let mut keys: HashSet<Vec<u8>> = texts.map(|key| key.as_bytes().to_vec()).into();
    // Lengths around every block size of a hash, and up to 64 KiB.
    for byte in [0, b'x', b'y', 0xff] {
        keys.extend((0..200).map(|length| vec![byte; length]));
        keys.insert(vec![byte; 1 << 16]);
    }
    keys.extend((0..=255).map(|byte| vec![byte]));
    keys.into_iter().collect()
}

#[test]
fn c2_no_two_keys_ever_meet() {
    for limit in every_algorithm(1, HOUR) {
        let keys = confusable_keys();
        let timed = Timed::with(limit, |builder| builder.max_keys(10_000));
        for key in &keys {
            assert!(timed.limiter.check(key).allowed(), "{limit} {key:?}");
        }
        assert_eq!(timed.limiter.stats().keys, keys.len());
        for key in &keys {
            assert!(!timed.limiter.check(key).allowed(), "{limit} {key:?}");
        }
    }
}

#[test]
fn b7_a_levels_name_and_its_key_do_not_run_together() {
    let store = MemoryStore::new();
    let names = ["a", "a:b", "ab", "a", "", "abc"];
    for (name, key) in names.into_iter().zip(["b:c", "c", "c", "bc", "abc", ""]) {
        let level = store.level(name, Limit::per_hour(1)).unwrap();
        let decision = store.decide(&[level.check(key)], Charge::Admitted);
        assert!(decision.allowed(), "{name:?} {key:?}");
    }
    assert_eq!(store.stats().keys, 6);
}

#[test]
fn million_events_expire_at_once_or_in_part() {
    let events = scaled(1_000_000);
    let timed = Timed::new(Limit::per_minute(events).sliding_log());
    for at in 0..events {
        assert!(timed.at(at.into()).check().allowed(), "{at}");
    }
    assert!(!timed.check().allowed());
    let quarter = events / 4;
    let part = timed.at(MINUTE + u64::from(quarter) - 1).check();
    assert_eq!((part.allowed(), part.remaining()), (true, quarter - 1));
    let all = timed.at(3 * MINUTE).check();
    assert_eq!((all.allowed(), all.remaining()), (true, events - 1));
    // The ring gives its memory back bit by bit and loses nothing by it.
    for index in 2..100 {
        timed.clock.advance(Duration::from_micros(1));
        assert_eq!(timed.check().remaining(), events - index);
    }
}

#[test]
fn key_is_kept_until_its_quota_is_full() {
    // Others come and go all the time, and may take only the places of keys
    // that are fully refilled.
    let crowd = |timed: &Timed| {
        for other in 0..200_u32 {
            let _ = timed.limiter.check(format!("other {other}"));
        }
    };
    for limit in every_algorithm(10, MINUTE) {
        let timed = Timed::with(limit, |builder| {
            builder.max_keys(16).when_full(WhenFull::Deny)
        });
        timed.admitted_of(10);
        let reset = micros(timed.peek(1).reset_after());
        for at in [1, reset / 3, reset - 1] {
            crowd(timed.at(at));
            assert!(timed.peek(1).remaining() < 10, "{limit} {at}");
        }
        assert_eq!(timed.at(reset).limiter.check(KEY).remaining(), 9, "{limit}");
    }
}

#[test]
fn g7_a_key_twice_at_costs_above_u32_is_refused_for_good() {
    for limit in every_algorithm(10, MINUTE) {
        for charge in [Charge::Nothing, Charge::Admitted, Charge::Always] {
            for used in [0, 10] {
                // The small cost first, and last.
                for costs in [[Cost::ONE, Cost::MAX], [Cost::MAX, Cost::ONE]] {
                    let (clock, store) = small_store(|builder| builder);
                    let level = store.level("level", limit).unwrap();
                    for _ in 0..used {
                        clock.advance(Duration::from_micros(1));
                        let one = store.decide(&[level.check(KEY)], Charge::Admitted);
                        assert!(one.allowed());
                    }
                    let checks = costs.map(|cost| level.check(KEY).cost(cost));
                    let decision = store.decide(&checks, charge);
                    assert!(!decision.allowed(), "{limit}, {charge:?}");
                    assert_eq!(decision.retry_after(), None, "{limit}, {charge:?}");
                }
            }
        }
    }
}

#[test]
fn a_reset_voids_the_receipts_of_its_own_key_only() {
    for limit in every_algorithm(10, HOUR) {
        let timed = Timed::with(limit, |builder| builder.max_keys(2_000));
        let keys: Vec<String> = (0..2_000).map(|key| format!("key {key}")).collect();
        let receipts: Vec<_> = keys
            .iter()
            .map(|key| timed.limiter.check(key).receipt().expect("it was charged"))
            .collect();
        assert!(timed.limiter.reset(&keys[0]));
        for (key, receipt) in keys.iter().zip(&receipts).skip(1) {
            assert!(timed.limiter.refund(key, receipt), "{limit}");
            let left = timed.limiter.peek(key, Cost::ONE).remaining();
            assert_eq!(left, 10, "{limit}, {key}");
        }
        // The one that was reset gets nothing back.
        assert!(timed.limiter.check(&keys[0]).allowed());
        timed.limiter.refund(&keys[0], &receipts[0]);
        assert_eq!(timed.limiter.peek(&keys[0], Cost::ONE).remaining(), 9);
    }
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

const MAX_KEYS: usize = 10_000;

fn bounded(when_full: WhenFull) -> Timed {
    Timed::with(Limit::per_hour(5), |builder| {
        builder.max_keys(MAX_KEYS).when_full(when_full)
    })
}

#[test]
fn p5_two_million_keys_stay_within_the_bound_when_the_oldest_are_forgotten() {
    let timed = bounded(WhenFull::Evict);
    let keys = scaled(2_000_000);
    for key in 0..keys {
        timed.clock.advance(Duration::from_micros(1));
        assert!(timed.limiter.check(key.to_le_bytes()).allowed(), "{key}");
        assert!(timed.limiter.stats().keys <= MAX_KEYS);
    }
    let stats = timed.limiter.stats();
    assert_eq!(stats.keys, MAX_KEYS);
    assert_eq!(stats.evicted, u64::from(keys) - MAX_KEYS as u64);
    assert_eq!(stats.denied_full, 0);
}

#[test]
fn half_a_million_keys_stay_within_the_bound_when_new_ones_are_refused() {
    let timed = bounded(WhenFull::Deny);
    let offered = scaled(500_000);
    let admitted: Vec<u32> = (0..offered)
        .filter(|key| timed.limiter.check(key.to_le_bytes()).allowed())
        .collect();
    assert_eq!(admitted.len(), MAX_KEYS);
    let stats = timed.limiter.stats();
    assert_eq!((stats.keys, stats.evicted), (MAX_KEYS, 0));
    assert_eq!(stats.denied_full, u64::from(offered) - MAX_KEYS as u64);
    // Those that are in are all remembered, and the store says when to ask again.
    for key in &admitted {
        assert_eq!(timed.limiter.check(key.to_le_bytes()).remaining(), 3);
    }
    let peeked = timed.limiter.peek("late", Cost::ONE);
    let refused = timed.limiter.check("late");
    assert_eq!((peeked.allowed(), peeked.remaining()), (false, 0));
    assert_eq!((refused.allowed(), refused.remaining()), (false, 0));
    assert!(refused.retry_after().is_some_and(|wait| !wait.is_zero()));
    // As soon as the others are fully refilled, there is room.
    timed.at(2 * HOUR);
    assert!(timed.limiter.check("late").allowed());
    assert_eq!(timed.limiter.stats().evicted, 0);
}

#[test]
fn dead_keys_make_room_before_live_ones() {
    // One key in a hundred is dead, and three quarters as many new ones come. A live key
    // goes only where neither its shard nor the next few have a dead one left: before,
    // about half of the new keys evicted one.
    let clock = ManualClock::at_us(START);
    let limiter = Limiter::builder(Limit::per_hour(10))
        .max_keys(20_000)
        .when_full(WhenFull::Evict)
        .clock(clock.clone())
        .build();
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
