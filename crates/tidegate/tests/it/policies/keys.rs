//! Two different questions never share a counter, and all counters of one lie in one slot of
//! a cluster, whatever the values are made of. Examples of keys are rows of `suite.txt`.

use std::collections::{HashMap, HashSet};
use std::fmt::Write;

use proptest::prelude::*;
use sha2::{Digest, Sha256};
use tidegate::{Limit, Policy};

use super::Timed;
use crate::properties::config;

/// Names of policies and of levels that run together when they are joined carelessly.
const NAMES: [&str; 4] = ["a", "ab", "a-b", "aa"];
const LEVELS: [&str; 4] = ["b", "bb", "ab", "-bb"];
const ATTRIBUTES: [&str; 4] = ["a", "b", "ab", "x"];

/// A policy to be made: its levels as (attributes by number, in order), and its tag.
#[derive(Debug, Clone)]
struct Shape {
    name: &'static str,
    levels: Vec<Vec<usize>>,
    tag: Option<usize>,
}

impl Shape {
    fn policy(&self) -> Policy {
        let mut policy = Policy::builder(self.name);
        for (level, key) in self.levels.iter().enumerate() {
            policy = policy.level(LEVELS[level], template(key), Limit::per_hour(1_000_000));
        }
        if let Some(tag) = self.shared_tag() {
            policy = policy.tag(template(&[tag]));
        }
        policy.build().unwrap_or_else(|error| panic!("{error}"))
    }

    /// The tag asked for, if every level has it.
    fn shared_tag(&self) -> Option<usize> {
        self.tag
            .filter(|tag| self.levels.iter().all(|level| level.contains(tag)))
    }
}

fn template(attributes: &[usize]) -> String {
    attributes
        .iter()
        .map(|&attribute| format!("{{{}}}", ATTRIBUTES[attribute]))
        .collect()
}

/// One to four policies of different names.
fn policies() -> impl Strategy<Value = Vec<Shape>> {
    let key = prop::collection::vec(0..ATTRIBUTES.len(), 0..5).prop_map(|attributes| {
        let mut seen = HashSet::new();
        let new = attributes.into_iter().filter(|&one| seen.insert(one));
        new.collect::<Vec<_>>()
    });
    let levels = prop::collection::vec(key, 1..5);
    let shape = (levels, prop::option::of(0..ATTRIBUTES.len()));
    prop::collection::vec(shape, 1..5).prop_map(|shapes| {
        let shapes = NAMES.into_iter().zip(shapes);
        let shape = |(name, (levels, tag))| Shape { name, levels, tag };
        shapes.map(shape).collect()
    })
}

/// Any bytes, and those that an encoding might trip over.
fn values() -> impl Strategy<Value = Vec<u8>> {
    let of = |bytes: &'static [u8], most| {
        prop::collection::vec(prop::sample::select(bytes), 0..most).boxed()
    };
    prop_oneof![
        3 => prop::collection::vec(any::<u8>(), 0..40),
        3 => of(b"%:{}h0aAfF1325", 8),
        1 => of(b"%:", 4),
        1 => prop::collection::vec(prop::sample::select(&b"0123456789abcdef"[..]), 64)
            .prop_map(|digits| [b"%h", &digits[..]].concat()),
        // Values of more than 1,024 bytes are hashed.
        1 => (any::<u8>(), 1_020..1_030_usize).prop_map(|(byte, length)| vec![byte; length]),
    ]
}

/// The encoding as the documentation has it, written once more.
fn encoded(value: &[u8]) -> String {
    let mut text = String::new();
    if value.is_empty() {
        text.push('%');
    } else if value.len() > 1_024 {
        text.push_str("%h");
        for byte in Sha256::digest(value) {
            write!(text, "{byte:02x}").expect("a string takes everything");
        }
    } else {
        for &byte in value {
            if byte.is_ascii_alphanumeric() || b"._~-".contains(&byte) {
                text.push(byte.into());
            } else {
                write!(text, "%{byte:02X}").expect("a string takes everything");
            }
        }
    }
    text
}

/// Values, those joined as a careless key would join them, and their encodings.
fn pool() -> impl Strategy<Value = Vec<Vec<u8>>> {
    prop::collection::vec(values(), 2..4).prop_map(|values| {
        let joined = [&values[0][..], b":", &values[1][..]].concat();
        let written: Vec<Vec<u8>> = values.iter().map(|value| encoded(value).into()).collect();
        let both = [&written[0][..], b":", &written[1][..]].concat();
        let more = [joined, both, Vec::new(), b"%".to_vec()];
        values.into_iter().chain(written).chain(more).collect()
    })
}

