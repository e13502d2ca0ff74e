//! Deciding: all levels of a check in one atomic step.
//!
//! The shards of all keys are locked, in the order of their numbers; every level
//! is looked at before any is changed; room is made for what is new; and only then,
//! when nothing can fail any more, is every level charged. A check of one level
//! takes the same steps without the bookkeeping.

use std::slice;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use lock_api::{Mutex, MutexGuard, RawMutex};
use smallvec::SmallVec;

use super::bounds::{Bounds, Full};
use super::bucket::{LimitId, Packed};
use super::counter::Counter;
use super::fingerprint::{Fingerprint, HIGH_BITS, Seeds};
use super::limits::Limits;
use super::refused::LastRefused;
use super::region::Region;
use super::shard::{Place, Shard, owned_log, ring_bytes};
use super::view::{LogRef, View};
use super::{Charge, Check, Level};
use crate::algorithm::{Outcome, Used};
use crate::clock::TimeSource;
use crate::cost::Cost;
use crate::decision::{Charged, Decision, LevelDecision, Levels, Receipt, Source};
use crate::limit::Kind;

/// Keys a shard holds on average when the store is full.
const KEYS_PER_SHARD: usize = 1024;

/// The most shards of a store, and the most of them that are searched for log
/// bytes on one caller's time.
const MAX_SHARDS: usize = 1 << 14;
const RECLAIM_SHARDS: usize = 64;

/// A shard on a cache line of its own, and on the next the key it refused last.
#[repr(C, align(128))]
struct Locked<R, M> {
    shard: Mutex<R, Shard<M>>,
    refused: Refused,
}

/// Kept off the line of the lock, which those who wait for it keep busy.
#[repr(align(64))]
#[derive(Default)]
struct Refused(LastRefused);

/// The table of keys, generic over its locks and its memory.
pub(crate) struct Table<R, M> {
    shards: Box<[Locked<R, M>]>,
    pub(super) bounds: Bounds,
    pub(super) limits: Limits,
    pub(super) seeds: Seeds,
    pub(super) clock: TimeSource,
    /// The next shard to search for log bytes.
    hand: AtomicUsize,
}

type Guard<'t, R, M> = MutexGuard<'t, R, Shard<M>>;

/// A level of a check, as found in the table.
#[derive(Clone, Copy)]
struct Seen<'l> {
    place: Option<Place>,
    /// The limit and state that are stored.
    stored: Option<(LimitId, Packed)>,
    /// The clock has stepped back since that was written.
    stepped_back: bool,
    view: View<'l>,
}

/// A level of a check of several.
struct Part<'l> {
    level: &'l Level,
    print: Fingerprint,
    cost: Cost,
    /// Index of its shard's guard.
    guard: usize,
    seen: Seen<'l>,
}

impl<R: RawMutex, M: Region + Default> Table<R, M> {
    pub(super) fn new(bounds: Bounds, clock: TimeSource) -> Self {
        let shards = (bounds.max_keys / KEYS_PER_SHARD)
            .next_power_of_two()
            .min(MAX_SHARDS);
        Self {
            shards: (0..shards)
                .map(|_| Locked {
                    shard: Mutex::new(Shard::default()),
                    refused: Refused::default(),
                })
                .collect(),
            bounds,
            limits: Limits::default(),
            seeds: Seeds::random(),
            clock,
            hand: AtomicUsize::new(0),
        }
    }
}

