//! From attributes to the keys that a policy checks in a store.

use std::borrow::Cow;
use std::iter;
use std::ops::Range;

use smallvec::SmallVec;

use super::{Policy, PolicyLevel};
use crate::algorithm::Algorithm;
use crate::attributes::Attributes;
use crate::encoding;
use crate::limit::Limit;

/// The keys of one check of a policy: one per level, with the limit that applies to it.
/// Levels that do not count this key are left out.
///
/// Up to four levels of eight values together do not allocate.
#[derive(Debug, Clone)]
pub struct Keys<'a> {
    policy: &'a Policy,
    levels: SmallVec<[LevelCase; 4]>,
    /// The values of all levels, one after the other.
    values: SmallVec<[&'a [u8]; 8]>,
    /// The limit that came with the check, instead of the levels' own.
    limit: Option<&'a Limit>,
}

/// A level, its matching case, and where its values end.
#[derive(Debug, Clone, Copy)]
struct LevelCase {
    level: u16,
    case: u16,
    end: u16,
}

/// One level of [`Keys`].
#[derive(Debug, Clone, Copy)]
pub struct LevelKey<'a> {
    policy: &'a Policy,
    pub(crate) level: u16,
    pub(super) case: u16,
    /// Distinguishes it from other keys of the level.
    pub(crate) values: &'a [&'a [u8]],
    pub(super) given: Option<&'a Limit>,
}

/// A check lacks an attribute that its policy's keys need.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the attribute {attribute:?} is missing: policy {policy:?} expects {expected}")]
pub struct MissingAttribute {
    policy: String,
    attribute: String,
    expected: String,
}

impl MissingAttribute {
    /// The name of the attribute.
    pub fn attribute(&self) -> &str {
        &self.attribute
    }
}

impl Policy {
    /// The keys of a check with these attributes.
    ///
    /// ```
    /// use tidegate::{Limit, Policy};
    ///
    /// let policy = Policy::builder("api")
    ///     .level("resource", "{resource}", Limit::per_second(5))
    ///     .level("consumer", "{resource}:{consumer}", Limit::per_second(3))
    ///     .build()?;
    /// let keys = policy.keys(&[("resource", "1:2"), ("consumer", "3")])?;
    /// let stored: Vec<String> = keys.iter().map(|key| key.stored("tg")).collect();
    /// assert_eq!(stored, ["tg:{1%3A2}:api:resource", "tg:{1%3A2}:api:consumer:1%3A2:3"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn keys<'a, A>(&'a self, attributes: &'a A) -> Result<Keys<'a>, MissingAttribute>
    where
        A: Attributes + ?Sized,
    {
        self.keys_of(0..self.levels.len(), attributes)
    }

    /// For each level, which override applies to a check, by its index.
    pub fn overridden_by<A>(&self, attributes: &A) -> Result<Vec<Option<usize>>, MissingAttribute>
    where
        A: Attributes + ?Sized,
    {
        let keys = self.keys(attributes)?;
        Ok(keys.all().map(|key| key.overridden_by()).collect())
    }

    /// The keys of some of the policy's levels.
    #[inline]
    pub(super) fn keys_of<'a, A>(
        &'a self,
        levels: Range<usize>,
        attributes: &'a A,
    ) -> Result<Keys<'a>, MissingAttribute>
    where
        A: Attributes + ?Sized,
    {
        let mut keys = Keys::none(self);
        for level in levels {
            keys.add(level, attributes)?;
        }
        Ok(keys)
    }

    #[cold]
    pub(super) fn missing(&self, attribute: &str) -> MissingAttribute {
        MissingAttribute {
            policy: self.name.to_string(),
            attribute: attribute.to_owned(),
            expected: self.attributes().join(", "),
        }
    }
}

impl<'a> Keys<'a> {
    /// No keys, for a policy that is not enabled.
    #[inline]
    pub fn none(policy: &'a Policy) -> Self {
        Self {
            policy,
            levels: SmallVec::new(),
            values: SmallVec::new(),
            limit: None,
        }
    }

    /// These keys under a limit that came with the check, instead of the levels' own.
    /// It must use their algorithm; overrides still apply.
    #[must_use]
    pub fn under(self, limit: Option<&'a Limit>) -> Self {
        Self { limit, ..self }
    }

    /// A copy of these keys [under](Self::under) a limit that may live shorter than they do.
    pub fn with_limit<'b>(&'b self, limit: Option<&'b Limit>) -> Keys<'b> {
        Keys {
            policy: self.policy,
            levels: self.levels.clone(),
            values: self.values.iter().copied().collect(),
            limit,
        }
    }

