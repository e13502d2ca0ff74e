//! A fleet in the mode `background`: nodes that decide by the same [`Table`] and tell the
//! store by the same [`Sender`] that production drives, over a bad network, and are held
//! to the formula.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};
use std::time::Duration;

use tidegate::algorithm::State;
use tidegate::audit::{Audit, Background, Record, Verdict};
use tidegate::{Cost, Decision, Limit, Mode, Policy};

use super::Random;
use super::background_store::BackgroundStore;
use super::due::Due;
use super::network::Network;
use super::tests::is_aligned;
use crate::background::{Outgoing, Sender, Table};

/// How long a node waits for the store to have heard.
const PATIENCE: Duration = Duration::from_millis(300);

/// Where the clocks begin.
const START_US: u64 = 1_700_000_000_000_000;

/// What a run is like.
#[derive(Debug, Clone)]
pub(super) struct Setting {
    pub(super) limit: Limit,
    pub(super) sync_interval: Duration,
    pub(super) nodes: u64,
    pub(super) keys: u64,
    /// The longest pause between two requests of the fleet.
    pub(super) pause_us: u64,
    pub(super) requests: u64,
    pub(super) costs: u64,
    pub(super) network: Network,
    /// In a thousand requests, each of them: pauses, crashes and partitions of a node;
    /// failovers and steps of the store's clock.
    pub(super) faults: u64,
    pub(super) failovers: u64,
    pub(super) clock_steps: u64,
    /// How far clocks of nodes are off, and how wrong they run, in parts of a million.
    pub(super) skew_us: u64,
    pub(super) drift: u64,
}

/// What a run came to.
#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) verdict: Verdict,
    /// How many parcels were sent.
    pub(super) flushes: u64,
    /// From the first admission to the last.
    pub(super) span: Duration,
}

#[derive(Debug, Clone)]
enum Event {
    Request {
        number: u64,
    },
    /// A node may have something to send.
    Wake {
        node: usize,
    },
    /// A parcel reaches the store.
    Parcel {
        number: u64,
        node: usize,
        outgoing: Outgoing,
    },
    /// The word of that reaches the node.
    Reply {
        number: u64,
        node: usize,
        heard: (u64, State),
    },
    Patience {
        number: u64,
        node: usize,
    },
}

struct Node {
    table: Table,
    sender: Sender,
    /// When it is woken next.
    wakes_at: Option<Duration>,
    drift: i64,
    paused_until: Duration,
    cut_off_until: Duration,
    waiting: HashMap<u64, (Outgoing, Duration)>,
    /// Since when a key could not be told of.
    failing: HashMap<String, Duration>,
    /// What it was asked for, by key: when, and the cost.
    offered: BTreeMap<String, Vec<(Duration, u64)>>,
}

struct World {
    setting: Setting,
    policy: Policy,
    random: Random,
    now: Duration,
    queue: BinaryHeap<Reverse<Due<Event>>>,
    sequence: u64,
    nodes: Vec<Node>,
    /// Those that have crashed: what they had not told, nobody knows.
    gone: Vec<Node>,
    store: BackgroundStore,
    audit: Audit,
    flushes: u64,
    round_trip: Duration,
    outage: Duration,
    admitted_from_us: Option<u64>,
    admitted_to_us: u64,
}

/// Runs a world from its first request until the store has been told everything.
pub(super) fn run(setting: Setting, seed: u64) -> Outcome {
    let policy = Policy::builder("p").limit(setting.limit);
    let policy = policy.mode(Mode::Background).build().expect("a policy");
    let mut world = World {
        store: BackgroundStore::new(setting.limit),
        audit: Audit::new(setting.limit),
        now: Duration::from_secs(1),
        queue: BinaryHeap::new(),
        sequence: 0,
        nodes: Vec::new(),
        gone: Vec::new(),
        flushes: 0,
        round_trip: Duration::ZERO,
        outage: Duration::ZERO,
        admitted_from_us: None,
        admitted_to_us: 0,
        policy,
        random: Random::new(seed),
        setting,
    };
    for _ in 0..world.setting.nodes {
        let born = world.born();
        world.nodes.push(born);
    }
    world.after(Duration::ZERO, Event::Request { number: 0 });
    while let Some(Reverse(Due(at, _, event))) = world.queue.pop() {
        world.now = at;
        world.happen(event);
    }
    world.finish()
}

