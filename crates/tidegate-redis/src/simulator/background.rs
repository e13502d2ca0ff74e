//! Nodes in the mode `background`, and the formula that they are held to.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use tidegate::algorithm::State;
use tidegate::audit::Background;
use tidegate::{Cost, Kind, Limit};
use tidegate_testkit::simulation::{START_US, micros};

use super::fleet::{Fleet, Node, event, with_check};
use crate::error::{ErrorKind, StoreError};
use crate::mode::background::{Key, Parcel, table};
use crate::node::{AT_ONCE, Envelope, Rounds, Table, Why};

/// How long a node waits for the store to have heard.
const PATIENCE: Duration = Duration::from_millis(300);

pub(super) struct BackgroundNode {
    table: Table<Key>,
    rounds: Rounds,
    /// When it is woken next.
    wakes_at: Option<Duration>,
    in_flight: HashMap<u64, (Envelope<Parcel>, Duration)>,
    /// Since when a key could not be told of.
    failing: HashMap<u64, Duration>,
    /// What it was asked for, by key: when, and the cost.
    offered: Offered,
}

type Offered = BTreeMap<u64, Vec<(Duration, u64)>>;

/// What the formula needs to know of a run.
#[derive(Debug, Default)]
pub(super) struct Reports {
    sequence: u64,
    round_trip: Duration,
    pub(super) outage: Duration,
    /// What nodes were asked for that have crashed.
    gone: Vec<Offered>,
}

/// Whether windows lie on the grid of the clock. A step moves the grid; what they promise
/// is then told on no clock that a record could have.
pub(super) fn is_aligned(limit: &Limit) -> bool {
    match limit.kind() {
        Kind::FixedWindow(window) => window.align() == tidegate::Align::Epoch,
        Kind::SlidingWindow(_) => true,
        _ => false,
    }
}

impl Fleet {
    /// A node that knows nothing, with a clock of its own.
    pub(super) fn born_in_background(&mut self) -> BackgroundNode {
        let skew_us = self.world.some_drift(self.setting.skew_us);
        let now_us = START_US.saturating_add_signed(skew_us);
        BackgroundNode {
            table: table("tg", 1, now_us, 0),
            rounds: Rounds::default(),
            wakes_at: None,
            in_flight: HashMap::new(),
            failing: HashMap::new(),
            offered: BTreeMap::new(),
        }
    }

    fn background(&mut self, node: usize) -> &mut BackgroundNode {
        match &mut self.nodes[node] {
            Node::Background(it) => it,
            Node::Exact(_) | Node::Lease(_) => panic!("a node in another mode"),
        }
    }

    pub(super) fn background_check(&mut self, node: usize, key: u64, cost: Cost) {
        let (now, clock_us) = (self.world.now(), self.world.clock_us(node));
        let cell = self.cells(key)[0];
        let Node::Background(it) = &mut self.nodes[node] else {
            panic!("a node in another mode");
        };
        let offered = it.offered.entry(key).or_default();
        offered.push((now, cost.get().into()));
        if !it.failing.is_empty() {
            // Until the outage is over, the key may have to wait for that, too.
            it.failing.entry(key).or_insert(now);
        }
        let decided = with_check(&self.policy, cell, cost, |check| {
            it.table.decide(check, clock_us)
        });
        let decision = decided.expect("a few keys").decision;
        if decision.allowed() {
            // On a clock that does not step, and not as a node believes that has not heard
            // of the store's yet.
            let at_us = match is_aligned(&self.limit(cell)) {
                true => decision.decided_at_us(),
                false => self.world.true_us(),
            };
            self.ledgers[cell].admitted(at_us, cost);
            self.outcome.admitted += u64::from(cost.get());
        } else {
            self.outcome.refused += u64::from(cost.get());
        }
        self.drive(node);
    }

    /// Sends what a node has to send by now, and wakes it when there may be more.
    fn drive(&mut self, node: usize) {
        let (now, clock_us) = (self.world.now(), self.world.clock_us(node));
        let interval_us = micros(self.setting.sync_interval);
        let it = self.background(node);
        let round = (Why::Round, AT_ONCE - it.in_flight.len());
        let mut parcels = it.rounds.messages(&it.table, round, interval_us, clock_us);
        let next_us = it.rounds.next_us().filter(|_| it.table.listed() > 0);
        // In an order that is the same in every run.
        parcels.sort_by(|one, other| one.stored.cmp(&other.stored));
        for outgoing in parcels {
            self.reports.sequence += 1;
            let number = self.reports.sequence;
            let sent = (outgoing.clone(), now);
            self.background(node).in_flight.insert(number, sent);
            let patience = event(move |fleet| fleet.give_up(node, number));
            self.world.at_node(node, PATIENCE, patience);
            let parcel = event(move |fleet| fleet.parcel(node, number, &outgoing));
            self.world.to_store(node, &parcel);
        }
        if let Some(next_us) = next_us {
            // Its clock may run slow: then it is woken again.
            let wait_us = next_us.saturating_sub(clock_us).max(1);
            self.wake(node, now + Duration::from_micros(wait_us));
        }
    }

