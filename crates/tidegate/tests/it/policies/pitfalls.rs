//! Pitfalls of keys and levels, each under its id.

use std::collections::{HashMap, HashSet};

use tidegate::{Limit, Policy};

use super::Timed;
use super::slots::{slot, tag};

/// Values that have broken other limiters, and what looks like them.
fn awkward() -> Vec<Vec<u8>> {
    let mut values: Vec<Vec<u8>> = [
        "", "}x", "{", "}", "{}", "{}{x}", "x{y}z", "\0", "a\0b", "\n", "q", "q-t", "q-", ":",
        "a:b", "a", "b", "b:c", "c", "%", "%25", "%3A", "%h", "é",
    ]
    .iter()
    .map(|value| value.as_bytes().to_vec())
    .collect();
    values.push(format!("%h{}", "0".repeat(64)).into());
    values.extend([vec![b'{'; 1 << 16], vec![b'x'; 1_500], vec![0xff; 1_500]]);
    values.extend([1_023, 1_024, 1_025].map(|length| vec![b'x'; length]));
    values
}

#[test]
fn a4_a_checks_counters_share_a_slot_whatever_the_key() {
    let limit = Limit::per_second(5);
    let policies = [
        Policy::builder("one").key("{a}").limit(limit),
        Policy::builder("none").key("").limit(limit),
        Policy::builder("two")
            .level("a", "{a}", limit)
            .level("ab", "{a}:{b}", limit),
        Policy::builder("apart")
            .level("a", "{a}", limit)
            .level("b", "{b}", limit),
        Policy::builder("tagged")
            .level("ab", "{a}:{b}", limit)
            .level("bac", "{b}:{a}:{c}", limit)
            .tag("{b}"),
    ];
    for policy in super::built(policies) {
        for a in awkward() {
            for b in awkward() {
                let attributes = [("a", &a), ("b", &b), ("c", &a)];
                let keys = policy.keys(&attributes).expect("all are there");
                let stored: Vec<String> = keys.iter().map(|key| key.stored("tg")).collect();
                let tags: HashSet<&str> = stored.iter().map(|key| tag(key)).collect();
                assert_eq!(tags.len(), 1, "{stored:?}");
                for key in &stored {
                    assert!(
                        !tag(key).is_empty() && !tag(key).contains(['{', '}']),
                        "{key}"
                    );
                    assert_eq!(slot(key), slot(&stored[0]));
                    assert!(
                        key.bytes().all(|byte| (b'!'..=b'~').contains(&byte)),
                        "{key}"
                    );
                    // The only braces are those of the tag.
                    assert_eq!(key.matches(['{', '}']).count(), 2, "{key}");
                }
            }
        }
    }
}

#[test]
fn b7_c2_no_two_inputs_meet() {
    // Names that run together when they are joined carelessly.
    let limit = Limit::per_hour(1);
    let names = ["a", "ab", "q", "q-t"];
    let policies = names.map(|name| {
        Policy::builder(name)
            .level("b", "{x}", Limit::per_hour(1_000))
            .level("bb", "{x}:{y}", limit)
    });
    let timed = Timed::of(policies);
    let mut seen: HashMap<String, (&str, usize, Vec<Vec<u8>>)> = HashMap::new();
    let mut pairs = HashSet::new();
    for name in names {
        let policies = timed.limiter.policies();
        let policy = policies.iter().find(|policy| policy.name() == name);
        let policy = policy.expect("it is there");
        for x in awkward() {
            for y in awkward() {
                let attributes = [("x", &x), ("y", &y)];
                let keys = policy.keys(&attributes);
                for (level, key) in keys.expect("all are there").iter().enumerate() {
                    let values = [x.clone(), y.clone()][..=level].to_vec();
                    let meant = (name, level, values);
                    let other = seen.insert(key.stored("tg"), meant.clone());
                    assert!(other.is_none_or(|other| other == meant), "{meant:?}");
                }
                // In memory, each has a counter of its own, too.
                assert!(
                    timed.check(name, &attributes).allowed(),
                    "{name} {x:?} {y:?}"
                );
                assert!(
                    !timed.check(name, &attributes).allowed(),
                    "{name} {x:?} {y:?}"
                );
                pairs.insert((name, x.clone(), y));
            }
        }
    }
    assert_eq!(seen.len(), pairs.len() + names.len() * awkward().len());
    assert_eq!(timed.keys(), seen.len());
}

#[test]
fn c2_a_template_that_has_no_separator_does_not_join_its_values() {
    let timed = Timed::of([Policy::builder("p").key("{a}{b}").limit(Limit::per_hour(1))]);
    for pair in [["ab", ""], ["a", "b"], ["", "ab"], ["a:b", ""], ["a", ":b"]] {
        let attributes = [("a", pair[0]), ("b", pair[1])];
        assert_eq!(timed.admitted_of(2, "p", &attributes), 1, "{pair:?}");
    }
    assert_eq!(timed.keys(), 5);
}
