//! Keys by what tells them apart, in a few bytes.

use std::hash::{BuildHasher, RandomState};

use tidegate::LevelKey;

/// A key of a policy by two hashes: so long that no two keys meet.
pub(crate) type Print = [u64; 2];

/// What the hashes are salted with: nobody outside can make keys meet.
#[derive(Debug, Default)]
pub(crate) struct Prints([RandomState; 2]);

impl Prints {
    pub(crate) fn of(&self, key: &LevelKey<'_>) -> Print {
        let text = key.text();
        // Every algorithm has a counter of its own.
        let identity = (key.level().name(), key.limit().algorithm(), &*text);
        self.0.each_ref().map(|seed| seed.hash_one(identity))
    }
}

/// Which of so many parts a key belongs to.
pub(crate) fn part(print: Print, parts: usize) -> usize {
    usize::try_from(print[1] % parts.max(1) as u64).unwrap_or(0)
}
