//! The logs of a shard, beside the buckets, each owned by one entry, and all that is special
//! about limits that keep one. The bytes of all logs of a store have a bound, and keys that
//! own logs make room for one another at it.

use std::mem;
use std::sync::atomic::Ordering::Relaxed;

use super::Ask;
use super::bounds::{Bounds, Full, WhenFull};
use super::bucket::{LOG_BIT, LimitId, SLOTS};
use super::home::{Home, Region};
use super::shard::{Shard, SlotIndex, Upkeep};
use super::table::{Finding, Table};
use crate::algorithm::{Kind, Log, LogView, Packed, PastCharge, SlidingLog, State};
use crate::cost::Cost;
use crate::limit::Limit;

/// The number of a log in its shard.
type LogId = u32;

/// The logs of one shard, by number.
#[derive(Default)]
pub(super) struct Logs {
    all: Vec<Log>,
    closed: Vec<LogId>,
    /// Logs that were closed and are to be freed without a lock.
    discarded: Vec<Log>,
}

/// The log of a key at the instant of a check.
#[derive(Clone, Copy)]
pub(super) struct LogFinding {
    /// `None` for a key that has none yet.
    id: Option<LogId>,
    view: LogView,
    /// When it was last written.
    pub(super) last_us: u64,
    /// Bytes that are taken for it and not yet part of it.
    reserved: usize,
}

impl LogFinding {
    /// What a refund recognises a charge of this instant by.
    pub(super) fn mark_us(&self) -> u64 {
        self.view.raw_us()
    }
}

impl Logs {
    fn open(&mut self) -> Option<LogId> {
        self.closed.pop().or_else(|| {
            let id = LogId::try_from(self.all.len()).ok()?;
            self.all.push(Log::default());
            Some(id)
        })
    }

    fn close(&mut self, id: LogId, bounds: &Bounds) {
        let log = mem::take(&mut self.all[id as usize]);
        self.closed.push(id);
        if self.closed.len() == self.all.len() {
            (self.all, self.closed) = Default::default();
        }
        bounds.log_bytes.give_back(log.bytes());
        self.discarded.push(log);
    }
}

impl<M: Region> Shard<M> {
    fn log(&self, id: LogId) -> Option<&Log> {
        self.region.side()?.logs.all.get(id as usize)
    }

    fn log_mut(&mut self, id: LogId) -> Option<&mut Log> {
        self.region.side_mut()?.logs.all.get_mut(id as usize)
    }

    /// Closes the log that an entry owns; it is freed once the lock is released.
    pub(super) fn close_log(&mut self, limit: LimitId, state: Packed, bounds: &Bounds) {
        if let Some(id) = owned_log(limit, state)
            && let Some(side) = self.region.side_mut()
        {
            side.logs.close(id, bounds);
        }
    }

    /// The logs to free once the lock is released.
    pub(super) fn take_discarded(&mut self) -> Vec<Log> {
        if self.region.side().is_none() {
            return Vec::new();
        }
        let side = self.region.side_mut();
        side.map_or_else(Vec::new, |side| mem::take(&mut side.logs.discarded))
    }

    /// The log of a key's entry, and its state for a check of this cost.
    pub(super) fn see_log(
        &self,
        limit: &SlidingLog,
        stored: Option<(LimitId, Packed)>,
        cost: Cost,
        now_us: u64,
    ) -> (LogFinding, State) {
        let id = stored.and_then(|(limit, state)| owned_log(limit, state));
        let empty = Log::default();
        let log = id.and_then(|id| self.log(id)).unwrap_or(&empty);
        let has_ended = stored.is_some_and(|(_, state)| state.fresh_at_us <= now_us);
        let view = match has_ended {
            true => log.ended(now_us),
            false => limit.view(log, now_us),
        };
        let seen = LogFinding {
            id,
            view,
            last_us: log.last_us(),
            reserved: 0,
        };
        (seen, State::SlidingLog(limit.read(log, &view, cost)))
    }

    /// Drops keys that own logs until `bytes` are freed: first those whose quota is
    /// full, then, where that is allowed, those nearest to it. Returns the bytes freed.
    #[cold]
    pub(super) fn reclaim_logs(&mut self, bytes: usize, upkeep: &Upkeep<'_>) -> usize {
        let &Upkeep { now_us, bounds, .. } = upkeep;
        let logs = self.region.side().map(|side| &side.logs);
        if logs.is_none_or(|logs| logs.all.len() == logs.closed.len()) {
            return 0;
        }
        let buckets = self.region.buckets();
        let mut owners: Vec<(u64, SlotIndex, usize)> = (0..buckets.len())
            .flat_map(|bucket| (0..SLOTS).map(move |slot| (bucket, slot)))
            .filter_map(|(bucket, slot)| {
                let entry = &buckets[bucket];
                let log = self.log(owned_log(entry.limit(slot), entry.read(slot))?)?;
                let free = !entry.is_empty(slot) && !upkeep.keeps(entry.fingerprint(slot));
                free.then(|| (entry.fresh_at_us(slot), (bucket, slot), log.bytes()))
            })
            .collect();
        owners.sort_unstable();
        let mut freed = 0;
        for (fresh_at_us, owner, log_bytes) in owners {
            let in_use = fresh_at_us > now_us;
            if freed >= bytes || (in_use && bounds.when_full() == WhenFull::Deny) {
                break;
            }
            bounds.evicted.fetch_add(u64::from(in_use), Relaxed);
            self.remove(owner, bounds);
            freed += log_bytes;
        }
        freed
    }
}

