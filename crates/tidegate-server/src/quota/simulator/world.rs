//! Envoys, Tidegates and a store in a box, with messages that take time and things that
//! break.

use std::collections::HashMap;
use std::time::Duration;

use tidegate::{Charge, Cost, Level, Limit, ManualClock, MemoryStore};

use super::super::{Action, Assignment, HolderId, Subject, Table, Terms};
use super::envoy::{Envoy, Report};
use super::random::Random;

/// Time moves in steps of this many seconds.
const STEP_S: f64 = 0.05;

/// What happens in a run.
#[derive(Debug, Clone)]
pub(super) struct Plan {
    pub(super) limit: Limit,
    /// Tokens per second, and the most at once.
    pub(super) rate: f64,
    pub(super) burst: f64,
    /// The most at once across the edge of a window.
    pub(super) edge: f64,
    pub(super) servers: usize,
    /// What each Envoy is offered, in requests per second.
    pub(super) offered: Vec<f64>,
    /// What is asked directly, without an Envoy.
    pub(super) exact: f64,
    /// How long messages take at most.
    pub(super) delay_s: f64,
    /// What breaks, once, at a random time.
    pub(super) fault: Option<Fault>,
    /// How often offers change.
    pub(super) changes_s: Option<f64>,
    pub(super) seconds: f64,
    /// A mistake on purpose: the store is not charged.
    pub(super) is_free: bool,
}

/// What can break.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// A stream; the Envoy opens another with its next report.
    Stream,
    /// A stream, and for up to 20 seconds there is no other; the server hears of it late.
    Link,
    /// An Envoy is replaced by a new process.
    Envoy,
    /// A Tidegate is replaced by a new process after up to ten seconds.
    Tidegate,
}

struct Server {
    table: Table,
    streams: HashMap<u64, (usize, Option<HolderId>)>,
    /// Down until then.
    back_s: Option<f64>,
}

enum Message {
    Report(usize, u64, Report),
    Assign(usize, u64, Option<Assignment>),
    Closed(usize, u64),
    Charged(usize, u64, super::super::BucketId, u32),
}

pub(super) struct World {
    plan: Plan,
    pub(super) random: Random,
    now_s: f64,
    clock: ManualClock,
    store: MemoryStore,
    level: Level,
    servers: Vec<Server>,
    pub(super) envoys: Vec<Envoy>,
    /// Envoys that reach no server until then.
    cut_s: Vec<f64>,
    /// In flight: when it arrives, in order per stream.
    messages: Vec<(f64, u64, Message)>,
    last: HashMap<u64, f64>,
    next: u64,
    exact_arriving: f64,
    /// The debt of a bucket that all admitted requests are charged to.
    debt: f64,
    pub(super) worst: f64,
    pub(super) worst_held: f64,
    fault_at_s: f64,
    pub(super) exact_admitted: u64,
    /// Generations of servers: answers for an earlier one are void.
    generation: u64,
}

impl World {
    pub(super) fn new(plan: Plan, seed: u64) -> Self {
        let clock = ManualClock::at_us(1_000_000_000_000);
        let store = MemoryStore::builder().clock(clock.clone()).build();
        let level = store.level("api", plan.limit).expect("one limit");
        let mut random = Random::new(seed);
        let servers = (0..plan.servers).map(|_| Server {
            table: Table::new(-100.0, random.next(), 1_000),
            streams: HashMap::new(),
            back_s: None,
        });
        let servers = servers.collect();
        let fault_at_s = 15.0 + random.share() * (plan.seconds - 30.0);
        let envoys: Vec<_> = plan.offered.iter().map(|it| Envoy::new(*it)).collect();
        Self {
            cut_s: vec![0.0; envoys.len()],
            envoys,
            servers,
            plan,
            random,
            now_s: 0.0,
            clock,
            store,
            level,
            messages: Vec::new(),
            last: HashMap::new(),
            next: 0,
            exact_arriving: 0.0,
            debt: 0.0,
            worst: 0.0,
            worst_held: 0.0,
            fault_at_s,
            exact_admitted: 0,
            generation: 0,
        }
    }

    pub(super) fn run(&mut self) {
        let until_s = self.now_s + self.plan.seconds;
        while self.now_s < until_s {
            self.step();
        }
    }

