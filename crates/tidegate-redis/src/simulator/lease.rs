//! Nodes that lease, and what the store does with their messages.

use std::time::Duration;

use smallvec::SmallVec;
use tidegate::{Cost, Kind};

use super::fleet::{Cells, Fleet, Node, Waiting, event};
use crate::mode::lease::key::{Answer, Key};
use crate::mode::lease::message::{Message, Reply};
use crate::node::Why;

const SWEEP: Duration = Duration::from_millis(50);

impl Fleet {
    pub(super) fn born_leasing(&mut self, node: usize) -> Node {
        let now_us = self.world.clock_us(node);
        let sweep = event(move |fleet| fleet.sweep(node));
        self.world.at_node(node, SWEEP, sweep);
        let keys = (0..self.stores.len()).map(|cell| Key::new(self.limit(cell), now_us));
        Node::Lease(keys.collect())
    }

    fn leases(&mut self, node: usize) -> &mut [Key<u64>] {
        match &mut self.nodes[node] {
            Node::Lease(keys) => keys,
            Node::Exact(_) | Node::Background(_) => &mut [],
        }
    }

    pub(super) fn lease_check(&mut self, node: usize, number: u64, key: u64, cost: Cost) {
        let (now_us, at_us) = (self.world.clock_us(node), self.world.passed_us());
        let plainly = self.setting.plainly;
        let (mut held, mut halves) = (SmallVec::new(), Cells::new());
        let (mut missing, mut is_refused) = (Cells::new(), false);
        for cell in self.cells(key) {
            let limit = self.limit(cell);
            let key = &mut self.leases(node)[cell];
            key.set_limit(&limit);
            match key.spend(cost, now_us) {
                Some(spent) => {
                    held.push((cell, spent, at_us));
                    if spent.is_half {
                        halves.push(cell);
                    }
                }
                None => {
                    key.note(cost);
                    is_refused |= key.refuses(cost, now_us).is_some();
                    missing.push(cell);
                }
            }
        }
        let cells = missing.clone();
        let waiting = Waiting {
            node,
            cost,
            held,
            cells,
            sent: None,
        };
        self.wait(number, waiting);
        if is_refused || missing.is_empty() {
            let waiting = self.waiting.remove(&number).expect("it waits");
            match is_refused {
                true => self.refused(&waiting),
                false => self.admitted(&waiting, at_us),
            }
        } else {
            let keys = self.leases(node);
            let mut hot = missing.clone();
            hot.retain(|cell| !(plainly && keys[*cell].asks_plainly(now_us)));
            match (&missing[..], &hot[..]) {
                ([_], [cell]) => {
                    keys[*cell].wait(cost, number);
                    self.speak(node, *cell, Why::Asked);
                }
                _ => {
                    let check = event(move |fleet| fleet.asked(node, number, &missing, cost));
                    self.world.to_store(node, &check);
                    for cell in hot {
                        self.speak(node, cell, Why::Wanted);
                    }
                }
            }
        }
        for cell in halves {
            self.speak(node, cell, Why::Asked);
        }
    }

    /// Sends what there is to say about a counter.
    fn speak(&mut self, node: usize, cell: usize, why: Why) {
        let now_us = self.world.clock_us(node);
        let nonce = self.world.random.number();
        let key = &mut self.leases(node)[cell];
        let Some(mut message) = key.message(now_us, why, || nonce) else {
            return;
        };
        if self.world.random.chance(self.setting.lies) {
            for settle in &mut message.settles {
                settle.spent = settle.spent.saturating_add(1_000_000);
            }
        }
        let message = event(move |fleet| fleet.message(node, cell, nonce, &message));
        self.world.to_store(node, &message);
        // Now and then it is handed over again.
        let again = if node == 0 {
            self.setting.pattern.again
        } else {
            0
        };
        if self
            .world
            .random
            .chance(again.max(self.setting.network.repeated))
        {
            let delay = Duration::from_micros(self.world.random.below(300_000));
            self.world.after(delay, message);
        }
    }