impl<H: Home> Table<H> {
    /// Makes sure that a level which keeps a log has one, with room for the event that leads
    /// to its state `after`. Changes nothing that is visible outside.
    pub(super) fn provide_log(
        &self,
        shard: &mut Shard<H::Region>,
        ask: &Ask<'_>,
        seen: &mut Finding,
        after: &State,
        upkeep: &Upkeep<'_>,
    ) -> Result<(), Full> {
        let (Kind::SlidingLog(limit), Some(log), 1..) = (
            ask.level.limit.kind(),
            &mut seen.log,
            event(&seen.state, after),
        ) else {
            return Ok(());
        };
        let full = Full {
            retry_after_us: limit.rate().window_us(),
        };
        let new = Log::default();
        let held = log.id.and_then(|id| shard.log(id));
        let opening = if held.is_some() { 0 } else { new.bytes() };
        let growth = held
            .unwrap_or(&new)
            .growth(&log.view, limit.rate().requests());
        let bytes = opening + growth;
        if !self.bounds().take_log_bytes(bytes) {
            self.reclaim_logs(shard, bytes, upkeep);
            if !self.bounds().take_log_bytes(bytes) {
                return Err(full);
            }
        }
        if log.id.is_none() {
            log.id = shard.region.side_mut().and_then(|side| side.logs.open());
        }
        if log.id.is_none() {
            self.bounds().log_bytes.give_back(bytes);
            return Err(full);
        }
        log.reserved = growth;
        Ok(())
    }

    /// Gives back the room that was provided for an event.
    pub(super) fn withdraw_log(&self, seen: &mut Finding) {
        if let Some(log) = &mut seen.log {
            self.bounds()
                .log_bytes
                .give_back(mem::take(&mut log.reserved));
        }
    }

    /// Takes back the log that was provided for a key that itself found no room.
    pub(super) fn close_new_log(&self, shard: &mut Shard<H::Region>, seen: &mut Finding) {
        self.withdraw_log(seen);
        if let Some(id) = seen.log.as_mut().and_then(|log| log.id.take())
            && let Some(side) = shard.region.side_mut()
        {
            side.logs.close(id, self.bounds());
        }
    }

    /// Writes to the log of a level the event that leads to its state `after`.
    pub(super) fn write_log(
        &self,
        shard: &mut Shard<H::Region>,
        ask: &Ask<'_>,
        seen: &mut Finding,
        after: &mut State,
        now_us: u64,
    ) {
        if let (Kind::SlidingLog(limit), Some(seen_log)) = (ask.level.limit.kind(), &mut seen.log)
            && let Some(log) = seen_log.id.and_then(|id| shard.log_mut(id))
        {
            let held = log.bytes() + mem::take(&mut seen_log.reserved);
            match event(&seen.state, after) {
                0 => log.trim(&seen_log.view),
                cost => log.write(&seen_log.view, cost, limit.rate().requests()),
            }
            self.bounds().log_bytes.give_back(held - log.bytes());
            // What has expired is no longer in it.
            seen_log.view = limit.view(log, now_us);
            *after = State::SlidingLog(limit.read(log, &seen_log.view, ask.cost));
        }
    }

    /// The state of a key after a refund, where that gives anything back.
    pub(super) fn refunded(
        &self,
        shard: &mut Shard<H::Region>,
        limit: &Limit,
        seen: &Finding,
        charge: PastCharge,
    ) -> Option<State> {
        let (Kind::SlidingLog(limit), Some(seen_log)) = (limit.kind(), &seen.log) else {
            let after = limit.refund(seen.state, charge);
            return (after != seen.state).then_some(after);
        };
        let log = shard.log_mut(seen_log.id?)?;
        let held = log.bytes();
        if !log.refund(&seen_log.view, charge.cost, charge.mark_us) {
            return None;
        }
        self.bounds().log_bytes.give_back(held - log.bytes());
        let view = limit.view(log, seen_log.view.now_us());
        Some(State::SlidingLog(limit.read(log, &view, Cost::ONE)))
    }
}

/// The cost of the event that leads from one state of a log to another.
fn event(before: &State, after: &State) -> u32 {
    match (before, after) {
        (State::SlidingLog(before), State::SlidingLog(after)) => {
            after.used.saturating_sub(before.used)
        }
        _ => 0,
    }
}

/// A state as the table keeps it; `None` for a level that keeps none.
pub(super) fn pack(limit: &Limit, state: &State, log: Option<LogFinding>) -> Option<Packed> {
    match state {
        State::SlidingLog(state) => Some(Packed {
            fresh_at_us: state.last_us + state.reset_after_us,
            data: 0,
            extra: u64::from(log?.id?),
        }),
        _ => limit.pack(state),
    }
}

/// The number of the log a state owns, if its limit keeps one.
fn owned_log(limit: LimitId, state: Packed) -> Option<LogId> {
    if limit & LOG_BIT == 0 {
        return None;
    }
    LogId::try_from(state.extra).ok()
}