impl<R: RawMutex, M: Region> Table<R, M> {
    #[inline]
    pub(super) fn decide(&self, checks: &[Check<'_>], charge: Charge) -> Decision {
        if let [check] = checks {
            match check.level.limit.kind() {
                Kind::TokenBucket(limit) => return self.decide_counter(limit, check, charge),
                Kind::FixedWindow(limit) => return self.decide_counter(limit, check, charge),
                Kind::SlidingWindow(limit) => return self.decide_counter(limit, check, charge),
                Kind::SlidingLog(_) | Kind::Block => {}
            }
        }
        self.decide_all(checks, charge)
    }

    /// The everyday case, in a straight line: one level that counts, whose key is
    /// there under this same limit. Everything else goes, untouched, to
    /// [`decide_all`](Self::decide_all).
    fn decide_counter<C: Counter>(&self, limit: &C, check: &Check<'_>, charge: Charge) -> Decision {
        let &Check { level, key, cost } = check;
        let before_us = self.clock_before_locks();
        let print = self.seeds.fingerprint(level.scope, key);
        let Locked { shard, refused } = self.locked(print);
        if let Some(stored) = refused.0.get(print, level.id) {
            let now_us = before_us.unwrap_or_else(|| self.clock.now_us());
            let state = known(limit, stored, now_us).filter(|state| !limit.admits(state, cost));
            if let Some(state) = state.filter(|_| charge != Charge::Always) {
                return one(level, limit, &state, cost, now_us, false, false);
            }
        }

        let mut shard = shard.lock();
        let now_us = match before_us {
            Some(before_us) => before_us.max(shard.latest_us),
            None => self.clock.now_us(),
        };
        let found = shard.find(print).map(|place| (place, shard.read(place)));
        let found = found.filter(|(_, (id, _))| *id == level.id);
        let state = found
            .and_then(|(place, (_, stored))| Some((place, stored, known(limit, stored, now_us)?)));
        let Some((place, stored, state)) = state else {
            drop(shard);
            return self.decide_all(slice::from_ref(check), charge);
        };
        let admitted = limit.admits(&state, cost);
        if !admitted && charge == Charge::Always {
            drop(shard);
            return self.decide_all(slice::from_ref(check), charge);
        }
        let charged = admitted && charge != Charge::Nothing;
        let state = if charged {
            limit.charge(state, cost)
        } else {
            state
        };
        if charged {
            refused.0.forget(print);
            shard.write(place, print, level.id, limit.pack(&state));
        } else if !admitted {
            refused.0.set(print, level.id, stored);
        }
        shard.latest_us = now_us;
        drop(shard);
        one(level, limit, &state, cost, now_us, admitted, charged)
    }

    fn decide_all(&self, checks: &[Check<'_>], charge: Charge) -> Decision {
        let prints: SmallVec<[Fingerprint; 4]> = checks
            .iter()
            .map(|check| self.seeds.fingerprint(check.level.scope, check.key))
            .collect();
        let before_us = self.clock_before_locks();
        let (numbers, mut guards) = self.lock_all(&prints);
        let now_us = self.clock_under_locks(before_us, guards.iter_mut().map(|guard| &mut **guard));

        // A key that occurs twice is one level with both costs.
        let mut parts: SmallVec<[Part<'_>; 4]> = SmallVec::new();
        let mut part_of: SmallVec<[usize; 4]> = SmallVec::new();
        for (check, &print) in checks.iter().zip(&prints) {
            if let Some(twin) = parts.iter().position(|part| part.print == print) {
                let cost = parts[twin].cost.get().saturating_add(check.cost.get());
                parts[twin].cost = Cost::of(cost);
                part_of.push(twin);
                continue;
            }
            let number = self.shard_number(print);
            let guard = numbers.iter().position(|&held| held == number).unwrap_or(0);
            let seen = self.see(&guards[guard], print, check.level, now_us);
            part_of.push(parts.len());
            parts.push(Part {
                level: check.level,
                print,
                cost: check.cost,
                guard,
                seen,
            });
        }

        let admits: SmallVec<[bool; 4]> = parts
            .iter()
            .map(|part| part.seen.view.admits(part.cost))
            .collect();
        let mut denied = admits.iter().position(|admits| !admits);
        let afters: SmallVec<[Option<(View<'_>, u32)>; 4]> = parts
            .iter()
            .zip(&admits)
            .map(|(part, &admits)| {
                // Where another level refuses, one that would admit stays as it is.
                let charge = if admits && denied.is_some() {
                    Charge::Nothing
                } else {
                    charge
                };
                after(&part.seen, part.cost, admits, charge)
                    .or_else(|| (charge != Charge::Nothing).then(|| settled(&part.seen))?)
            })
            .collect();

        let mut views: SmallVec<[View<'_>; 4]> = parts.iter().map(|part| part.seen.view).collect();
        let mut full = None;
        for (index, part) in parts.iter().enumerate() {
            let Some((after, _)) = &afters[index] else {
                continue;
            };
            let shard = &mut guards[part.guard];
            match self.provide(
                shard, part.print, part.level, &part.seen, after, now_us, &prints,
            ) {
                Ok(after) => views[index] = after,
                Err(error) => {
                    full = Some((index, error));
                    denied = denied.or(Some(index));
                    break;
                }
            }
        }
        for (index, part) in parts.iter_mut().enumerate() {
            let Some((_, event)) = afters[index] else {
                continue;
            };
            let shard = &mut guards[part.guard];
            self.locked(part.print).refused.0.forget(part.print);
            // Making room for one level may have moved another.
            let found = shard.find(part.print);
            match full {
                None => {
                    let seen = Seen {
                        place: found,
                        ..part.seen
                    };
                    commit(
                        shard,
                        part.print,
                        part.level,
                        &seen,
                        &views[index],
                        event,
                        &self.bounds,
                    );
                }
                Some((failed, _)) => {
                    if let (None, Some(place)) = (part.seen.place, found) {
                        shard.remove(place, &self.bounds);
                    }
                    if index <= failed {
                        views[index] = part.seen.view;
                    }
                }
            }
        }

        let levels = Levels::from(part_of.iter().map(|&index| {
            let part = &parts[index];
            let full = full
                .filter(|&(failed, _)| failed == index)
                .map(|(_, full)| full);
            let admitted = admits[index] && full.is_none();
            let outcome = outcome(
                &guards[part.guard],
                &views[index],
                part.cost,
                admitted,
                full,
            );
            report(part.level, &views[index], part.cost, outcome)
        }));
        drop(guards);
        let denied_by = denied.and_then(|part| part_of.iter().position(|&index| index == part));
        Decision {
            levels,
            decided_at_us: now_us,
            denied_by: denied_by.and_then(|index| u32::try_from(index).ok()),
            source: Source::Store,
            charged: denied.is_none() && charge != Charge::Nothing,
        }
    }

    /// Forgets a key.
    pub(super) fn reset(&self, level: &Level, key: &[u8]) -> bool {
        let print = self.seeds.fingerprint(level.scope, key);
        let Locked { shard, refused } = self.locked(print);
        let mut shard = shard.lock();
        refused.0.forget(print);
        let place = shard.find(print);
        if let Some(place) = place {
            shard.remove(place, &self.bounds);
        }
        place.is_some()
    }

    /// Gives back what a check of these levels charged, key by key.
    pub(super) fn refund(&self, checks: &[Check<'_>], receipt: &Receipt) {
        for (index, (check, charged)) in checks.iter().zip(&receipt.levels).enumerate() {
            let twin = |other: &Check<'_>| {
                other.key == check.key && other.level.scope == check.level.scope
            };
            if charged.limit == check.level.id && !checks[..index].iter().any(twin) {
                self.refund_one(check.level, check.key, receipt.decided_at_us, charged);
            }
        }
    }

    fn refund_one(&self, level: &Level, key: &[u8], decided_at_us: u64, charged: &Charged) {
        let print = self.seeds.fingerprint(level.scope, key);
        let before_us = self.clock_before_locks();
        let Locked { shard, refused } = self.locked(print);
        let mut shard = shard.lock();
        refused.0.forget(print);
        let now_us = self.clock_under_locks(before_us, [&mut *shard]);
        let seen = self.see(&shard, print, level, now_us);
        let (Some(place), Some((limit, _))) = (seen.place, seen.stored) else {
            return;
        };
        if limit != level.id || now_us < decided_at_us {
            return;
        }
        let (cost, mark_us) = (charged.cost, charged.mark_us);
        let view = match seen.view {
            View::TokenBucket(limit, state) => {
                View::TokenBucket(limit, limit.refund(state, cost, decided_at_us))
            }
            View::FixedWindow(limit, state) => {
                View::FixedWindow(limit, limit.refund(state, cost, mark_us))
            }
            View::SlidingWindow(limit, state) => {
                View::SlidingWindow(limit, limit.refund(state, cost, mark_us))
            }
            View::SlidingLog(limit, view, Some(log)) => {
                let (header, records) = shard.log_mut(log);
                View::SlidingLog(
                    limit,
                    limit.refund(header, records, view, cost, mark_us),
                    Some(log),
                )
            }
            View::SlidingLog(_, _, None) | View::Block => return,
        };
        if let Some(state) = view.pack() {
            shard.write(place, print, level.id, state);
        }
    }

    /// Finds a level's key and brings its state to this instant.
    #[inline]
    fn see<'l>(
        &self,
        shard: &Shard<M>,
        print: Fingerprint,
        level: &'l Level,
        now_us: u64,
    ) -> Seen<'l> {
        let place = shard.find(print);
        let Some(place) = place else {
            let view = View::new(&level.limit, None, None, now_us);
            return Seen {
                place,
                stored: None,
                stepped_back: false,
                view,
            };
        };
        let (limit, state) = shard.read(place);
        let log = owned_log(limit, state);
        let records = log.map(|log| shard.log(log));
        let (view, stepped_back) = if state.fresh_at_us <= now_us {
            (View::new(&level.limit, records, log, now_us), false)
        } else if limit == level.id {
            View::load(&level.limit, &level.limit, state, records, log, now_us)
        } else {
            View::load(
                &level.limit,
                &self.limits.get(limit),
                state,
                records,
                log,
                now_us,
            )
        };
        Seen {
            place: Some(place),
            stored: Some((limit, state)),
            stepped_back,
            view,
        }
    }

    /// Makes sure that a level's new state has a place, and its log room for one
    /// more event. Changes nothing that anybody could notice.
    #[inline]
    #[expect(
        clippy::too_many_arguments,
        reason = "the context of one level of one check"
    )]
    fn provide<'l>(
        &self,
        shard: &mut Shard<M>,
        print: Fingerprint,
        level: &Level,
        seen: &Seen<'l>,
        after: &View<'l>,
        now_us: u64,
        pinned: &[Fingerprint],
    ) -> Result<View<'l>, Full> {
        let mut after = *after;
        if let View::SlidingLog(limit, view, log) = &mut after {
            let View::SlidingLog(_, before, _) = seen.view else {
                return Ok(after);
            };
            let needed = log.map_or(1, |log| limit.room_needed(shard.log(log).0, &before));
            let max = limit.rate().requests();
            let fitted = match shard.fit_log(*log, needed, max, &self.bounds) {
                None => {
                    self.reclaim_logs(shard, needed, now_us, pinned);
                    shard.fit_log(*log, needed, max, &self.bounds)
                }
                fitted => fitted,
            };
            let Some(fitted) = fitted else {
                return Err(Full {
                    retry_after_us: limit.reset_after_us(view).max(1),
                });
            };
            let moved = log.replace(fitted) != Some(fitted);
            if let (true, Some(place), Some((limit, mut state))) = (moved, seen.place, seen.stored)
                && owned_log(limit, state).is_some()
            {
                // The log has moved: its entry must know, whatever comes next.
                state.extra = u64::from(fitted);
                shard.write(place, print, limit, state);
            }
        }
        if seen.place.is_none()
            && let Some(state) = after.pack()
        {
            let inserted = shard.insert(print, level.id, state, now_us, &self.bounds, pinned);
            if let (Err(_), View::SlidingLog(_, _, Some(log))) = (&inserted, &after) {
                shard.close_log(*log, &self.bounds);
            }
            inserted?;
        }
        Ok(after)
    }