    fn message(&mut self, node: usize, cell: usize, id: u64, message: &Message) {
        self.outcome.calls += 1;
        let now_us = self.world.store_us();
        let reply = self.store(cell).message(message, now_us);
        self.look_at(cell, &reply);
        let late_us = match node == 0 && reply.given > 0 {
            true => self.setting.pattern.late_us,
            false => 0,
        };
        let at_us = self.world.passed_us();
        let reply = event(move |fleet| fleet.replied(node, cell, id, &reply, at_us));
        if late_us == 0 || self.world.random.chance(600) {
            self.world.to_node(node, &reply);
        } else {
            let late_us = self.world.random.below(late_us);
            self.world
                .at_node(node, Duration::from_micros(late_us), reply);
        }
    }

    fn replied(&mut self, node: usize, cell: usize, id: u64, reply: &Reply, at_us: u64) {
        let now_us = self.world.clock_us(node);
        for (number, answer) in self.leases(node)[cell].answered(id, reply, now_us) {
            let Some(mut waiting) = self.waiting.remove(&number) else {
                // Nobody waits any more: a token that was taken for it goes back.
                if let Answer::Spent(spent, cost) = answer {
                    self.leases(node)[cell].put_back(spent.nonce, cost);
                }
                continue;
            };
            match answer {
                Answer::Admitted { .. } => self.admitted(&waiting, at_us),
                Answer::Spent(spent, _) => {
                    let now_us = self.world.passed_us();
                    waiting.held.push((cell, spent, now_us));
                    waiting.cells.clear();
                    self.admitted(&waiting, now_us);
                }
                Answer::Refused(_) => self.refused(&waiting),
            }
        }
        if self.leases(node)[cell].has_waiting() {
            self.speak(node, cell, Why::Asked);
        }
    }

    fn sweep(&mut self, node: usize) {
        let now_us = self.world.clock_us(node);
        for cell in 0..self.leases(node).len() {
            self.leases(node)[cell].sweep(now_us);
            if self.leases(node)[cell].has_something_to_say() {
                self.speak(node, cell, Why::Asked);
            }
        }
        let is_over = self.is_last && self.waiting.is_empty();
        if !is_over || self.leases(node).iter().any(Key::is_active) {
            let sweep = event(move |fleet| fleet.sweep(node));
            self.world.at_node(node, SWEEP, sweep);
        }
    }

    pub(super) fn put_back(&mut self, waiting: &Waiting) {
        for (cell, spent, _) in &waiting.held {
            // Of a lease that is closed, it stays spent.
            self.leases(waiting.node)[*cell].put_back(spent.nonce, waiting.cost);
        }
    }

    /// Leases run on after their ends, by as much as the clock was set. The store has
    /// charged them by then, and what drained of that in this time is spent once more: at
    /// most all that is out, and at most what the rate gives. A window may be over.
    pub(super) fn step_forward(&mut self, by_us: u64) {
        let (store_us, passed_us) = (self.world.store_us(), self.world.passed_us());
        for cell in 0..self.stores.len() {
            let limit = self.limit(cell);
            let keys = self.nodes.iter().filter_map(|node| match node {
                Node::Lease(keys) => keys.get(cell),
                Node::Exact(_) | Node::Background(_) => None,
            });
            let here: u64 = keys.map(Key::tokens).sum();
            // And what is on its way.
            let (_, out, _) = self.stores[cell]
                .clone()
                .check(limit, Cost::ONE, 0, store_us);
            let tokens = here.max(out.tokens.into());
            let tokens = match limit.kind() {
                Kind::TokenBucket(bucket) => {
                    let parts = u128::from(by_us) * u128::from(bucket.parts_per_us());
                    let drained = parts.div_ceil(bucket.token_parts().into());
                    tokens.min(u64::try_from(drained).unwrap_or(u64::MAX))
                }
                _ => tokens,
            };
            self.ledgers[cell].allow(passed_us, tokens, by_us);
        }
    }
}
