//! The world: what happens when, and what it came to.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use tidegate::audit::{Audit, Record, Verdict};
use tidegate::{Cost, Decision, Limit, Policy, Receipt};

use super::Random;
use super::due::Due;
use super::network::Network;
use super::node::Node;
use super::store::Store;

/// How long a check may take.
const DEADLINE: Duration = Duration::from_millis(50);

/// What a run is like.
#[derive(Debug, Clone)]
pub(super) struct Setting {
    pub(super) limit: Limit,
    pub(super) refusal_memory: Duration,
    pub(super) nodes: u64,
    pub(super) keys: u64,
    /// The longest pause between two requests of the fleet.
    pub(super) pause_us: u64,
    pub(super) requests: u64,
    pub(super) costs: u64,
    pub(super) network: Network,
    /// In a thousand requests, each of them.
    pub(super) faults: u64,
    pub(super) clock_steps: u64,
    pub(super) failovers: u64,
    pub(super) refunds: u64,
    /// Parts in a million that clocks of nodes run wrong at most.
    pub(super) drift: i64,
}

/// What a run came to.
#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) verdict: Verdict,
    /// Requests refused from memory, and those that the store would have admitted then.
    pub(super) remembered: u64,
    pub(super) wrongly: u64,
    /// Questions that the store was asked.
    pub(super) asked: u64,
    /// Requests with an answer: all of them.
    pub(super) answered: u64,
    /// What the bound would have allowed from the first admission to the last.
    pub(super) span: Duration,
}

#[derive(Debug, Clone)]
enum Event {
    /// A request comes to a node.
    Request {
        number: u64,
    },
    /// A question reaches the store.
    Question {
        number: u64,
        node: usize,
        key: String,
        cost: Cost,
    },
    /// An answer reaches a node.
    Answer {
        number: u64,
        node: usize,
        key: String,
        cost: Cost,
        decision: Box<Decision>,
        at_us: u64,
    },
    /// The deadline of a question.
    Deadline {
        number: u64,
        node: usize,
    },
    /// A receipt reaches the store, and the word of that the node.
    Refund {
        node: usize,
        key: String,
        receipt: Receipt,
        cost: Cost,
        charged_us: u64,
    },
    Refunded {
        node: usize,
        key: String,
    },
}

struct World {
    setting: Setting,
    policy: Policy,
    random: Random,
    now: Duration,
    queue: BinaryHeap<Reverse<Due<Event>>>,
    sequence: u64,
    nodes: Vec<Node>,
    store: Store,
    audit: Audit,
    outcome: Outcome,
    first_us: Option<u64>,
    last_us: u64,
}

/// Runs a world from its first request to the last answer.
pub(super) fn run(setting: Setting, seed: u64) -> Outcome {
    let policy = Policy::builder("p")
        .limit(setting.limit)
        .refusal_memory(setting.refusal_memory);
    let policy = policy.build().expect("a policy");
    let mut random = Random::new(seed);
    let nodes = (0..setting.nodes).map(|_| {
        let most = u64::try_from(setting.drift).unwrap_or(0);
        let drift = i64::try_from(random.below(2 * most + 1)).unwrap_or(0) - setting.drift;
        Node::new(&policy, drift)
    });
    let nodes = nodes.collect();
    let mut world = World {
        store: Store::new(policy.clone()),
        audit: Audit::new(setting.limit),
        outcome: Outcome {
            verdict: Verdict::default(),
            remembered: 0,
            wrongly: 0,
            asked: 0,
            answered: 0,
            span: Duration::ZERO,
        },
        now: Duration::from_secs(1),
        queue: BinaryHeap::new(),
        sequence: 0,
        first_us: None,
        last_us: 0,
        nodes,
        policy,
        random,
        setting,
    };
    world.after(Duration::ZERO, Event::Request { number: 0 });
    while let Some(Reverse(Due(at, _, event))) = world.queue.pop() {
        world.now = at;
        world.happen(event);
    }
    world.finish()
}

impl World {
    fn after(&mut self, delay: Duration, event: Event) {
        self.sequence += 1;
        let due = Due(self.now + delay, self.sequence, event);
        self.queue.push(Reverse(due));
    }

    fn send(&mut self, event: &Event) {
        for delay in self.setting.network.send(&mut self.random) {
            self.after(delay, event.clone());
        }
    }

    /// Whether a node is paused: then what reaches it waits.
    fn waits(&mut self, node: usize, event: &Event) -> bool {
        let until = self.nodes[node].paused_until;
        let waits = until > self.now;
        if waits {
            self.after(until - self.now, event.clone());
        }
        waits
    }

