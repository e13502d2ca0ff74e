//! Two to four levels in a straight line: all of them counters whose keys are there
//! under these same limits. Everything else goes, untouched, to `many.rs`.
//!
//! Each level is looked at once, under the locks of all shards: its state after the
//! charge and its numbers are worked out then, and written only if every level admits.

use std::array;

use smallvec::SmallVec;

use super::fingerprint::Fingerprint;
use super::home::{Home, ShardGuard};
use super::one::{at, level_decision};
use super::shard::Place;
use super::table::Table;
use super::{Ask, Charge};
use crate::algorithm::{Compact, Counter, Packed, each_compact};
use crate::decision::{Decision, LevelDecision, Source, fresh_id};

impl<H: Home> Table<H> {
    pub(super) fn decide_few<const LEVELS: usize>(
        &self,
        asks: [Ask<'_>; LEVELS],
        charge: Charge,
        at_us: Option<u64>,
    ) -> Decision {
        let before_us = self.time_before_locks(at_us);
        match self.decide_known(&asks, charge, before_us) {
            Some(decision) => decision,
            None => self.decide_many(&asks, charge, before_us),
        }
    }

    /// `None` where it takes more than a straight line.
    #[inline(always)]
    fn decide_known<const LEVELS: usize>(
        &self,
        asks: &[Ask<'_>; LEVELS],
        charge: Charge,
        before_us: Option<u64>,
    ) -> Option<Decision> {
        if matches!(charge, Charge::Always | Charge::Told) {
            return None;
        }
        let prints = asks.map(|ask| ask.print);
        let numbers = prints.map(|print| self.shard_number(print));
        let mut order = numbers;
        sort(&mut order);
        let mut shards: [Option<ShardGuard<'_, H>>; LEVELS] = array::from_fn(|index| {
            let is_new = index == 0 || order[index] != order[index - 1];
            is_new.then(|| self.lock(order[index]))
        });
        // Which of them has a level's key.
        let owner = numbers.map(|number| {
            let owner = order.iter().position(|other| *other == number);
            owner.unwrap_or(0)
        });
        let now_us = match before_us {
            Some(before_us) => {
                let locked = shards.iter().flatten();
                locked.fold(before_us, |now_us, shard| now_us.max(shard.latest_us))
            }
            None => self.clock.now_us(),
        };

        let mut places: [Place; LEVELS] = [(0, 0); LEVELS];
        let mut writes = [NOTHING; LEVELS];
        let mut levels = [LevelDecision::BLANK; LEVELS];
        let mut denied = None;
        for level in 0..LEVELS {
            let print = prints[level];
            // A key that occurs twice is charged for both.
            if prints[..level].contains(&print) {
                return None;
            }
            let shard = shards[owner[level]].as_deref()?;
            places[level] = shard.find(print)?;
            let (id, stored) = shard.read(places[level]);
            if id != asks[level].level.id {
                return None;
            }
            let key = (print, shard.era());
            let after = look(&asks[level], key, stored, now_us, &mut levels[level])?;
            match after {
                Look::Admits(after) => writes[level] = after,
                Look::Refuses => denied = denied.or(Some(level)),
            }
        }
        let is_charged = denied.is_none() && charge != Charge::Nothing;
        if before_us.is_some() {
            for shard in shards.iter_mut().flatten() {
                shard.latest_us = now_us;
            }
        }
        for level in 0..LEVELS {
            let print = prints[level];
            let shard = shards[owner[level]].as_mut()?;
            if is_charged {
                self.locked(print).refused.forget(print);
                shard.write(places[level], print, asks[level].level.id, writes[level]);
            } else if levels[level].outcome.retry_after_us == Some(0) {
                // It admits, and reports its numbers without the charge.
                let (_, stored) = shard.read(places[level]);
                levels[level] = uncharged(&asks[level], stored, now_us)?;
            }
        }
        drop(shards);
        Some(Decision {
            levels: SmallVec::from_slice(&levels),
            decided_at_us: now_us,
            denied_by: denied.and_then(|index| u32::try_from(index).ok()),
            source: Source::Store,
            receipt: is_charged.then(fresh_id),
            unavailable_us: None,
        })
    }
}

/// What a level says to a cost.
enum Look {
    /// It admits; this is its state after the charge.
    Admits(Packed),
    Refuses,
}

/// Where nothing is written.
const NOTHING: Packed = Packed {
    fresh_at_us: 0,
    data: 0,
    extra: 0,
};

/// Asks a level, and works out its numbers; `None` where the clock has stepped back.
#[inline(always)]
fn look(
    ask: &Ask<'_>,
    key: (Fingerprint, u32),
    stored: Packed,
    now_us: u64,
    numbers: &mut LevelDecision,
) -> Option<Look> {
    let &Ask { level, cost, .. } = ask;
    each_compact!(
        level.limit.kind(),
        limit => {
            let state = at(limit, stored, now_us)?;
            Some(match limit.try_charge(state, cost) {
                Some(after) => {
                    *numbers = level_decision(level, limit, &after, cost, key, true);
                    Look::Admits(limit.pack(&after))
                }
                None => {
                    *numbers = level_decision(level, limit, &state, cost, key, false);
                    Look::Refuses
                }
            })
        },
        _ => None
    )
}

/// The numbers of a level that admits and is not charged.
#[cold]
fn uncharged(ask: &Ask<'_>, stored: Packed, now_us: u64) -> Option<LevelDecision> {
    let &Ask { level, print, cost } = ask;
    each_compact!(
        level.limit.kind(),
        limit => {
            let state = at(limit, stored, now_us)?;
            Some(level_decision(level, limit, &state, cost, (print, 0), true))
        },
        _ => None
    )
}

/// Sorts a handful of numbers.
#[inline]
fn sort<const COUNT: usize>(numbers: &mut [usize; COUNT]) {
    for end in 1..COUNT {
        for index in (1..=end).rev() {
            if numbers[index - 1] > numbers[index] {
                numbers.swap(index - 1, index);
            }
        }
    }
}
