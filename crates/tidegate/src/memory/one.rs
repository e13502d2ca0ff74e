//! The everyday case, in a straight line: one level that counts, whose key is new, or
//! there under this same limit, on a clock that goes on. Everything else goes,
//! untouched, to `many.rs`, which could do this, too, and takes longer.

use std::slice;
use std::sync::atomic::Ordering::Relaxed;

use lock_api::RawMutex;

use super::bucket::Packed;
use super::counter::Counter;
use super::region::Region;
use super::table::{Locked, Table};
use super::{Charge, Check, Level};
use crate::cost::Cost;
use crate::decision::{Charged, Decision, LevelDecision, Levels, Source, fresh_id};

impl<R: RawMutex, M: Region> Table<R, M> {
    #[inline]
    pub(super) fn decide_one<C: Counter>(
        &self,
        limit: &C,
        check: &Check<'_>,
        charge: Charge,
    ) -> Decision {
        let &Check { level, key, cost } = check;
        let before_us = self.clock_before_locks();
        let print = self.seeds.fingerprint(level.scope, key);
        let Locked { shard, refused } = self.locked(print);
        let mut voided = Voided {
            store: self.voided.load(Relaxed),
            shard: 0,
        };

        // A refusal that changes nothing needs no lock.
        if let Some(stored) = refused.get(print, level.id)
            && charge != Charge::Always
        {
            let now_us = before_us.unwrap_or_else(|| self.clock.now_us());
            if let Some(state) = at(limit, stored, now_us)
                && !limit.admits(&state, cost)
            {
                return decision(level, limit, &state, cost, now_us, Verdict::Refused, voided);
            }
        }

        let mut shard = shard.lock();
        voided.shard = shard.voided;
        let now_us = match before_us {
            Some(before_us) => before_us.max(shard.latest_us),
            None => self.clock.now_us(),
        };
        let Some(place) = shard.find(print) else {
            let state = limit.new_state(now_us);
            if charge != Charge::Nothing && limit.admits(&state, cost) {
                let state = limit.charge(state, cost);
                let packed = limit.pack(&state);
                let inserted =
                    shard.insert(print, level.id, packed, now_us, &self.bounds, &[print]);
                if inserted.is_ok() {
                    refused.forget(print);
                    shard.latest_us = now_us;
                    drop(shard);
                    return decision(level, limit, &state, cost, now_us, Verdict::Charged, voided);
                }
            }
            drop(shard);
            return self.decide_many(slice::from_ref(check), charge);
        };
        let (id, stored) = shard.read(place);
        if id == level.id
            && let Some(state) = at(limit, stored, now_us)
        {
            let admitted = limit.admits(&state, cost);
            shard.latest_us = now_us;
            match (admitted, charge) {
                (true, Charge::Nothing) => {
                    drop(shard);
                    return decision(
                        level,
                        limit,
                        &state,
                        cost,
                        now_us,
                        Verdict::Admitted,
                        voided,
                    );
                }
                (true, _) => {
                    let state = limit.charge(state, cost);
                    refused.forget(print);
                    shard.write(place, print, level.id, limit.pack(&state));
                    drop(shard);
                    return decision(level, limit, &state, cost, now_us, Verdict::Charged, voided);
                }
                (false, Charge::Nothing | Charge::Admitted) => {
                    if shard.refused_again(print) {
                        refused.set(print, level.id, stored);
                    }
                    drop(shard);
                    return decision(level, limit, &state, cost, now_us, Verdict::Refused, voided);
                }
                (false, Charge::Always) => {}
            }
        }
        drop(shard);
        self.decide_many(slice::from_ref(check), charge)
    }
}

/// How often receipts had become void: all of them, and those of a shard.
#[derive(Clone, Copy)]
struct Voided {
    store: u32,
    shard: u16,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Refused,
    Admitted,
    Charged,
}

/// A stored state at this instant, if the clock has not stepped back since.
#[inline]
fn at<C: Counter>(limit: &C, stored: Packed, now_us: u64) -> Option<C::State> {
    if stored.fresh_at_us <= now_us {
        return Some(limit.new_state(now_us));
    }
    let state = limit.unpack(stored);
    (C::last_us(&state) <= now_us).then(|| limit.at(state, now_us))
}

#[inline]
fn decision<C: Counter>(
    level: &Level,
    limit: &C,
    state: &C::State,
    cost: Cost,
    now_us: u64,
    verdict: Verdict,
    voided: Voided,
) -> Decision {
    let admitted = verdict != Verdict::Refused;
    let charge = Charged {
        cost,
        limit: level.id,
        voided: voided.shard,
        mark_us: limit.mark_us(state),
    };
    Decision {
        levels: Levels::One([LevelDecision {
            outcome: limit.outcome(state, cost, admitted),
            charge,
        }]),
        decided_at_us: now_us,
        denied_by: (!admitted).then_some(0),
        source: Source::Store,
        receipt: (verdict == Verdict::Charged).then(fresh_id),
        voided: voided.store,
    }
}