    fn happen(&mut self, event: Event) {
        match event.clone() {
            Event::Request { number } => self.request(number),
            Event::Question {
                number,
                node,
                key,
                cost,
            } => {
                self.outcome.asked += 1;
                let (decision, at_us) = self.store.decide(self.now, &key, cost);
                let decision = Box::new(decision);
                self.send(&Event::Answer {
                    number,
                    node,
                    key,
                    cost,
                    decision,
                    at_us,
                });
            }
            Event::Answer {
                number,
                node,
                key,
                cost,
                decision,
                at_us,
            } => {
                if self.waits(node, &event) {
                    return;
                }
                if self.nodes[node].hear(&self.policy, number, self.now, &decision) {
                    self.outcome.answered += 1;
                    self.decided(node, &key, cost, &decision, at_us);
                }
            }
            Event::Deadline { number, node } => {
                if !self.waits(node, &event) && self.nodes[node].give_up(number) {
                    self.outcome.answered += 1;
                }
            }
            Event::Refund {
                node,
                key,
                receipt,
                cost,
                charged_us,
            } => {
                self.store.refund(self.now, &key, &receipt);
                // It may have been worth nothing; then more was admitted than is said.
                self.audit.refund(&key, charged_us, cost);
                self.send(&Event::Refunded { node, key });
            }
            Event::Refunded { node, key } => self.nodes[node].gave_back(&self.policy, &key),
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
        let cost = self.random.within(1, self.setting.costs);
        let cost = Cost::new(cost).expect("a small one");
        if self.nodes[node].paused_until > self.now {
            // Nobody is there to take it.
            self.outcome.answered += 1;
            return;
        }
        if self.nodes[node].remembers(&self.policy, self.now, &key, cost) {
            self.outcome.remembered += 1;
            self.outcome.answered += 1;
            let wrong = self.store.would_admit(self.now, &key, cost);
            self.outcome.wrongly += u64::from(wrong);
            return;
        }
        self.nodes[node].ask(number, self.now, &key, cost);
        self.after(DEADLINE, Event::Deadline { number, node });
        self.send(&Event::Question {
            number,
            node,
            key,
            cost,
        });
    }

    fn decided(&mut self, node: usize, key: &str, cost: Cost, decision: &Decision, at_us: u64) {
        let mut record = Record::of(key, cost, decision);
        record.at_us = at_us;
        self.audit.push(&record);
        if !decision.allowed() {
            return;
        }
        self.first_us = Some(self.first_us.map_or(at_us, |first| first.min(at_us)));
        self.last_us = self.last_us.max(at_us);
        if let (true, Some(receipt)) =
            (self.random.chance(self.setting.refunds), decision.receipt())
        {
            // A receipt is for one refund, and is not handed in again when the answer is
            // lost: it may be lost on the way, but never comes twice.
            let refund = Event::Refund {
                node,
                key: key.to_owned(),
                receipt,
                cost,
                charged_us: at_us,
            };
            let delays = self.setting.network.send(&mut self.random);
            if let Some(delay) = delays.first() {
                self.after(*delay, refund);
            }
        }
    }

    /// What goes wrong beside the network.
    fn trouble(&mut self) {
        let Setting {
            faults,
            clock_steps,
            failovers,
            ..
        } = self.setting;
        let node = usize::try_from(self.random.below(self.setting.nodes)).unwrap_or(0);
        if self.random.chance(faults) {
            let pause = Duration::from_millis(self.random.within(1, 400));
            self.nodes[node].paused_until = self.now + pause;
        }
        if self.random.chance(faults) {
            // It forgets everything, its questions on their way included.
            let lost = Node::new(&self.policy, 0);
            let old = std::mem::replace(&mut self.nodes[node], lost);
            self.outcome.answered += old.unanswered();
        }
        if self.random.chance(clock_steps) {
            let step = i64::try_from(self.random.below(2_000_001)).unwrap_or(0);
            self.store.step(step - 1_000_000);
        }
        if self.random.chance(failovers) {
            self.store.fail_over();
        }
    }

    fn finish(mut self) -> Outcome {
        let audit = std::mem::replace(&mut self.audit, Audit::new(self.setting.limit));
        // What was charged and never heard of is not in the record.
        let mut audit = audit.allow_losses(self.store.losses).partial(true);
        self.outcome.verdict = audit.verdict();
        let first_us = self.first_us.unwrap_or(self.last_us);
        self.outcome.span = Duration::from_micros(self.last_us - first_us);
        self.outcome
    }
}
