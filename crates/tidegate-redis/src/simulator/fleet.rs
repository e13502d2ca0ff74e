//! The fleet: requests, what goes wrong, and nodes in the mode `exact`. Nodes of the other
//! modes are in [`super::lease`] and [`super::background`].
//!
//! What is judged is the store's time at the moment a token is spent, or a check is admitted.
//! Time that the store's clock is set forward by has passed.

use std::collections::HashMap;
use std::rc::Rc;
use std::time::Duration;

use smallvec::SmallVec;
use tidegate::algorithm::State;
use tidegate::audit::Background;
use tidegate::{Cost, Decision, Limit, Mode, Policy, Receipt, Source};
use tidegate_testkit::simulation::{Network, Trouble, Troubles, World, micros};

use super::background::BackgroundNode;
use super::judge::{Ledger, size};
use crate::mode::Query;
use crate::mode::lease::kept::Store;
use crate::mode::lease::key::Key;
use crate::mode::lease::message::{Reply, TERM_US};
use crate::mode::lease::tokens::Spent;
use crate::mode::refusals::{Refusals, Sent};
use crate::mode::tests::check;

/// How long a check may take.
const DEADLINE: Duration = Duration::from_millis(50);
/// When the first request comes.
const FIRST: Duration = Duration::from_secs(1);

/// What a run is like.
#[derive(Debug, Clone)]
pub(super) struct Setting {
    /// One limit per level, and those that are in force instead after a change.
    pub(super) limits: Vec<[Limit; 2]>,
    pub(super) mode: Mode,
    /// Nodes in that mode, and nodes in the mode `exact` beside them.
    pub(super) nodes: usize,
    pub(super) exact: usize,
    pub(super) keys: u64,
    pub(super) refusal_memory: Duration,
    pub(super) sync_interval: Duration,
    /// The longest pause between two requests of the fleet.
    pub(super) pause_us: u64,
    pub(super) requests: u64,
    pub(super) pattern: Pattern,
    pub(super) costs: u64,
    /// Whether keys that are not worth a lease are asked for as in the mode `exact`. That
    /// is what production does, where such checks share calls, too: here they do not.
    pub(super) plainly: bool,
    pub(super) network: Network,
    pub(super) troubles: Troubles,
    /// In a thousand requests, each of them.
    pub(super) limit_changes: u64,
    pub(super) refunds: u64,
    /// Nodes that return more than they were given.
    pub(super) lies: u64,
    /// How far clocks of nodes are off, and how wrong they run, in parts of a million.
    pub(super) skew_us: u64,
    pub(super) drift: u64,
}

/// Who asks when: the same again and again.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pattern {
    pub(super) phases: &'static [Phase],
    /// How long the phases take, and for how long nobody asks after them.
    pub(super) busy: Duration,
    pub(super) lull: Duration,
    /// By up to how much some of the first node's leases arrive late, and how often in a
    /// thousand its messages are handed over again.
    pub(super) late_us: u64,
    pub(super) again: u64,
}

/// A part of a pattern.
#[derive(Debug, Clone, Copy)]
pub(super) struct Phase {
    /// When it ends, in thousandths of the busy time.
    until: u64,
    /// How often the first node asks, in a thousand, where it is not one of many.
    of_first: Option<u64>,
    /// How long pauses are, in thousandths of what they usually are, and what is added.
    pause: u64,
    wait: Duration,
}

const fn phase(until: u64, of_first: Option<u64>, pause: u64, wait_ms: u64) -> Phase {
    Phase {
        until,
        of_first,
        pause,
        wait: Duration::from_millis(wait_ms),
    }
}

const fn pattern(phases: &'static [Phase], busy_ms: u64) -> Pattern {
    Pattern {
        phases,
        busy: Duration::from_millis(busy_ms),
        lull: Duration::ZERO,
        late_us: 0,
        again: 0,
    }
}

/// All nodes, all the time.
pub(super) const EVEN: Pattern = pattern(&[phase(1_000, None, 1_000, 0)], 1_000);

/// Times in which many ask alternate with times in which few do.
pub(super) const WAVES: Pattern = pattern(
    &[phase(250, None, 1_000, 0), phase(1_000, None, 20_000, 0)],
    1_200,
);

/// Everybody asks in a rush.
pub(super) const RUSH: &[Phase] = &[phase(1_000, None, 250, 0)];

/// One node takes leases in a rush, keeps them while the others use up the rest, and spends
/// them when they are about to end.
pub(super) const HOARD: &[Phase] = &[
    phase(40, Some(1_000), 250, 0),
    phase(820, Some(40), 1_000, 0),
    phase(1_000, Some(700), 500, 0),
];

