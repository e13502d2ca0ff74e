//! Any number of levels, in one atomic step.
//!
//! The shards of all keys are locked, in the order of their numbers. Every level is
//! looked at before any is changed. Room is made for what is new, which is the last
//! thing that can fail. Only then is every level charged.

use std::sync::atomic::Ordering::Relaxed;

use smallvec::SmallVec;

use super::bounds::Full;
use super::fingerprint::Fingerprint;
use super::home::{Home, ShardGuard};
use super::region::{LogId, Region};
use super::shard::Shard;
use super::table::{Seen, Table, pack, release};
use super::{Ask, Charge, Level};
use crate::algorithm::{Kind, Log, Outcome, State, Used};
use crate::cost::Cost;
use crate::decision::{Charged, Decision, LevelDecision, Levels, OnLease, Source, fresh_id};

/// As many levels as are handled without allocating.
type Few<T> = SmallVec<[T; 4]>;

/// A level of a check: what was found, and what will be written.
struct Part<'l> {
    level: &'l Level,
    print: Fingerprint,
    cost: Cost,
    /// Index of its shard among those locked.
    shard: usize,
    seen: Seen,
    admits: bool,
    /// The costs of a key that occurs twice are more than any limit admits.
    too_much: bool,
    after: Option<After>,
    full: Option<Full>,
}

/// The state a check leaves a level in.
struct After {
    state: State,
    /// The cost of the event to append, for a level that keeps a log.
    event: u32,
    /// The log it goes to, and the bytes that were taken for it.
    log: Option<LogId>,
    log_growth: usize,
}

