//! The fleet: requests, what goes wrong, and nodes in the mode `exact`. Nodes of the other
//! modes are in [`super::lease`] and [`super::background`].
//!
//! What is judged is the store's time at the moment a token is spent, or a check is admitted.
//! Time that the store's clock is set forward by has passed.

use std::collections::HashMap;
use std::time::Duration;

use smallvec::SmallVec;
use tidegate::algorithm::State;
use tidegate::audit::Background;
use tidegate::{Cost, Decision, Limit, Mode, Policy, Receipt, Source};
use tidegate_testkit::simulation::{Network, Trouble, Troubles, World};

use super::background::BackgroundNode;
use super::judge::{Ledger, size};
use crate::mode::Query;
use crate::mode::background::Parcel;
use crate::mode::lease::kept::Store;
use crate::mode::lease::key::Key;
use crate::mode::lease::message::{Message, Reply, TERM_US};
use crate::mode::lease::tokens::Spent;
use crate::mode::refusals::{Refusals, Sent};
use crate::mode::tests::check;
use crate::node::Envelope;

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

/// Who asks when.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pattern {
    /// All nodes, all the time.
    Even,
    /// Times in which many ask alternate with times in which few do.
    Waves,
    /// Everybody asks in a rush, and then nobody for a while.
    Rushes { busy: Duration, lull: Duration },
    /// One node takes leases in a rush, keeps them while the others use up the rest, and
    /// spends them when they are about to end; then nobody asks for a while. Some of its
    /// leases arrive late by up to so long, and its messages are handed over again this many
    /// times in a thousand.
    Hoard {
        busy: Duration,
        lull: Duration,
        /// Whether the others wait until it spends them.
        is_quiet: bool,
        late_us: u64,
        again: u64,
    },
}

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

