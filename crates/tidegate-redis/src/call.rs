//! The arguments of a script, and the interpretation of its reply.
//!
//! A script answers with the states it found, not with the numbers that users see:
//! those are worked out here, from the states, by the same code that the store in
//! memory uses. So the two cannot differ in them, and one call can answer any number
//! of identical checks, each with the numbers it would have seen.

use std::hash::BuildHasher;
use std::sync::Arc;

use foldhash::fast::FixedState;
use smallvec::SmallVec;
use tidegate::algorithm::{Span, State};
use tidegate::{
    Algorithm, Align, Charge, Cost, Decision, Keys, Kind, LevelOutcome, Limit, OnLease, Policy,
    Receipt, Source,
};

use crate::count;
use crate::lease::out::Out;
use crate::script::{Script, Scripts, Task};

/// More microseconds than any bucket holds.
const NEVER_US: u64 = 1 << 54;

/// A limit as the scripts unpack it, with the price of a cost where that is not the
/// cost itself.
pub(crate) fn pack(limit: &Limit, cost: Cost) -> Option<Vec<u8>> {
    let mut packed = Vec::with_capacity(32);
    let mut push = |number: u64, bytes: usize| {
        packed.extend_from_slice(&number.to_le_bytes()[..bytes]);
    };
    match limit.kind() {
        Kind::TokenBucket(bucket) => {
            let never = Span {
                us: NEVER_US,
                parts: 0,
            };
            let (price, size) = (bucket.price(cost).unwrap_or(never), bucket.capacity());
            push(price.us, 7);
            push(price.parts.into(), 4);
            push(size.us, 7);
            push(size.parts.into(), 4);
            push(bucket.parts_per_us().into(), 4);
            push(bucket.stored_token_parts(), 6);
        }
        Kind::FixedWindow(window) => {
            push(window.rate().requests().into(), 4);
            push(window.rate().window_us(), 6);
            push(u64::from(window.align() == Align::Epoch), 1);
        }
        Kind::SlidingWindow(window) => {
            push(window.rate().requests().into(), 4);
            push(window.rate().window_us(), 6);
        }
        Kind::SlidingLog(log) => {
            push(log.rate().requests().into(), 4);
            push(log.rate().window_us(), 6);
        }
        Kind::Block(_) => return None,
    }
    Some(packed)
}

/// What a script is given that takes a cost off the count of a fixed window.
pub(crate) fn give_back_argument(limit: &Limit, cost: Cost) -> Option<Vec<u8>> {
    const GIVES_BACK: u64 = 2;
    if limit.algorithm() != Algorithm::FixedWindow {
        return None;
    }
    let mut argument = pack(limit, cost)?;
    for number in [u64::from(cost.get()), 0, GIVES_BACK] {
        argument.extend_from_slice(&number.to_le_bytes()[..7]);
    }
    Some(argument)
}

/// What the checks of a policy have in common, where no override is in force and the
/// cost is one: nearly all of them.
#[derive(Debug)]
pub(crate) struct Prepared {
    one: Template,
    levels: usize,
}

/// The part of a call that the keys do not change.
#[derive(Debug, Clone)]
pub(crate) struct Template(Arc<TemplateParts>);

#[derive(Debug)]
struct TemplateParts {
    /// For one check in a call, and for many.
    one: Arc<Script>,
    many: Arc<Script>,
    limits: Vec<Limit>,
    /// What a script is given: how many ask, the cost, and the limits.
    argument: Vec<u8>,
}

impl Template {
    fn new(scripts: &Scripts, charge: Charge, limits: Vec<Limit>, cost: Cost) -> Self {
        let (one, many) = match charge {
            Charge::Always => (Task::CheckCounting, Task::ChecksCounting),
            Charge::Admitted | Charge::Nothing | Charge::Told => (Task::Check, Task::Checks),
        };
        let asked = u32::from(charge != Charge::Nothing);
        Self(Arc::new(TemplateParts {
            one: scripts.get(one, &limits),
            many: scripts.get(many, &limits),
            argument: argument(&limits, cost, asked),
            limits,
        }))
    }
}

/// Bytes of an argument that say how many ask.
const ASKED: usize = 4;