/// The same, but the others wait until it spends them.
pub(super) const QUIET: &[Phase] = &[
    phase(40, Some(1_000), 250, 0),
    phase(820, Some(1_000), 1_000, 200),
    phase(1_000, Some(500), 250, 0),
];

/// What a run came to.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    /// Which counter admitted more than its bound, and by how much.
    pub(super) broken: Option<(usize, u64)>,
    /// Whether the store ever had more used and out than the limit.
    pub(super) overfull: bool,
    pub(super) admitted: u64,
    pub(super) refused: u64,
    /// Without an answer: too late, or the node was not there.
    pub(super) unanswered: u64,
    /// Checks refused from memory, and those that the store would have admitted then.
    pub(super) remembered: u64,
    pub(super) wrongly: u64,
    pub(super) calls: u64,
    pub(super) from_leases: u64,
    /// From the first request to the last.
    pub(super) span: Duration,
}

/// Counters: one for each level of each key.
pub(super) type Cells = SmallVec<[usize; 2]>;

/// What happens to a fleet; a message may come twice.
pub(super) type Event = Rc<dyn Fn(&mut Fleet)>;

pub(super) fn event(happens: impl Fn(&mut Fleet) + 'static) -> Event {
    Rc::new(happens)
}

/// A check that waits for an answer.
#[derive(Debug, Clone)]
pub(super) struct Waiting {
    pub(super) node: usize,
    pub(super) cost: Cost,
    /// Tokens of leases that it holds: of which counter, and when they were taken.
    pub(super) held: SmallVec<[(usize, Spent, u64); 2]>,
    /// The counters that it waits for.
    pub(super) cells: Cells,
    pub(super) sent: Option<Sent>,
}

/// A charge, by which it can be given back.
#[derive(Debug, Clone, Copy)]
pub(super) struct Charge {
    cell: usize,
    cost: Cost,
    at_us: u64,
    era_us: u64,
    /// Of a lease.
    nonce: Option<u64>,
    /// Its place among the records.
    record: usize,
}

pub(super) enum Node {
    Exact(Box<Refusals>),
    Lease(Vec<Key<u64>>),
    Background(Box<BackgroundNode>),
}

pub(super) struct Fleet {
    pub(super) setting: Setting,
    pub(super) policy: Policy,
    pub(super) world: World<Event>,
    pub(super) nodes: Vec<Node>,
    pub(super) waiting: HashMap<u64, Waiting>,
    /// By counter, and as they were when somebody copied them.
    pub(super) stores: Vec<Store>,
    snapshot: Vec<Store>,
    /// In force, by level.
    limits: Vec<Limit>,
    pub(super) ledgers: Vec<Ledger>,
    lowered: bool,
    /// Whether all requests have come.
    pub(super) is_last: bool,
    pub(super) losses: u32,
    pub(super) reports: super::background::Reports,
    pub(super) outcome: Outcome,
}

/// Runs a fleet from its first request to the last answer.
pub(super) fn run(setting: Setting, seed: u64) -> Outcome {
    let levels = setting.limits.len();
    let cells = levels * usize::try_from(setting.keys).unwrap_or(1);
    let policy = Policy::builder("p").limit(setting.limits[0][0]);
    let policy = policy.refusal_memory(setting.refusal_memory);
    let mut fleet = Fleet {
        policy: policy.build().expect("a policy"),
        world: World::new(seed, setting.network),
        nodes: Vec::new(),
        waiting: HashMap::new(),
        stores: vec![Store::default(); cells],
        snapshot: vec![Store::default(); cells],
        limits: setting.limits.iter().map(|it| it[0]).collect(),
        ledgers: (0..cells).map(|_| Ledger::default()).collect(),
        lowered: false,
        is_last: false,
        losses: 0,
        reports: super::background::Reports::default(),
        outcome: Outcome::default(),
        setting,
    };
    fleet.world.troubles = fleet.setting.troubles;
    for node in 0..fleet.setting.nodes + fleet.setting.exact {
        let drift = fleet.some_drift();
        fleet.world.node(drift);
        let born = fleet.born(node);
        fleet.nodes.push(born);
    }
    fleet.world.after(FIRST, event(|fleet| fleet.request(0)));
    while let Some(happens) = fleet.world.next_event() {
        happens(&mut fleet);
    }
    fleet.judge()
}