    /// Frees log bytes in this shard, then in others that nobody holds.
    #[cold]
    fn reclaim_logs(&self, shard: &mut Shard<M>, needed: u32, now_us: u64, pinned: &[Fingerprint]) {
        let bytes = ring_bytes(needed.saturating_mul(2).max(4));
        let mut freed = shard.reclaim_logs(bytes, now_us, &self.bounds, pinned);
        for _ in 0..RECLAIM_SHARDS.min(self.shards.len()) {
            if freed >= bytes {
                return;
            }
            let next = self.hand.fetch_add(1, Relaxed) % self.shards.len();
            // Never waits: this thread holds locks of a higher number, maybe.
            if let Some(mut other) = self.shards[next].shard.try_lock() {
                freed += other.reclaim_logs(bytes - freed, now_us, &self.bounds, &[]);
            }
        }
    }

    fn shard_number(&self, print: Fingerprint) -> usize {
        // The number of shards is a power of two.
        (print.high as usize * self.shards.len()) >> HIGH_BITS
    }

    #[inline]
    fn locked(&self, print: Fingerprint) -> &Locked<R, M> {
        &self.shards[self.shard_number(print)]
    }

    /// Locks the shards of all these keys in the order of their numbers, each
    /// once.
    fn lock_all(
        &self,
        prints: &[Fingerprint],
    ) -> (SmallVec<[usize; 4]>, SmallVec<[Guard<'_, R, M>; 4]>) {
        let mut numbers: SmallVec<[usize; 4]> = prints
            .iter()
            .map(|&print| self.shard_number(print))
            .collect();
        numbers.sort_unstable();
        numbers.dedup();
        let guards = numbers
            .iter()
            .map(|&number| self.shards[number].shard.lock())
            .collect();
        (numbers, guards)
    }

    /// The time, from a clock that is as good before waiting for a lock as after.
    #[inline]
    fn clock_before_locks(&self) -> Option<u64> {
        self.clock.is_monotonic().then(|| self.clock.now_us())
    }

    /// The time of the decision. Threads that read the clock in one order may get
    /// the lock in another: for a key, time must not seem to go back by that.
    #[inline]
    fn clock_under_locks<'s>(
        &self,
        before_us: Option<u64>,
        shards: impl IntoIterator<Item = &'s mut Shard<M>>,
    ) -> u64
    where
        M: 's,
    {
        let Some(before_us) = before_us else {
            return self.clock.now_us();
        };
        let mut shards: SmallVec<[&mut Shard<M>; 4]> = shards.into_iter().collect();
        let now_us = shards
            .iter()
            .fold(before_us, |now_us, shard| now_us.max(shard.latest_us));
        for shard in &mut shards {
            shard.latest_us = now_us;
        }
        now_us
    }
}

