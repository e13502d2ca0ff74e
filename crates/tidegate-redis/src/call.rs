//! The arguments of a script, and the interpretation of its reply.
//!
//! A script answers with the states it found, not with the numbers that users see:
//! those are worked out here, from the states, by the same code that the store in
//! memory uses. So the two cannot differ in them, and one reply can answer any number
//! of identical checks, each with the numbers it would have seen.

use std::hash::BuildHasher;
use std::sync::Arc;

use foldhash::fast::FixedState;
use smallvec::SmallVec;
use tidegate::algorithm::{Numbers, State};
use tidegate::{
    Charge, Cost, Decision, Keys, LevelOutcome, Limit, OnLease, Policy, Receipt, Source,
};

use crate::batch::{Command, Reply};
use crate::mode::lease::out::Out;
use crate::script::{Script, Scripts, Task};

/// The part of checks that the keys do not change.
#[derive(Debug)]
pub(crate) struct Template {
    /// For one check in a call, and for many.
    one: Arc<Script>,
    many: Arc<Script>,
    limits: Vec<Limit>,
    cost: Cost,
    charge: Charge,
    /// What a script is given: how many ask, the cost, and the limits.
    argument: Arc<[u8]>,
}

impl Template {
    /// Of the checks of a policy where no override is in force and the cost is one: nearly
    /// all of them.
    pub(crate) fn of_policy(scripts: &Scripts, policy: &Policy, charge: Charge) -> Arc<Self> {
        let limits = policy.levels().iter().map(|level| *level.limit()).collect();
        Arc::new(Self::new(scripts, charge, limits, Cost::ONE))
    }

    /// Of a check of these keys: this one, if it can serve.
    pub(crate) fn of_check(
        self: &Arc<Self>,
        scripts: &Scripts,
        keys: &Keys<'_>,
        cost: Cost,
        charge: Charge,
    ) -> Arc<Self> {
        let ordinary = keys.iter();
        let ordinary =
            ordinary.filter(|key| key.overridden_by().is_none() && key.given_limit().is_none());
        let is_ordinary = cost == Cost::ONE && ordinary.count() == self.limits.len();
        match is_ordinary && charge != Charge::Nothing {
            true => Arc::clone(self),
            false => {
                let limits = keys.iter().map(|key| *key.limit()).collect();
                Arc::new(Self::new(scripts, charge, limits, cost))
            }
        }
    }

    fn new(scripts: &Scripts, charge: Charge, limits: Vec<Limit>, cost: Cost) -> Self {
        let (one, many) = match charge {
            Charge::Always => (Task::CheckCounting, Task::ChecksCounting),
            Charge::Admitted | Charge::Nothing | Charge::Told => (Task::Check, Task::Checks),
        };
        let asked = u32::from(charge != Charge::Nothing);
        Self {
            one: scripts.get(one, &limits),
            many: scripts.get(many, &limits),
            argument: argument(&limits, cost, asked).into(),
            limits,
            cost,
            charge,
        }
    }

    /// The check of these keys. With refusals counted, each changes what the next one sees:
    /// then none is like another. A look is not counted at all.
    pub(crate) fn command(&self, keys: SmallVec<[String; 2]>) -> Command {
        let is_look = self.charge == Charge::Nothing;
        let may_be_alike = matches!(self.charge, Charge::Admitted | Charge::Told);
        let hash = || FixedState::default().hash_one((&keys[..], &self.argument));
        let same = may_be_alike.then(hash);
        let scripts = [&self.one, &self.many];
        Command::check(scripts, keys, &self.argument, same, is_look)
    }

    /// What the server has answered to it; `None` for what is no answer of the script.
    pub(crate) fn decide(&self, reply: &Reply) -> Option<Decision> {
        let (numbers, leases) = self.one.numbers_and_rest(reply.bytes()?)?;
        let (limits, place) = (&self.limits, (reply.place, reply.of));
        decision(limits, self.cost, self.charge, place, &numbers, leases)
    }
}

/// What a check is given: how many ask, the cost of one, and the limits.
pub(crate) fn argument(limits: &[Limit], cost: Cost, asked: u32) -> Vec<u8> {
    let mut argument = Vec::with_capacity(8 + 32 * limits.len());
    argument.extend_from_slice(&asked.to_le_bytes());
    argument.extend_from_slice(&cost.get().to_le_bytes());
    for limit in limits {
        limit.write_limit(cost, &mut argument);
    }
    argument
}

/// Whether a level has a key in Redis.
fn counts(limit: &Limit) -> bool {
    limit.algorithm().profile().counts
}

/// The keys in Redis; a level that blocks has none.
pub(crate) fn stored_keys(keys: &Keys<'_>, prefix: &str) -> SmallVec<[String; 2]> {
    let counted = keys.iter().filter(|key| counts(key.limit()));
    counted.map(|key| key.stored(prefix)).collect()
}

