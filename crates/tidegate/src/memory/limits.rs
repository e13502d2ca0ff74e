//! The limits a store has seen, by number, so that an entry can say in 16 bits
//! what it was written under.

use std::collections::HashMap;

use std::sync::RwLock;

use super::bucket::{LOG_BIT, LimitId};
use crate::limit::{Algorithm, Limit};

/// Every distinct limit since the store was made. Read only when a limit has
/// changed under a key.
#[derive(Default)]
pub(super) struct Limits(RwLock<Known>);

#[derive(Default)]
struct Known {
    by_number: Vec<Limit>,
    ids: HashMap<Limit, LimitId>,
}

/// A store has seen more distinct limits than it can number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("more than {MAX_LIMITS} different limits in one store: expected fewer")]
pub struct TooManyLimits;

/// How many distinct limits a store can tell apart.
const MAX_LIMITS: u16 = LOG_BIT - 1;

impl Limits {
    /// The number of a limit: the same for equal limits.
    pub(super) fn id(&self, limit: &Limit) -> Result<LimitId, TooManyLimits> {
        let mut known = self.0.write().expect("nothing panics under this lock");
        if let Some(id) = known.ids.get(limit) {
            return Ok(*id);
        }
        let number = LimitId::try_from(known.by_number.len() + 1)
            .ok()
            .filter(|number| *number <= MAX_LIMITS)
            .ok_or(TooManyLimits)?;
        let keeps_log = limit.algorithm() == Algorithm::SlidingLog;
        let id = if keeps_log { number | LOG_BIT } else { number };
        known.by_number.push(*limit);
        known.ids.insert(*limit, id);
        Ok(id)
    }

    /// The limit of a number; `None` for one that another store gave out.
    pub(super) fn get(&self, id: LimitId) -> Option<Limit> {
        let known = self.0.read().expect("nothing panics under this lock");
        let index = usize::from(id & !LOG_BIT).checked_sub(1)?;
        known.by_number.get(index).copied()
    }
}