/// A stored state at this instant, if the clock has not stepped back since.
#[inline]
fn known<C: Counter>(limit: &C, stored: Packed, now_us: u64) -> Option<C::State> {
    if stored.fresh_at_us <= now_us {
        return Some(limit.new_state(now_us));
    }
    let state = limit.unpack(stored);
    (C::last_us(&state) <= now_us).then(|| limit.at(state, now_us))
}

/// The decision of one level that counts.
#[inline]
fn one<C: Counter>(
    level: &Level,
    limit: &C,
    state: &C::State,
    cost: Cost,
    now_us: u64,
    admitted: bool,
    charged: bool,
) -> Decision {
    Decision {
        levels: Levels::One([LevelDecision {
            outcome: limit.outcome(state, cost, admitted),
            charge: Charged {
                cost,
                limit: level.id,
                mark_us: limit.mark_us(state),
            },
        }]),
        decided_at_us: now_us,
        denied_by: (!admitted).then_some(0),
        source: Source::Store,
        charged,
    }
}

/// The state a check leaves a level in, and the cost of the event to log: `None`
/// to leave it as it is.
#[inline]
fn after<'l>(
    seen: &Seen<'l>,
    cost: Cost,
    admitted: bool,
    charge: Charge,
) -> Option<(View<'l>, u32)> {
    match (charge, admitted) {
        (Charge::Nothing, _) => None,
        (_, true) => Some((seen.view.charge(cost), cost.get())),
        (Charge::Admitted, false) => settled(seen),
        (Charge::Always, false) => {
            let event = match &seen.view {
                View::SlidingLog(limit, view, _) => limit.saturated_cost(view, cost),
                _ => 0,
            };
            match (&seen.view, seen.place, event) {
                // Nothing was there, and a refusal opens nothing.
                (View::FixedWindow(..) | View::Block, None, _) | (View::SlidingLog(..), _, 0) => {
                    settled(seen)
                }
                _ => Some((seen.view.saturate(cost), event)),
            }
        }
    }
}

