//! A thousand nodes and a hundred thousand keys, by Zipf's law: what the store is asked,
//! and what is admitted, as fleets in the mode `lease` have it. It prints the table of
//! docs/scale.md:
//!
//! ```text
//! cargo test -p tidegate-redis --release --lib scale_of_leases -- --ignored --nocapture
//! ```

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::time::Duration;

use tidegate::{Cost, Limit};

use super::Random;
use super::due::Due;
use crate::lease::kept::Store;
use crate::lease::key::{Answer, Key, Reason};
use crate::lease::message::{Message, Reply};

const START_US: u64 = 1_700_000_000_000_000;
const NODES: u64 = 1_000;
const KEYS: usize = 100_000;

/// Requests per second of the whole fleet, and what each key may have of them.
const OFFERED: u64 = 100_000;
const ALLOWED: u32 = 500;
const SECONDS: u64 = 5;

/// What happens to the fleet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Story {
    /// Every key is asked for on ten nodes, as load balancers that hash do it.
    Sticky,
    Calm,
    /// A tenth of the nodes is gone after two seconds, and as many start.
    Crash,
    /// After two seconds the store knows nothing.
    Failover,
    /// A third of the nodes is 50 ms away.
    Region,
}

enum Event {
    Request,
    Sweep(u64, usize),
    Message(u64, usize, u64, Message),
    Reply(u64, usize, u64, Reply),
}

struct World {
    story: Story,
    limit: Limit,
    random: Random,
    now_us: u64,
    sequence: u64,
    queue: BinaryHeap<Reverse<Due<Event>>>,
    nodes: HashMap<(u64, usize), Key<()>>,
    stores: HashMap<usize, Store>,
    /// Sums of what keys are asked for, from the most to the least.
    shares: Vec<f64>,
    requests: u64,
    calls: u64,
    admitted: HashMap<usize, u64>,
    offered: HashMap<usize, u64>,
}

impl World {
    fn after(&mut self, delay_us: u64, event: Event) {
        self.sequence += 1;
        let at = Duration::from_micros(self.now_us + delay_us);
        self.queue.push(Reverse(Due(at, self.sequence, event)));
    }

    /// One way between a node and the store.
    fn way_us(&self, node: u64) -> u64 {
        match self.story {
            Story::Region if node.is_multiple_of(3) => 25_000,
            _ => 250,
        }
    }

    fn admit(&mut self, key: usize, tokens: u64) {
        *self.admitted.entry(key).or_default() += tokens;
    }

    #[expect(clippy::cast_precision_loss, reason = "a random number")]
    fn some_key(&mut self) -> usize {
        let all = self.shares[KEYS - 1];
        let point = self.random.below(1 << 50) as f64 / (1_u64 << 50) as f64 * all;
        self.shares
            .partition_point(|share| *share < point)
            .min(KEYS - 1)
    }

    fn request(&mut self) {
        self.requests += 1;
        let (mut node, key) = (self.random.below(NODES), self.some_key());
        if self.story == Story::Sticky {
            node = (key as u64 * 7 + node % 10) % NODES;
        }
        *self.offered.entry(key).or_default() += 1;
        let (now_us, limit) = (self.now_us, self.limit);
        let machine = self.nodes.entry((node, key));
        let machine = machine.or_insert_with(|| Key::new(limit, now_us));
        if let Some(spent) = machine.spend(Cost::ONE, now_us) {
            self.admit(key, 1);
            if spent.is_half {
                self.message(node, key);
            }
            return;
        }
        machine.note(Cost::ONE);
        if machine.refuses(Cost::ONE, now_us).is_none() {
            machine.wait(Cost::ONE, ());
            self.message(node, key);
        }
    }