    fn step(&mut self) {
        self.now_s += STEP_S;
        self.clock.advance(Duration::from_secs_f64(STEP_S));
        self.debt = (self.debt - self.plan.rate * STEP_S).max(0.0);
        self.break_things();
        self.deliver();
        for server in 0..self.servers.len() {
            let mut out = Vec::new();
            if self.servers[server].back_s.is_none() {
                self.servers[server].table.tick(self.now_s, &mut out);
            }
            self.act(server, out);
        }
        // Envoys do not all come first.
        let first = self.random.below(self.envoys.len());
        for index in 0..self.envoys.len() {
            self.envoy((first + index) % self.envoys.len());
        }
        self.exact_arriving += self.plan.exact * STEP_S;
        while self.exact_arriving >= 1.0 {
            self.exact_arriving -= 1.0;
            if self.charge(1) == 1 {
                self.exact_admitted += 1;
                self.debt += 1.0;
            }
        }
        self.worst = self.worst.max(self.debt);
        let held: f64 = self.envoys.iter().map(Envoy::rate).sum();
        self.worst_held = self.worst_held.max(held);
    }

    fn envoy(&mut self, index: usize) {
        let (admitted, report) = self.envoys[index].pass(self.now_s, STEP_S);
        self.debt += admitted as f64;
        let Some(report) = report else {
            return;
        };
        if self.envoys[index].stream.is_none() && self.cut_s[index] <= self.now_s {
            let up: Vec<_> = (0..self.servers.len())
                .filter(|server| self.servers[*server].back_s.is_none())
                .collect();
            if let Some(server) = up.get(index % up.len().max(1)) {
                self.next += 1;
                self.envoys[index].stream = Some(self.next);
                self.servers[*server]
                    .streams
                    .insert(self.next, (index, None));
            }
        }
        if let Some(stream) = self.envoys[index].stream {
            self.send(stream, Message::Report(index, stream, report));
        }
    }

    fn send(&mut self, stream: u64, message: Message) {
        let at_s = self.now_s + self.random.share() * self.plan.delay_s;
        let last = self.last.entry(stream).or_default();
        *last = last.max(at_s);
        self.next += 1;
        self.messages.push((*last, self.next, message));
    }

    fn deliver(&mut self) {
        let now_s = self.now_s;
        let mut due: Vec<_> = self.messages.extract_if(.., |it| it.0 <= now_s).collect();
        due.sort_by(|one, other| one.0.total_cmp(&other.0).then(one.1.cmp(&other.1)));
        for (_, _, message) in due {
            match message {
                Message::Report(envoy, stream, report) => self.report(envoy, stream, report),
                Message::Assign(envoy, stream, assignment) => {
                    if self.envoys[envoy].stream == Some(stream) && self.cut_s[envoy] <= now_s {
                        self.envoys[envoy].receive(now_s, assignment);
                    }
                }
                Message::Closed(server, stream) => self.close(server, stream),
                Message::Charged(server, generation, bucket, paid) => {
                    let mut out = Vec::new();
                    if generation == self.generation || self.servers.len() > 1 {
                        let server = &mut self.servers[server];
                        if server.back_s.is_none() {
                            server.table.charged(now_s, bucket, paid, &mut out);
                        }
                    }
                    self.act(server, out);
                }
            }
        }
    }

    fn report(&mut self, envoy: usize, stream: u64, report: Report) {
        if self.cut_s[envoy] > self.now_s {
            return;
        }
        let Some(server) = (0..self.servers.len())
            .find(|server| self.servers[*server].streams.contains_key(&stream))
        else {
            return;
        };
        let terms = Terms::Limited {
            rate: self.plan.rate,
            burst: self.plan.burst,
        };
        let mut out = Vec::new();
        let it = &mut self.servers[server];
        let Some((_, holder)) = it.streams.get_mut(&stream) else {
            return;
        };
        match holder {
            Some(holder) => {
                let counts = (report.allowed, report.denied);
                it.table
                    .report(self.now_s, *holder, terms, counts, &mut out);
            }
            None => {
                let subject = Subject {
                    policy: "api".into(),
                    attributes: Vec::new(),
                };
                let used = match report.elapsed_s {
                    0 => 0.0,
                    elapsed => report.allowed as f64 / (elapsed + 1) as f64,
                };
                let subject = (subject, String::new());
                let before = (report.allowed, used);
                let joined = it.table.join(self.now_s, subject, terms, before, &mut out);
                *holder = Some(joined.expect("room for all"));
            }
        }
        self.act(server, out);
    }

