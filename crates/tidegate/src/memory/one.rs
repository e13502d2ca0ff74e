//! The everyday case, in a straight line: one level whose key is new, or there under
//! this same limit, on a clock that goes on. Everything else goes, untouched, to
//! `levels.rs`, which could do this as well, but takes longer.

use smallvec::smallvec;

use super::home::Home;
use super::table::{Table, release};
use super::{Ask, Charge};
use crate::algorithm::{Compact, Packed, Snapshot};
use crate::decision::{Decision, LevelDecision, fresh_id};

impl<H: Home> Table<H> {
    #[inline]
    pub(super) fn decide_one<C: Compact>(
        &self,
        limit: &C,
        ask: Ask<'_>,
        charge: Charge,
        before_us: Option<u64>,
    ) -> Decision {
        let Ask { level, print, cost } = ask;
        let locked = self.locked(print);
        let refused = &locked.refused;

        // A refusal that changes nothing needs no lock.
        if let Some(stored) = refused.get(print, level.id)
            && !matches!(charge, Charge::Always | Charge::Told)
        {
            let now_us = before_us.unwrap_or_else(|| self.clock.now_us());
            if let Some(state) = at(limit, stored, now_us)
                && !limit.admits(&state, cost)
            {
                return decision(&ask, limit, &state, now_us, 0, Answer::Refused);
            }
        }

        let mut shard = self.guard(locked);
        let era = shard.era();
        let now_us = match before_us {
            Some(before_us) => before_us.max(shard.latest_us),
            None => self.clock.now_us(),
        };
        let Some(place) = shard.find(print) else {
            let state = limit.new_state(now_us);
            if charge != Charge::Nothing && limit.admits(&state, cost) {
                let state = limit.charge(state, cost);
                let packed = limit.pack(&state);
                let pinned = [print];
                let upkeep = self.upkeep(now_us, &pinned);
                let inserted = self.insert(&mut shard, (print, level.id, packed), &upkeep);
                if inserted.is_ok() {
                    refused.forget(print);
                    shard.latest_us = now_us;
                    release(shard);
                    return decision(&ask, limit, &state, now_us, era, Answer::Charged);
                }
            }
            drop(shard);
            return self.decide_few([ask], charge, before_us);
        };
        let (id, stored) = shard.read(place);
        if id == level.id
            && let Some(state) = at(limit, stored, now_us)
        {
            shard.latest_us = now_us;
            match (limit.try_charge(state, cost), charge) {
                (Some(state), Charge::Admitted | Charge::Always | Charge::Told) => {
                    refused.forget(print);
                    shard.write(place, (print, id, limit.pack(&state)));
                    drop(shard);
                    return decision(&ask, limit, &state, now_us, era, Answer::Charged);
                }
                (Some(_), Charge::Nothing) => {
                    drop(shard);
                    return decision(&ask, limit, &state, now_us, era, Answer::Admitted);
                }
                (None, Charge::Nothing | Charge::Admitted) => {
                    if shard.refused_again(print) {
                        refused.set(print, id, stored);
                    }
                    drop(shard);
                    return decision(&ask, limit, &state, now_us, era, Answer::Refused);
                }
                (None, Charge::Always | Charge::Told) => {}
            }
        }
        drop(shard);
        self.decide_few([ask], charge, before_us)
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Answer {
    Refused,
    Admitted,
    Charged,
}

/// A stored state at this instant, if the clock has not stepped back since.
#[inline]
pub(super) fn at<C: Compact>(limit: &C, stored: Packed, now_us: u64) -> Option<C::State> {
    if stored.fresh_at_us <= now_us {
        return Some(limit.new_state(now_us));
    }
    let state = limit.unpack(stored);
    (state.last_us() <= now_us).then(|| limit.at(state, now_us))
}

/// What a level says about a check.
#[inline]
pub(super) fn level_decision<C: Compact>(
    ask: &Ask<'_>,
    limit: &C,
    state: &C::State,
    era: u32,
    admitted: bool,
) -> LevelDecision {
    let outcome = limit.outcome(state, ask.cost, admitted);
    ask.level_decision(outcome, limit.mark_us(state), era)
}

#[inline]
fn decision<C: Compact>(
    ask: &Ask<'_>,
    limit: &C,
    state: &C::State,
    now_us: u64,
    era: u32,
    verdict: Answer,
) -> Decision {
    let admitted = verdict != Answer::Refused;
    Decision {
        levels: smallvec![level_decision(ask, limit, state, era, admitted)],
        denied_by: (!admitted).then_some(0),
        receipt: (verdict == Answer::Charged).then(fresh_id),
        ..Decision::at(now_us)
    }
}