#[derive(Debug, Clone)]
pub(super) enum Event {
    Request(u64),
    /// A check reaches the store, and the answer the node.
    Check(usize, u64, Cells, Cost),
    Answer(u64, Box<Decision>, u64),
    Deadline(u64),
    /// A charge reaches the store that is given back, and the word of that the node.
    Refund(usize, Charge),
    Refunded(usize, usize),
    /// A message of a node that leases reaches the store, and the reply the node.
    Message(usize, usize, u64, Message),
    Reply(usize, usize, u64, Reply, u64),
    Sweep(usize),
    /// A parcel reaches the store, and what it came to the node.
    Parcel(usize, u64, Envelope<Parcel>),
    Heard(usize, u64, (u64, State)),
    /// The store has had its time to hear of a parcel.
    Patience(usize, u64),
    Wake(usize),
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
    sent: Option<Sent>,
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
    charges: Vec<Charge>,
    lowered: bool,
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
        charges: Vec::new(),
        lowered: false,
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
    fleet.world.after(FIRST, Event::Request(0));
    while let Some(event) = fleet.world.next_event() {
        fleet.happen(event);
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

    fn happen(&mut self, event: Event) {
        match event {
            Event::Request(number) => self.request(number),
            Event::Check(node, number, cells, cost) => {
                self.outcome.calls += 1;
                let decision = Box::new(self.decide(&cells, cost));
                let at_us = self.world.passed_us();
                self.world
                    .to_node(node, &Event::Answer(number, decision, at_us));
            }
            Event::Answer(number, decision, at_us) => self.answered(number, &decision, at_us),
            Event::Deadline(number) => {
                if let Some(waiting) = self.waiting.remove(&number) {
                    self.outcome.unanswered += 1;
                    self.put_back(&waiting);
                }
            }
            Event::Refund(node, charge) => {
                self.refund(charge);
                self.world
                    .to_node(node, &Event::Refunded(node, charge.cell));
            }
            Event::Refunded(node, cell) => {
                if let Node::Exact(refusals) = &self.nodes[node] {
                    with_check(&self.policy, cell, Cost::ONE, |check| {
                        refusals.forget(&check.prints);
                    });
                }
            }
            Event::Message(node, cell, id, message) => self.message(node, cell, id, &message),
            Event::Reply(node, cell, id, reply, at_us) => {
                self.replied(node, cell, id, &reply, at_us);
            }
            Event::Sweep(node) => self.sweep(node),
            Event::Parcel(node, number, parcel) => self.parcel(node, number, &parcel),
            Event::Heard(node, number, heard) => self.heard(node, number, heard),
            Event::Patience(node, number) => self.give_up(node, number),
            Event::Wake(node) => self.woken(node),
        }
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
        if number + 1 < self.setting.requests {
            self.world.after(pause, Event::Request(number + 1));
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
        let since = self.world.now() - FIRST;
        let random = &mut self.world.random;
        let (mut pause_us, mut wait) = (self.setting.pause_us, Duration::ZERO);
        let mut node = random.index(self.nodes.len());
        let place = |busy: Duration, lull: Duration| {
            let cycle = (busy + lull).as_micros().max(1);
            let since = since.as_micros() % cycle;
            let left = Duration::from_micros(u64::try_from(cycle - since).unwrap_or(0));
            (since * 1_000 / busy.as_micros().max(1), left)
        };
        match self.setting.pattern {
            Pattern::Even => {}
            Pattern::Waves => {
                if !(since.as_micros() / 300_000).is_multiple_of(4) {
                    pause_us *= 20;
                }
            }
            Pattern::Rushes { busy, lull } => {
                pause_us /= 4;
                if let (1_000.., left) = place(busy, lull) {
                    wait = left;
                }
            }
            Pattern::Hoard {
                busy,
                lull,
                is_quiet,
                ..
            } => {
                let (part, left) = place(busy, lull);
                let (of_first, pace) = match part {
                    0..40 => (1_000, 4),
                    40..820 if is_quiet => {
                        wait = Duration::from_millis(200);
                        (1_000, 1)
                    }
                    40..820 => (40, 1),
                    820..1_000 if is_quiet => (500, 4),
                    820..1_000 => (700, 2),
                    _ => {
                        wait = left;
                        (1_000, 1)
                    }
                };
                pause_us /= pace;
                node = match random.chance(of_first) {
                    true => 0,
                    false => 1 + random.index(self.nodes.len() - 1),
                };
            }
        }
        let pause = Duration::from_micros(random.below(pause_us + 1));
        (wait + pause, node)
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
        self.wait(node, number, cost, SmallVec::new(), cells.clone());
        if let Some(waiting) = self.waiting.get_mut(&number) {
            waiting.sent = Some(sent);
        }
        self.world
            .to_store(node, &Event::Check(node, number, cells, cost));
    }

    /// A check waits for these counters.
    pub(super) fn wait(
        &mut self,
        node: usize,
        number: u64,
        cost: Cost,
        held: SmallVec<[(usize, Spent, u64); 2]>,
        cells: Cells,
    ) {
        let waiting = Waiting {
            node,
            cost,
            held,
            cells,
            sent: None,
        };
        self.waiting.insert(number, waiting);
        self.world.at_node(node, DEADLINE, Event::Deadline(number));
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
        let Node::Exact(_) = self.nodes[node] else {
            return;
        };
        let charges = decision.receipt();
        let mut charges = charges.iter().flat_map(Receipt::charges);
        if let (&[cell], Some((_, era_us))) = (&waiting.cells[..], charges.next())
            && self.world.random.chance(self.setting.refunds)
        {
            let charge = Charge {
                cell,
                cost,
                at_us: decision.decided_at_us(),
                era_us,
                nonce: None,
                record: self.ledgers[cell].records.len() - 1,
            };
            // It is not handed in again when the answer is lost: it never comes twice.
            let delays = self.setting.network.send(&mut self.world.random);
            if let Some(delay) = delays.first() {
                self.world.after(*delay, Event::Refund(node, charge));
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
            let record = self.ledgers[*cell].admitted(*at_us, cost);
            if self.world.random.chance(self.setting.refunds) {
                self.charges.push(Charge {
                    cell: *cell,
                    cost,
                    at_us: spent.at_us.saturating_sub(TERM_US),
                    era_us: spent.era_us,
                    nonce: Some(spent.nonce),
                    record,
                });
            }
        }
    }

    pub(super) fn refused(&mut self, waiting: &Waiting) {
        self.outcome.refused += u64::from(waiting.cost.get());
        self.put_back(waiting);
    }

    /// What goes wrong beside the network.
    fn trouble(&mut self) {
        let Setting {
            troubles,
            limit_changes,
            refunds,
            ..
        } = self.setting;
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
        if !self.charges.is_empty() && self.world.random.chance(refunds) {
            let at = self.world.random.index(self.charges.len());
            let charge = self.charges.swap_remove(at);
            self.refund(charge);
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
    fn refund(&mut self, charge: Charge) {
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
