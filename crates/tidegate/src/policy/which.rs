//! Selecting levels of a policy to reset, and explaining all of them.

use std::ops::Range;

use super::decision::PolicyDecision;
use super::error::CheckError;
use super::keys::Keys;
use super::{Policy, PolicyLevel};
use crate::attributes::Attributes;
use crate::decision::LevelDecision;
use crate::limit::Limit;

/// Which levels of a policy to reset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Which<'a> {
    /// The only level. An error if there are several.
    Only,
    /// The level with this name.
    Level(&'a str),
    /// All levels, including counters that other keys share.
    All,
}

/// The state of a level for a key: its settings and its numbers.
#[derive(Debug, Clone, PartialEq)]
pub struct Explained<'p> {
    /// The level.
    pub level: &'p PolicyLevel,
    /// The key's values, encoded.
    pub key: String,
    /// The limit that applies; `None` if an override exempts this key.
    pub limit: Option<&'p Limit>,
    /// The override that applies, by its index among the level's overrides.
    pub overridden_by: Option<usize>,
    /// The numbers; `None` if nothing is counted.
    pub numbers: Option<LevelDecision>,
}

impl Policy {
    /// The indexes of the selected levels.
    pub(super) fn which(&self, which: Which<'_>) -> Result<Range<usize>, CheckError> {
        let names = || {
            let names: Vec<&str> = self.levels.iter().map(PolicyLevel::name).collect();
            names.join(", ")
        };
        match which {
            Which::All => Ok(0..self.levels.len()),
            Which::Only if self.levels.len() == 1 => Ok(0..1),
            Which::Only => Err(CheckError::WhichLevel {
                policy: self.name().into(),
                levels: names(),
            }),
            Which::Level(name) => match self.levels.iter().position(|level| level.name() == name) {
                Some(level) => Ok(level..level + 1),
                None => Err(CheckError::UnknownLevel {
                    policy: self.name().into(),
                    level: name.into(),
                    levels: names(),
                }),
            },
        }
    }

    /// Every level with its settings, and with its numbers from a peek at these keys.
    pub fn explain<'p>(&'p self, keys: &Keys<'_>, look: &PolicyDecision<'_>) -> Vec<Explained<'p>> {
        let mut numbers = look.levels().map(|level| *level.numbers());
        let explained = keys.all().map(|key| {
            let level = &self.levels[usize::from(key.level)];
            let limit = level.overrides.limit(key.case);
            let is_counted = self.enabled() && limit.is_some();
            Explained {
                level,
                key: key.text().into_owned(),
                limit,
                overridden_by: key.overridden_by(),
                numbers: is_counted.then(|| numbers.next()).flatten(),
            }
        });
        explained.collect()
    }

    /// The keys of these levels as text: their values, encoded and joined by `:`.
    pub fn key_texts<A>(&self, attributes: &A, which: Which<'_>) -> Result<Vec<String>, CheckError>
    where
        A: Attributes + ?Sized,
    {
        let keys = self.keys_of(self.which(which)?, attributes)?;
        Ok(keys.all().map(|key| key.text().into_owned()).collect())
    }

    /// The keys that these levels can have in a shared store, to delete them: one per
    /// algorithm, since a level's algorithm may have changed.
    pub fn stored_keys<A>(
        &self,
        attributes: &A,
        which: Which<'_>,
        prefix: &str,
    ) -> Result<Vec<String>, CheckError>
    where
        A: Attributes + ?Sized,
    {
        let keys = self.keys_of(self.which(which)?, attributes)?;
        Ok(keys.all().flat_map(|key| key.stored_all(prefix)).collect())
    }
}
