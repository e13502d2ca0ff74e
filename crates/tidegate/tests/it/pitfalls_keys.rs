//! Pitfalls of keys, clocks and levels that a limiter in memory can fall into,
//! too.

use std::collections::HashSet;

use tidegate::{Charge, Limit, MemoryStore};

use crate::support::{HOUR, Timed, every_algorithm};

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
