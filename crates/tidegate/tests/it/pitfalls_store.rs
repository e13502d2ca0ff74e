//! The pitfalls of input that a store must withstand: keys without end, and clocks.

use std::thread;
use std::time::Duration;

use tidegate::{Cost, Limit, Limiter, MemoryStore, WhenFull};

use crate::support::{HOUR, MINUTE, START, Timed, micros, scaled};

const MAX_KEYS: usize = 10_000;

fn bounded(limit: Limit, when_full: WhenFull) -> Timed {
    Timed::with(limit, |builder| {
        builder.max_keys(MAX_KEYS).when_full(when_full)
    })
}

#[test]
fn p5_two_million_keys_stay_within_the_bound_when_the_oldest_are_forgotten() {
    let timed = bounded(Limit::per_hour(5), WhenFull::Evict);
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
fn p5_half_a_million_keys_stay_within_the_bound_when_new_ones_are_refused() {
    let timed = bounded(Limit::per_hour(5), WhenFull::Deny);
    let admitted: Vec<u32> = (0..scaled(500_000))
        .filter(|key| timed.limiter.check(key.to_le_bytes()).allowed())
        .collect();
    assert_eq!(admitted.len(), MAX_KEYS);
    let stats = timed.limiter.stats();
    assert_eq!((stats.keys, stats.evicted), (MAX_KEYS, 0));
    // Those that are in are all remembered, and the store says when to ask again.
    for key in &admitted {
        assert_eq!(timed.limiter.check(key.to_le_bytes()).remaining(), 3);
    }
    let refused = timed.limiter.check("late");
    assert_eq!((refused.allowed(), refused.remaining()), (false, 0));
    assert!(refused.retry_after().is_some_and(|wait| !wait.is_zero()));
    // As soon as the others are fully refilled, there is room.
    timed.at(2 * HOUR);
    assert!(timed.limiter.check("late").allowed());
    assert_eq!(timed.limiter.stats().evicted, 0);
}

#[test]
fn p5_checks_refused_for_want_of_room_are_counted() {
    let timed = bounded(Limit::per_hour(5), WhenFull::Deny);
    let offered = 12_000_u32;
    let refused = (0..offered)
        .filter(|key| !timed.limiter.check(key.to_le_bytes()).allowed())
        .count();
    assert_eq!(timed.limiter.stats().denied_full, refused as u64);
}

#[test]
fn p5_refilled_keys_make_room_before_keys_in_use() {
    let timed = bounded(Limit::per_hour(60).burst(10), WhenFull::Evict);
    let half = u32::try_from(MAX_KEYS / 2).expect("small");
    let key = |kind: u8, number: u32| [&[kind], &number.to_le_bytes()[..]].concat();
    // Half of the keys are good as new after a minute, the others after ten.
    for number in 0..half {
        let _ = timed.limiter.check(key(0, number));
        let _ = timed.limiter.check_cost(key(1, number), Cost::of(10));
    }
    timed.at(2 * MINUTE);
    let new = half / 5;
    for number in 0..new {
        let decision = timed.limiter.check_cost(key(2, number), Cost::of(10));
        assert!(decision.allowed(), "{number}");
    }
    // Only a few buckets are searched for fully refilled keys, so now and then
    // there is none among them. Without a preference it would be every other time.
    let evicted = timed.limiter.stats().evicted;
    assert!(evicted <= u64::from(new / 20), "{evicted}");
    let known = |kind, number| timed.limiter.peek(key(kind, number), Cost::ONE).remaining() < 10;
    let forgotten = (0..half).filter(|&number| !known(1, number)).count()
        + (0..new).filter(|&number| !known(2, number)).count();
    assert_eq!(forgotten as u64, evicted);
}

#[test]
fn p6_one_keys_decisions_never_go_back_in_time() {
    const THREADS: usize = 4;
    const CHECKS: usize = 5_000;
    let limiter = Limiter::in_memory(Limit::per_day(u32::MAX).fixed_window());
    let mut decided: Vec<(u32, u64)> = thread::scope(|scope| {
        let asking: Vec<_> = (0..THREADS)
            .map(|_| {
                scope.spawn(|| {
                    (0..CHECKS)
                        .map(|_| limiter.check("one"))
                        .map(|decision| (decision.remaining(), decision.decided_at_us()))
                        .collect::<Vec<_>>()
                })
            })
            .collect();
        let join = |thread: thread::ScopedJoinHandle<'_, _>| thread.join().expect("no panic");
        asking.into_iter().flat_map(join).collect()
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
fn p6_the_clock_is_the_one_that_was_given() {
    let timed = Timed::new(Limit::per_second(1));
    assert_eq!(timed.at(7).check().decided_at_us(), START + 7);

    // And unless one is given, the system's.
    let wall = || micros(std::time::UNIX_EPOCH.elapsed().expect("after 1970"));
    let before = wall();
    let store = MemoryStore::new();
    let level = store.level("", Limit::per_second(1)).unwrap();
    let decided = store
        .decide(&[level.check("a")], tidegate::Charge::Admitted)
        .decided_at_us();
    // The wall clock itself may be set while this runs, but not by an hour.
    assert!(decided.abs_diff(before) < HOUR, "{before} {decided}");
}