impl<H: Home> Table<H> {
    pub(super) fn decide_many(
        &self,
        asks: &[Ask<'_>],
        charge: Charge,
        before_us: Option<u64>,
    ) -> Decision {
        let prints: Few<Fingerprint> = asks.iter().map(|ask| ask.print).collect();
        let mut numbers: Few<usize> = prints
            .iter()
            .map(|&print| self.shard_number(print))
            .collect();
        numbers.sort_unstable();
        numbers.dedup();

        let mut shards: Few<ShardGuard<'_, H>> =
            numbers.iter().map(|&number| self.lock(number)).collect();
        let now_us = self.clock_under_locks(before_us, shards.iter_mut().map(|shard| &mut **shard));

        let mut parts: Few<Part<'_>> = SmallVec::new();
        let mut part_of: Few<usize> = SmallVec::new();
        for &Ask { level, print, cost } in asks {
            // A key that occurs twice is one level with both costs.
            if let Some(twin) = parts.iter().position(|part| part.print == print) {
                let part = &mut parts[twin];
                let cost = u64::from(part.cost.get()) + u64::from(cost.get());
                let cost = Cost::new(cost);
                part.too_much |= cost.is_err();
                part.cost = cost.unwrap_or(Cost::MAX);
                part_of.push(twin);
                continue;
            }
            let number = self.shard_number(print);
            let shard = numbers.partition_point(|&other| other < number);
            let seen = self.see(&shards[shard], print, level, cost, now_us);
            part_of.push(parts.len());
            parts.push(Part {
                level,
                print,
                cost,
                shard,
                seen,
                admits: false,
                too_much: false,
                after: None,
                full: None,
            });
        }

        for part in &mut parts {
            let state = &part.seen.state;
            part.admits = !part.too_much && part.level.limit.admits(state, part.cost);
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
                Err(_) if !part.admits || charge == Charge::Told => part.after = None,
                Err(full) => {
                    part.after = None;
                    part.full = Some(full);
                    denied = Some(index);
                    self.bounds().denied_full.fetch_add(1, Relaxed);
                    break;
                }
            }
        }
        if charge == Charge::Nothing && denied.is_none() {
            // A look sees what a check would meet.
            denied = parts.iter_mut().position(|part| {
                let is_new = part.seen.place.is_none();
                part.full = is_new
                    .then(|| shards[part.shard].is_full_for(now_us, self.bounds()))
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
                self.commit(shard, part, now_us);
            }
        }

        let reports = part_of.iter().map(|&index| {
            let part = &parts[index];
            part.report(&shards[part.shard])
        });
        let levels: Levels = reports.collect();
        shards.into_iter().for_each(release);
        let denied = denied.and_then(|index| part_of.iter().position(|&part| part == index));
        Decision {
            levels,
            decided_at_us: now_us,
            denied_by: denied.and_then(|index| u32::try_from(index).ok()),
            source: Source::Store,
            receipt: (denied.is_none() && charge != Charge::Nothing).then(fresh_id),
            unavailable_us: None,
        }
    }

    /// Makes sure that a level's new state has a place, and its log room for one
    /// more event. Changes nothing that is visible outside.
    fn provide(
        &self,
        shard: &mut Shard<H::Region>,
        part: &mut Part<'_>,
        now_us: u64,
        pinned: &[Fingerprint],
    ) -> Result<(), Full> {
        let Some(after) = &mut part.after else {
            return Ok(());
        };
        if let Kind::SlidingLog(limit) = part.level.limit.kind() {
            let full = Full {
                retry_after_us: limit.rate().window_us(),
            };
            let growth = match (part.seen.log, after.event) {
                (_, 0) => 0,
                (Some((log, view)), _) => shard.log(log).growth(&view, limit.rate().requests()),
                (None, _) => {
                    let new = Log::default();
                    new.bytes() + new.growth(&limit.view(&new, now_us), limit.rate().requests())
                }
            };
            let mut taken = self.bounds().take_log_bytes(growth);
            if !taken {
                self.reclaim_logs(shard, growth, now_us, pinned);
                taken = self.bounds().take_log_bytes(growth);
            }
            if !taken {
                return Err(full);
            }
            after.log = match part.seen.log {
                Some((log, _)) => Some(log),
                None if after.event > 0 => {
                    let opened = shard.open_log();
                    if opened.is_none() {
                        self.bounds().log_bytes.give_back(growth);
                        return Err(full);
                    }
                    opened
                }
                None => None,
            };
            after.log_growth = growth;
        }
        if part.seen.place.is_none()
            && let Some(state) = pack(&part.level.limit, &after.state, after.log)
        {
            let id = part.level.id;
            self.find_room(shard, now_us, pinned);
            let inserted = shard.insert(part.print, id, state, now_us, self.bounds(), pinned);
            if let (Err(_), Some(log)) = (&inserted, after.log) {
                let empty = shard.log(log).bytes();
                shard.close_log(log, self.bounds());
                self.bounds().log_bytes.give_back(after.log_growth - empty);
            }
            inserted?;
        }
        Ok(())
    }

    /// Takes back what was provided for a level when another found no room.
    fn withdraw(&self, shard: &mut Shard<H::Region>, part: &mut Part<'_>) {
        let Some(after) = part.after.take() else {
            return;
        };
        let mut taken = after.log_growth;
        if part.seen.place.is_none()
            && let Some(place) = shard.find(part.print)
        {
            // Gives back what its empty log counts for.
            shard.remove(place, self.bounds());
            taken = taken.saturating_sub(Log::default().bytes());
        }
        self.bounds().log_bytes.give_back(taken);
    }

    /// Writes a level's new state to the place that was provided.
    fn commit(&self, shard: &mut Shard<H::Region>, part: &mut Part<'_>, now_us: u64) {
        let Some(After {
            state,
            event,
            log,
            log_growth,
        }) = &mut part.after
        else {
            return;
        };
        if let (true, Some((_, stored))) = (part.seen.outdated, part.seen.stored) {
            shard.void_receipts(part.print, stored, now_us);
        }
        self.locked(part.print).refused.forget(part.print);
        if let (Kind::SlidingLog(limit), Some(id)) = (part.level.limit.kind(), *log) {
            let events = shard.log_mut(id);
            let held = match part.seen.log {
                Some(_) => events.bytes(),
                None => 0,
            };
            let view = match part.seen.log {
                Some((_, view)) => view,
                None => limit.view(events, now_us),
            };
            match *event {
                0 => events.trim(&view),
                cost => events.write(&view, cost, limit.rate().requests()),
            }
            // What was provided, less what was freed.
            self.bounds()
                .log_bytes
                .give_back(held + *log_growth - events.bytes());
            // What has expired is no longer in it.
            let view = limit.view(events, now_us);
            *state = State::SlidingLog(limit.read(events, &view, part.cost));
            part.seen.log = Some((id, view));
        }
        // Making room for one level may have moved another: look again.
        let packed = pack(&part.level.limit, state, *log);
        if let (Some(place), Some(packed)) = (shard.find(part.print), packed) {
            shard.rewrite(place, part.print, part.level.id, packed);
        }
    }
}

impl Part<'_> {
    /// Works out what to write, if anything.
    fn plan(&mut self, charge: Charge, denied: bool) {
        let (limit, before) = (&self.level.limit, self.seen.state);
        let after = |state, event| After {
            state,
            event,
            log: None,
            log_growth: 0,
        };
        let charged = match charge {
            Charge::Nothing => return,
            _ if self.admits && (!denied || charge == Charge::Told) => {
                Some(after(limit.charge(before, self.cost), self.cost.get()))
            }
            Charge::Always if !self.admits => {
                // A refusal opens no window, a full log has no room, a block no state.
                let state = limit.saturate(before, self.cost);
                (state != before).then(|| after(state, self.saturated_event()))
            }
            Charge::Told => {
                // Unlike a refusal, it opens a window.
                let room = limit.outcome(&before, self.cost, false).remaining();
                let part = Cost::new(room.min(self.cost.get()).into());
                let filled = part.map_or(before, |part| limit.charge(before, part));
                let state = limit.saturate(filled, self.cost);
                (state != before).then(|| after(state, self.saturated_event()))
            }
            Charge::Admitted | Charge::Always => None,
        };
        // After a clock has stepped back, or a limit has changed, a state is written
        // even where nothing is charged: otherwise the key would stand still until
        // the clock caught up, or expire when it would have under the old limit.
        let settled = || self.seen.outdated.then(|| after(before, 0));
        self.after = charged.or_else(settled);
    }

    /// The cost of the event that counts a refusal, for a level that keeps a log.
    fn saturated_event(&self) -> u32 {
        match (self.level.limit.kind(), &self.seen.state) {
            (Kind::SlidingLog(limit), State::SlidingLog(state)) => {
                limit.saturated_cost(state, self.cost)
            }
            _ => 0,
        }
    }

    fn report<M: Region>(&self, shard: &Shard<M>) -> LevelDecision {
        let limit = &self.level.limit;
        let mut state = self
            .after
            .as_ref()
            .map_or(self.seen.state, |after| after.state);
        let mut mark_us = limit.mark_us(&state);
        if let (Kind::SlidingLog(limit), Some((log, view))) = (limit.kind(), self.seen.log) {
            // For the cost of all checks of the key together.
            if self.after.is_none() {
                state = State::SlidingLog(limit.read(shard.log(log), &view, self.cost));
            }
            mark_us = view.raw_us();
        }
        let outcome = limit.outcome(&state, self.cost, self.admits);
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
            limit: self.level.stamp,
            print: self.print.part(),
            era: shard.era(),
            mark_us,
        };
        LevelDecision {
            outcome,
            charge,
            on_lease: OnLease::NONE,
        }
    }
}