    fn close(&mut self, server: usize, stream: u64) {
        let it = &mut self.servers[server];
        if let Some((_, Some(holder))) = it.streams.remove(&stream) {
            it.table.leave(self.now_s, holder);
        }
    }

    fn act(&mut self, server: usize, actions: Vec<Action>) {
        for action in actions {
            let find = |holder: HolderId, it: &Server| {
                let mut streams = it.streams.iter();
                let found = streams.find(|(_, (_, other))| *other == Some(holder));
                found.map(|(stream, (envoy, _))| (*stream, *envoy))
            };
            let (holder, assignment) = match action {
                Action::Charge(bucket, _, cost) => {
                    let paid = self.charge(cost);
                    let generation = self.generation;
                    let message = Message::Charged(server, generation, bucket, paid);
                    let at_s = self.now_s + self.random.share() * 0.05;
                    self.next += 1;
                    self.messages.push((at_s, self.next, message));
                    continue;
                }
                Action::Assign(holder, assignment) => (holder, Some(assignment)),
                Action::Abandon(holder) => (holder, None),
            };
            if let Some((stream, envoy)) = find(holder, &self.servers[server]) {
                if assignment.is_none() {
                    self.servers[server].streams.insert(stream, (envoy, None));
                }
                self.send(stream, Message::Assign(envoy, stream, assignment));
            }
        }
    }

    /// Charges the store, as much of it as there is.
    fn charge(&mut self, cost: u32) -> u32 {
        if self.plan.is_free {
            return cost;
        }
        let ask = |cost: u32| {
            let check = self.level.check("k").cost(Cost::of(cost));
            self.store.decide(&[check], Charge::Admitted)
        };
        let decision = ask(cost);
        if decision.allowed() {
            return cost;
        }
        let left = decision.remaining();
        match left > 0 && ask(left).allowed() {
            true => left,
            false => 0,
        }
    }

    fn break_things(&mut self) {
        let now_s = self.now_s;
        for server in 0..self.servers.len() {
            if self.servers[server]
                .back_s
                .is_some_and(|back_s| back_s <= now_s)
            {
                let table = Table::new(now_s, self.random.next(), 1_000);
                (self.servers[server].table, self.servers[server].back_s) = (table, None);
            }
        }
        if let Some(changes_s) = self.plan.changes_s
            && self.random.share() < STEP_S / changes_s
        {
            let index = self.random.below(self.envoys.len());
            let shares = [0.0, 0.1, 0.5, 1.0, 2.0, 5.0];
            let share = shares[self.random.below(shares.len())];
            self.envoys[index].offered = self.plan.rate * share;
        }
        if now_s < self.fault_at_s {
            return;
        }
        self.fault_at_s = f64::INFINITY;
        let index = self.random.below(self.envoys.len());
        match self.plan.fault {
            None => {}
            Some(Fault::Stream) => self.lose_stream(index, 0.0),
            Some(Fault::Link) => {
                self.cut_s[index] = now_s + self.random.share() * 20.0;
                self.lose_stream(index, 10.0);
            }
            Some(Fault::Envoy) => {
                self.lose_stream(index, 0.0);
                self.envoys[index].restart();
            }
            Some(Fault::Tidegate) => {
                let server = self.random.below(self.servers.len());
                self.generation += 1;
                let down_s = self.random.share() * 10.0;
                let streams = std::mem::take(&mut self.servers[server].streams);
                for (stream, (envoy, _)) in streams {
                    if self.envoys[envoy].stream == Some(stream) {
                        self.envoys[envoy].stream = None;
                    }
                }
                self.servers[server].table = Table::new(now_s, 1, 0);
                self.servers[server].back_s = Some(now_s + down_s);
            }
        }
    }

    /// An Envoy loses its stream; the server hears of it within `late_s`.
    fn lose_stream(&mut self, envoy: usize, late_s: f64) {
        if let Some(stream) = self.envoys[envoy].stream.take() {
            self.closed(stream, late_s);
        }
    }

    fn closed(&mut self, stream: u64, late_s: f64) {
        let server = (0..self.servers.len())
            .find(|server| self.servers[*server].streams.contains_key(&stream));
        if let Some(server) = server {
            let at_s = self.now_s + late_s * self.random.share();
            self.next += 1;
            self.messages
                .push((at_s, self.next, Message::Closed(server, stream)));
        }
    }
}