impl World {
    /// A node that knows nothing, with a clock of its own.
    fn born(&mut self) -> Node {
        let off = |random: &mut Random, most: u64| {
            let number = random.below(2 * most + 1);
            i64::try_from(number).unwrap_or(0) - i64::try_from(most).unwrap_or(0)
        };
        let skew_us = off(&mut self.random, self.setting.skew_us);
        // Clocks that run slow: what a fast one makes of the time since it last heard is
        // more than has passed, and so is what it admits.
        let drift = -off(&mut self.random, self.setting.drift).abs();
        let now_us = START_US.saturating_add_signed(skew_us);
        Node {
            table: Table::new("tg", 1, now_us, Duration::ZERO),
            sender: Sender::default(),
            wakes_at: None,
            drift,
            paused_until: Duration::ZERO,
            cut_off_until: Duration::ZERO,
            waiting: HashMap::new(),
            failing: HashMap::new(),
            offered: BTreeMap::new(),
        }
    }

    fn after(&mut self, delay: Duration, event: Event) {
        self.sequence += 1;
        let due = Due(self.now + delay, self.sequence, event);
        self.queue.push(Reverse(due));
    }

    /// Over the network, unless the node is cut off.
    fn send(&mut self, node: usize, event: &Event) {
        if self.nodes[node].cut_off_until > self.now {
            return;
        }
        for delay in self.setting.network.send(&mut self.random) {
            self.after(delay, event.clone());
        }
    }

    fn now_us(&self) -> u64 {
        START_US + u64::try_from(self.now.as_micros()).unwrap_or(0)
    }

