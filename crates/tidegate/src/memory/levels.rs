//! Any number of levels, all of them or none, in one atomic step.
//!
//! The shards of all keys are locked, in the order of their numbers. Then there are two ways.
//! Mostly every key is there under its level's limit, and each level is looked at once: its
//! state after the charge and its numbers are worked out then, and written only if every level
//! admits. Everything else is rare, and may take longer: every level is looked at before any
//! is changed, and room is made for what is new, which is the last thing that can fail.

use std::sync::atomic::Ordering::Relaxed;

use smallvec::SmallVec;

use super::bounds::Full;
use super::bucket::LimitId;
use super::fingerprint::Fingerprint;
use super::home::{Home, ShardGuard};
use super::logs::pack;
use super::one::{at, level_decision};
use super::shard::{Shard, SlotIndex, Upkeep};
use super::table::{Finding, Table, release};
use super::{Ask, Charge};
use crate::algorithm::{Compact, Counter, Packed, State, Used, each_compact};
use crate::cost::Cost;
use crate::decision::{Decision, LevelDecision, Levels, fresh_id};

/// As many levels as are handled without allocating.
type Few<T> = SmallVec<[T; 4]>;

/// A level of a check, and what was found of it under the locks.
pub(super) struct Part<'t, 'l, H: Home> {
    ask: Ask<'l>,
    /// The number of its shard, and which of the parts holds the lock.
    number: usize,
    holder: usize,
    shard: Option<ShardGuard<'t, H>>,
    place: SlotIndex,
    /// What to write once all levels admit; `None` if this one refuses.
    after: Option<Packed>,
}

