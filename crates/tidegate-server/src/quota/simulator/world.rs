//! Envoys, Tidegates and a store in a box, with messages that take time and things that
//! break.

use std::collections::HashMap;
use std::time::Duration;

use tidegate::{Charge, Cost, Level, Limit, ManualClock, MemoryStore};
use tidegate_testkit::simulation::{Network, World};

use super::super::{Action, Assignment, BucketId, HolderId, Subject, Table, Terms};
use super::envoy::{Envoy, Report};

/// Time passes for Envoys and servers in such steps.
const STEP: Duration = Duration::from_millis(50);
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

/// What happens: time passes for everybody, or a message arrives.
enum Event {
    Step,
    Report(usize, u64, Report),
    Assign(usize, u64, Option<Assignment>),
    Closed(usize, u64),
    Charged(usize, u64, BucketId, u32),
}

pub(super) struct Fleet {
    plan: Plan,
    world: World<Event>,
    clock: ManualClock,
    store: MemoryStore,
    level: Level,
    servers: Vec<Server>,
    pub(super) envoys: Vec<Envoy>,
    /// Envoys that reach no server until then.
    cut_s: Vec<f64>,
    /// When the last message of a stream arrives: they arrive in order.
    last: HashMap<u64, Duration>,
    /// The number of the last stream.
    stream: u64,
    exact_arriving: f64,
    /// The debt of a bucket that all admitted requests are charged to.
    debt: f64,
    pub(super) worst: f64,
    pub(super) worst_held: f64,
    fault_at_s: f64,
    /// Generations of servers: answers for an earlier one are void.
    generation: u64,
}

impl Fleet {
    pub(super) fn new(plan: Plan, seed: u64) -> Self {
        let clock = ManualClock::at_us(1_000_000_000_000);
        let store = MemoryStore::builder().clock(clock.clone()).build();
        let level = store.level("api", plan.limit).expect("one limit");
        let mut world = World::new(seed, Network::PERFECT);
        let random = &mut world.random;
        let servers = (0..plan.servers).map(|_| Server {
            table: Table::new(-100.0, random.number(), 1_000),
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
            world,
            clock,
            store,
            level,
            last: HashMap::new(),
            stream: 0,
            exact_arriving: 0.0,
            debt: 0.0,
            worst: 0.0,
            worst_held: 0.0,
            fault_at_s,
            generation: 0,
        }
    }

    pub(super) fn run(&mut self) {
        self.world.after(STEP, Event::Step);
        while let Some(event) = self.world.next_event()
            && self.now_s() <= self.plan.seconds
        {
            self.happen(event);
        }
    }

    fn now_s(&self) -> f64 {
        self.world.now().as_secs_f64()
    }

    /// A moment within this many seconds.
    fn soon(&mut self, most_s: f64) -> Duration {
        Duration::from_secs_f64(self.world.random.share() * most_s)
    }

    fn server_of(&self, stream: u64) -> Option<usize> {
        let mut servers = self.servers.iter();
        servers.position(|server| server.streams.contains_key(&stream))
    }

    fn step(&mut self) {
        self.world.after(STEP, Event::Step);
        let now_s = self.now_s();
        self.clock.advance(STEP);
        self.debt = (self.debt - self.plan.rate * STEP_S).max(0.0);
        self.break_things();
        for server in 0..self.servers.len() {
            let mut out = Vec::new();
            if self.servers[server].back_s.is_none() {
                self.servers[server].table.tick(now_s, &mut out);
            }
            self.act(server, out);
        }
        // Envoys do not all come first.
        let first = self.world.random.index(self.envoys.len());
        for index in 0..self.envoys.len() {
            self.envoy((first + index) % self.envoys.len());
        }
        self.exact_arriving += self.plan.exact * STEP_S;
        while self.exact_arriving >= 1.0 {
            self.exact_arriving -= 1.0;
            self.debt += f64::from(self.charge(1));
        }
        self.worst = self.worst.max(self.debt);
        let held: f64 = self.envoys.iter().map(Envoy::rate).sum();
        self.worst_held = self.worst_held.max(held);
    }

    fn envoy(&mut self, index: usize) {
        let now_s = self.now_s();
        let (admitted, report) = self.envoys[index].pass(now_s, STEP_S);
        self.debt += admitted as f64;
        let Some(report) = report else {
            return;
        };
        if self.envoys[index].stream.is_none() && self.cut_s[index] <= now_s {
            let up: Vec<_> = (0..self.servers.len())
                .filter(|server| self.servers[*server].back_s.is_none())
                .collect();
            if let Some(server) = up.get(index % up.len().max(1)) {
                self.stream += 1;
                self.envoys[index].stream = Some(self.stream);
                let streams = &mut self.servers[*server].streams;
                streams.insert(self.stream, (index, None));
            }
        }
        if let Some(stream) = self.envoys[index].stream {
            self.send(stream, Event::Report(index, stream, report));
        }
    }

    fn send(&mut self, stream: u64, event: Event) {
        let (now, delay) = (self.world.now(), self.soon(self.plan.delay_s));
        let last = self.last.entry(stream).or_default();
        *last = (*last).max(now + delay);
        self.world.after(*last - now, event);
    }

    fn happen(&mut self, event: Event) {
        let now_s = self.now_s();
        match event {
            Event::Step => self.step(),
            Event::Report(envoy, stream, report) => self.report(envoy, stream, report),
            Event::Assign(envoy, stream, assignment) => {
                if self.envoys[envoy].stream == Some(stream) && self.cut_s[envoy] <= now_s {
                    self.envoys[envoy].receive(now_s, assignment);
                }
            }
            Event::Closed(server, stream) => self.close(server, stream),
            Event::Charged(server, generation, bucket, paid) => {
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

    fn report(&mut self, envoy: usize, stream: u64, report: Report) {
        let now_s = self.now_s();
        let Some(server) = self
            .server_of(stream)
            .filter(|_| self.cut_s[envoy] <= now_s)
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
                it.table.report(now_s, *holder, terms, counts, &mut out);
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
                let subject = (subject, String::new(), None);
                let before = (report.allowed, used);
                let joined = it.table.join(now_s, subject, terms, before, &mut out);
                *holder = Some(joined.expect("room for all"));
            }
        }
        self.act(server, out);
    }

    fn close(&mut self, server: usize, stream: u64) {
        let now_s = self.now_s();
        let it = &mut self.servers[server];
        if let Some((_, Some(holder))) = it.streams.remove(&stream) {
            it.table.leave(now_s, holder);
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
                    let delay = self.soon(0.05);
                    let charged = Event::Charged(server, generation, bucket, paid);
                    self.world.after(delay, charged);
                    continue;
                }
                Action::Assign(holder, assignment) => (holder, Some(assignment)),
                Action::Abandon(holder) => (holder, None),
            };
            if let Some((stream, envoy)) = find(holder, &self.servers[server]) {
                if assignment.is_none() {
                    self.servers[server].streams.insert(stream, (envoy, None));
                }
                self.send(stream, Event::Assign(envoy, stream, assignment));
            }
        }
    }