/// What a check is given: how many ask, the cost of one, and the limits.
pub(crate) fn argument(limits: &[Limit], cost: Cost, asked: u32) -> Vec<u8> {
    let mut argument = Vec::with_capacity(8 + 32 * limits.len());
    argument.extend_from_slice(&asked.to_le_bytes());
    argument.extend_from_slice(&cost.get().to_le_bytes());
    for packed in limits.iter().filter_map(|limit| pack(limit, cost)) {
        argument.extend_from_slice(&packed);
    }
    argument
}

impl Prepared {
    pub(crate) fn new(scripts: &Scripts, policy: &Policy, charge: Charge) -> Self {
        let limits = policy.levels().iter().map(|level| *level.limit()).collect();
        Self {
            one: Template::new(scripts, charge, limits, Cost::ONE),
            levels: policy.levels().len(),
        }
    }
}

/// One check of a policy, which callers with the same question share.
#[derive(Debug)]
pub(crate) struct Call {
    template: Template,
    pub(crate) keys: SmallVec<[String; 2]>,
    pub(crate) cost: Cost,
    pub(crate) charge: Charge,
    /// Of the keys and of what is asked about them.
    pub(crate) hash: u64,
}

impl Call {
    pub(crate) fn new(
        prepared: &Prepared,
        scripts: &Scripts,
        prefix: &str,
        keys: &Keys<'_>,
        cost: Cost,
        charge: Charge,
    ) -> Self {
        let ordinary = keys.iter().filter(|key| {
            let has_other = key.overridden_by().is_some() || key.given_limit().is_some();
            !has_other
        });
        let is_ordinary = cost == Cost::ONE && ordinary.count() == prepared.levels;
        let template = match is_ordinary && charge != Charge::Nothing {
            true => prepared.one.clone(),
            false => {
                let limits = keys.iter().map(|key| *key.limit()).collect();
                Template::new(scripts, charge, limits, cost)
            }
        };
        let keys = stored_keys(keys, prefix);
        Self {
            hash: FixedState::default().hash_one((&keys[..], &template.0.argument)),
            template,
            keys,
            cost,
            charge,
        }
    }

    /// The script that decides it alone.
    pub(crate) fn script(&self) -> &Arc<Script> {
        &self.template.0.one
    }

    /// The script that decides it with others in one call.
    pub(crate) fn batch_script(&self) -> &Arc<Script> {
        &self.template.0.many
    }

    pub(crate) fn limits(&self) -> &[Limit] {
        &self.template.0.limits
    }

    /// What the script is given after how many ask: the cost and the limits.
    pub(crate) fn limits_argument(&self) -> &[u8] {
        &self.template.0.argument[ASKED..]
    }

    /// Whether one call can answer both: with refusals counted, each changes what the
    /// next one sees.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        self.hash == other.hash
            && self.charge != Charge::Always
            && self.charge == other.charge
            && self.keys == other.keys
            && self.template.0.argument == other.template.0.argument
            && Arc::ptr_eq(self.script(), other.script())
    }
}

/// The keys in Redis; a level that blocks has none.
pub(crate) fn stored_keys(keys: &Keys<'_>, prefix: &str) -> SmallVec<[String; 2]> {
    let stateful = keys.iter().filter(|key| *key.limit() != Limit::block());
    stateful.map(|key| key.stored(prefix)).collect()
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
    for (limit, (cost, mark)) in charges() {
        if let Some(packed) = pack(limit, cost) {
            arguments.push(packed);
            arguments.push(mark.to_string().into_bytes());
        }
    }
    Some(arguments)
}

/// The key that says that a receipt was refunded, in the slot of the keys it is for.
pub(crate) fn marker(policy: &str, key: &str, receipt: &Receipt) -> String {
    // No name has a tilde in it, and the tag no brace.
    let tagged = key.find('}').map_or("", |end| &key[..=end]);
    format!("{tagged}:{policy}~refunded:{:016x}", receipt.id())
}

/// A reply that no script of ours gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BadReply;

