//! A fleet in the mode `lease`: nodes that drive the same [`Key`] that production drives,
//! beside nodes in the mode `exact`, over a bad network, with a store that counts by the
//! arithmetic that the conformance tests hold equal to the scripts.
//!
//! What is judged is the store's time at the moment a token is spent, or an ask is
//! admitted. Time that the store's clock is set forward by has passed.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::time::Duration;

use smallvec::SmallVec;
use tidegate::algorithm::State;
use tidegate::audit::{Audit, Record};
use tidegate::{Cost, Kind, Limit};

use super::Random;
use super::due::Due;
use super::network::Network;
use super::node::drifted;
use crate::lease::held::Spent;
use crate::lease::kept::Store;
use crate::lease::key::{Answer, Key, Reason};
use crate::lease::message::{Message, Reply, TERM_US, size};

const START_US: u64 = 1_700_000_000_000_000;
const DEADLINE: Duration = Duration::from_millis(50);
/// When the first request comes.
const FIRST: Duration = Duration::from_secs(10);
const SWEEP: Duration = Duration::from_millis(50);

/// What a run is like.
#[derive(Debug, Clone)]
pub(super) struct Setting {
    /// One limit per level, and those that are in force instead after a change.
    pub(super) limits: Vec<[Limit; 2]>,
    /// Nodes that lease, and nodes in the mode `exact`.
    pub(super) nodes: usize,
    pub(super) exact: usize,
    /// The longest pause between two requests of the fleet.
    pub(super) pause_us: u64,
    pub(super) requests: u64,
    pub(super) pattern: Pattern,
    pub(super) costs: u64,
    /// Whether keys that are not worth a lease are asked for as in the mode `exact`. That
    /// is what production does, where such checks share calls, too: here they do not.
    pub(super) plainly: bool,
    pub(super) network: Network,
    /// In a thousand requests, each of them.
    pub(super) pauses: u64,
    pub(super) crashes: u64,
    pub(super) clock_steps: u64,
    pub(super) failovers: u64,
    pub(super) limit_changes: u64,
    pub(super) refunds: u64,
    /// Nodes that return more than they were given.
    pub(super) lies: u64,
    /// How wrong clocks of nodes run, in parts of a million.
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
    /// leases arrive late by up to so long, and its messages are handed over again so many
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
    /// How much more than the bound was admitted, of which level.
    pub(super) broken: Option<(usize, u64)>,
    /// Whether the store ever had more used and out than the limit.
    pub(super) overfull: bool,
    pub(super) admitted: u64,
    pub(super) refused: u64,
    /// Without an answer in time.
    pub(super) unanswered: u64,
    pub(super) calls: u64,
    pub(super) from_leases: u64,
    /// From the first request to the last.
    pub(super) span: Duration,
}

#[derive(Debug, Clone)]
enum Event {
    Request {
        number: u64,
    },
    Sweep {
        node: usize,
        born: u64,
    },
    /// A message reaches the store, and the reply the node.
    Message {
        node: usize,
        born: u64,
        level: usize,
        id: u64,
        message: Message,
    },
    Reply {
        node: usize,
        born: u64,
        level: usize,
        id: u64,
        reply: Reply,
        at_us: u64,
    },
    /// Levels that are asked for as in the mode `exact`.
    Ask {
        node: usize,
        born: u64,
        number: u64,
        levels: SmallVec<[usize; 2]>,
        cost: Cost,
    },
    Told {
        node: usize,
        born: u64,
        number: u64,
        admitted_at: Option<u64>,
    },
    Deadline {
        node: usize,
        born: u64,
        number: u64,
    },
}

/// A check that waits for an answer.
#[derive(Debug, Clone)]
struct Waiting {
    cost: Cost,
    /// Tokens of leases that it holds: of which level, and when they were taken.
    held: SmallVec<[(usize, Spent, u64); 2]>,
    /// The level that it waits for, or several that are asked for at once.
    levels: SmallVec<[usize; 2]>,
}