    /// Charges the store, as much of it as there is.
    fn charge(&mut self, cost: u32) -> u32 {
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
        let now_s = self.now_s();
        for server in 0..self.servers.len() {
            if self.servers[server]
                .back_s
                .is_some_and(|back_s| back_s <= now_s)
            {
                let table = Table::new(now_s, self.world.random.number(), 1_000);
                (self.servers[server].table, self.servers[server].back_s) = (table, None);
            }
        }
        if let Some(changes_s) = self.plan.changes_s
            && self.world.random.share() < STEP_S / changes_s
        {
            let index = self.world.random.index(self.envoys.len());
            let shares = [0.0, 0.1, 0.5, 1.0, 2.0, 5.0];
            let share = shares[self.world.random.index(shares.len())];
            self.envoys[index].offered = self.plan.rate * share;
        }
        if now_s < self.fault_at_s {
            return;
        }
        self.fault_at_s = f64::INFINITY;
        let index = self.world.random.index(self.envoys.len());
        match self.plan.fault {
            None => {}
            Some(Fault::Stream) => self.lose_stream(index, 0.0),
            Some(Fault::Link) => {
                self.cut_s[index] = now_s + self.world.random.share() * 20.0;
                self.lose_stream(index, 10.0);
            }
            Some(Fault::Envoy) => {
                self.lose_stream(index, 0.0);
                self.envoys[index].restart();
            }
            Some(Fault::Tidegate) => {
                let server = self.world.random.index(self.servers.len());
                self.generation += 1;
                let down_s = self.world.random.share() * 10.0;
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
        let stream = self.envoys[envoy].stream.take();
        let server = stream.and_then(|stream| self.server_of(stream).zip(Some(stream)));
        if let Some((server, stream)) = server {
            let delay = self.soon(late_s);
            self.world.after(delay, Event::Closed(server, stream));
        }
    }
}
