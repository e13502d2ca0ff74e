//! Any number of levels, in one atomic step.
//!
//! The shards of all keys are locked, in the order of their numbers. Every level is
//! looked at before any is changed. Room is made for what is new, which is the last
//! thing that can fail. Only then is every level charged.

use std::sync::atomic::Ordering::Relaxed;

use lock_api::{MutexGuard, RawMutex};
use smallvec::SmallVec;

use super::bounds::Full;
use super::fingerprint::Fingerprint;
use super::region::Region;
use super::shard::Shard;
use super::table::Table;
use super::view::{Seen, View};
use super::{Charge, Check, Level};
use crate::algorithm::{Outcome, Used};
use crate::cost::Cost;
use crate::decision::{Charged, Decision, LevelDecision, Levels, Source, fresh_id};

/// As many levels as are handled without allocating.
type Few<T> = SmallVec<[T; 4]>;

/// A level of a check: what was found, and what will be written.
struct Part<'l> {
    level: &'l Level,
    print: Fingerprint,
    cost: Cost,
    /// Index of its shard among those locked.
    shard: usize,
    seen: Seen<'l>,
    admits: bool,
    /// The costs of a key that occurs twice are more than any limit admits.
    too_much: bool,
    after: Option<After<'l>>,
    full: Option<Full>,
}

/// The state a check leaves a level in.
struct After<'l> {
    view: View<'l>,
    /// The cost of the event to append, for a level that keeps a log.
    event: u32,
}

impl<R: RawMutex, M: Region> Table<R, M> {
    pub(super) fn decide_many(&self, checks: &[Check<'_>], charge: Charge) -> Decision {
        let prints: Few<Fingerprint> = checks
            .iter()
            .map(|check| self.seeds.fingerprint(check.level.scope, check.key))
            .collect();
        let mut numbers: Few<usize> = prints
            .iter()
            .map(|&print| self.shard_number(print))
            .collect();
        numbers.sort_unstable();
        numbers.dedup();

        let before_us = self.clock_before_locks();
        let mut shards: Few<MutexGuard<'_, R, Shard<M>>> = numbers
            .iter()
            .map(|&number| self.shards[number].shard.lock())
            .collect();
        let now_us = self.clock_under_locks(before_us, shards.iter_mut().map(|shard| &mut **shard));

        let mut parts: Few<Part<'_>> = SmallVec::new();
        let mut part_of: Few<usize> = SmallVec::new();
        for (check, &print) in checks.iter().zip(&prints) {
            // A key that occurs twice is one level with both costs.
            if let Some(twin) = parts.iter().position(|part| part.print == print) {
                let part = &mut parts[twin];
                let cost = u64::from(part.cost.get()) + u64::from(check.cost.get());
                match Cost::new(cost) {
                    Ok(cost) => part.cost = cost,
                    Err(_) => part.too_much = true,
                }
                part_of.push(twin);
                continue;
            }
            let number = self.shard_number(print);
            let shard = numbers.partition_point(|&other| other < number);
            let seen = self.see(&shards[shard], print, check.level, now_us);
            part_of.push(parts.len());
            parts.push(Part {
                level: check.level,
                print,
                cost: check.cost,
                shard,
                seen,
                admits: false,
                too_much: false,
                after: None,
                full: None,
            });
        }

        for part in &mut parts {
            part.admits = !part.too_much && part.seen.view.admits(part.cost);
        }
        let mut denied = parts.iter().position(|part| !part.admits);
        for part in &mut parts {
            part.plan(charge, denied.is_some());
        }
        for index in 0..parts.len() {
            let part = &mut parts[index];
            match self.provide(&mut shards[part.shard], part, now_us, &prints) {
                Ok(()) => {}
                // A refusal that cannot be counted is still a refusal.
                Err(_) if !part.admits => part.after = None,
                Err(full) => {
                    part.after = None;
                    part.full = Some(full);
                    denied = Some(index);
                    self.bounds.denied_full.fetch_add(1, Relaxed);
                    break;
                }
            }
        }
        if charge == Charge::Nothing && denied.is_none() {
            // A look sees what a check would meet.
            denied = parts.iter_mut().position(|part| {
                let is_new = part.seen.place.is_none();
                part.full = is_new
                    .then(|| shards[part.shard].is_full_for(part.print, now_us, &self.bounds))
                    .flatten();
                part.full.is_some()
            });
        }
        let full = parts.iter().any(|part| part.full.is_some());
        for part in &mut parts {
            let shard = &mut shards[part.shard];
            if full {
                self.withdraw(shard, part);
            } else {
                self.commit(shard, part);
            }
        }

        let levels = Levels::from(part_of.iter().map(|&index| {
            let part = &parts[index];
            part.report(&shards[part.shard])
        }));
        drop(shards);
        let denied = denied.and_then(|index| part_of.iter().position(|&part| part == index));
        Decision {
            levels,
            decided_at_us: now_us,
            denied_by: denied.and_then(|index| u32::try_from(index).ok()),
            source: Source::Store,
            receipt: (denied.is_none() && charge != Charge::Nothing).then(fresh_id),
            voided: self.voided.load(Relaxed),
        }
    }

    /// Makes sure that a level's new state has a place, and its log room for one
    /// more event. Changes nothing that anybody could notice.
    fn provide(
        &self,
        shard: &mut Shard<M>,
        part: &mut Part<'_>,
        now_us: u64,
        pinned: &[Fingerprint],
    ) -> Result<(), Full> {
        let Some(after) = &mut part.after else {
            return Ok(());
        };
        if let (View::SlidingLog(limit, before, old), View::SlidingLog(_, _, log)) =
            (&mut part.seen.view, &mut after.view)
            && after.event > 0
        {
            let needed = old.map_or(1, |log| limit.room_needed(shard.log(log).0, before));
            let max = limit.rate().requests();
            let fitted = shard.fit_log(*old, needed, max, &self.bounds).or_else(|| {
                self.reclaim_logs(shard, needed, now_us, pinned);
                shard.fit_log(*old, needed, max, &self.bounds)
            });
            let Some(fitted) = fitted else {
                return Err(Full {
                    retry_after_us: limit.rate().window_us(),
                });
            };
            *log = Some(fitted);
            if old.is_some_and(|old| old != fitted) {
                // The log has moved: its entry must know, whatever comes next.
                *old = Some(fitted);
                shard.move_log(part.print, fitted);
            }
        }
        if part.seen.place.is_none()
            && let Some(state) = after.view.pack()
        {
            let inserted = shard.insert(
                part.print,
                part.level.id,
                state,
                now_us,
                &self.bounds,
                pinned,
            );
            if let (Err(_), View::SlidingLog(_, _, Some(log))) = (&inserted, &after.view) {
                shard.close_log(*log, &self.bounds);
            }
            inserted?;
        }
        Ok(())
    }

    /// Takes back what was provided for a level when another found no room.
    fn withdraw(&self, shard: &mut Shard<M>, part: &mut Part<'_>) {
        let after = part.after.take();
        if part.seen.place.is_none() {
            if let Some(place) = shard.find(part.print) {
                shard.remove(place, &self.bounds);
            }
        } else if let Some(View::SlidingLog(_, _, Some(log))) = after.map(|after| after.view)
            && let Some((limit, state)) = part.seen.stored
            && shard.owned_log(limit, state).is_none()
        {
            // A log for a key that was counted in another way before.
            shard.close_log(log, &self.bounds);
        }
    }

    /// Writes a level's new state to the place that was provided.
    fn commit(&self, shard: &mut Shard<M>, part: &mut Part<'_>) {
        let Some(After { view, event }) = &mut part.after else {
            return;
        };
        if part.seen.outdated {
            shard.void_receipts();
        }
        self.locked(part.print).refused.forget(part.print);
        if let (View::SlidingLog(limit, before, _), View::SlidingLog(_, after, Some(log))) =
            (&part.seen.view, &mut *view)
        {
            let (header, records) = shard.log_mut(*log);
            match event {
                0 => limit.settle(header, records, before),
                _ => limit.write(header, records, before, *event),
            }
            // What has expired is no longer in the ring.
            *after = limit.at(header, records, before.now_us());
        } else if let Some((limit, state)) = part.seen.stored
            && let Some((log, _)) = shard.owned_log(limit, state)
        {
            // Another algorithm has no use for it.
            shard.close_log(log, &self.bounds);
        }
        // Making room for one level may have moved another: look again.
        if let (Some(place), Some(state)) = (shard.find(part.print), view.pack()) {
            shard.write(place, part.print, part.level.id, state);
        }
    }
}

impl<'l> Part<'l> {
    /// Works out what to write, if anything.
    fn plan(&mut self, charge: Charge, denied: bool) {
        let before = self.seen.view;
        let charged = match charge {
            Charge::Nothing => return,
            _ if self.admits && !denied => Some(After {
                view: before.charge(self.cost),
                event: self.cost.get(),
            }),
            Charge::Always if !self.admits => self.saturated(),
            _ => None,
        };
        // After a clock has stepped back, or a limit has changed, a state is written
        // even where nothing is charged: otherwise the key would stand still until
        // the clock caught up, or count as new when it would have under the old limit.
        let settled = || {
            self.seen.outdated.then_some(After {
                view: before,
                event: 0,
            })
        };
        self.after = charged.or_else(settled);
    }

