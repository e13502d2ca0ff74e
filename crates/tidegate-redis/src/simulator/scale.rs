//! A thousand nodes and a hundred thousand keys, by Zipf's law: what the store is asked,
//! and what is admitted, as fleets in the mode `lease` have it. `cargo xtask pictures` makes
//! the table and the picture of docs/scale.md of it.

use std::collections::HashMap;
use std::fmt::Write;
use std::time::Duration;

use foldhash::fast::FixedState;
use tidegate::{Cost, Limit};
use tidegate_testkit::simulation::{Network, World, micros};

use crate::mode::lease::kept::Store;
use crate::mode::lease::key::{Answer, FEW, Key, horizon_us, horizons};
use crate::mode::lease::message::Reply;
use crate::node::Why;

/// When something happens to a fleet.
const STRUCK_US: u64 = 2_000_000;

/// The keys that are looked at more closely: all of them are asked for more than is allowed.
const BUSIEST: usize = 10;

/// How often a run is looked at.
const BIN_US: u64 = 100_000;

const SWEEP: Duration = Duration::from_millis(50);

/// How large a run is.
#[derive(Debug, Clone, Copy)]
struct Size {
    nodes: u64,
    keys: usize,
    /// Requests per second of the whole fleet, and how many of them each key may have.
    offered: u64,
    allowed: u32,
    seconds: u64,
}

/// What happens to the fleet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Calm,
    /// Nobody leases: all ask as in the mode `exact`.
    Exact,
    /// A tenth of the nodes is gone after two seconds, and as many start.
    Crash,
    /// After two seconds the store knows nothing.
    Failover,
    /// A third of the nodes is 50 ms away.
    Region,
}