struct Node {
    /// None for a node in the mode `exact`.
    keys: Vec<Key<u64>>,
    drift: i64,
    born: u64,
    paused_until: Duration,
    waiting: HashMap<u64, Waiting>,
}

/// Tokens that may be admitted beyond the bound, because the store does not count them:
/// spent from one moment to another.
#[derive(Debug, Clone, Copy)]
struct Allowance {
    from_us: u64,
    until_us: u64,
    tokens: u64,
}

/// A charge, by which it can be given back.
#[derive(Debug, Clone, Copy)]
struct Charge {
    level: usize,
    spent: Spent,
    cost: Cost,
    /// Its place among the records.
    record: usize,
}

pub(super) struct World {
    setting: Setting,
    random: Random,
    now: Duration,
    queue: BinaryHeap<Reverse<Due<Event>>>,
    sequence: u64,
    nodes: Vec<Node>,
    stores: Vec<Store>,
    snapshot: Vec<Store>,
    limits: Vec<Limit>,
    offset_us: i64,
    read_us: u64,
    passed_us: u64,
    /// What was admitted, by level: when, at what cost, and whether it was given back.
    records: Vec<Vec<(u64, u32, bool)>>,
    charges: Vec<Charge>,
    /// What each level may give more.
    allowances: Vec<Vec<Allowance>>,
    lowered: bool,
    outcome: Outcome,
}

pub(super) fn run(setting: Setting, seed: u64) -> Outcome {
    let levels = setting.limits.len();
    let store = Store::default();
    let mut world = World {
        random: Random::new(seed),
        now: FIRST,
        queue: BinaryHeap::new(),
        sequence: 0,
        nodes: Vec::new(),
        stores: vec![store.clone(); levels],
        snapshot: vec![store; levels],
        limits: setting.limits.iter().map(|it| it[0]).collect(),
        offset_us: 0,
        read_us: START_US,
        passed_us: START_US,
        records: vec![Vec::new(); levels],
        charges: Vec::new(),
        allowances: vec![Vec::new(); levels],
        lowered: false,
        outcome: Outcome::default(),
        setting,
    };
    for node in 0..world.setting.nodes + world.setting.exact {
        let born = world.born(node < world.setting.nodes);
        world.nodes.push(born);
        let born = world.nodes[node].born;
        world.after(SWEEP, Event::Sweep { node, born });
    }
    world.after(Duration::ZERO, Event::Request { number: 0 });
    while let Some(Reverse(Due(at, _, event))) = world.queue.pop() {
        world.now = world.now.max(at);
        world.tick();
        world.happen(event);
    }
    world.judge()
}

impl World {
    fn born(&mut self, leases: bool) -> Node {
        let drift = self.random.below(2 * self.setting.drift + 1);
        let drift =
            i64::try_from(drift).unwrap_or(0) - i64::try_from(self.setting.drift).unwrap_or(0);
        self.sequence += 1;
        let now_us = clock(self.now, drift);
        let keys = self.limits.iter().map(|limit| Key::new(*limit, now_us));
        Node {
            keys: if leases { keys.collect() } else { Vec::new() },
            drift,
            born: self.sequence,
            paused_until: Duration::ZERO,
            waiting: HashMap::new(),
        }
    }

    fn after(&mut self, delay: Duration, event: Event) {
        self.sequence += 1;
        let due = Due(self.now + delay, self.sequence, event);
        self.queue.push(Reverse(due));
    }

    fn send(&mut self, event: &Event) {
        let network = self.setting.network;
        for delay in network.send(&mut self.random) {
            self.after(delay, event.clone());
        }
    }

    /// Reads the store's clock.
    fn tick(&mut self) {
        let true_us = START_US + u64::try_from(self.now.as_micros()).unwrap_or(0);
        let reads_us = true_us.saturating_add_signed(self.offset_us);
        self.passed_us += reads_us.saturating_sub(self.read_us);
        self.read_us = reads_us;
        for store in &mut self.stores {
            // What has expired is not there.
            if store
                .kept
                .as_ref()
                .is_some_and(|it| it.expires_ms * 1_000 <= reads_us)
            {
                store.kept = None;
            }
        }
    }

