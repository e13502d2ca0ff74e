//! Two different questions never share a counter, whatever the values are made of.

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
pub(crate) struct Shape {
    name: &'static str,
    levels: Vec<Vec<usize>>,
    tag: Option<usize>,
}

impl Shape {
    pub(crate) fn policy(&self) -> Policy {
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

    pub(crate) fn has_tag(&self) -> bool {
        self.shared_tag().is_some()
    }

    pub(crate) fn attributes<'v>(&self, values: &'v [Vec<u8>]) -> Vec<(&'static str, &'v [u8])> {
        let values = values.iter().map(Vec::as_slice);
        ATTRIBUTES.into_iter().zip(values).collect()
    }
}

fn template(attributes: &[usize]) -> String {
    attributes
        .iter()
        .map(|&attribute| format!("{{{}}}", ATTRIBUTES[attribute]))
        .collect()
}

/// One to four policies of different names.
pub(crate) fn policies() -> impl Strategy<Value = Vec<Shape>> {
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
pub(crate) fn values() -> impl Strategy<Value = Vec<u8>> {
    let of = |bytes: &'static [u8], most| {
        prop::collection::vec(prop::sample::select(bytes), 0..most).boxed()
    };
    prop_oneof![
        3 => prop::collection::vec(any::<u8>(), 0..40),
        3 => of(b"%:{}h0aAfF1325", 8),
        1 => of(b"%:", 4),
        1 => prop::collection::vec(prop::sample::select(&b"0123456789abcdef"[..]), 64)
            .prop_map(|digits| [b"%h", &digits[..]].concat()),
        1 => (0..3_u8, 1_020..1_030_usize).prop_map(|(byte, length)| vec![b'x' + byte; length]),
        1 => prop::collection::vec(any::<u8>(), 1_020..1_100),
    ]
}

/// The encoding as the documentation has it, written once more.
pub(crate) fn encoded(value: &[u8]) -> String {
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

/// Asks each policy with all picks of the pool: different questions have different keys
/// and counters.
fn different_questions_differ(
    shapes: &[Shape],
    pool: &[Vec<u8>],
    picks: &[Vec<usize>],
) -> Result<(), TestCaseError> {
    let policies: Vec<Policy> = shapes.iter().map(Shape::policy).collect();
    let timed = Timed::with(policies.clone());
    let mut meant: HashMap<String, (&str, String, Vec<&[u8]>)> = HashMap::new();
    let mut questions = HashSet::new();
    for pick in picks {
        let values: Vec<Vec<u8>> = pick.iter().map(|&index| pool[index].clone()).collect();
        for (shape, policy) in shapes.iter().zip(&policies) {
            let attributes = shape.attributes(&values);
            let keys = policy.keys(&attributes).expect("all are there");
            for (key, level) in keys.iter().zip(&shape.levels) {
                let tuple = level.iter().map(|&one| pool[pick[one]].as_slice());
                let tuple: Vec<&[u8]> = tuple.collect();
                let texts: Vec<String> = tuple.iter().map(|value| encoded(value)).collect();
                prop_assert_eq!(key.text(), texts.join(":"));
                let question = (shape.name, key.level().name().to_owned(), tuple);
                let other = meant.insert(key.stored("tg"), question.clone());
                prop_assert!(other.is_none_or(|other| other == question));
                questions.insert(question);
            }
            prop_assert!(timed.left(shape.name, &attributes, 1).is_some());
        }
    }
    prop_assert_eq!(meant.len(), questions.len());
    prop_assert_eq!(timed.keys(), questions.len());
    Ok(())
}

/// Values that have broken other limiters, and what looks like them.
pub(crate) fn awkward() -> Vec<Vec<u8>> {
    let values = [
        "", "}x", "{", "}", "{}", "{}{x}", "x{y}z", "\0", "a\0b", "\n", "q", "q-t", "q-", ":",
        "a:b", "a", "b", "b:c", "c", "%", "%25", "%3A", "%h", "é",
    ];
    let mut values: Vec<Vec<u8>> = values.map(|value| value.as_bytes().to_vec()).into();
    values.push(format!("%h{}", "0".repeat(64)).into());
    values.extend([vec![b'{'; 1 << 16], vec![b'x'; 1_500], vec![0xff; 1_500]]);
    values.extend([1_023, 1_024, 1_025].map(|length| vec![b'x'; length]));
    values
}

/// Every pair of so many values, for the first two attributes.
fn pairs(values: usize) -> Vec<Vec<usize>> {
    let all = (0..values).flat_map(|a| (0..values).map(move |b| vec![a, b, a, b]));
    all.collect()
}

/// Levels of one and two attributes in both orders, without one, and with a tag.
pub(crate) fn some_shapes() -> Vec<Shape> {
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
fn awkward_values_never_meet() {
    let pool = awkward();
    different_questions_differ(&some_shapes(), &pool, &pairs(pool.len())).unwrap();
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn different_questions_have_different_keys_and_counters(
        shapes in policies(),
        pool in pool(),
        picks in prop::collection::vec(prop::collection::vec(any::<prop::sample::Index>(), 4), 1..12),
    ) {
        let picks: Vec<Vec<usize>> = picks
            .iter()
            .map(|pick| pick.iter().map(|one| one.index(pool.len())).collect())
            .collect();
        different_questions_differ(&shapes, &pool, &picks)?;
    }
}
