//! Which limit applies to a key: an override's, or the level's own.

use std::collections::HashMap;

use foldhash::fast::FixedState;

use crate::attributes::Attributes;
use crate::limit::Limit;

/// A level's limits: those of the overrides in order, then its own, which matches every key. A
/// *case* is the index of one of them.
#[derive(Debug, Clone)]
pub(crate) struct Overrides {
    all: Box<[ConditionalLimit]>,
    /// The case of the level's own limit, which is the last.
    own: u16,
    /// The overrides by their first condition, so that a check does not have to try each of
    /// them: for each attribute, the overrides per value.
    by_first: Box<[(Attribute, ByValue)]>,
}

type ByValue = HashMap<Box<[u8]>, Vec<u16>, FixedState>;

/// A limit that applies if all conditions hold.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ConditionalLimit {
    pub(crate) conditions: Box<[Condition]>,
    /// `None`: the level does not count.
    pub(crate) limit: Option<Limit>,
}

/// An attribute, and the value it must have.
pub(crate) type Condition = (Attribute, Box<[u8]>);

/// Where a condition finds its value.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Attribute {
    /// At this position in the level's key.
    InKey(u16),
    /// Among the other attributes of the check, under this name.
    Other(Box<str>),
}

impl Attribute {
    fn value<'a, A>(&self, key: &[&'a [u8]], others: &'a A) -> Option<&'a [u8]>
    where
        A: Attributes + ?Sized,
    {
        match self {
            Self::InKey(slot) => Some(key[usize::from(*slot)]),
            Self::Other(name) => others.value(name),
        }
    }
}

/// The rest follows from `all`.
impl PartialEq for Overrides {
    fn eq(&self, other: &Self) -> bool {
        self.all == other.all
    }
}

impl Overrides {
    /// The maximum number of overrides per level.
    pub(crate) const MAX_OVERRIDES: usize = 10_000;

    pub(crate) fn new(overrides: Vec<ConditionalLimit>, own: Limit) -> Self {
        let mut by_first: Vec<(Attribute, ByValue)> = Vec::new();
        for (case, change) in (0..).zip(&overrides) {
            let Some((attribute, value)) = change.conditions.first() else {
                continue;
            };
            let at = by_first.iter().position(|(other, _)| other == attribute);
            let at = at.unwrap_or_else(|| {
                by_first.push((attribute.clone(), ByValue::default()));
                by_first.len() - 1
            });
            by_first[at].1.entry(value.clone()).or_default().push(case);
        }
        let own_case = u16::try_from(overrides.len()).expect("overrides are bounded");
        let own = ConditionalLimit {
            conditions: Box::default(),
            limit: Some(own),
        };
        Self {
            all: overrides.into_iter().chain([own]).collect(),
            own: own_case,
            by_first: by_first.into(),
        }
    }

    /// The first case that matches the values of the key and, for exemptions,
    /// the other attributes of the check.
    #[inline]
    pub(crate) fn find<A>(&self, key: &[&[u8]], attributes: &A) -> u16
    where
        A: Attributes + ?Sized,
    {
        if self.by_first.is_empty() {
            return self.own;
        }
        self.find_override(key, attributes).unwrap_or(self.own)
    }

    fn find_override<A>(&self, key: &[&[u8]], attributes: &A) -> Option<u16>
    where
        A: Attributes + ?Sized,
    {
        let holds =
            |(attribute, value): &Condition| attribute.value(key, attributes) == Some(&**value);
        let fits = |case: &u16| self.all[usize::from(*case)].conditions.iter().all(holds);
        let first_of = |(attribute, by_value): &(Attribute, ByValue)| {
            let candidates = by_value.get(attribute.value(key, attributes)?)?;
            candidates.iter().copied().find(fits)
        };
        self.by_first.iter().filter_map(first_of).min()
    }

    /// The same overrides with other limits.
    pub(crate) fn with_limits(&self, change: impl Fn(&Limit) -> Limit) -> Self {
        let mut changed = self.clone();
        for limit in changed.all.iter_mut().filter_map(|it| it.limit.as_mut()) {
            *limit = change(limit);
        }
        changed
    }

    /// The limit of a case; `None` if its keys are not counted.
    #[inline]
    pub(crate) fn limit(&self, case: u16) -> Option<&Limit> {
        self.all[usize::from(case)].limit.as_ref()
    }

    /// The override of a case, by its index; `None` for the level's own limit.
    #[inline]
    pub(crate) fn index(&self, case: u16) -> Option<usize> {
        (case != self.own).then(|| case.into())
    }

    /// All limits, the level's own last.
    pub(crate) fn all(&self) -> &[ConditionalLimit] {
        &self.all
    }

    /// The level's own limit.
    pub(crate) fn own(&self) -> &Limit {
        let own = self.limit(self.own);
        own.expect("a level has a limit of its own")
    }
}