    /// The state after a refused request that is counted all the same.
    fn saturated(&self) -> Option<After<'l>> {
        let before = self.seen.view;
        let event = match &before {
            View::SlidingLog(limit, view, _) => limit.saturated_cost(view, self.cost),
            _ => 0,
        };
        match &before {
            // A refusal opens no window, a full log has no room, a block no state.
            View::FixedWindow(_, state) if state.count == 0 => None,
            View::SlidingLog(..) if event == 0 => None,
            View::Block => None,
            _ => Some(After {
                view: before.saturate(self.cost),
                event,
            }),
        }
    }

    fn report<M: Region>(&self, shard: &Shard<M>) -> LevelDecision {
        let view = self
            .after
            .as_ref()
            .map_or(&self.seen.view, |after| &after.view);
        let log = match view {
            View::SlidingLog(_, _, Some(log)) => Some(shard.log(*log)),
            _ => None,
        };
        let outcome = view.outcome(log, self.cost, self.admits);
        let outcome = match self.full {
            Some(full) => Outcome {
                used: Used::requests(outcome.limit),
                retry_after_us: Some(full.retry_after_us),
                reset_after_us: full.retry_after_us,
                ..outcome
            },
            None if self.too_much => Outcome {
                retry_after_us: None,
                ..outcome
            },
            None => outcome,
        };
        let charge = Charged {
            cost: self.cost,
            limit: self.level.id,
            voided: shard.voided,
            mark_us: view.mark_us(),
        };
        LevelDecision { outcome, charge }
    }
}