    fn clock(&self, node: usize) -> u64 {
        clock(self.now, self.nodes[node].drift)
    }

    fn happen(&mut self, event: Event) {
        // A node that is paused hears of everything later.
        let (node, born) = match &event {
            Event::Sweep { node, born }
            | Event::Reply { node, born, .. }
            | Event::Told { node, born, .. }
            | Event::Deadline { node, born, .. } => (Some(*node), *born),
            Event::Request { .. } | Event::Message { .. } | Event::Ask { .. } => (None, 0),
        };
        if let Some(node) = node {
            if self.nodes[node].born != born {
                return;
            }
            let until = self.nodes[node].paused_until;
            if until > self.now {
                let delay = until - self.now;
                return self.after(delay, event);
            }
        }
        match event {
            Event::Request { number } => self.request(number),
            Event::Sweep { node, born } => self.sweep(node, born),
            Event::Message {
                node,
                born,
                level,
                id,
                message,
            } => {
                self.outcome.calls += 1;
                let reply = self.stores[level].message(&message, self.read_us);
                self.look_at(level, &reply);
                let at_us = self.passed_us;
                let late_us = match self.setting.pattern {
                    Pattern::Hoard { late_us, .. } if node == 0 && reply.given > 0 => late_us,
                    _ => 0,
                };
                let reply = Event::Reply {
                    node,
                    born,
                    level,
                    id,
                    reply,
                    at_us,
                };
                match late_us {
                    0 => self.send(&reply),
                    _ if self.random.chance(600) => self.send(&reply),
                    _ => {
                        let late_us = self.random.below(late_us);
                        self.after(Duration::from_micros(late_us), reply);
                    }
                }
            }
            Event::Reply {
                node,
                level,
                id,
                reply,
                at_us,
                ..
            } => {
                let now_us = self.clock(node);
                let answers = self.nodes[node].keys[level].answered(id, &reply, now_us);
                for (number, answer) in answers {
                    self.answer(node, level, number, answer, at_us);
                }
                if self.nodes[node].keys[level].has_waiting() {
                    self.message(node, level, Reason::Usual);
                }
            }
            Event::Ask {
                node,
                born,
                number,
                levels,
                cost,
            } => {
                self.outcome.calls += 1;
                let fits = levels.iter().all(|level| {
                    let mut store = self.stores[*level].clone();
                    store.check(self.limits[*level], cost, 1, self.read_us).2 == 1
                });
                if fits {
                    for level in &levels {
                        let limit = self.limits[*level];
                        self.stores[*level].check(limit, cost, 1, self.read_us);
                    }
                }
                let admitted_at = fits.then_some(self.passed_us);
                self.send(&Event::Told {
                    node,
                    born,
                    number,
                    admitted_at,
                });
            }
            Event::Told {
                node,
                number,
                admitted_at,
                ..
            } => {
                let Some(waiting) = self.nodes[node].waiting.remove(&number) else {
                    return;
                };
                match admitted_at {
                    Some(at_us) => self.admitted(&waiting, at_us),
                    None => self.refused(node, &waiting),
                }
            }
            Event::Deadline { node, number, .. } => {
                if let Some(waiting) = self.nodes[node].waiting.remove(&number) {
                    self.outcome.unanswered += 1;
                    self.put_back(node, &waiting);
                }
            }
        }
    }

    /// The store never has more used and out than the limit, unless that was lowered.
    fn look_at(&mut self, level: usize, reply: &Reply) {
        let limit = self.limits[level];
        let is_over = match (reply.out.on(&limit, reply.used), limit.kind()) {
            (State::TokenBucket(state), Kind::TokenBucket(bucket)) => {
                let size = bucket.capacity();
                (state.debt.us, state.debt.parts) > (size.us, size.parts)
            }
            (State::FixedWindow(state), _) => state.count > size(&limit),
            _ => false,
        };
        if is_over && !self.lowered {
            self.outcome.overfull = true;
        }
    }