    fn message(&mut self, node: u64, key: usize) {
        let (now_us, nonce) = (self.now_us, self.random.next());
        let Some(machine) = self.nodes.get_mut(&(node, key)) else {
            return;
        };
        let was_active = machine.is_active() && !machine.has_waiting();
        if let Some(message) = machine.message(now_us, Reason::Usual, || nonce) {
            if !was_active {
                self.after(50_000, Event::Sweep(node, key));
            }
            let way_us = self.way_us(node);
            self.after(way_us, Event::Message(node, key, nonce, message));
        }
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Request => self.request(),
            Event::Message(node, key, id, message) => {
                self.calls += 1;
                let now_us = START_US + self.now_us;
                let store = self.stores.entry(key).or_default();
                let reply = store.message(&message, now_us);
                let admitted = reply.admitted.iter().sum::<u32>();
                self.admit(key, admitted.into());
                let way_us = self.way_us(node);
                self.after(way_us, Event::Reply(node, key, id, reply));
            }
            Event::Reply(node, key, id, reply) => {
                let now_us = self.now_us;
                let Some(machine) = self.nodes.get_mut(&(node, key)) else {
                    return;
                };
                let answers = machine.answered(id, &reply, now_us);
                let spent = answers.iter();
                let spent = spent.filter(|(_, answer)| matches!(answer, Answer::Spent(..)));
                let spent = spent.count() as u64;
                let waits = machine.has_waiting();
                self.admit(key, spent);
                if waits {
                    self.message(node, key);
                }
            }
            Event::Sweep(node, key) => {
                let now_us = self.now_us;
                let Some(machine) = self.nodes.get_mut(&(node, key)) else {
                    return;
                };
                machine.sweep(now_us);
                if machine.has_something_to_say() {
                    self.message(node, key);
                }
                let machine = self.nodes.get(&(node, key));
                if machine.is_some_and(Key::is_active) {
                    self.after(50_000, Event::Sweep(node, key));
                }
            }
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "figures")]
fn row(story: Story) -> String {
    let mut shares = Vec::with_capacity(KEYS);
    let mut sum = 0.0;
    for rank in 1..=KEYS {
        sum += 1.0 / rank as f64;
        shares.push(sum);
    }
    let mut world = World {
        story,
        limit: Limit::per_second(ALLOWED),
        random: Random::new(11),
        now_us: 0,
        sequence: 0,
        queue: BinaryHeap::new(),
        nodes: HashMap::new(),
        stores: HashMap::new(),
        shares,
        requests: 0,
        calls: 0,
        admitted: HashMap::new(),
        offered: HashMap::new(),
    };
    let mut struck = false;
    let pause_us = 1_000_000 / OFFERED;
    let mut next_us = 0;
    while world.now_us < SECONDS * 1_000_000 {
        let due = world.queue.peek().map(|due| due.0.0.as_micros());
        let due = due.and_then(|due| u64::try_from(due).ok());
        match due.filter(|due| *due <= next_us) {
            Some(at_us) => {
                world.now_us = at_us;
                if let Some(Reverse(Due(_, _, event))) = world.queue.pop() {
                    world.happen(event);
                }
            }
            None => {
                world.now_us = next_us;
                next_us += pause_us;
                world.happen(Event::Request);
            }
        }
        if !struck && world.now_us >= 2_000_000 {
            struck = true;
            match story {
                Story::Crash => world.nodes.retain(|(node, _), _| !node.is_multiple_of(10)),
                Story::Failover => world.stores.clear(),
                Story::Sticky | Story::Calm | Story::Region => {}
            }
        }
    }
    // Keys that ask for more than they may have.
    let bound = u64::from(ALLOWED) * (SECONDS + 1);
    let losses = u64::from(story == Story::Failover);
    let most = bound + losses * u64::from(ALLOWED);
    let (mut hot, mut used, mut over) = (0, 0.0, 0);
    for (key, offered) in &world.offered {
        let admitted = world.admitted.get(key).copied().unwrap_or(0);
        over += u64::from(admitted > most);
        if *offered > 2 * bound {
            hot += 1;
            used += admitted as f64 / bound as f64;
        }
    }
    let admitted: u64 = world.admitted.values().sum();
    assert_eq!(over, 0, "{story:?}: keys above their bound");
    format!(
        "| {story:?} | {} | {:.2} | {:.1} % | {over} |",
        world.calls / SECONDS,
        world.calls as f64 / world.requests as f64,
        100.0 * used / f64::from(hot.max(1)),
    ) + &format!(" {admitted} admitted of {}, {hot} hot keys", world.requests)
}

#[test]
#[ignore = "prints the table of docs/scale.md"]
fn scale_of_leases() {
    println!("| story | calls per second | calls per request | use of hot keys | over |");
    for story in [
        Story::Sticky,
        Story::Calm,
        Story::Crash,
        Story::Failover,
        Story::Region,
    ] {
        println!("{}", row(story));
    }
}
