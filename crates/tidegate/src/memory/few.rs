//! Two to four levels in a straight line: all of them counters whose keys are there
//! under these same limits. Everything else goes, untouched, to `many.rs`.
//!
//! Each level is looked at once, under the locks of all shards: its state after the
//! charge and its numbers are worked out then, and written only if every level admits.

use std::array;

use lock_api::{MutexGuard, RawMutex};

use super::fingerprint::Fingerprint;
use super::one::{at, level_decision};
use super::region::Region;
use super::shard::{Place, Shard};
use super::table::Table;
use super::{Charge, Check};
use crate::algorithm::{Compact, Packed, each_compact};
use crate::decision::{Decision, LevelDecision, Levels, Source, fresh_id};

/// What a level comes to.
enum Look {
    /// It admits: what to write, and its numbers after that.
    Admits(Packed, LevelDecision),
    Refuses(LevelDecision),
}

impl<R: RawMutex, M: Region> Table<R, M> {
    /// `all` are the same checks, for `many.rs`.
    pub(super) fn decide_few<const LEVELS: usize>(
        &self,
        checks: [&Check<'_>; LEVELS],
        all: &[Check<'_>],
        charge: Charge,
        before_us: Option<u64>,
    ) -> Decision {
        self.decide_known(checks, charge, before_us)
            .unwrap_or_else(|| self.decide_many(all, charge, before_us))
    }

    /// `None` where it takes more than a straight line.
    #[inline]
    fn decide_known<const LEVELS: usize>(
        &self,
        checks: [&Check<'_>; LEVELS],
        charge: Charge,
        before_us: Option<u64>,
    ) -> Option<Decision> {
        if charge == Charge::Always {
            return None;
        }
        let prints = checks.map(|check| self.fingerprint(check.level, check.key));
        let numbers = prints.map(|print| self.shard_number(print));
        let mut order = numbers;
        sort(&mut order);
        let mut shards: [Option<MutexGuard<'_, R, Shard<M>>>; LEVELS] = array::from_fn(|index| {
            let is_new = index == 0 || order[index] != order[index - 1];
            is_new.then(|| self.shards[order[index]].shard.lock())
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

        let mut looks: [Option<(Place, Look)>; LEVELS] = [const { None }; LEVELS];
        for level in 0..LEVELS {
            let print = prints[level];
            // A key that occurs twice is charged for both.
            if prints[..level].contains(&print) {
                return None;
            }
            let shard = shards[owner[level]].as_deref()?;
            let place = shard.find(print)?;
            looks[level] = Some((
                place,
                self.look(checks[level], print, shard, place, now_us)?,
            ));
        }
        let refuses =
            |look: &Option<(Place, Look)>| matches!(look, Some((_, Look::Refuses(_))) | None);
        let denied = looks.iter().position(refuses);
        if denied.is_some() || charge == Charge::Nothing {
            // Levels that admit report their numbers without the charge.
            for (level, look) in looks.iter_mut().enumerate() {
                if let (Some((place, Look::Admits(..))), Some(shard)) =
                    (&look, &shards[owner[level]])
                {
                    let place = *place;
                    let numbers = self.peek(checks[level], prints[level], shard, place, now_us)?;
                    *look = Some((place, Look::Refuses(numbers)));
                }
            }
        }
        for shard in shards.iter_mut().flatten() {
            if before_us.is_some() {
                shard.latest_us = now_us;
            }
        }
        let mut levels: [Option<LevelDecision>; LEVELS] = [None; LEVELS];
        for (level, look) in looks.into_iter().enumerate() {
            let (place, look) = look?;
            levels[level] = Some(match look {
                Look::Admits(packed, numbers) => {
                    let print = prints[level];
                    self.locked(print).refused.forget(print);
                    let shard = shards[owner[level]].as_mut()?;
                    shard.write(place, print, checks[level].level.id, packed);
                    numbers
                }
                Look::Refuses(numbers) => numbers,
            });
        }
        drop(shards);
        let is_charged = denied.is_none() && charge != Charge::Nothing;
        Some(Decision {
            levels: Levels::from(levels.into_iter().flatten()),
            decided_at_us: now_us,
            denied_by: denied.and_then(|index| u32::try_from(index).ok()),
            source: Source::Store,
            receipt: is_charged.then(fresh_id),
        })
    }

    /// What a level comes to; `None` where its entry is under another limit, or the
    /// clock has stepped back.
    #[inline]
    fn look(
        &self,
        check: &Check<'_>,
        print: Fingerprint,
        shard: &Shard<M>,
        place: Place,
        now_us: u64,
    ) -> Option<Look> {
        let (id, stored) = shard.read(place);
        if id != check.level.id {
            return None;
        }
        each_compact!(
            check.level.limit.kind(),
            limit => look(limit, check, (print, shard.era()), stored, now_us),
            _ => None
        )
    }

    /// The numbers of a level that is not charged.
    #[cold]
    fn peek(
        &self,
        check: &Check<'_>,
        print: Fingerprint,
        shard: &Shard<M>,
        place: Place,
        now_us: u64,
    ) -> Option<LevelDecision> {
        let (_, stored) = shard.read(place);
        each_compact!(
            check.level.limit.kind(),
            limit => {
                let state = at(limit, stored, now_us)?;
                Some(level_decision(check.level, limit, &state, check.cost, (print, 0), true))
            },
            _ => None
        )
    }
}

#[inline]
fn look<C: Compact>(
    limit: &C,
    check: &Check<'_>,
    key: (Fingerprint, u32),
    stored: Packed,
    now_us: u64,
) -> Option<Look> {
    let &Check { level, cost, .. } = check;
    let state = at(limit, stored, now_us)?;
    Some(if limit.admits(&state, cost) {
        let state = limit.charge(state, cost);
        let numbers = level_decision(level, limit, &state, cost, key, true);
        Look::Admits(limit.pack(&state), numbers)
    } else {
        Look::Refuses(level_decision(level, limit, &state, cost, key, false))
    })
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
