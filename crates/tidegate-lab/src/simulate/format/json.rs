//! One JSON object per line. The fields that matter are a tree of names, so a line is read
//! in one pass and everything else in it is skipped.
//!
//! A field is named by its path: `request.headers.X-User.0` is the first element of a list.
//! A dot that is part of a name is written `\.`.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::Unreadable;
use crate::simulate::time::{At, Times};
use crate::simulate::values::{Shape, Values};

/// Which fields go where.
#[derive(Debug, Clone, Default)]
pub(super) struct Tree {
    children: Vec<(String, Tree)>,
    targets: Vec<Target>,
}

#[derive(Debug, Clone, Copy)]
enum Target {
    Time { rank: u8 },
    Slot { slot: usize, rank: u8, shape: Shape },
}

/// What a line has said so far.
struct Line<'v> {
    times: &'v mut Times,
    values: &'v mut Values,
    /// The time, and how far down the list its field stands.
    time: Option<(u8, Option<At>)>,
}

/// A part of the tree, on its way through a line.
struct Walk<'t, 'l, 'v> {
    tree: &'t Tree,
    line: &'l mut Line<'v>,
}

impl Tree {
    pub(super) fn new() -> Self {
        Self::default()
    }

    pub(super) fn time(&mut self, path: &str, rank: u8) {
        self.at(path).targets.push(Target::Time { rank });
    }

    pub(super) fn slot(&mut self, path: &str, slot: usize, rank: u8, shape: Shape) {
        self.at(path)
            .targets
            .push(Target::Slot { slot, rank, shape });
    }

    fn at(&mut self, path: &str) -> &mut Self {
        let mut tree = self;
        for name in names(path) {
            let known = tree.children.iter().position(|(other, _)| *other == name);
            let index = known.unwrap_or_else(|| {
                tree.children.push((name, Self::default()));
                tree.children.len() - 1
            });
            tree = &mut tree.children[index].1;
        }
        tree
    }

    fn child(&self, name: &str) -> Option<&Self> {
        let found = self.children.iter().find(|(other, _)| other == name);
        found.map(|(_, tree)| tree)
    }

    pub(super) fn read(
        &self,
        line: &[u8],
        times: &mut Times,
        values: &mut Values,
    ) -> Result<At, Unreadable> {
        let mut said = Line {
            times,
            values,
            time: None,
        };
        let mut json = serde_json::Deserializer::from_slice(line);
        let walk = Walk {
            tree: self,
            line: &mut said,
        };
        walk.deserialize(&mut json)
            .map_err(|_| "not a JSON object")?;
        json.end()
            .map_err(|_| "something follows the JSON object")?;
        let (_, time) = said.time.ok_or("no field with the time")?;
        time.ok_or("the field of the time is not a time with a zone")
    }
}

/// The names of a path.
fn names(path: &str) -> Vec<String> {
    let mut names = vec![String::new()];
    let mut letters = path.chars();
    while let Some(letter) = letters.next() {
        let name = names.last_mut().expect("it starts with one");
        match letter {
            '.' => names.push(String::new()),
            '\\' => name.extend(letters.next()),
            letter => name.push(letter),
        }
    }
    names
}

impl<'de> DeserializeSeed<'de> for Walk<'_, '_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl Walk<'_, '_, '_> {
    fn text(&mut self, text: &[u8]) {
        self.each(text, |times| times.read(text));
    }

    fn number(&mut self, number: u64) {
        let mut digits = itoa::Buffer::new();
        self.each(digits.format(number).as_bytes(), |_| At::number(number));
    }

    fn each(&mut self, text: &[u8], at: impl Fn(&mut Times) -> Option<At>) {
        for target in &self.tree.targets {
            match *target {
                Target::Slot { slot, rank, shape } => self.line.values.set(slot, rank, shape, text),
                Target::Time { rank } => {
                    if self.line.time.is_none_or(|(other, _)| rank < other) {
                        self.line.time = Some((rank, at(self.line.times)));
                    }
                }
            }
        }
    }
}

impl<'de> Visitor<'de> for Walk<'_, '_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(child) = map.next_key_seed(Name(self.tree))? {
            match child {
                Some(tree) => map.next_value_seed(Walk {
                    tree,
                    line: &mut *self.line,
                })?,
                None => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        let none = Tree::default();
        let mut digits = itoa::Buffer::new();
        for index in 0_u64.. {
            let tree = self.tree.child(digits.format(index)).unwrap_or(&none);
            let walk = Walk {
                tree,
                line: &mut *self.line,
            };
            if list.next_element_seed(walk)?.is_none() {
                break;
            }
        }
        Ok(())
    }

    fn visit_str<E>(mut self, text: &str) -> Result<(), E> {
        self.text(text.as_bytes());
        Ok(())
    }

    fn visit_u64<E>(mut self, number: u64) -> Result<(), E> {
        self.number(number);
        Ok(())
    }

    fn visit_i64<E>(mut self, number: i64) -> Result<(), E> {
        let mut digits = itoa::Buffer::new();
        self.each(digits.format(number).as_bytes(), |_| None);
        Ok(())
    }

    fn visit_f64<E>(mut self, number: f64) -> Result<(), E> {
        // Only fields that matter pay for the text.
        if !self.tree.targets.is_empty() {
            self.each(number.to_string().as_bytes(), |_| At::seconds(number));
        }
        Ok(())
    }

    fn visit_bool<E>(mut self, value: bool) -> Result<(), E> {
        self.each(if value { b"true" } else { b"false" }, |_| None);
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }
}

/// The name of a field, looked up without being kept.
struct Name<'t>(&'t Tree);

impl<'de, 't> DeserializeSeed<'de> for Name<'t> {
    type Value = Option<&'t Tree>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<'t> Visitor<'_> for Name<'t> {
    type Value = Option<&'t Tree>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a name")
    }

    fn visit_str<E>(self, name: &str) -> Result<Self::Value, E> {
        Ok(self.0.child(name))
    }
}
