//! Pitfalls of keys, clocks and levels that a limiter in memory can fall into,
//! too.

use std::collections::HashSet;
use std::time::Duration;

use tidegate::{Charge, Limit, ManualClock, MemoryStore};

use crate::support::{HOUR, MINUTE, SECOND, START, Timed, every_algorithm};

fn confusable_keys() -> Vec<Vec<u8>> {
    let mut keys: HashSet<Vec<u8>> = [
        "", " ", "q", "q-t", "q-", "-t", "Q", "a:b", "a", "b", ":", "::", "}x", "{x}", "%", "%25",
        "0", "00", "null", "\0", "\0\0", "\n", "q\0", "\0q", "é", "e\u{301}",
    ]
    .iter()
    .map(|key| key.as_bytes().to_vec())
    .collect();
    // Lengths around every block size of a hash, and up to 64 KiB.
    keys.extend((0..200).map(|length| vec![0; length]));
    keys.extend((0..200).map(|length| vec![b'x'; length]));
    keys.extend([
        vec![b'x'; 1 << 16],
        vec![b'y'; 1 << 16],
        vec![0xff; 1 << 16],
    ]);
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
fn c2_a_levels_name_and_its_key_do_not_run_together() {
    let store = MemoryStore::new();
    for (name, key) in [
        ("a", "b:c"),
        ("a:b", "c"),
        ("ab", "c"),
        ("a", "bc"),
        ("", "abc"),
        ("abc", ""),
    ] {
        let level = store.level(name, Limit::per_hour(1)).unwrap();
        let decision = store.decide(&[level.check(key)], Charge::Admitted);
        assert!(decision.allowed(), "{name:?} {key:?}");
    }
    assert_eq!(store.stats().keys, 6);
}

#[test]
fn c7_a_clock_that_steps_back_refills_nothing() {
    for limit in every_algorithm(10, MINUTE) {
        let timed = Timed::new(limit);
        assert_eq!(timed.at(30 * SECOND).admitted_of(10), 10);
        for at in [29, 20, 10, 0] {
            assert_eq!(timed.at(at * SECOND).admitted_of(10), 0, "{limit} {at}");
        }
        // From here on, time passes: 12 s are two tokens, and nothing else.
        let tokens = if limit == Limit::per_minute(10) { 2 } else { 0 };
        assert_eq!(timed.at(12 * SECOND).admitted_of(10), tokens, "{limit}");
    }
}

#[test]
fn c7_a_clock_that_steps_back_stalls_no_key() {
    for limit in every_algorithm(10, MINUTE) {
        let timed = Timed::new(limit);
        timed.admitted_of(10);
        let before = timed
            .at(SECOND)
            .check()
            .retry_after()
            .expect("not for ever");
        // Back by a day: no time has passed, so the wait is what it was at the
        // last change, and it is over when it says.
        timed.clock.set_us(START - 24 * HOUR);
        let wait = timed.check().retry_after().expect("not for ever");
        assert!(
            wait <= before + Duration::from_secs(1),
            "{limit} {before:?} {wait:?}"
        );
        timed.clock.advance(wait - Duration::from_micros(1));
        assert!(!timed.check().allowed(), "{limit}");
        timed.clock.advance(Duration::from_micros(1));
        assert!(timed.check().allowed(), "{limit}");
    }
}

#[test]
fn c7_a_clock_that_steps_forward_counts_as_time() {
    for limit in every_algorithm(10, MINUTE) {
        let timed = Timed::new(limit);
        timed.admitted_of(10);
        let reset = timed.peek(1).reset_after();
        timed.clock.advance(reset);
        assert_eq!(timed.admitted_of(20), 10, "{limit}");
    }
}

#[test]
fn k1_a_refused_check_costs_no_level_anything() {
    let numbers = |limits: [Limit; 2]| {
        let store = MemoryStore::builder()
            .max_keys(64)
            .clock(ManualClock::at_us(START))
            .build();
        let total = store.level("total", limits[0]).unwrap();
        let each = store.level("each", limits[1]).unwrap();
        let check = || store.decide(&[total.check(""), each.check("a")], Charge::Admitted);
        let admitted = (0..50).filter(|_| check().allowed()).count();
        let last = check();
        let remaining: Vec<u32> = last
            .levels()
            .iter()
            .map(|level| level.remaining())
            .collect();
        (admitted, last.denied_by(), remaining)
    };
    for wide in every_algorithm(100, HOUR) {
        for narrow in every_algorithm(5, HOUR) {
            assert_eq!(
                numbers([wide, narrow]),
                (5, Some(1), vec![95, 0]),
                "{wide}, {narrow}"
            );
            assert_eq!(
                numbers([narrow, wide]),
                (5, Some(0), vec![0, 95]),
                "{narrow}, {wide}"
            );
        }
        assert_eq!(
            numbers([wide, Limit::block()]),
            (0, Some(1), vec![100, 0]),
            "{wide}"
        );
    }
}

#[test]
fn k1_of_several_refusals_the_first_is_named_and_the_longest_wait_told() {
    let clock = ManualClock::at_us(START);
    let store = MemoryStore::builder()
        .max_keys(64)
        .clock(clock.clone())
        .build();
    let free = store.level("free", Limit::per_hour(100)).unwrap();
    let short = store.level("short", Limit::per_second(1)).unwrap();
    let long = store.level("long", Limit::per_minute(1)).unwrap();
    let checks = [free.check("a"), short.check("a"), long.check("a")];
    assert!(store.decide(&checks, Charge::Admitted).allowed());
    let refused = store.decide(&checks, Charge::Admitted);
    assert_eq!(refused.denied_by(), Some(1));
    assert_eq!(refused.retry_after(), Some(Duration::from_secs(60)));
    let waits: Vec<_> = refused
        .levels()
        .iter()
        .map(|level| level.retry_after())
        .collect();
    assert_eq!(
        waits,
        [0, 1, 60].map(|wait| Some(Duration::from_secs(wait)))
    );
    clock.advance(Duration::from_secs(60) - Duration::from_micros(1));
    assert!(!store.decide(&checks, Charge::Admitted).allowed());
    clock.advance(Duration::from_micros(1));
    assert!(store.decide(&checks, Charge::Admitted).allowed());
}
