//! A world in a box, in a time of its own: nodes with clocks that drift, a store whose clock
//! steps, and a network that delays, loses and repeats messages.
//!
//! The world knows when something happens and what goes wrong. What happens is the user's
//! type `E`. Everything is made up from a seed, so the same seed gives the same run.

mod network;
mod random;

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::time::Duration;

pub use network::Network;
pub use random::Random;

/// What the store's clock reads when the world begins.
pub const START_US: u64 = 1_700_000_000_000_000;

/// What goes wrong beside the network: how often, in a thousand requests.
#[derive(Debug, Clone, Copy, Default)]
pub struct Troubles {
    /// A node stops, and hears of everything later.
    pub pauses: u64,
    /// A node is replaced by one that knows nothing. Messages to the old one are lost.
    pub crashes: u64,
    /// Nothing that a node sends arrives for a while.
    pub cuts: u64,
    /// The store's clock is set.
    pub clock_steps: u64,
    /// Another server takes the store's place.
    pub failovers: u64,
}

/// Trouble that has just come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trouble {
    Pause(usize, Duration),
    Crash(usize),
    /// The store's clock is about to be set by so much.
    ClockStep(i64),
    Failover,
}

pub struct World<E> {
    pub random: Random,
    pub network: Network,
    pub troubles: Troubles,
    now: Duration,
    queue: BinaryHeap<Reverse<Due<E>>>,
    sequence: u64,
    nodes: Vec<Node>,
    store_offset_us: i64,
    store_us: u64,
    passed_us: u64,
}

#[derive(Debug, Clone, Copy)]
struct Node {
    /// In parts of a million, slower or faster than the world's time.
    drift: i64,
    /// Which process it is: events of an earlier one are void.
    process: u64,
    paused_until: Duration,
    cut_off_until: Duration,
}

struct Due<E> {
    at: Duration,
    sequence: u64,
    /// A node and its process, unless it happens elsewhere.
    node: Option<(usize, u64)>,
    event: E,
}

impl<E> World<E> {
    pub fn new(seed: u64, network: Network) -> Self {
        Self {
            random: Random::new(seed),
            network,
            troubles: Troubles::default(),
            now: Duration::ZERO,
            queue: BinaryHeap::new(),
            sequence: 0,
            nodes: Vec::new(),
            store_offset_us: 0,
            store_us: START_US,
            passed_us: START_US,
        }
    }

    /// Adds a node, and returns its number.
    pub fn node(&mut self, drift: i64) -> usize {
        self.nodes.push(Node {
            drift,
            process: 0,
            paused_until: Duration::ZERO,
            cut_off_until: Duration::ZERO,
        });
        self.nodes.len() - 1
    }

    /// The time that no clock of the world shows.
    #[must_use]
    pub fn now(&self) -> Duration {
        self.now
    }

    /// The same in microseconds on the store's clock, had nobody set it.
    #[must_use]
    pub fn true_us(&self) -> u64 {
        START_US + micros(self.now)
    }

    /// What the store's clock reads.
    #[must_use]
    pub fn store_us(&self) -> u64 {
        self.store_us
    }

    /// The time that has passed for the store: a step forward is time, a step back is none.
    #[must_use]
    pub fn passed_us(&self) -> u64 {
        self.passed_us
    }

    /// A node's clock at a moment of the world.
    #[must_use]
    pub fn clock_at(&self, node: usize, at: Duration) -> Duration {
        let drift = self.nodes[node].drift;
        let off_us = micros(at) * drift.unsigned_abs() / 1_000_000;
        match drift < 0 {
            true => at - Duration::from_micros(off_us),
            false => at + Duration::from_micros(off_us),
        }
    }

    #[must_use]
    pub fn clock(&self, node: usize) -> Duration {
        self.clock_at(node, self.now)
    }

    #[must_use]
    pub fn clock_us(&self, node: usize) -> u64 {
        micros(self.clock(node))
    }

    #[must_use]
    pub fn is_paused(&self, node: usize) -> bool {
        self.nodes[node].paused_until > self.now
    }

