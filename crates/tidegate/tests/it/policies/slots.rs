//! Where in a cluster keys live: the hash slot as Redis Cluster defines it, computed
//! here, and all levels of a check in one.

use proptest::prelude::*;
use tidegate::Policy;

use super::keys::{Shape, awkward, encoded, policies, some_shapes, values};
use crate::properties::config;

/// What stands between the first `{` and the next `}`.
fn tag(key: &str) -> &str {
    let (_, after) = key.split_once('{').expect("every key has a tag");
    after.split_once('}').expect("a tag ends").0
}

/// The CRC16 of XMODEM: polynomial 0x1021, begins with 0, nothing reflected.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, &byte| {
        (0..8).fold(crc ^ (u16::from(byte) << 8), |crc: u16, _| {
            let shifted = crc << 1;
            if crc & 0x8000 == 0 {
                shifted
            } else {
                shifted ^ 0x1021
            }
        })
    })
}

/// The slot of a key: of its tag, if that is not empty.
fn slot(key: &str) -> u16 {
    let inside = key
        .split_once('{')
        .and_then(|(_, after)| after.split_once('}'));
    let hashed = inside.map_or(key, |(tag, _)| if tag.is_empty() { key } else { tag });
    crc16(hashed.as_bytes()) % 16_384
}

fn one_slot(shape: &Shape, values: &[Vec<u8>]) -> Result<(), TestCaseError> {
    let policy: Policy = shape.policy();
    let attributes = shape.attributes(values);
    let keys = policy.keys(&attributes).expect("all are there");
    let stored: Vec<String> = keys.iter().map(|key| key.stored("tg")).collect();
    prop_assert_eq!(stored.len(), policy.levels().len());

    let common: Vec<String> = policy
        .tag()
        .map(|name| {
            let (_, value) = attributes
                .iter()
                .find(|(other, _)| *other == name)
                .expect("known");
            encoded(value)
        })
        .collect();
    let expected = match common.is_empty() {
        true => policy.name().to_owned(),
        false => common.join(":"),
    };
    for (key, text) in keys.iter().zip(&stored) {
        prop_assert_eq!(tag(text), &expected);
        let is_brace = |character: char| character == '{' || character == '}';
        prop_assert!(!expected.is_empty(), "{}", text);
        prop_assert!(!expected.contains(is_brace), "{}", text);
        prop_assert_eq!(slot(text), slot(&stored[0]));
        // The only braces are those of the tag, and the prefix stands before it.
        prop_assert_eq!(text.matches(is_brace).count(), 2, "{}", text);
        prop_assert_eq!(&key.stored("a:b"), &text.replacen("tg", "a:b", 1));
        prop_assert!(
            text.bytes().all(|byte| (b'!'..=b'~').contains(&byte)),
            "{}",
            text
        );
        for name in policy.tag() {
            prop_assert!(key.level().key().attributes().any(|other| other == name));
        }
        let only_one = policy.levels().len() == 1 && !shape.has_tag();
        if only_one && key.level().key().attributes().len() > 0 {
            // Tagged by its own key, so that keys spread, and said only once.
            let own = key.text();
            prop_assert_eq!(
                text,
                &format!("tg:{{{own}}}:{}:{}", policy.name(), key.level().name())
            );
        }
    }
    if !shape.has_tag() {
        // All that every level has, and nothing else.
        let levels = policy.levels();
        let everywhere = |name: &&str| {
            levels
                .iter()
                .all(|level| level.key().attributes().any(|other| other == *name))
        };
        let wanted = levels[0].key().attributes().filter(everywhere);
        prop_assert!(policy.tag().eq(wanted));
    }
    Ok(())
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn all_levels_of_a_check_live_in_one_slot(
        shapes in policies(),
        values in prop::collection::vec(values(), 4),
    ) {
        for shape in &shapes {
            one_slot(shape, &values)?;
        }
    }
}

#[test]
fn a4_b8_a_checks_counters_share_a_slot_whatever_the_key() {
    for shape in some_shapes() {
        for a in awkward() {
            for b in awkward() {
                one_slot(&shape, &[a.clone(), b.clone(), a.clone(), b]).unwrap();
            }
        }
    }
}

#[test]
fn the_keys_of_a_policy_with_one_level_spread_over_the_slots() {
    // As `CLUSTER KEYSLOT` answers.
    assert_eq!((slot("foo"), slot("bar{foo}{zap}")), (12_182, 12_182));
    let policy = Policy::builder("p").limit(tidegate::Limit::per_second(1));
    let policy = policy.build().expect("right");
    let slots: std::collections::HashSet<u16> = (0..10_000)
        .map(|number| {
            let attributes = [("key", number.to_string())];
            let keys = policy.keys(&attributes).expect("all are there");
            let stored: Vec<String> = keys.iter().map(|key| key.stored("tg")).collect();
            slot(&stored[0])
        })
        .collect();
    assert!(slots.len() > 5_000, "{}", slots.len());
}