impl<H: Home> Table<H> {
    #[inline(always)]
    pub(super) fn part<'l>(&self, ask: Ask<'l>) -> Part<'_, 'l, H> {
        Part {
            number: self.shard_number(ask.print),
            ask,
            holder: 0,
            shard: None,
            place: (0, 0),
            after: None,
        }
    }

    #[inline(always)]
    pub(super) fn decide_levels<'t>(
        &'t self,
        parts: &mut [Part<'t, '_, H>],
        charge: Charge,
        before_us: Option<u64>,
    ) -> Decision {
        self.lock_all(parts);
        let now_us = match before_us {
            Some(before_us) => {
                let shards = parts.iter().filter_map(|part| part.shard.as_ref());
                shards.fold(before_us, |now_us, shard| now_us.max(shard.latest_us))
            }
            None => self.clock.now_us(),
        };
        if before_us.is_some() {
            let shards = parts.iter_mut().filter_map(|part| part.shard.as_mut());
            shards.for_each(|shard| shard.latest_us = now_us);
        }
        let mut decision = Decision::at(now_us);
        let levels = &mut decision.levels;
        let denied = self
            .decide_known(parts, charge, now_us, levels)
            .unwrap_or_else(|| self.decide_any(parts, charge, now_us, levels));
        decision.denied_by = denied.and_then(|index| u32::try_from(index).ok());
        decision.receipt = (denied.is_none() && charge != Charge::Nothing).then(fresh_id);
        decision
    }

    /// Locks the shards of all keys, in the order of their numbers.
    #[inline(always)]
    fn lock_all<'t>(&'t self, parts: &mut [Part<'t, '_, H>]) {
        let mut least = 0;
        let next = |parts: &[Part<'_, '_, H>], least| {
            let numbers = parts.iter().map(|part| part.number);
            numbers.filter(|number| *number >= least).min()
        };
        while let Some(number) = next(parts, least) {
            let mut shard = Some(self.lock(number));
            let mut holder = 0;
            for (index, part) in parts.iter_mut().enumerate() {
                if part.number == number {
                    if shard.is_some() {
                        part.shard = shard.take();
                        holder = index;
                    }
                    part.holder = holder;
                }
            }
            least = number + 1;
        }
    }

    /// Adds the numbers of all levels, and finds the first that refuses. `None`, with nothing
    /// charged, where it takes more than a straight line.
    #[inline(always)]
    fn decide_known(
        &self,
        parts: &mut [Part<'_, '_, H>],
        charge: Charge,
        now_us: u64,
        levels: &mut Levels,
    ) -> Option<Option<usize>> {
        if matches!(charge, Charge::Always | Charge::Told) {
            return None;
        }
        let mut denied = None;
        for index in 0..parts.len() {
            let Part { ask, holder, .. } = parts[index];
            // A key that occurs twice is charged for both.
            if parts[..index]
                .iter()
                .any(|other| other.ask.print == ask.print)
            {
                return None;
            }
            let shard = parts[holder].shard.as_deref()?;
            let place = shard.find(ask.print)?;
            let (id, stored) = shard.read(place);
            if id != ask.level.id {
                return None;
            }
            let after = look(&ask, stored, now_us, shard.era(), levels)?;
            if after.is_none() {
                denied = denied.or(Some(index));
            }
            (parts[index].place, parts[index].after) = (place, after);
        }
        let is_charged = denied.is_none() && charge != Charge::Nothing;
        for index in 0..parts.len() {
            let Part {
                ask,
                holder,
                place,
                after,
                ..
            } = parts[index];
            let shard = parts[holder].shard.as_deref_mut()?;
            match after {
                Some(after) if is_charged => {
                    self.locked(ask.print).refused.forget(ask.print);
                    shard.write(place, (ask.print, ask.level.id, after));
                }
                Some(_) => levels[index] = uncharged(&ask, shard.read(place), now_us)?,
                None => {}
            }
        }
        Some(denied)
    }

    /// The same for keys that are new, that occur twice, that have a log, or whose limit has
    /// changed; on a clock that has stepped back; and to charge what is refused.
    #[cold]
    fn decide_any(
        &self,
        parts: &mut [Part<'_, '_, H>],
        charge: Charge,
        now_us: u64,
        levels: &mut Levels,
    ) -> Option<usize> {
        let mut changes: Few<Change<'_>> = SmallVec::new();
        for index in 0..parts.len() {
            let Part { ask, holder, .. } = parts[index];
            // A key that occurs twice is one level with both costs.
            if changes.iter().any(|change| change.ask.print == ask.print) {
                continue;
            }
            let same = parts.iter().filter(|part| part.ask.print == ask.print);
            let cost = Cost::new(same.map(|part| u64::from(part.ask.cost.get())).sum());
            let too_much = cost.is_err();
            let ask = Ask {
                cost: cost.unwrap_or(Cost::MAX),
                ..ask
            };
            let seen = self.see(shard_of(parts, holder), &ask, now_us);
            changes.push(Change {
                admits: !too_much && ask.level.limit.admits(&seen.state, ask.cost),
                ask,
                holder,
                too_much,
                seen,
                after: None,
            });
        }
        let refused = changes.iter().position(|change| !change.admits);
        for change in &mut changes {
            change.plan(charge, refused.is_some());
        }
        let full = self.provide_all(&mut changes, parts, charge, now_us);
        for change in &mut changes {
            let shard = shard_of(parts, change.holder);
            match full {
                Some(_) => self.withdraw(shard, change),
                None => self.commit(shard, change, now_us),
            }
        }
        let denied = full.map(|(index, _)| index).or(refused);
        levels.clear();
        let mut denied_by = None;
        for index in 0..parts.len() {
            let print = parts[index].ask.print;
            let of_key = changes
                .iter()
                .enumerate()
                .find(|(_, it)| it.ask.print == print);
            let Some((number, change)) = of_key else {
                continue;
            };
            if denied == Some(number) {
                denied_by = denied_by.or(Some(index));
            }
            let full = full.filter(|(denied, _)| *denied == number);
            let era = shard_of(parts, change.holder).era();
            levels.push(change.report(era, full.map(|(_, full)| full)));
        }
        let shards = parts.iter_mut().filter_map(|part| part.shard.take());
        shards.for_each(release);
        denied_by
    }

    /// Provides for all levels, or says which of them finds no room.
    fn provide_all(
        &self,
        changes: &mut [Change<'_>],
        parts: &mut [Part<'_, '_, H>],
        charge: Charge,
        now_us: u64,
    ) -> Option<(usize, Full)> {
        let pinned: Few<Fingerprint> = parts.iter().map(|part| part.ask.print).collect();
        let upkeep = self.upkeep(now_us, &pinned);
        let is_look = charge == Charge::Nothing && changes.iter().all(|change| change.admits);
        for (index, change) in changes.iter_mut().enumerate() {
            let shard = shard_of(parts, change.holder);
            // A look sees what a check would meet.
            if is_look
                && change.seen.place.is_none()
                && let Some(full) = shard.is_full_for(now_us, self.bounds())
            {
                return Some((index, full));
            }
            if let Err(full) = self.provide(shard, change, &upkeep) {
                change.after = None;
                // A refusal that cannot be counted is still a refusal.
                if change.admits && charge != Charge::Told {
                    self.bounds().denied_full.fetch_add(1, Relaxed);
                    return Some((index, full));
                }
            }
        }
        None
    }

    /// Makes sure that a level's new state has a place, and its log room for one more event.
    /// Changes nothing that is visible outside.
    fn provide(
        &self,
        shard: &mut Shard<H::Region>,
        Change {
            ask, seen, after, ..
        }: &mut Change<'_>,
        upkeep: &Upkeep<'_>,
    ) -> Result<(), Full> {
        let Some(after) = after else {
            return Ok(());
        };
        self.provide_log(shard, ask, seen, after, upkeep)?;
        if seen.place.is_none()
            && let Some(packed) = pack(&ask.level.limit, after, seen.log)
        {
            let inserted = self.insert(shard, (ask.print, ask.level.id, packed), upkeep);
            inserted.inspect_err(|_| self.close_new_log(shard, seen))?;
        }
        Ok(())
    }

    /// Takes back what was provided for a level when another found no room.
    fn withdraw(&self, shard: &mut Shard<H::Region>, change: &mut Change<'_>) {
        if change.after.take().is_none() {
            return;
        }
        if change.seen.place.is_none()
            && let Some(place) = shard.find(change.ask.print)
        {
            shard.remove(place, self.bounds());
        }
        self.withdraw_log(&mut change.seen);
    }

    /// Writes a level's new state to the place that was provided.
    fn commit(
        &self,
        shard: &mut Shard<H::Region>,
        Change {
            ask, seen, after, ..
        }: &mut Change<'_>,
        now_us: u64,
    ) {
        let Some(after) = after else {
            return;
        };
        if let (true, Some((_, stored))) = (seen.outdated, seen.stored) {
            shard.void_receipts(ask.print, stored, now_us);
        }
        self.locked(ask.print).refused.forget(ask.print);
        self.write_log(shard, ask, seen, after, now_us);
        // Making room for one level may have moved another: look again.
        let packed = pack(&ask.level.limit, after, seen.log);
        if let (Some(place), Some(packed)) = (shard.find(ask.print), packed) {
            shard.rewrite(place, (ask.print, ask.level.id, packed));
        }
    }
}