/// The decisions of so many identical checks, in the order they asked. A look is one
/// check that is not charged.
pub(crate) fn decisions(
    limits: &[Limit],
    cost: Cost,
    charge: Charge,
    asked: usize,
    reply: &[i64],
    leases: &[u8],
) -> Result<Vec<Decision>, BadReply> {
    let leasing =
        |limit: &&Limit| matches!(limit.kind(), Kind::TokenBucket(_) | Kind::FixedWindow(_));
    let outs = Out::after(leases, limits.iter().filter(leasing).count()).ok_or(BadReply)?;
    let mut outs = outs.into_iter();
    let mut numbers = Numbers::new(reply);
    let now_us = numbers.next()?;
    let admitted = usize::try_from(numbers.next()?).map_err(|_| BadReply)?;
    let mut levels: SmallVec<[Level<'_>; 4]> = SmallVec::new();
    for limit in limits {
        let mut level = Level::read(limit, now_us, &mut numbers)?;
        if leasing(&limit) {
            level.lease(outs.next().unwrap_or_default());
        }
        levels.push(level);
    }
    numbers.end()?;
    if admitted > asked {
        return Err(BadReply);
    }
    let mut decisions = Vec::with_capacity(asked.max(1));
    for _ in 0..admitted {
        for level in &mut levels {
            level.state = level.limit.charge(level.state, cost);
        }
        let outcomes = levels.iter().map(|level| level.outcome(cost, true));
        let receipt = (charge != Charge::Nothing).then(Receipt::fresh_id);
        decisions.push(Decision::from_store(
            outcomes,
            now_us,
            None,
            Source::Store,
            receipt,
        ));
    }
    if admitted < asked.max(1) {
        let admits: SmallVec<[bool; 4]> = levels
            .iter()
            .map(|it| it.limit.admits(&it.state, cost))
            .collect();
        let denied_by = admits.iter().position(|admits| !admits);
        if denied_by.is_none() && charge != Charge::Nothing {
            return Err(BadReply);
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
        let mut refusal = Decision::from_store(outcomes, now_us, denied_by, Source::Store, None);
        if charge == Charge::Nothing && !leases.is_empty() {
            refusal = refusal.with_leases(levels.iter().map(Level::on_lease));
        }
        decisions.resize(asked.max(1), refusal);
    }
    Ok(decisions)
}

/// The numbers of a reply, one after the other.
pub(crate) struct Numbers<'r>(&'r [i64]);

impl<'r> Numbers<'r> {
    pub(crate) fn new(reply: &'r [i64]) -> Self {
        Self(reply)
    }

    pub(crate) fn next(&mut self) -> Result<u64, BadReply> {
        let (first, rest) = self.0.split_first().ok_or(BadReply)?;
        self.0 = rest;
        u64::try_from(*first).map_err(|_| BadReply)
    }

    pub(crate) fn next_u32(&mut self) -> Result<u32, BadReply> {
        u32::try_from(self.next()?).map_err(|_| BadReply)
    }

    /// There must not be any more.
    pub(crate) fn end(&self) -> Result<(), BadReply> {
        match self.0 {
            [] => Ok(()),
            _ => Err(BadReply),
        }
    }
}

/// A level's state, and the mark of a charge now.
struct Level<'l> {
    limit: &'l Limit,
    /// What is used, and what is out on lease.
    state: State,
    mark: u64,
    /// What was used before the checks, without what is out.
    used: State,
    out: Out,
}

impl<'l> Level<'l> {
    fn read(limit: &'l Limit, now_us: u64, numbers: &mut Numbers<'_>) -> Result<Self, BadReply> {
        let (state, mark) = count::read(limit, now_us, numbers)?;
        Ok(Self {
            limit,
            state,
            mark,
            used: state,
            out: Out::default(),
        })
    }

    /// Some of it is out.
    fn lease(&mut self, out: Out) {
        self.state = out.on(self.limit, self.state);
        self.out = out;
    }

    fn on_lease(&self) -> OnLease {
        OnLease {
            tokens: self.out.tokens,
            leases: self.out.leases,
        }
    }

    fn outcome(&self, cost: Cost, admitted: bool) -> LevelOutcome {
        let outcome = self.limit.outcome(&self.state, cost, admitted);
        LevelOutcome {
            outcome: self.out.waited_for(outcome, &self.used, admitted),
            cost,
            mark: self.mark,
        }
    }
}