impl Fleet {
    fn some_drift(&mut self) -> i64 {
        let drift = self.world.some_drift(self.setting.drift);
        match self.setting.mode {
            // A fast clock makes more of the time since it last heard than has passed, and
            // so admits more.
            Mode::Background => -drift.abs(),
            _ => drift,
        }
    }

    /// A node that knows nothing.
    fn born(&mut self, node: usize) -> Node {
        if node >= self.setting.nodes {
            return Node::Exact(Box::new(Refusals::new(self.setting.refusal_memory)));
        }
        match self.setting.mode {
            Mode::Lease => self.born_leasing(node),
            Mode::Background => Node::Background(Box::new(self.born_in_background())),
            _ => Node::Exact(Box::new(Refusals::new(self.setting.refusal_memory))),
        }
    }

    pub(super) fn limit(&self, cell: usize) -> Limit {
        self.limits[cell % self.limits.len()]
    }

    /// The counters of a key.
    pub(super) fn cells(&self, key: u64) -> Cells {
        let levels = self.limits.len();
        let first = usize::try_from(key).unwrap_or(0) * levels;
        (first..first + levels).collect()
    }

    /// What the store has of a counter.
    pub(super) fn store(&mut self, cell: usize) -> &mut Store {
        let now_us = self.world.store_us();
        self.stores[cell].expire(now_us);
        &mut self.stores[cell]
    }

    /// A check reaches the store, and then the answer the node.
    pub(super) fn asked(&mut self, node: usize, number: u64, cells: &[usize], cost: Cost) {
        self.outcome.calls += 1;
        let decision = self.decide(cells, cost);
        let at_us = self.world.passed_us();
        let answer = event(move |fleet| fleet.answered(number, &decision, at_us));
        self.world.to_node(node, &answer);
    }

    /// The store decides about several counters: all or none.
    fn decide(&mut self, cells: &[usize], cost: Cost) -> Decision {
        let now_us = self.world.store_us();
        let tries = cells.iter().map(|cell| {
            let mut store = self.store(*cell).clone();
            let (level, admits) = store.decide(self.limit(*cell), cost, now_us);
            (store, level, admits)
        });
        let tries: Vec<_> = tries.collect();
        let denied_by = tries.iter().position(|it| !it.2);
        if denied_by.is_none() {
            for (cell, (store, ..)) in cells.iter().zip(&tries) {
                self.stores[*cell] = store.clone();
            }
        }
        let levels = tries.into_iter().map(|it| it.1);
        let receipt = denied_by.is_none().then(Receipt::fresh_id);
        Decision::from_store(levels, now_us, denied_by, Source::Store, receipt)
    }

    fn request(&mut self, number: u64) {
        let (pause, node) = self.who_asks();
        self.is_last = number + 1 == self.setting.requests;
        if !self.is_last {
            let next = event(move |fleet| fleet.request(number + 1));
            self.world.after(pause, next);
        }
        self.outcome.span = self.world.now() - FIRST;
        self.trouble();
        let key = self.world.random.below(self.setting.keys);
        let cost = self.world.random.within(1, self.setting.costs);
        let cost = Cost::new(cost).expect("a small one");
        if self.world.is_paused(node) {
            // Nobody is there to take it.
            self.outcome.unanswered += 1;
            return;
        }
        match &self.nodes[node] {
            Node::Exact(_) => self.check(node, number, key, cost),
            Node::Lease(_) => self.lease_check(node, number, key, cost),
            Node::Background(_) => self.background_check(node, key, cost),
        }
    }

    /// How long it takes until the next request, and which node this one is for.
    fn who_asks(&mut self) -> (Duration, usize) {
        let Pattern {
            phases, busy, lull, ..
        } = self.setting.pattern;
        let since_us = micros(self.world.now() - FIRST) % micros(busy + lull);
        let part = since_us * 1_000 / micros(busy);
        let last = phases[phases.len() - 1];
        let (phase, wait) = match phases.iter().find(|phase| part < phase.until) {
            Some(phase) => (*phase, phase.wait),
            None => (last, busy + lull - Duration::from_micros(since_us)),
        };
        let random = &mut self.world.random;
        let node = match phase.of_first {
            None => random.index(self.nodes.len()),
            Some(times) if random.chance(times) => 0,
            Some(_) => 1 + random.index(self.nodes.len() - 1),
        };
        let pause_us = random.below(self.setting.pause_us * phase.pause / 1_000 + 1);
        (wait + Duration::from_micros(pause_us), node)
    }