/// A fleet: what it is called, on how many nodes each key is asked for, and what happens.
type Story = (&'static str, u64, Fate);

const STORIES: [Story; 7] = [
    ("each key on any node", 1_000, Fate::Calm),
    ("each key on one node", 1, Fate::Calm),
    ("each key on ten nodes", 10, Fate::Calm),
    ("ten nodes, mode `exact`", 10, Fate::Exact),
    ("ten nodes, a tenth of all nodes crashes", 10, Fate::Crash),
    ("ten nodes, the store loses its state", 10, Fate::Failover),
    ("ten nodes, a third of them is 50 ms away", 10, Fate::Region),
];

/// A key of a node.
type Place = (u64, usize);

/// What happens to a fleet.
type Event = Box<dyn FnOnce(&mut Fleet)>;

/// A key that is not worth a lease: how much is asked for, when that was counted, and until
/// when it is refused.
#[derive(Default)]
struct Cold {
    demand: f64,
    counted_at_us: u64,
    refused_until_us: u64,
}

/// What a run came to.
#[derive(Default)]
struct Ran {
    requests: u64,
    /// Calls by the time of the run.
    calls: Vec<u64>,
    /// What the busiest keys were admitted by then, as a share of what is allowed.
    shares: Vec<f64>,
    /// Keys that were admitted more than is allowed.
    over: usize,
}

struct Fleet {
    size: Size,
    spread: u64,
    fate: Fate,
    limit: Limit,
    world: World<Event>,
    hot: HashMap<Place, Key<()>, FixedState>,
    cold: HashMap<Place, Cold, FixedState>,
    stores: HashMap<usize, Store, FixedState>,
    /// Sums of what keys are asked for, from the most to the least.
    shares: Vec<f64>,
    calls: u64,
    admitted: Vec<u64>,
    ran: Ran,
}

impl Fleet {
    #[expect(clippy::cast_precision_loss, reason = "shares")]
    fn new(size: Size, (_, spread, fate): Story) -> Self {
        let shares = (1..=size.keys).scan(0.0, |sum, rank| {
            *sum += 1.0 / rank as f64;
            Some(*sum)
        });
        Self {
            size,
            spread,
            fate,
            limit: Limit::per_second(size.allowed),
            world: World::new(11, Network::PERFECT),
            hot: HashMap::default(),
            cold: HashMap::default(),
            stores: HashMap::default(),
            shares: shares.collect(),
            calls: 0,
            admitted: vec![0; size.keys],
            ran: Ran::default(),
        }
    }

    fn now_us(&self) -> u64 {
        micros(self.world.now())
    }

    /// Something happens to a key of a node, or to what the store has of it, when a message
    /// between them arrives.
    fn send(&mut self, place: Place, event: impl FnOnce(&mut Self) + 'static) {
        let way_us = match self.fate {
            Fate::Region if place.0.is_multiple_of(3) => 25_000,
            _ => 250,
        };
        self.world
            .after(Duration::from_micros(way_us), Box::new(event));
    }

    fn some_place(&mut self) -> Place {
        let all = self.shares.last().copied().unwrap_or_default();
        let point = self.world.random.share() * all;
        let key = self.shares.partition_point(|share| *share < point);
        let key = key.min(self.size.keys - 1);
        let node = key as u64 * 7 + self.world.random.below(self.spread);
        (node % self.size.nodes, key)
    }

    fn request(&mut self) {
        let pause = Duration::from_micros(1_000_000 / self.size.offered);
        self.world.after(pause, Box::new(Self::request));
        self.ran.requests += 1;
        let (place, now_us) = (self.some_place(), self.now_us());
        let Some(machine) = self.hot.get_mut(&place) else {
            return self.cold_request(place);
        };
        if let Some(spent) = machine.spend(Cost::ONE, now_us) {
            self.admitted[place.1] += 1;
            if spent.is_half {
                self.message(place);
            }
            return;
        }
        machine.note(Cost::ONE);
        if machine.refuses(Cost::ONE, now_us).is_some() {
            return;
        }
        if machine.asks_plainly(now_us) {
            return self.ask(place);
        }
        machine.wait(Cost::ONE, ());
        self.message(place);
    }

    /// For a key of which the node has nothing.
    fn cold_request(&mut self, place: Place) {
        let (now_us, limit) = (self.now_us(), self.limit);
        let cold = self.cold.entry(place).or_default();
        let elapsed_us = now_us - cold.counted_at_us;
        let kept = (-horizons(elapsed_us, horizon_us(&limit))).exp();
        cold.demand = cold.demand * kept + 1.0;
        cold.counted_at_us = now_us;
        if cold.demand >= FEW && self.fate != Fate::Exact {
            let mut machine = Key::with_demand(limit, now_us, cold.demand);
            machine.wait(Cost::ONE, ());
            self.cold.remove(&place);
            self.hot.insert(place, machine);
            self.message(place);
        } else if now_us >= cold.refused_until_us {
            self.ask(place);
        }
    }

    /// Asks as in the mode `exact`.
    fn ask(&mut self, place: Place) {
        let (sent_at_us, limit) = (self.now_us(), self.limit);
        self.send(place, move |fleet| {
            let store_us = fleet.world.store_us();
            fleet.calls += 1;
            let store = fleet.stores.entry(place.1).or_default();
            let (used, out, admitted) = store.check(limit, Cost::ONE, 1, store_us);
            fleet.admitted[place.1] += u64::from(admitted);
            if admitted == 0 {
                let outcome = out.outcome(&limit, &used, Cost::ONE, false);
                let wait_us = outcome.retry_after_us.unwrap_or(0).min(1_000_000);
                fleet.send(place, move |fleet| {
                    if let Some(cold) = fleet.cold.get_mut(&place) {
                        cold.refused_until_us = sent_at_us + wait_us;
                    }
                });
            }
        });
    }

    fn message(&mut self, place: Place) {
        let (now_us, nonce) = (self.now_us(), self.world.random.number());
        let Some(machine) = self.hot.get_mut(&place) else {
            return;
        };
        let was_active = machine.is_active() && !machine.has_waiting();
        if let Some(message) = machine.message(now_us, Why::Asked, || nonce) {
            if !was_active {
                self.sweep_later(place);
            }
            self.send(place, move |fleet| {
                fleet.calls += 1;
                let store_us = fleet.world.store_us();
                let store = fleet.stores.entry(place.1).or_default();
                let reply = store.message(&message, store_us);
                fleet.admitted[place.1] += u64::from(reply.admitted.iter().sum::<u32>());
                fleet.send(place, move |fleet| fleet.answered(place, nonce, &reply));
            });
        }
    }

    fn answered(&mut self, place: Place, id: u64, reply: &Reply) {
        let now_us = self.now_us();
        let Some(machine) = self.hot.get_mut(&place) else {
            return;
        };
        let answers = machine.answered(id, reply, now_us).into_iter();
        let spent = answers.filter(|(_, answer)| matches!(answer, Answer::Spent(..)));
        self.admitted[place.1] += spent.count() as u64;
        if machine.has_waiting() {
            self.message(place);
        }
    }

    fn sweep_later(&mut self, place: Place) {
        let sweep = move |fleet: &mut Self| {
            let now_us = fleet.now_us();
            let Some(machine) = fleet.hot.get_mut(&place) else {
                return;
            };
            machine.sweep(now_us);
            if machine.has_something_to_say() {
                fleet.message(place);
            }
            if fleet.hot.get(&place).is_some_and(Key::is_active) {
                fleet.sweep_later(place);
            }
        };
        self.world.after(SWEEP, Box::new(sweep));
    }

    fn strike(&mut self) {
        match self.fate {
            Fate::Crash => {
                self.hot.retain(|(node, _), _| !node.is_multiple_of(10));
                self.cold.retain(|(node, _), _| !node.is_multiple_of(10));
            }
            Fate::Failover => self.stores.clear(),
            Fate::Calm | Fate::Exact | Fate::Region => {}
        }
    }

    /// What a key may be admitted by now, without losses of state.
    fn allowed(&self) -> u64 {
        u64::from(self.size.allowed) * (1_000_000 + self.now_us()) / 1_000_000
    }

    #[expect(clippy::cast_precision_loss, reason = "figures")]
    fn run(mut self) -> Ran {
        let mut struck = false;
        self.world.after(Duration::ZERO, Box::new(Self::request));
        while let Some(happens) = self.world.next_event()
            && self.world.now() < Duration::from_secs(self.size.seconds)
        {
            happens(&mut self);
            if !struck && self.now_us() >= STRUCK_US {
                struck = true;
                self.strike();
            }
            if self.now_us() / BIN_US > self.ran.calls.len() as u64 {
                self.ran.calls.push(std::mem::take(&mut self.calls));
                let admitted: u64 = self.admitted[..BUSIEST].iter().sum();
                let share = admitted as f64 / (BUSIEST as u64 * self.allowed()) as f64;
                self.ran.shares.push(share);
            }
        }
        let losses = u64::from(self.fate == Fate::Failover);
        let most = self.allowed() + losses * u64::from(self.size.allowed);
        self.ran.over = self.admitted.iter().filter(|it| **it > most).count();
        self.ran
    }
}

/// The table, and the same over time.
#[test]
#[ignore = "for `cargo xtask pictures`"]
#[expect(clippy::cast_precision_loss, reason = "figures")]
fn scale_of_leases() {
    let size = Size {
        nodes: 1_000,
        keys: 100_000,
        offered: 500_000,
        allowed: 2_500,
        seconds: 4,
    };
    let mut over_time = String::new();
    println!(
        "\n| fleet | calls to the store per second | calls per request | busiest keys: admitted of what is allowed | keys above their bound |"
    );
    println!("| --- | ---: | ---: | ---: | ---: |");
    let runs: Vec<(Story, Ran)> = std::thread::scope(|scope| {
        let run = |story| scope.spawn(move || Fleet::new(size, story).run());
        let running = STORIES.map(|story| (story, run(story)));
        let ran = running.map(|(story, run)| (story, run.join().expect("a run")));
        ran.into()
    });
    for (story, ran) in runs {
        let calls: u64 = ran.calls.iter().sum();
        let share = ran.shares.last().copied().unwrap_or_default();
        println!(
            "| {} | {},000 | {:.2} | {:.1} % | {} |",
            story.0,
            calls / size.seconds / 1_000,
            calls as f64 / ran.requests as f64,
            100.0 * share,
            ran.over,
        );
        for (number, (calls, share)) in ran.calls.iter().zip(&ran.shares).enumerate() {
            let per_second = calls * (1_000_000 / BIN_US);
            let at_ms = (number as u64 + 1) * BIN_US / 1_000;
            writeln!(over_time, "{}\t{at_ms}\t{per_second}\t{share:.4}", story.0).expect("text");
        }
    }
    if let Some(file) = std::env::var_os("TIDEGATE_SCALE") {
        std::fs::write(file, over_time).expect("a file that can be written");
    }
}

/// The same with a fleet that a test has time for.
#[test]
fn fleets_of_a_hundred_use_what_is_allowed_and_no_more() {
    let size = Size {
        nodes: 100,
        keys: 1_000,
        offered: 50_000,
        allowed: 500,
        seconds: 3,
    };
    let mut calls = HashMap::new();
    for story in STORIES {
        let ran = Fleet::new(size, story).run();
        assert_eq!(ran.over, 0, "{story:?}");
        let share = ran.shares.last().copied().unwrap_or_default();
        assert!(share > 0.95, "{story:?}: {share}");
        calls.insert(story.0, ran.calls.iter().sum::<u64>());
    }
    let [lease, exact] = [STORIES[2].0, STORIES[3].0].map(|name| calls[name]);
    assert!(
        lease * 3 < exact * 2,
        "{lease} calls, {exact} in the mode exact"
    );
}