/// The hash tag of a key, if the key can be a key of a cluster and in a line of a log.
fn tag(key: &str) -> Option<&str> {
    let (_, after) = key.split_once('{')?;
    let (tag, rest) = after.split_once('}')?;
    let is_right = key.starts_with("tg:{") && !tag.is_empty() && !tag.contains('{');
    let is_shown = key.bytes().all(|byte| (b'!'..=b'~').contains(&byte));
    (is_right && is_shown && !rest.contains(['{', '}'])).then_some(tag)
}

/// Asks each policy with all picks of the pool: different questions have different keys
/// and counters, and all keys of a check have one hash tag, so that they share a slot.
fn keys_are_right(
    shapes: &[Shape],
    pool: &[Vec<u8>],
    picks: &[Vec<usize>],
) -> Result<(), TestCaseError> {
    let policies: Vec<Policy> = shapes.iter().map(Shape::policy).collect();
    let timed = Timed::with(policies.clone());
    let texts: Vec<String> = pool.iter().map(|value| encoded(value)).collect();
    let mut meant: HashMap<String, (&str, &str, Vec<&[u8]>)> = HashMap::new();
    for pick in picks {
        for (shape, policy) in shapes.iter().zip(&policies) {
            let value = |&attribute: &usize| pool[pick[attribute]].as_slice();
            let names = ATTRIBUTES.into_iter().zip(0..);
            let attributes: Vec<_> = names.map(|(name, it)| (name, value(&it))).collect();
            let keys = policy.keys(&attributes).expect("all are there");
            let mut tags = HashSet::new();
            for ((key, level), name) in keys.iter().zip(&shape.levels).zip(LEVELS) {
                let parts = level.iter().map(|&attribute| &*texts[pick[attribute]]);
                prop_assert_eq!(key.text(), parts.collect::<Vec<_>>().join(":"));
                let stored = key.stored("tg");
                let tag = tag(&stored);
                prop_assert!(tag.is_some(), "{stored}");
                tags.insert(tag.map(str::to_owned));
                let values = level.iter().map(value).collect();
                let question = (shape.name, name, values);
                let other = meant.insert(stored, question.clone());
                prop_assert!(other.is_none_or(|other| other == question));
            }
            prop_assert_eq!(tags.len(), 1, "{:?}", tags);
            prop_assert!(timed.left(shape.name, &attributes, 1).is_some());
        }
    }
    let questions: HashSet<_> = meant.values().collect();
    prop_assert_eq!(meant.len(), questions.len());
    prop_assert_eq!(timed.keys(), questions.len());
    Ok(())
}

/// Values that have broken other limiters, and what looks like them.
fn awkward() -> Vec<Vec<u8>> {
    let values = [
        "", "}x", "{", "}", "{}", "{{a}}", "{}{x}", "x{y}z", "\0", "a\0b", "\n", "q", "q-t", "q-",
        ":", "a:b", "a", "b", "b:c", "c", "%", "%25", "%3A", "%h", "é",
    ];
    let mut values: Vec<Vec<u8>> = values.map(|value| value.as_bytes().to_vec()).into();
    values.push(format!("%h{}", "0".repeat(64)).into());
    values.extend([vec![b'{'; 2_000], vec![b'x'; 1_500], vec![0xff; 1_500]]);
    values.extend([1_023, 1_024, 1_025].map(|length| vec![b'x'; length]));
    values
}

/// Levels of one and two attributes in both orders, without one, and with a tag.
fn some_shapes() -> Vec<Shape> {
    let levels = [
        (vec![vec![0]], None),
        (vec![vec![], vec![0], vec![0, 1]], None),
        (vec![vec![0], vec![1], vec![1, 0, 2]], None),
        (vec![vec![0, 1], vec![1, 0, 2]], Some(1)),
    ];
    let shapes = NAMES.into_iter().zip(levels);
    let shape = |(name, (levels, tag))| Shape { name, levels, tag };
    shapes.map(shape).collect()
}

#[test]
fn a4_b7_b8_c2_awkward_values_never_meet_and_share_a_slot() {
    let pool = awkward();
    let count = 0..pool.len();
    let pairs = count
        .clone()
        .flat_map(|a| count.clone().map(move |b| vec![a, b, a, b]));
    keys_are_right(&some_shapes(), &pool, &pairs.collect::<Vec<_>>()).unwrap();
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn different_questions_have_different_keys_in_one_slot(
        shapes in policies(),
        pool in pool(),
        picks in prop::collection::vec(prop::collection::vec(any::<prop::sample::Index>(), 4), 1..12),
    ) {
        let picks = picks.iter().map(|pick| pick.iter().map(|one| one.index(pool.len())).collect());
        keys_are_right(&shapes, &pool, &picks.collect::<Vec<_>>())?;
    }
}