    /// A node in the mode `exact` refuses from memory, or asks.
    fn check(&mut self, node: usize, number: u64, key: u64, cost: Cost) {
        let cells = self.cells(key);
        let clock = self.world.clock(node);
        let Node::Exact(refusals) = &self.nodes[node] else {
            return;
        };
        let sent = refusals.sent(clock);
        let is_known = with_check(&self.policy, cells[0], cost, |check| {
            !refusals.find(check, clock).is_empty()
        });
        if is_known {
            self.outcome.remembered += 1;
            let (limit, now_us) = (self.limit(cells[0]), self.world.store_us());
            let mut store = self.store(cells[0]).clone();
            self.outcome.wrongly += u64::from(store.decide(limit, cost, now_us).1);
            self.outcome.refused += u64::from(cost.get());
            return;
        }
        let waiting = Waiting {
            node,
            cost,
            held: SmallVec::new(),
            cells: cells.clone(),
            sent: Some(sent),
        };
        self.wait(number, waiting);
        let check = event(move |fleet| fleet.asked(node, number, &cells, cost));
        self.world.to_store(node, &check);
    }

    pub(super) fn wait(&mut self, number: u64, waiting: Waiting) {
        let node = waiting.node;
        self.waiting.insert(number, waiting);
        let deadline = event(move |fleet| {
            if let Some(waiting) = fleet.waiting.remove(&number) {
                fleet.outcome.unanswered += 1;
                fleet.put_back(&waiting);
            }
        });
        self.world.at_node(node, DEADLINE, deadline);
    }

    fn answered(&mut self, number: u64, decision: &Decision, at_us: u64) {
        let Some(waiting) = self.waiting.remove(&number) else {
            return;
        };
        let (node, cost) = (waiting.node, waiting.cost);
        if let (Node::Exact(refusals), Some(sent)) = (&self.nodes[node], waiting.sent) {
            let clock = self.world.clock(node);
            with_check(&self.policy, waiting.cells[0], cost, |check| {
                refusals.learn(check, sent, decision, clock);
            });
        }
        if !decision.allowed() {
            return self.refused(&waiting);
        }
        self.admitted(&waiting, at_us);
        let charges = decision.receipt();
        let mut charges = charges.iter().flat_map(Receipt::charges);
        if let (Node::Exact(_), &[cell]) = (&self.nodes[node], &waiting.cells[..])
            && let Some((_, era_us)) = charges.next()
        {
            let charge = Charge {
                cell,
                cost,
                at_us: decision.decided_at_us(),
                era_us,
                nonce: None,
                record: self.ledgers[cell].records.len() - 1,
            };
            self.give_back(node, charge);
        }
    }

    /// Now and then a charge is given back, at once or later. It is not handed in again when
    /// the answer is lost: it never comes twice.
    fn give_back(&mut self, node: usize, charge: Charge) {
        let random = &mut self.world.random;
        if random.chance(self.setting.refunds) {
            let later_us = random.one_of(&[0, 0, 20_000, 1_500_000]);
            let later = Duration::from_micros(random.below(later_us));
            let delays = self.setting.network.send(random);
            if let Some(delay) = delays.first() {
                let refund = event(move |fleet| fleet.refund(node, charge));
                self.world.after(later + *delay, refund);
            }
        }
    }

    /// Everything it asked for was given: what was asked for by then, leases when they were
    /// spent.
    pub(super) fn admitted(&mut self, waiting: &Waiting, at_us: u64) {
        let cost = waiting.cost;
        self.outcome.admitted += u64::from(cost.get());
        if waiting.cells.is_empty() {
            self.outcome.from_leases += u64::from(cost.get());
        }
        for cell in &waiting.cells {
            self.ledgers[*cell].admitted(at_us, cost);
        }
        for (cell, spent, at_us) in &waiting.held {
            let charge = Charge {
                cell: *cell,
                cost,
                at_us: spent.at_us.saturating_sub(TERM_US),
                era_us: spent.era_us,
                nonce: Some(spent.nonce),
                record: self.ledgers[*cell].admitted(*at_us, cost),
            };
            self.give_back(waiting.node, charge);
        }
    }

    pub(super) fn refused(&mut self, waiting: &Waiting) {
        self.outcome.refused += u64::from(waiting.cost.get());
        self.put_back(waiting);
    }