/// After a clock has stepped back, a state is written even where nothing is
/// charged: otherwise the key would stand still until the clock had caught up.
#[inline]
fn settled<'l>(seen: &Seen<'l>) -> Option<(View<'l>, u32)> {
    seen.stepped_back.then_some((seen.view, 0))
}

/// Writes a level's new state to the place that was provided.
#[inline]
fn commit<M: Region>(
    shard: &mut Shard<M>,
    print: Fingerprint,
    level: &Level,
    seen: &Seen<'_>,
    after: &View<'_>,
    event: u32,
    bounds: &Bounds,
) {
    if let (View::SlidingLog(limit, before, _), View::SlidingLog(_, _, Some(log))) =
        (&seen.view, after)
    {
        let (header, records) = shard.log_mut(*log);
        if event > 0 {
            limit.write(header, records, before, event);
        } else {
            limit.settle(header, records, before);
        }
    }
    let (Some(place), Some(state)) = (seen.place, after.pack()) else {
        return;
    };
    if let Some((limit, old)) = seen.stored
        && let Some(log) = owned_log(limit, old)
        && !matches!(after, View::SlidingLog(..))
    {
        shard.close_log(log, bounds);
    }
    shard.write(place, print, level.id, state);
}

#[inline]
fn outcome<M: Region>(
    shard: &Shard<M>,
    view: &View<'_>,
    cost: Cost,
    admitted: bool,
    full: Option<Full>,
) -> Outcome {
    let log: LogRef<'_> = match view {
        View::SlidingLog(_, _, Some(log)) => Some(shard.log(*log)),
        _ => None,
    };
    let outcome = view.outcome(log, cost, admitted || full.is_some());
    match full {
        Some(full) => Outcome {
            used: Used::requests(outcome.limit),
            retry_after_us: Some(full.retry_after_us),
            ..outcome
        },
        None => outcome,
    }
}

#[inline]
fn report(level: &Level, view: &View<'_>, cost: Cost, outcome: Outcome) -> LevelDecision {
    LevelDecision {
        outcome,
        charge: Charged {
            cost,
            limit: level.id,
            mark_us: view.mark_us(),
        },
    }
}
