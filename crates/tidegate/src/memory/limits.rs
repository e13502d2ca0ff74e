//! The limits of a store, by number, so that an entry can say in 16 bits what it was
//! written under.
//!
//! A number is in use while a [`Level`](super::Level) has it or an entry was written
//! under it. When all are taken, those that nobody uses any more are given out again:
//! first they are retired, so that no new level can get them; then all shards are
//! searched; then those that no entry has are free.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use super::bucket::{LOG_BIT, LimitId};
use crate::limit::{Algorithm, Limit};

/// The limits in use. Read only when a limit has changed under a key.
#[derive(Default)]
pub(super) struct Limits {
    known: RwLock<Known>,
    /// One search at a time.
    search: Mutex<()>,
}

#[derive(Default)]
struct Known {
    slots: Vec<Slot>,
    ids: HashMap<Limit, LimitId>,
    free: Vec<usize>,
}

struct Slot {
    limit: Limit,
    handle: Handle,
}

/// A limit's number, held by everything that can write entries under it.
#[derive(Debug, Clone)]
pub(super) struct Handle(Arc<Number>);

#[derive(Debug, PartialEq, Eq)]
struct Number {
    id: LimitId,
    /// How often the number has been given out.
    turn: u16,
}

impl Handle {
    #[inline]
    pub(super) fn id(&self) -> LimitId {
        self.0.id
    }

    /// What a receipt knows the limit by: no two limits share it.
    #[inline]
    pub(super) fn stamp(&self) -> u32 {
        u32::from(self.0.turn) << 16 | u32::from(self.0.id)
    }

    /// A number that is given out elsewhere.
    pub(super) fn numbered(id: LimitId, turn: u16) -> Self {
        Self(Arc::new(Number { id, turn }))
    }

    fn is_unused(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }
}

/// A store has more distinct limits in use than it can number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("more than {MAX_LIMITS} different limits in use in one store: expected fewer")]
pub struct TooManyLimits;

/// How many distinct limits a store can tell apart.
const MAX_LIMITS: u16 = LOG_BIT - 1;

/// Which numbers the entries of a store were written under.
pub(super) struct UsedLimits(Box<[bool; 1 << 16]>);

impl UsedLimits {
    pub(super) fn none() -> Self {
        Self(Box::new([false; 1 << 16]))
    }

    pub(super) fn has(&self, id: LimitId) -> bool {
        self.0[usize::from(id)]
    }

    pub(super) fn add(&mut self, id: LimitId) {
        self.0[usize::from(id)] = true;
    }
}

impl Limits {
    /// The number of a limit: the same for equal limits. `search` looks through all
    /// entries for the numbers in use.
    pub(super) fn handle(
        &self,
        limit: &Limit,
        search: impl FnOnce(&mut UsedLimits),
    ) -> Result<Handle, TooManyLimits> {
        if let Some(handle) = self.write().get_or_add(limit) {
            return Ok(handle);
        }
        let _one_at_a_time = self.search.lock().unwrap_or_else(PoisonError::into_inner);
        let retired = self.write().retire();
        if !retired.is_empty() {
            let mut seen = UsedLimits::none();
            search(&mut seen);
            self.write().release(&retired, &seen);
        }
        self.write().get_or_add(limit).ok_or(TooManyLimits)
    }

    /// The limit that an entry was written under.
    pub(super) fn get(&self, id: LimitId) -> Option<Limit> {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        let index = usize::from(id & !LOG_BIT).checked_sub(1)?;
        known.slots.get(index).map(|slot| slot.limit)
    }

    fn write(&self) -> std::sync::RwLockWriteGuard<'_, Known> {
        self.known.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known {
    fn get_or_add(&mut self, limit: &Limit) -> Option<Handle> {
        if let Some(id) = self.ids.get(limit) {
            let slot = &self.slots[usize::from(id & !LOG_BIT) - 1];
            return Some(slot.handle.clone());
        }
        let index = match self.free.pop() {
            Some(index) => index,
            None if self.slots.len() < usize::from(MAX_LIMITS) => self.slots.len(),
            None => return None,
        };
        let number = LimitId::try_from(index + 1).ok()?;
        let keeps_log = limit.algorithm() == Algorithm::SlidingLog;
        let id = if keeps_log { number | LOG_BIT } else { number };
        let before = self.slots.get(index).map_or(0, |slot| slot.handle.0.turn);
        let turn = before.wrapping_add(1);
        let slot = Slot {
            limit: *limit,
            handle: Handle(Arc::new(Number { id, turn })),
        };
        let handle = slot.handle.clone();
        match self.slots.get_mut(index) {
            Some(free) => *free = slot,
            None => self.slots.push(slot),
        }
        self.ids.insert(*limit, id);
        Some(handle)
    }

    /// Withdraws the numbers that no level has: they are not given out any more.
    fn retire(&mut self) -> Vec<usize> {
        let (slots, ids) = (&self.slots, &mut self.ids);
        let free: std::collections::HashSet<usize> = self.free.iter().copied().collect();
        let unused = |index: &usize| slots[*index].handle.is_unused() && !free.contains(index);
        let retired: Vec<usize> = (0..slots.len()).filter(unused).collect();
        for index in &retired {
            let Slot { limit, handle } = &slots[*index];
            if ids.get(limit) == Some(&handle.id()) {
                ids.remove(limit);
            }
        }
        retired
    }

    /// Frees the retired numbers that no entry was written under.
    fn release(&mut self, retired: &[usize], seen: &UsedLimits) {
        for index in retired {
            let id = self.slots[*index].handle.id();
            if !seen.has(id) {
                self.free.push(*index);
            }
        }
    }
}