    /// What goes wrong beside the network.
    fn trouble(&mut self) {
        let (troubles, limit_changes) = (self.setting.troubles, self.setting.limit_changes);
        if troubles.failovers > 0 && self.world.random.chance(30) {
            self.snapshot = self.stores.clone();
        }
        for trouble in self.world.trouble() {
            match trouble {
                Trouble::Pause(_, pause) => self.reports.outage = self.reports.outage.max(pause),
                Trouble::Crash(node) => self.crash(node),
                Trouble::ClockStep(by_us) => {
                    self.losses += 1;
                    if let Ok(by_us @ 1..) = u64::try_from(by_us) {
                        self.step_forward(by_us);
                    }
                }
                Trouble::Failover => self.fail_over(),
            }
        }
        if self.world.random.chance(limit_changes) {
            let other = self.world.random.index(2);
            self.limits = self.setting.limits.iter().map(|it| it[other]).collect();
            self.lowered = true;
        }
    }

    /// A node is replaced by one that knows nothing.
    fn crash(&mut self, node: usize) {
        let before = self.waiting.len();
        self.waiting.retain(|_, waiting| waiting.node != node);
        self.outcome.unanswered += (before - self.waiting.len()) as u64;
        let drift = self.some_drift();
        self.world.replace(node, drift);
        let born = self.born(node);
        let old = std::mem::replace(&mut self.nodes[node], born);
        if let Node::Background(old) = old {
            self.gone(*old);
        }
    }

    /// Another server takes over, which knows what was so some time ago.
    fn fail_over(&mut self) {
        self.losses += 1;
        self.stores = self.snapshot.clone();
        for (cell, ledger) in self.ledgers.iter_mut().enumerate() {
            // One burst: what was used, and what is out.
            let limits = self.setting.limits[cell % self.limits.len()].iter();
            let tokens = limits.map(|limit| u64::from(size(limit))).max();
            if self.setting.mode != Mode::Background {
                ledger.allow(self.world.passed_us(), tokens.unwrap_or(0), 0);
            }
        }
    }

    /// Gives a charge back: into its lease while that is open, and otherwise to the store.
    fn refund(&mut self, node: usize, charge: Charge) {
        let Charge {
            cell, cost, nonce, ..
        } = charge;
        let open = nonce.and_then(|nonce| {
            let keys = self.nodes.iter().filter_map(|node| match node {
                Node::Lease(keys) => keys.get(cell),
                _ => None,
            });
            let mut open = keys.filter(|key| key.open_lease(|it| it.nonce == nonce).is_some());
            open.next().map(|key| key.put_back(nonce, cost))
        });
        let is_back = open.unwrap_or_else(|| {
            let (limit, now_us) = (self.limit(cell), self.world.store_us());
            let store = self.store(cell);
            let before = store.kept.clone();
            store.refund(limit, cost, charge.at_us, charge.era_us, now_us);
            store.kept != before
        });
        if is_back {
            self.ledgers[cell].records[charge.record].2 = true;
        }
        let refunded = event(move |fleet| {
            if let Node::Exact(refusals) = &fleet.nodes[node] {
                with_check(&fleet.policy, cell, Cost::ONE, |check| {
                    refusals.forget(&check.prints);
                });
            }
        });
        self.world.to_node(node, &refunded);
    }

    /// The store never has more used and out than the limit, unless that was lowered.
    pub(super) fn look_at(&mut self, cell: usize, reply: &Reply) {
        let limit = self.limit(cell);
        let used = reply.out.on(&limit, reply.used);
        let is_over = match (used, limit.kind()) {
            (State::TokenBucket(state), tidegate::Kind::TokenBucket(bucket)) => {
                let size = bucket.capacity();
                (state.debt.us, state.debt.parts) > (size.us, size.parts)
            }
            (State::FixedWindow(state), _) => state.count > size(&limit),
            _ => false,
        };
        self.outcome.overfull |= is_over && !self.lowered;
    }

    fn judge(mut self) -> Outcome {
        let background: Option<(Background, u32)> =
            (self.setting.mode == Mode::Background).then(|| (self.formula(), self.losses));
        let levels = self.limits.len();
        for (cell, ledger) in self.ledgers.iter().enumerate() {
            let limits = self.setting.limits[cell % levels];
            // Under limits that change, the larger of either is kept.
            let excess = ledger.excess(&limits, background.as_ref());
            if excess > 0 && self.outcome.broken.is_none() {
                self.outcome.broken = Some((cell, excess));
            }
        }
        self.outcome
    }
}

/// Calls with the keys that a policy makes of a counter's key.
pub(super) fn with_check<T>(
    policy: &Policy,
    cell: usize,
    cost: Cost,
    call: impl FnOnce(&Query<'_, '_>) -> T,
) -> T {
    call(&check(policy, &[("key", cell.to_string())], cost))
}
