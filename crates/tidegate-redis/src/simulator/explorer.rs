//! Every order of events of a small fleet: two nodes that lease, a node in the mode
//! `exact`, a bucket of two or three tokens. The nodes are [`Key`]s as production has them,
//! the store is the arithmetic that the scripts are held to.
//!
//! A state is everything that can differ: the nodes, the store, what is on its way, the
//! time, and how much was admitted more than has drained. States that were seen before are
//! not gone through again. `TIDEGATE_DEPTH=12` searches further than a test should.

use std::collections::HashMap;
use std::hash::BuildHasher;

use foldhash::fast::FixedState;
use tidegate::{Cost, Limit};
use tidegate_testkit::simulation::START_US;

use crate::mode::lease::kept::Store;
use crate::mode::lease::key::{Answer, Key};
use crate::mode::lease::message::{Message, Reply};
use crate::node::Why;

/// A lease outlives four of them.
const TOKEN_US: u64 = 250_000;

/// What is on its way.
#[derive(Debug, Clone)]
enum Content {
    Message(Message),
    Reply(Reply),
}

/// From or to this node, by the number of its request.
type Parcel = (usize, u64, Content);

#[derive(Debug, Clone)]
struct State {
    nodes: [Key<u64>; 2],
    store: Store,
    parcels: Vec<Parcel>,
    now_us: u64,
    offset_us: i64,
    nonces: u64,
    /// What was admitted more than has drained, in microseconds of the rate.
    debt_us: u64,
    repeats: u8,
    steps: u8,
    crashes: u8,
}

impl State {
    fn store_us(&self) -> u64 {
        (START_US + self.now_us).saturating_add_signed(self.offset_us)
    }

    fn admit(&mut self, tokens: u32) {
        self.debt_us += u64::from(tokens) * TOKEN_US;
    }

    fn request(&mut self, node: usize) {
        let key = &mut self.nodes[node];
        // Always worth a lease.
        key.note(Cost::of(1_000));
        if key.spend(Cost::ONE, self.now_us).is_some() {
            self.admit(1);
        } else if key.refuses(Cost::ONE, self.now_us).is_none() {
            key.wait(Cost::ONE, 0);
        }
        self.message(node);
    }

    fn message(&mut self, node: usize) {
        let (now_us, nonce) = (self.now_us, self.nonces + 1);
        let key = &mut self.nodes[node];
        let message = key.message(now_us, Why::Wanted, || nonce);
        key.calm(now_us);
        if let Some(message) = message {
            self.nonces = nonce;
            self.parcels.push((node, nonce, Content::Message(message)));
        }
    }

    fn arrive(&mut self, (node, id, content): Parcel) {
        match content {
            Content::Message(message) => {
                let reply = self.store.message(&message, self.store_us());
                // Admitted, whether anybody hears of it or not.
                self.admit(reply.admitted.iter().sum());
                self.parcels.push((node, id, Content::Reply(reply)));
            }
            Content::Reply(reply) => {
                for (_, answer) in self.nodes[node].answered(id, &reply, self.now_us) {
                    self.admit(u32::from(matches!(answer, Answer::Spent(..))));
                }
            }
        }
    }

    /// Every state that may come next.
    fn next(&self, limit: Limit) -> Vec<Self> {
        let mut all = Vec::new();
        let mut may = |event: &dyn Fn(&mut Self)| {
            let mut next = self.clone();
            event(&mut next);
            all.push(next);
        };
        for node in 0..2 {
            may(&|next| next.request(node));
            may(&|next| {
                let now_us = next.now_us;
                next.nodes[node].sweep(now_us);
                next.message(node);
            });
        }
        for at in 0..self.parcels.len() {
            // It arrives; it arrives, and will once more; it is lost.
            may(&|next| {
                let parcel = next.parcels.remove(at);
                next.arrive(parcel);
            });
            if self.repeats < 1 {
                may(&|next| {
                    next.repeats += 1;
                    next.arrive(self.parcels[at].clone());
                });
            }
            if let (node, id, Content::Message(_)) = self.parcels[at] {
                may(&|next| {
                    next.parcels.remove(at);
                    next.nodes[node].failed(id, true);
                });
            }
        }
        for by_us in [TOKEN_US, 2 * TOKEN_US] {
            may(&|next| {
                next.now_us += by_us;
                next.debt_us = next.debt_us.saturating_sub(by_us);
                next.store.expire(next.store_us());
            });
        }
        if self.steps < 1 {
            // The store's clock steps back.
            may(&|next| {
                next.steps += 1;
                next.offset_us -= 500_000;
            });
        }
        if self.crashes < 1 {
            may(&|next| {
                next.crashes += 1;
                next.nodes[0] = Key::new(limit, next.now_us);
            });
        }
        // A node in the mode `exact` asks.
        may(&|next| {
            let now_us = next.store_us();
            let (_, _, admitted) = next.store.check(limit, Cost::ONE, 1, now_us);
            next.admit(admitted);
        });
        all
    }
}

struct Explorer {
    limit: Limit,
    bound_us: u64,
    most_us: u64,
    /// How many steps were left when a state was gone through.
    seen: HashMap<u64, u32, FixedState>,
}

impl Explorer {
    fn explore(&mut self, state: &State, depth: u32) {
        if depth == 0 || self.most_us > self.bound_us {
            return;
        }
        let print = FixedState::with_seed(1).hash_one(format!("{state:?}"));
        let before = self.seen.entry(print).or_default();
        if *before >= depth {
            return;
        }
        *before = depth;
        for next in state.next(self.limit) {
            self.most_us = self.most_us.max(next.debt_us);
            self.explore(&next, depth - 1);
        }
    }
}

#[test]
fn no_order_of_events_breaks_the_bound() {
    let depth = std::env::var("TIDEGATE_DEPTH").ok();
    let depth = depth.and_then(|it| it.parse().ok()).unwrap_or(6);
    for burst in [2, 3] {
        let limit = Limit::parse(&format!("4r/s burst={burst}")).expect("a limit");
        let mut explorer = Explorer {
            limit,
            bound_us: burst * TOKEN_US,
            most_us: 0,
            seen: HashMap::default(),
        };
        let first = State {
            nodes: [0, 0].map(|now_us| Key::new(limit, now_us)),
            store: Store::default(),
            parcels: Vec::new(),
            now_us: 0,
            offset_us: 0,
            nonces: 0,
            debt_us: 0,
            repeats: 0,
            steps: 0,
            crashes: 0,
        };
        explorer.explore(&first, depth);
        let (most, bound) = (explorer.most_us, explorer.bound_us);
        let states = explorer.seen.len();
        println!("burst {burst}: {states} states, depth {depth}");
        assert!(most <= bound, "burst {burst}: {most} us, at most {bound}");
        assert!(states > 10_000, "only {states} states");
    }
}