    /// Something happens in the store, or to everybody.
    pub fn after(&mut self, delay: Duration, event: E) {
        self.put(delay, None, event);
    }

    /// Something happens in a node, if this process is still there.
    pub fn at_node(&mut self, node: usize, delay: Duration, event: E) {
        let process = self.nodes[node].process;
        self.put(delay, Some((node, process)), event);
    }

    fn put(&mut self, delay: Duration, node: Option<(usize, u64)>, event: E) {
        self.sequence += 1;
        self.queue.push(Reverse(Due {
            at: self.now + delay,
            sequence: self.sequence,
            node,
            event,
        }));
    }

    /// The next event. The world's time is that of the event.
    pub fn next_event(&mut self) -> Option<E> {
        while let Some(Reverse(due)) = self.queue.pop() {
            self.now = due.at;
            if let Some((node, process)) = due.node {
                let Node {
                    process: current,
                    paused_until,
                    ..
                } = self.nodes[node];
                if process != current {
                    continue;
                }
                if paused_until > self.now {
                    self.put(paused_until - self.now, due.node, due.event);
                    continue;
                }
            }
            let reads_us = self.true_us().saturating_add_signed(self.store_offset_us);
            self.passed_us += reads_us.saturating_sub(self.store_us);
            self.store_us = reads_us;
            return Some(due.event);
        }
        None
    }

    /// Another process takes a node's place.
    pub fn replace(&mut self, node: usize, drift: i64) {
        let it = &mut self.nodes[node];
        (it.process, it.drift) = (it.process + 1, drift);
        it.paused_until = Duration::ZERO;
        it.cut_off_until = Duration::ZERO;
    }

    /// A clock's drift of at most so much, either way.
    pub fn some_drift(&mut self, most: u64) -> i64 {
        let signed = |number: u64| i64::try_from(number).unwrap_or(0);
        signed(self.random.below(2 * most + 1)) - signed(most)
    }

    /// What goes wrong now. The caller replaces nodes that crash and what the store knows.
    pub fn trouble(&mut self) -> Vec<Trouble> {
        let Troubles {
            pauses,
            crashes,
            cuts,
            clock_steps,
            failovers,
        } = self.troubles;
        let mut all = Vec::new();
        let node = self.random.index(self.nodes.len());
        if self.random.chance(pauses) {
            let short_ms = self.random.within(1, 400);
            let pause_ms = self.random.one_of(&[5, short_ms, 200, 2_500]);
            let pause = Duration::from_millis(pause_ms);
            self.nodes[node].paused_until = self.now + pause;
            all.push(Trouble::Pause(node, pause));
        }
        if self.random.chance(cuts) {
            let cut = Duration::from_millis(self.random.within(1, 1_000));
            self.nodes[node].cut_off_until = self.now + cut;
        }
        if self.random.chance(crashes) {
            all.push(Trouble::Crash(node));
        }
        if self.random.chance(clock_steps) {
            let any = self.some_drift(1_000_000);
            let step_us = [-3_000_000, -400_000, 30_000, 700_000, 5_000_000, any, any];
            let step_us = self.random.one_of(&step_us);
            self.store_offset_us += step_us;
            all.push(Trouble::ClockStep(step_us));
        }
        if self.random.chance(failovers) {
            all.push(Trouble::Failover);
        }
        all
    }
}

impl<E: Clone> World<E> {
    /// A node sends a message, and something happens when it arrives: in the store.
    pub fn to_store(&mut self, node: usize, event: &E) {
        if self.nodes[node].cut_off_until <= self.now {
            for delay in self.network.send(&mut self.random) {
                self.after(delay, event.clone());
            }
        }
    }

    /// The store answers a node.
    pub fn to_node(&mut self, node: usize, event: &E) {
        for delay in self.network.send(&mut self.random) {
            self.at_node(node, delay, event.clone());
        }
    }
}

/// A time in microseconds.
#[must_use]
pub fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

impl<E> PartialEq for Due<E> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl<E> Eq for Due<E> {}

impl<E> PartialOrd for Due<E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> Ord for Due<E> {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.at, self.sequence).cmp(&(other.at, other.sequence))
    }
}