    fn clock(&self, node: usize) -> Duration {
        super::node::drifted(self.now, self.nodes[node].drift)
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Request { number } => self.request(number),
            Event::Wake { node } => {
                // One that was woken earlier meanwhile, or born since, is not due.
                if self.nodes[node].wakes_at == Some(self.now) {
                    self.nodes[node].wakes_at = None;
                    self.drive(node);
                }
            }
            Event::Parcel {
                number,
                node,
                outgoing,
            } => {
                self.flushes += 1;
                let now_us = self.now_us();
                let Outgoing { key, parcel, .. } = &outgoing;
                let heard = self.store.flush(now_us, key, parcel);
                let reply = Event::Reply {
                    number,
                    node,
                    heard,
                };
                self.send(node, &reply);
            }
            Event::Reply {
                number,
                node,
                heard,
            } => {
                let now = self.clock(node);
                let Some((outgoing, sent)) = self.nodes[node].waiting.remove(&number) else {
                    return;
                };
                self.round_trip = self.round_trip.max(self.now - sent);
                if let Some(since) = self.nodes[node].failing.remove(&outgoing.key) {
                    self.outage = self.outage.max(self.now - since);
                }
                let sent = super::node::drifted(sent, self.nodes[node].drift);
                self.nodes[node].table.arrived(&outgoing, sent, now, heard);
                self.nodes[node].sender.arrived();
                self.drive(node);
            }
            Event::Patience { number, node } => {
                let (now, interval) = (self.clock(node), self.setting.sync_interval);
                let it = &mut self.nodes[node];
                let Some((outgoing, sent)) = it.waiting.remove(&number) else {
                    return;
                };
                // The pause that follows holds up every key of the node.
                for key in it.offered.keys() {
                    it.failing.entry(stored(&self.policy, key)).or_insert(sent);
                }
                it.table.failed(&outgoing);
                it.sender.failed(&it.table, interval, now);
                self.drive(node);
            }
        }
    }

    /// Sends what a node has to send by now, and wakes it when there may be more.
    fn drive(&mut self, node: usize) {
        let paused_until = self.nodes[node].paused_until;
        if paused_until > self.now {
            return self.wake(node, paused_until);
        }
        let (clock, interval) = (self.clock(node), self.setting.sync_interval);
        let it = &mut self.nodes[node];
        let mut parcels = it.sender.send(&it.table, interval, clock);
        let next = it.sender.wakes_at(&it.table);
        // In an order that is the same in every run.
        parcels.sort_by(|one, other| one.key.cmp(&other.key));
        for outgoing in parcels {
            self.sequence += 1;
            let number = self.sequence;
            let waiting = (outgoing.clone(), self.now);
            self.nodes[node].waiting.insert(number, waiting);
            self.after(PATIENCE, Event::Patience { number, node });
            let parcel = Event::Parcel {
                number,
                node,
                outgoing,
            };
            self.send(node, &parcel);
        }
        if let Some(next) = next {
            // Its clock may run slow: then it is woken again.
            let wait = next.saturating_sub(clock).max(Duration::from_micros(1));
            self.wake(node, self.now + wait);
        }
    }

    fn wake(&mut self, node: usize, at: Duration) {
        if self.nodes[node].wakes_at.is_none_or(|before| at < before) {
            self.nodes[node].wakes_at = Some(at);
            self.after(at - self.now, Event::Wake { node });
        }
    }

    fn request(&mut self, number: u64) {
        if number + 1 < self.setting.requests {
            let pause = self.random.below(self.setting.pause_us + 1);
            let next = Event::Request { number: number + 1 };
            self.after(Duration::from_micros(pause), next);
        }
        self.trouble();
        let node = usize::try_from(self.random.below(self.setting.nodes)).unwrap_or(0);
        let key = self.random.below(self.setting.keys).to_string();
        let cost = Cost::new(self.random.within(1, self.setting.costs)).expect("a small one");
        if self.nodes[node].paused_until > self.now {
            // Nobody is there to take it.
            return;
        }
        let it = &mut self.nodes[node];
        let offered = it.offered.entry(key.clone()).or_default();
        offered.push((self.now, cost.get().into()));
        if !it.failing.is_empty() {
            // Until the outage is over, the key may have to wait for that, too.
            it.failing
                .entry(stored(&self.policy, &key))
                .or_insert(self.now);
        }
        let clock = self.clock(node);
        let decision = self.decide(node, clock, &key, cost);
        self.decided(&key, cost, &decision);
        self.drive(node);
    }

    fn decide(&self, node: usize, clock: Duration, key: &str, cost: Cost) -> Decision {
        let attributes = [("key", key)];
        let keys = self.policy.keys(&attributes).expect("the one attribute");
        let table = &self.nodes[node].table;
        table
            .decide(&keys, cost, clock)
            .expect("a few keys")
            .decision
    }

    fn decided(&mut self, key: &str, cost: Cost, decision: &Decision) {
        let mut record = Record::of(key, cost, decision);
        if !is_aligned(&self.setting.limit) {
            // On a clock that does not step, and not as a node believes that has not heard
            // of the store's yet.
            record.at_us = self.now_us();
        }
        self.audit.push(&record);
        if decision.allowed() {
            let at_us = record.at_us;
            let from_us = self.admitted_from_us.unwrap_or(at_us).min(at_us);
            self.admitted_from_us = Some(from_us);
            self.admitted_to_us = self.admitted_to_us.max(at_us);
        }
    }

    /// What goes wrong beside the network.
    fn trouble(&mut self) {
        let Setting {
            faults,
            failovers,
            clock_steps,
            ..
        } = self.setting;
        let node = usize::try_from(self.random.below(self.setting.nodes)).unwrap_or(0);
        if self.random.chance(faults) {
            let pause = Duration::from_millis(self.random.within(1, 400));
            self.nodes[node].paused_until = self.now + pause;
            self.outage = self.outage.max(pause);
        }
        if self.random.chance(faults) {
            let cut_off = Duration::from_millis(self.random.within(1, 1_000));
            self.nodes[node].cut_off_until = self.now + cut_off;
        }
        if self.random.chance(faults) {
            let born = self.born();
            let old = std::mem::replace(&mut self.nodes[node], born);
            // An outage that it did not see the end of, or even the beginning.
            let unheard = old.waiting.values().map(|(_, sent)| sent);
            for since in old.failing.values().chain(unheard) {
                self.outage = self.outage.max(self.now - *since);
            }
            self.gone.push(old);
        }
        if self.random.chance(clock_steps) {
            let step = i64::try_from(self.random.below(2_000_001)).unwrap_or(0);
            self.store.step(step - 1_000_000);
        }
        if self.random.chance(failovers) {
            self.store.fail_over();
        }
    }

    fn finish(self) -> Outcome {
        let sync = self.setting.sync_interval;
        let stale = Background::new(sync, self.round_trip, []);
        let stale = stale.outage(self.outage).staleness();
        let nodes = self.nodes.iter().chain(&self.gone);
        let offered = nodes.map(|node| most_offered(node, stale));
        let background = Background::new(sync, self.round_trip, offered).outage(self.outage);
        let audit = self.audit.background(background);
        let mut audit = audit.allow_losses(self.store.losses).partial(true);
        let from_us = self.admitted_from_us.unwrap_or(self.admitted_to_us);
        Outcome {
            verdict: audit.verdict(),
            flushes: self.flushes,
            span: Duration::from_micros(self.admitted_to_us - from_us),
        }
    }
}

/// The key in the store.
fn stored(policy: &Policy, key: &str) -> String {
    let attributes = [("key", key)];
    let keys = policy.keys(&attributes).expect("the one attribute");
    keys.iter().map(|key| key.stored("tg")).collect()
}

/// The most that a node was offered of a key within such a time.
fn most_offered(node: &Node, within: Duration) -> u64 {
    let of_key = |offered: &Vec<(Duration, u64)>| {
        let (mut first, mut sum, mut most) = (0, 0, 0);
        for (at, cost) in offered {
            sum += cost;
            while *at - offered[first].0 > within {
                sum -= offered[first].1;
                first += 1;
            }
            most = most.max(sum);
        }
        most
    };
    node.offered.values().map(of_key).max().unwrap_or(0)
}