    fn request(&mut self, number: u64) {
        let (pause, node) = self.who_asks();
        if number + 1 < self.setting.requests {
            self.after(pause, Event::Request { number: number + 1 });
        }
        self.outcome.span = self.now - FIRST;
        self.trouble();
        let cost = u32::try_from(1 + self.random.below(self.setting.costs)).unwrap_or(1);
        if self.nodes[node].paused_until > self.now {
            return;
        }
        self.check(node, number, Cost::of(cost));
    }

    /// How long it takes until the next request, and which node this one is for.
    fn who_asks(&mut self) -> (Duration, usize) {
        let nodes = self.nodes.len() as u64;
        let (mut pause_us, mut wait) = (self.setting.pause_us, Duration::ZERO);
        let mut node = self.random.below(nodes);
        match self.setting.pattern {
            Pattern::Even => {}
            Pattern::Waves => {
                if !(self.now.as_micros() / 300_000).is_multiple_of(4) {
                    pause_us *= 20;
                }
            }
            Pattern::Rushes { busy, lull } => {
                pause_us /= 4;
                let cycle = (busy + lull).as_micros().max(1);
                let since = (self.now - FIRST).as_micros() % cycle;
                if since >= busy.as_micros() {
                    wait = Duration::from_micros(u64::try_from(cycle - since).unwrap_or(0));
                }
            }
            Pattern::Hoard {
                busy,
                lull,
                is_quiet,
                ..
            } => {
                let cycle = (busy + lull).as_micros().max(1);
                let since = (self.now - FIRST).as_micros() % cycle;
                let part = since * 1_000 / busy.as_micros().max(1);
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
                        let left = u64::try_from(cycle - since).unwrap_or(0);
                        wait = Duration::from_micros(left);
                        (1_000, 1)
                    }
                };
                pause_us /= pace;
                node = match self.random.chance(of_first) {
                    true => 0,
                    false => 1 + self.random.below(nodes - 1),
                };
            }
        }
        let pause = Duration::from_micros(self.random.below(pause_us + 1));
        (wait + pause, usize::try_from(node).unwrap_or(0))
    }

    fn check(&mut self, node: usize, number: u64, cost: Cost) {
        let levels = 0..self.limits.len();
        let now_us = self.clock(node);
        let mut held = SmallVec::new();
        let mut missing: SmallVec<[usize; 2]> = SmallVec::new();
        let mut halves: SmallVec<[usize; 2]> = SmallVec::new();
        if self.nodes[node].keys.is_empty() {
            missing.extend(levels);
        } else {
            for level in levels {
                let limit = self.limits[level];
                let key = &mut self.nodes[node].keys[level];
                key.set_limit(&limit);
                match key.spend(cost, now_us) {
                    Some(spent) => {
                        held.push((level, spent, self.passed_us));
                        if spent.is_half {
                            halves.push(level);
                        }
                    }
                    None => {
                        key.note(cost);
                        missing.push(level);
                    }
                }
            }
        }
        let waiting = Waiting {
            cost,
            held,
            levels: missing.clone(),
        };
        let keys = &mut self.nodes[node].keys;
        let refuses = |level: &usize| {
            let key = keys.get(*level);
            key.is_some_and(|key| key.refuses(cost, now_us).is_some())
        };
        if missing.iter().any(refuses) {
            self.refused(node, &waiting);
        } else if missing.is_empty() {
            self.admitted(&waiting, self.passed_us);
        } else {
            let born = self.nodes[node].born;
            self.nodes[node].waiting.insert(number, waiting);
            self.after(DEADLINE, Event::Deadline { node, born, number });
            let plainly = self.setting.plainly;
            let keys = &mut self.nodes[node].keys;
            let mut hot = missing.clone();
            hot.retain(|level| {
                let key = keys.get_mut(*level);
                key.is_some_and(|key| !(plainly && key.asks_plainly(now_us)))
            });
            match (&missing[..], &hot[..]) {
                ([_], [level]) => {
                    self.nodes[node].keys[*level].wait(cost, number);
                    self.message(node, *level, Reason::Usual);
                }
                _ => {
                    self.send(&Event::Ask {
                        node,
                        born,
                        number,
                        levels: missing,
                        cost,
                    });
                    for level in hot {
                        self.message(node, level, Reason::Wanted);
                    }
                }
            }
        }
        for level in halves {
            self.message(node, level, Reason::Usual);
        }
    }

    fn message(&mut self, node: usize, level: usize, reason: Reason) {
        let now_us = self.clock(node);
        let nonce = self.random.next();
        let born = self.nodes[node].born;
        let Some(key) = self.nodes[node].keys.get_mut(level) else {
            return;
        };
        let Some(mut message) = key.message(now_us, reason, || nonce) else {
            return;
        };
        let id = key.request().expect("it has just been sent");
        if self.random.chance(self.setting.lies) {
            for settle in &mut message.settles {
                settle.spent = settle.spent.saturating_add(1_000_000);
            }
        }
        let event = Event::Message {
            node,
            born,
            level,
            id,
            message,
        };
        self.send(&event);
        // Now and then it is handed over again.
        let again = match self.setting.pattern {
            Pattern::Hoard { again, .. } if node == 0 => again,
            _ => self.setting.network.repeated,
        };
        if self.random.chance(again) {
            let delay = Duration::from_micros(self.random.below(300_000));
            self.after(delay, event);
        }
    }

    fn sweep(&mut self, node: usize, born: u64) {
        for level in 0..self.nodes[node].keys.len() {
            let now_us = self.clock(node);
            self.nodes[node].keys[level].sweep(now_us);
            if self.nodes[node].keys[level].has_something_to_say() {
                self.message(node, level, Reason::Usual);
            }
        }
        let is_over = self
            .queue
            .iter()
            .all(|due| matches!(due.0.2, Event::Sweep { .. }));
        let is_active = self.nodes[node].keys.iter().any(Key::is_active);
        if !is_over || is_active {
            self.after(SWEEP, Event::Sweep { node, born });
        }
    }

    fn answer(&mut self, node: usize, level: usize, number: u64, answer: Answer, asked_at_us: u64) {
        let Some(waiting) = self.nodes[node].waiting.remove(&number) else {
            // Nobody waits any more: a token that was taken for it goes back.
            if let Answer::Spent(spent, cost) = answer {
                self.nodes[node].keys[level].put_back(spent.nonce, cost);
            }
            return;
        };
        match answer {
            Answer::Admitted { .. } => self.admitted(&waiting, asked_at_us),
            Answer::Spent(spent, _) => {
                let mut waiting = waiting;
                waiting.held.push((level, spent, self.passed_us));
                waiting.levels.clear();
                self.admitted(&waiting, self.passed_us);
            }
            Answer::Refused(_) => self.refused(node, &waiting),
        }
    }

    /// Everything it asked for was given: what was asked for by then, leases when they were
    /// spent.
    fn admitted(&mut self, waiting: &Waiting, at_us: u64) {
        self.outcome.admitted += u64::from(waiting.cost.get());
        if waiting.levels.is_empty() {
            self.outcome.from_leases += u64::from(waiting.cost.get());
        }
        let cost = waiting.cost;
        for level in &waiting.levels {
            self.records[*level].push((at_us, cost.get(), false));
        }
        for (level, spent, at_us) in &waiting.held {
            let record = self.records[*level].len();
            self.records[*level].push((*at_us, cost.get(), false));
            if self.random.chance(self.setting.refunds) {
                self.charges.push(Charge {
                    level: *level,
                    spent: *spent,
                    cost,
                    record,
                });
            }
        }
    }

    fn refused(&mut self, node: usize, waiting: &Waiting) {
        self.outcome.refused += u64::from(waiting.cost.get());
        self.put_back(node, waiting);
    }

    fn put_back(&mut self, node: usize, waiting: &Waiting) {
        for (level, spent, _) in &waiting.held {
            // Of a lease that is closed, it stays spent.
            self.nodes[node].keys[*level].put_back(spent.nonce, waiting.cost);
        }
    }

    /// What goes wrong now.
    fn trouble(&mut self) {
        let Setting {
            pauses,
            crashes,
            clock_steps,
            failovers,
            limit_changes,
            ..
        } = self.setting;
        let nodes = self.nodes.len() as u64;
        let some = usize::try_from(self.random.below(nodes)).unwrap_or(0);
        if self.random.chance(pauses) {
            let pause = self.random.one_of(&[5_000, 200_000, 2_500_000]);
            self.nodes[some].paused_until = self.now + Duration::from_micros(pause);
        }
        if self.random.chance(crashes) {
            let leases = !self.nodes[some].keys.is_empty();
            self.nodes[some] = self.born(leases);
            let born = self.nodes[some].born;
            self.after(SWEEP, Event::Sweep { node: some, born });
        }
        if self.random.chance(clock_steps) {
            let by_us: i64 = self
                .random
                .one_of(&[-3_000_000, -400_000, 30_000, 700_000, 5_000_000]);
            if by_us > 0 {
                self.step_forward(by_us.unsigned_abs());
            }
            self.offset_us += by_us;
        }
        if self.random.chance(30) && failovers > 0 {
            self.snapshot = self.stores.clone();
        }
        if self.random.chance(failovers) {
            self.stores = self.snapshot.clone();
            for level in 0..self.limits.len() {
                // One burst: what was used, and what is out.
                let limits = self.setting.limits[level].iter();
                let tokens = limits.map(|limit| u64::from(size(limit))).max();
                self.allow(level, tokens.unwrap_or(0), 0);
            }
        }
        if self.random.chance(limit_changes) {
            let other = usize::try_from(self.random.below(2)).unwrap_or(0);
            self.limits = self.setting.limits.iter().map(|it| it[other]).collect();
            self.lowered = true;
        }
        if !self.charges.is_empty() && self.random.chance(self.setting.refunds) {
            let charges = self.charges.len() as u64;
            let at = usize::try_from(self.random.below(charges)).unwrap_or(0);
            let charge = self.charges.swap_remove(at);
            self.refund(charge);
        }
    }

    /// Leases run on after their ends, by as much as the clock was set. The store has
    /// charged them by then, and what drained of that in this time is spent once more: at
    /// most all that is out, and at most what the rate gives. A window may be over.
    fn step_forward(&mut self, by_us: u64) {
        let mut allowed = Vec::new();
        for (level, limit) in self.limits.iter().enumerate() {
            let keys = self.nodes.iter().filter_map(|node| node.keys.get(level));
            let here: u64 = keys.map(Key::tokens).sum();
            // And what is on its way.
            let (_, out, _) = self.stores[level]
                .clone()
                .check(*limit, Cost::ONE, 0, self.read_us);
            let tokens = here.max(out.tokens.into());
            let tokens = match limit.kind() {
                Kind::TokenBucket(bucket) => {
                    let parts = u128::from(by_us) * u128::from(bucket.parts_per_us());
                    let drained = parts.div_ceil(bucket.token_parts().into());
                    tokens.min(u64::try_from(drained).unwrap_or(u64::MAX))
                }
                _ => tokens,
            };
            allowed.push(tokens);
        }
        for (level, tokens) in allowed.into_iter().enumerate() {
            self.allow(level, tokens, by_us);
        }
    }

    /// So many tokens may be spent that the store does not count, as long as leases of this
    /// moment run: until the last of them has ended on any node's clock.
    fn allow(&mut self, level: usize, tokens: u64, step_us: u64) {
        let now_us = self.passed_us;
        let allowances = &mut self.allowances[level];
        for before in allowances.iter_mut().filter(|it| it.until_us > now_us) {
            before.until_us += step_us;
        }
        allowances.push(Allowance {
            from_us: now_us,
            until_us: now_us + step_us + TERM_US,
            tokens,
        });
    }

    /// While its lease is open, a token goes back into it. After that the store gives back
    /// what has not drained since the lease was granted, or earlier.
    fn refund(&mut self, charge: Charge) {
        let Charge {
            level, spent, cost, ..
        } = charge;
        let mut keys = self.nodes.iter().filter_map(|node| node.keys.get(level));
        let is_back = match keys.find(|key| key.open_lease(|it| it.nonce == spent.nonce).is_some())
        {
            Some(key) => key.put_back(spent.nonce, cost),
            None => {
                let at_us = spent.at_us.saturating_sub(TERM_US);
                let (limit, store) = (self.limits[level], &mut self.stores[level]);
                let before = store.kept.clone();
                store.refund(limit, cost, at_us, spent.era_us, self.read_us);
                store.kept != before
            }
        };
        if is_back {
            self.records[level][charge.record].2 = true;
        }
    }

    fn judge(mut self) -> Outcome {
        for (level, limits) in self.setting.limits.iter().enumerate() {
            let records = self.records[level].iter().filter(|it| !it.2);
            let mut records: Vec<(u64, u32)> = records.map(|it| (it.0, it.1)).collect();
            records.sort_unstable();
            // Under limits that change, the larger of either is kept.
            let largest = limits.iter().copied();
            let broken = largest.map(|limit| excess(&limit, &records, &self.allowances[level]));
            let broken = broken.min().unwrap_or(0);
            if broken > 0 && self.outcome.broken.is_none() {
                self.outcome.broken = Some((level, broken));
            }
        }
        self.outcome
    }
}