/// The shard that one of the parts holds the lock of.
fn shard_of<'p, H: Home>(
    parts: &'p mut [Part<'_, '_, H>],
    holder: usize,
) -> &'p mut Shard<H::Region> {
    let shard = parts[holder].shard.as_deref_mut();
    shard.expect("all shards are locked")
}

/// Asks a level, and adds its numbers after the charge; `None` where the clock has stepped
/// back.
#[inline(always)]
fn look(
    ask: &Ask<'_>,
    stored: Packed,
    now_us: u64,
    era: u32,
    levels: &mut Levels,
) -> Option<Option<Packed>> {
    each_compact!(
        ask.level.limit.kind(),
        limit => {
            let state = at(limit, stored, now_us)?;
            let after = limit.try_charge(state, ask.cost);
            let admits = after.is_some();
            levels.push(level_decision(ask, limit, &after.unwrap_or(state), era, admits));
            Some(after.map(|after| limit.pack(&after)))
        },
        _ => None
    )
}

/// The numbers of a level that admits and is not charged.
#[cold]
fn uncharged(ask: &Ask<'_>, (_, stored): (LimitId, Packed), now_us: u64) -> Option<LevelDecision> {
    each_compact!(
        ask.level.limit.kind(),
        limit => Some(level_decision(ask, limit, &at(limit, stored, now_us)?, 0, true)),
        _ => None
    )
}

/// What was found of a key, and what will be written.
struct Change<'l> {
    /// At the cost of all checks of the key.
    ask: Ask<'l>,
    holder: usize,
    seen: Finding,
    admits: bool,
    /// The costs together are more than any limit admits.
    too_much: bool,
    after: Option<State>,
}

impl Change<'_> {
    /// Works out what to write, if anything.
    fn plan(&mut self, charge: Charge, is_refused: bool) {
        let (limit, before, cost) = (&self.ask.level.limit, self.seen.state, self.ask.cost);
        let changed = |after: State| (after != before).then_some(after);
        let charged = match charge {
            Charge::Nothing => return,
            _ if self.admits && (!is_refused || charge == Charge::Told) => {
                Some(limit.charge(before, cost))
            }
            // A refusal opens no window, a full log has no room, a block no state.
            Charge::Always if !self.admits => changed(limit.saturate(before, cost)),
            Charge::Told => {
                // Unlike a refusal, it opens a window.
                let room = limit.outcome(&before, cost, false).remaining();
                let part = Cost::new(room.min(cost.get()).into());
                let filled = part.map_or(before, |part| limit.charge(before, part));
                changed(limit.saturate(filled, cost))
            }
            Charge::Admitted | Charge::Always => None,
        };
        // After a clock has stepped back, or a limit has changed, a state is written
        // even where nothing is charged: otherwise the key would stand still until
        // the clock caught up, or expire when it would have under the old limit.
        self.after = charged.or_else(|| self.seen.outdated.then_some(before));
    }

    fn report(&self, era: u32, full: Option<Full>) -> LevelDecision {
        let limit = &self.ask.level.limit;
        let state = self.after.unwrap_or(self.seen.state);
        let mut outcome = limit.outcome(&state, self.ask.cost, self.admits);
        if let Some(full) = full {
            outcome.used = Used::requests(outcome.limit);
            outcome.retry_after_us = Some(full.retry_after_us);
            outcome.reset_after_us = full.retry_after_us;
        } else if self.too_much {
            outcome.retry_after_us = None;
        }
        let log = self.seen.log;
        let mark_us = log.map_or_else(|| limit.mark_us(&state), |log| log.mark_us());
        self.ask.level_decision(outcome, mark_us, era)
    }
}