    fn wake(&mut self, node: usize, at: Duration) {
        let delay = at - self.world.now();
        let it = self.background(node);
        if it.wakes_at.is_none_or(|before| at < before) {
            it.wakes_at = Some(at);
            let woken = event(move |fleet| fleet.woken(node));
            self.world.at_node(node, delay, woken);
        }
    }

    fn woken(&mut self, node: usize) {
        let now = self.world.now();
        let it = self.background(node);
        if it.wakes_at.is_some_and(|at| at <= now) {
            it.wakes_at = None;
            self.drive(node);
        }
    }

    fn parcel(&mut self, node: usize, number: u64, outgoing: &Envelope<Parcel>) {
        self.outcome.calls += 1;
        let now_us = self.world.store_us();
        let cell = self.cells(key_of(&outgoing.stored))[0];
        let after = self.store(cell).parcel(&outgoing.message, now_us);
        let heard = event(move |fleet| fleet.heard(node, number, (now_us, after)));
        self.world.to_node(node, &heard);
    }

    fn heard(&mut self, node: usize, number: u64, heard: (u64, State)) {
        let (now, clock_us) = (self.world.now(), self.world.clock_us(node));
        let it = self.background(node);
        let Some((outgoing, sent)) = it.in_flight.remove(&number) else {
            return;
        };
        it.table.answered(&outgoing, heard, clock_us);
        it.rounds.arrived();
        let since = it.failing.remove(&key_of(&outgoing.stored));
        let outage = since.map_or(Duration::ZERO, |since| now - since);
        self.reports.outage = self.reports.outage.max(outage);
        self.reports.round_trip = self.reports.round_trip.max(now - sent);
        self.drive(node);
    }

    /// The store has not answered in time.
    fn give_up(&mut self, node: usize, number: u64) {
        let (now, clock_us) = (self.world.now(), self.world.clock_us(node));
        let interval_us = micros(self.setting.sync_interval);
        let it = self.background(node);
        let Some((outgoing, sent)) = it.in_flight.remove(&number) else {
            return;
        };
        // The pause that follows holds up every key of the node.
        for key in it.offered.keys() {
            it.failing.entry(*key).or_insert(sent);
        }
        let error = StoreError::new(ErrorKind::Timeout, "no answer");
        it.table.failed(&outgoing, &error);
        it.rounds.failed(interval_us, clock_us);
        // It is an outage of a key, too, that has nothing to tell by the time it is over.
        self.reports.outage = self.reports.outage.max(now - sent);
        self.drive(node);
    }

    /// A node has crashed: what it had not told, nobody knows.
    pub(super) fn gone(&mut self, node: BackgroundNode) {
        // An outage that it did not see the end of, or even the beginning.
        let unheard = node.in_flight.values().map(|(_, sent)| sent);
        for since in node.failing.values().chain(unheard) {
            self.reports.outage = self.reports.outage.max(self.world.now() - *since);
        }
        self.reports.gone.push(node.offered);
    }

    pub(super) fn formula(&self) -> Background {
        let (sync, round_trip) = (self.setting.sync_interval, self.reports.round_trip);
        let outage = self.reports.outage;
        let stale = Background::new(sync, round_trip, []);
        let stale = stale.outage(outage).staleness();
        let here = self.nodes.iter().filter_map(|node| match node {
            Node::Background(it) => Some(&it.offered),
            Node::Exact(_) | Node::Lease(_) => None,
        });
        let offered = here.chain(&self.reports.gone);
        let offered = offered.map(|offered| most_offered(offered, stale));
        Background::new(sync, round_trip, offered).outage(outage)
    }
}

/// The key of the fleet that is stored like this.
fn key_of(stored: &str) -> u64 {
    let number = stored.split(['{', '}']).nth(1);
    let number = number.and_then(|number| number.parse().ok());
    number.expect("a key of the fleet")
}

/// The most that a node was offered of a key within such a time.
fn most_offered(offered: &Offered, within: Duration) -> u64 {
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
    offered.values().map(of_key).max().unwrap_or(0)
}