/// How much more than the limit these records are. What goes beyond a bucket is taken out of
/// the allowances.
fn excess(limit: &Limit, records: &[(u64, u32)], allowances: &[Allowance]) -> u64 {
    match limit.kind() {
        Kind::TokenBucket(bucket) => {
            let (request, refill) = (
                u128::from(bucket.token_parts()),
                u128::from(bucket.parts_per_us()),
            );
            let burst = u128::from(bucket.burst()) * request;
            let allowed = allowances.iter();
            let mut allowed: Vec<_> = allowed
                .map(|it| (it.from_us, it.until_us, u128::from(it.tokens) * request))
                .collect();
            let (mut debt, mut last_us, mut most) = (0_u128, 0, 0_u128);
            for (at_us, cost) in records {
                let drained = u128::from(at_us - last_us) * refill;
                debt = debt.saturating_sub(drained);
                last_us = *at_us;
                // What the store does not count of what was spent by then has drained with
                // the rest.
                for (_, until_us, parts) in &mut allowed {
                    if *until_us <= *at_us {
                        *parts = debt.min(*parts);
                    }
                }
                debt += u128::from(*cost) * request;
                for (from_us, _, parts) in &mut allowed {
                    if *from_us <= *at_us {
                        let used = debt.saturating_sub(burst).min(*parts);
                        debt -= used;
                        *parts -= used;
                    }
                }
                most = most.max(debt.saturating_sub(burst));
            }
            u64::try_from(most.div_ceil(request)).unwrap_or(u64::MAX)
        }
        _ => {
            let size = u64::from(size(limit));
            let more: u64 = allowances.iter().map(|it| it.tokens.div_ceil(size)).sum();
            let more = u32::try_from(more).unwrap_or(u32::MAX);
            let mut audit = Audit::new(*limit).partial(true).allow_losses(more);
            for (at_us, cost) in records {
                audit.push(&Record::admitted("k", *at_us, Cost::of(*cost)));
            }
            u64::from(!audit.verdict().held())
        }
    }
}

fn clock(now: Duration, drift: i64) -> u64 {
    u64::try_from(drifted(now, drift).as_micros()).unwrap_or(u64::MAX)
}

/// No trouble at all.
pub(super) fn calm(limit: Limit, nodes: usize, requests: u64, pause_us: u64) -> Setting {
    Setting {
        limits: vec![[limit; 2]],
        nodes,
        exact: 0,
        pause_us,
        requests,
        pattern: Pattern::Even,
        costs: 1,
        plainly: false,
        network: Network::PERFECT,
        pauses: 0,
        crashes: 0,
        clock_steps: 0,
        failovers: 0,
        limit_changes: 0,
        refunds: 0,
        lies: 0,
        drift: 0,
    }
}