    /// The limit that came with the check.
    pub fn given_limit(&self) -> Option<&'a Limit> {
        self.limit
    }

    /// Their policy.
    pub fn policy(&self) -> &'a Policy {
        self.policy
    }

    /// The levels that count, in the policy's order.
    #[inline]
    pub fn iter(&self) -> impl Iterator<Item = LevelKey<'_>> {
        self.all().filter(LevelKey::counts)
    }

    /// Some of the levels that count, by their positions among them.
    pub fn only(&self, is_meant: impl Fn(usize) -> bool) -> Self {
        let mut keys = Self {
            limit: self.limit,
            ..Self::none(self.policy)
        };
        let ends = || self.levels.iter().map(|keyed| usize::from(keyed.end));
        let ranges = iter::once(0).chain(ends()).zip(ends());
        let counted = self.all().zip(ranges).filter(|(key, _)| key.counts());
        for (place, (key, (start, end))) in counted.enumerate() {
            if is_meant(place) {
                keys.values.extend_from_slice(&self.values[start..end]);
                keys.levels.push(LevelCase {
                    level: key.level,
                    case: key.case,
                    end: u16::try_from(keys.values.len()).expect("no more than there were"),
                });
            }
        }
        keys
    }

    /// Also the levels that an override exempts.
    #[inline]
    pub(super) fn all(&self) -> impl Iterator<Item = LevelKey<'_>> {
        let mut start = 0;
        self.levels.iter().map(move |keyed| {
            let end = usize::from(keyed.end);
            let values = &self.values[start..end];
            start = end;
            LevelKey {
                policy: self.policy,
                level: keyed.level,
                case: keyed.case,
                values,
                given: self.limit,
            }
        })
    }

    #[inline]
    fn add<A>(&mut self, number: usize, attributes: &'a A) -> Result<(), MissingAttribute>
    where
        A: Attributes + ?Sized,
    {
        let level = &self.policy.levels[number];
        let start = self.values.len();
        for name in level.key.names() {
            let value = attributes.value(name);
            self.values
                .push(value.ok_or_else(|| self.policy.missing(name))?);
        }
        self.levels.push(LevelCase {
            level: u16::try_from(number).expect("levels are bounded"),
            case: level.overrides.find(&self.values[start..], attributes),
            end: u16::try_from(self.values.len()).expect("levels and attributes are bounded"),
        });
        Ok(())
    }
}

impl<'a> LevelKey<'a> {
    /// The level.
    #[inline]
    pub fn level(&self) -> &'a PolicyLevel {
        &self.policy.levels[usize::from(self.level)]
    }

    /// The limit that applies to this key.
    #[inline]
    pub fn limit(&self) -> &'a Limit {
        let limit = self.given_limit().or_else(|| self.own_limit());
        limit.expect("only levels that count are handed out")
    }

    /// The limit that came with the check, if it applies.
    #[inline]
    pub fn given_limit(&self) -> Option<&'a Limit> {
        self.given.filter(|_| self.overridden_by().is_none())
    }

    #[inline]
    pub(super) fn counts(&self) -> bool {
        self.own_limit().is_some()
    }

    /// The limit of the policy that applies.
    #[inline]
    fn own_limit(&self) -> Option<&'a Limit> {
        self.level().overrides.limit(self.case)
    }

    /// The override that applies, by its index among the level's overrides.
    #[inline]
    pub fn overridden_by(&self) -> Option<usize> {
        self.level().overrides.index(self.case)
    }

    /// The values, encoded and joined by `:`. Empty for a key without attributes.
    pub fn text(&self) -> Cow<'a, str> {
        if let [value] = self.values
            && let Some(text) = encoding::plain(value)
        {
            return text.into();
        }
        let text = encoding::tuple(self.values);
        String::from_utf8_lossy(&text).into_owned().into()
    }

    /// The key in a shared store: `<prefix>:{<tag>}:<policy>:<level>[:<values>]`. The
    /// values are left out if they equal the tag. Every algorithm has its own counter: its
    /// suffix follows the level (`~fw`, `~sw`, `~sl`, nothing for the token bucket).
    pub fn stored(&self, prefix: &str) -> String {
        let limit = self.own_limit();
        let suffix = limit.map_or("", |limit| limit.algorithm().profile().suffix);
        self.counter(prefix, suffix)
    }

    /// The keys that the level can have in a shared store: one per algorithm.
    pub(super) fn stored_all(&self, prefix: &str) -> Vec<String> {
        let suffixes = Algorithm::counting().map(|algorithm| algorithm.profile().suffix);
        suffixes
            .map(|suffix| self.counter(prefix, suffix))
            .collect()
    }

    fn counter(&self, prefix: &str, suffix: &str) -> String {
        let level = self.level();
        let (policy, name) = (&*self.policy.name, &*level.name);
        let values = self.text();
        let parts: SmallVec<[&str; 4]> = values.split(':').collect();
        let slots = || level.tag_slots.iter().map(|slot| usize::from(*slot));
        let tag: Cow<'_, str> = match &*level.tag_slots {
            [] => policy.into(),
            [slot] => parts[usize::from(*slot)].into(),
            _ => slots()
                .map(|slot| parts[slot])
                .collect::<Vec<_>>()
                .join(":")
                .into(),
        };
        let (colon, rest) = match slots().eq(0..level.key.names().len()) {
            true => ("", ""),
            false => (":", &*values),
        };
        [
            prefix, ":{", &tag, "}:", policy, ":", name, suffix, colon, rest,
        ]
        .concat()
    }
}