/// The arguments of a refund of charges that were made then, each with its mark; `None` when
/// the receipt is for other levels.
pub(crate) fn refund_at(
    decided_at_us: u64,
    charges: &[(Cost, u64)],
    limits: &[Limit],
) -> Option<Vec<Vec<u8>>> {
    if charges.len() != limits.len() {
        return None;
    }
    let (cost, _) = *charges.first()?;
    let charges = || limits.iter().zip(charges.iter().copied());
    let counts_for = charges().map(|(limit, (cost, _))| limit.counts_for_us(cost));
    // A forged receipt may be of any time.
    let until_us = decided_at_us.saturating_add(counts_for.max()?);
    let numbers = [decided_at_us, cost.get().into(), until_us];
    let mut arguments: Vec<Vec<u8>> = numbers.map(|it| it.to_string().into_bytes()).into();
    for (limit, (cost, mark)) in charges().filter(|(limit, _)| counts(limit)) {
        let mut packed = Vec::new();
        limit.write_limit(cost, &mut packed);
        arguments.push(packed);
        arguments.push(mark.to_string().into_bytes());
    }
    Some(arguments)
}

/// The key that says that a receipt was refunded, in the slot of the keys it is for.
pub(crate) fn marker(policy: &str, key: &str, receipt: &Receipt) -> String {
    // No name has a tilde in it, and the tag no brace.
    let tagged = key.find('}').map_or("", |end| &key[..=end]);
    format!("{tagged}:{policy}~refunded:{:016x}", receipt.id())
}

/// The decision of the check at a place among identical ones, which were charged in order.
/// A look is one check that is not charged. `None` for a reply that no script of ours gives.
pub(crate) fn decision(
    limits: &[Limit],
    cost: Cost,
    charge: Charge,
    (place, of): (u32, u32),
    reply: &[i64],
    leases: &[u8],
) -> Option<Decision> {
    let can_lease = |limit: &&Limit| limit.algorithm().profile().can_lease;
    let outs = Out::after(leases, limits.iter().filter(can_lease).count())?;
    let mut outs = outs.into_iter();
    let mut numbers = Numbers::new(reply);
    let now_us = numbers.next()?;
    let admitted = numbers.next_u32()?;
    let mut levels: SmallVec<[LevelState<'_>; 4]> = SmallVec::new();
    for limit in limits {
        let (used, mark) = limit.read_state(now_us, &mut numbers)?;
        let out = can_lease(&limit).then(|| outs.next()).flatten();
        let out = out.unwrap_or_default();
        levels.push(LevelState {
            limit,
            state: out.on(limit, used),
            mark,
            used,
            out,
        });
    }
    let is_look = charge == Charge::Nothing;
    if !numbers.is_empty() || admitted > of || (is_look && admitted > 0) {
        return None;
    }
    // Prices add exactly: what those before it have cost, and what it costs itself.
    let charges = u64::from(admitted.min(place + 1));
    if charges > 0 {
        let spent = Cost::new(charges * u64::from(cost.get())).ok()?;
        for level in &mut levels {
            level.state = level.limit.charge(level.state, spent);
        }
    }
    if place < admitted {
        let outcomes = levels.iter().map(|level| level.outcome(cost, true));
        let receipt = Some(Receipt::fresh_id());
        let source = Source::Store;
        return Some(Decision::from_store(
            outcomes, now_us, None, source, receipt,
        ));
    }
    let admits: SmallVec<[bool; 4]> = levels
        .iter()
        .map(|it| it.limit.admits(&it.state, cost))
        .collect();
    let denied_by = admits.iter().position(|admits| !admits);
    if denied_by.is_none() && !is_look {
        return None;
    }
    if charge == Charge::Always {
        for (level, admits) in levels.iter_mut().zip(&admits) {
            if !admits {
                level.state = level.limit.saturate(level.state, cost);
            }
        }
    }
    let outcomes = levels.iter().zip(&admits);
    let outcomes = outcomes.map(|(level, admits)| level.outcome(cost, *admits));
    let refusal = Decision::from_store(outcomes, now_us, denied_by, Source::Store, None);
    Some(match is_look && !leases.is_empty() {
        true => refusal.with_leases(levels.iter().map(LevelState::on_lease)),
        false => refusal,
    })
}

/// A level's state, and the mark of a charge now.
struct LevelState<'l> {
    limit: &'l Limit,
    /// What is used, and what is out on lease.
    state: State,
    mark: u64,
    /// What was used before the checks, without what is out.
    used: State,
    out: Out,
}

impl LevelState<'_> {
    fn on_lease(&self) -> OnLease {
        OnLease {
            tokens: self.out.tokens,
            leases: self.out.leases,
        }
    }

    fn outcome(&self, cost: Cost, admitted: bool) -> LevelOutcome {
        let outcome = self.limit.outcome(&self.state, cost, admitted);
        LevelOutcome {
            outcome: self
                .out
                .waited_for(outcome, self.limit, &self.used, admitted),
            cost,
            mark: self.mark,
        }
    }
}
