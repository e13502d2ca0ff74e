//! Every order of events of a small fleet: two nodes that lease, a node in the mode
//! `exact`, a bucket of two or three tokens. The nodes are [`Key`]s as production has them,
//! the store is the arithmetic that the scripts are held to.
//!
//! A state is everything that can differ: the nodes, the store, what is on its way, the
//! time, and how much was admitted more than has drained. States that were seen before are
//! not gone through again. `TIDEGATE_DEPTH=12` searches further than a test should.

use std::collections::HashSet;
use std::hash::BuildHasher;

use foldhash::fast::FixedState;
use tidegate::{Cost, Limit};

use crate::mode::lease::kept::Store;
use crate::mode::lease::key::{Answer, Key};
use crate::mode::lease::message::{Message, Reply};
use crate::node::Why;

const START_US: u64 = 1_700_000_000_000_000;

/// What is on its way.
#[derive(Debug, Clone)]
enum Parcel {
    Message {
        node: usize,
        id: u64,
        message: Message,
    },
    Reply {
        node: usize,
        id: u64,
        reply: Reply,
    },
}

#[derive(Debug, Clone)]
struct State {
    nodes: [Key<u64>; 2],
    store: Store,
    parcels: Vec<Parcel>,
    now_us: u64,
    offset_us: i64,
    nonces: u64,
    /// What was admitted more than has drained, in microseconds of the rate, and since
    /// when.
    debt_us: u64,
    repeats: u8,
    steps: u8,
    crashes: u8,
}

struct Explorer {
    limit: Limit,
    token_us: u64,
    seen: HashSet<(u64, u64)>,
    most_us: u64,
    bound_us: u64,
    budget: u64,
}

impl Explorer {
    fn new(burst: u32, budget: u64) -> Self {
        // A token per 250 ms: a lease outlives four of them.
        let limit = Limit::parse(&format!("4r/s burst={burst}")).expect("a limit");
        Self {
            limit,
            token_us: 250_000,
            seen: HashSet::new(),
            most_us: 0,
            bound_us: u64::from(burst) * 250_000,
            budget,
        }
    }

    fn first(&self) -> State {
        let node = || Key::new(self.limit, 0);
        State {
            nodes: [node(), node()],
            store: Store::default(),
            parcels: Vec::new(),
            now_us: 0,
            offset_us: 0,
            nonces: 0,
            debt_us: 0,
            repeats: 0,
            steps: 0,
            crashes: 0,
        }
    }

    fn explore(&mut self, state: &State, depth: u32) {
        if depth == 0 || self.most_us > self.bound_us || self.budget == 0 {
            return;
        }
        let text = format!("{state:?}");
        let print = FixedState::with_seed(1).hash_one(&text);
        // A state that was reached with more steps left was gone through further.
        for deeper in depth..=depth + 16 {
            if self.seen.contains(&(print, u64::from(deeper))) {
                return;
            }
        }
        self.seen.insert((print, u64::from(depth)));
        self.budget -= 1;
        for next in self.next(state) {
            self.most_us = self.most_us.max(next.debt_us);
            self.explore(&next, depth - 1);
        }
    }

    fn next(&self, state: &State) -> Vec<State> {
        let mut all = Vec::new();
        for node in 0..2 {
            let mut next = state.clone();
            self.request(&mut next, node);
            all.push(next);
        }
        for at in 0..state.parcels.len() {
            // It arrives; it is lost; it arrives, and will once more.
            let mut next = state.clone();
            let parcel = next.parcels.remove(at);
            let mut lost = next.clone();
            if let Parcel::Message { node, id, .. } = parcel {
                lost.nodes[node].failed(id, true);
                all.push(lost);
            }
            if state.repeats < 1 {
                let mut twice = next.clone();
                twice.repeats += 1;
                twice.parcels.push(parcel.clone());
                self.arrive(&mut twice, parcel.clone());
                all.push(twice);
            }
            self.arrive(&mut next, parcel);
            all.push(next);
        }
        for by_us in [250_000, 500_000] {
            let mut next = state.clone();
            self.pass(&mut next, by_us);
            all.push(next);
        }
        for node in 0..2 {
            let mut next = state.clone();
            let now_us = next.now_us;
            next.nodes[node].sweep(now_us);
            self.message(&mut next, node);
            all.push(next);
        }
        if state.steps < 1 {
            // The store's clock steps back.
            let mut next = state.clone();
            next.steps += 1;
            next.offset_us -= 500_000;
            all.push(next);
        }
        if state.crashes < 1 {
            let mut next = state.clone();
            next.crashes += 1;
            next.nodes[0] = Key::new(self.limit, next.now_us);
            all.push(next);
        }
        // A node in the mode `exact` asks.
        let mut next = state.clone();
        let now_us = store_us(&next);
        let (_, _, admitted) = next.store.check(self.limit, Cost::ONE, 1, now_us);
        self.admit(&mut next, u64::from(admitted));
        all.push(next);
        all
    }

    fn admit(&self, state: &mut State, tokens: u64) {
        state.debt_us += tokens * self.token_us;
    }

    fn request(&self, state: &mut State, node: usize) {
        let now_us = state.now_us;
        let key = &mut state.nodes[node];
        // Always worth a lease.
        key.note(Cost::of(1_000));
        if key.spend(Cost::ONE, now_us).is_some() {
            self.admit(state, 1);
        } else if key.refuses(Cost::ONE, now_us).is_none() {
            key.wait(Cost::ONE, 0);
        }
        self.message(state, node);
    }

    fn message(&self, state: &mut State, node: usize) {
        let (now_us, nonce) = (state.now_us, state.nonces + 1);
        let key = &mut state.nodes[node];
        let message = key.message(now_us, Why::Wanted, || nonce);
        key.calm(now_us);
        if let Some(message) = message {
            state.nonces = nonce;
            let id = nonce;
            state.parcels.push(Parcel::Message { node, id, message });
        }
    }

    fn arrive(&self, state: &mut State, parcel: Parcel) {
        match parcel {
            Parcel::Message { node, id, message } => {
                let now_us = store_us(state);
                let reply = state.store.message(&message, now_us);
                // Admitted, whether anybody hears of it or not.
                let admitted = reply.admitted.iter().sum::<u32>();
                self.admit(state, admitted.into());
                state.parcels.push(Parcel::Reply { node, id, reply });
            }
            Parcel::Reply { node, id, reply } => {
                let now_us = state.now_us;
                let answers = state.nodes[node].answered(id, &reply, now_us);
                let spent = answers.iter();
                let spent = spent.filter(|(_, answer)| matches!(answer, Answer::Spent(..)));
                let spent = spent.count() as u64;
                self.admit(state, spent);
            }
        }
    }

    fn pass(&self, state: &mut State, by_us: u64) {
        state.now_us += by_us;
        state.debt_us = state.debt_us.saturating_sub(by_us);
        let now_us = store_us(state);
        let is_over = state.store.kept.as_ref();
        if is_over.is_some_and(|kept| kept.expires_ms * 1_000 <= now_us) {
            state.store.kept = None;
        }
    }
}

fn store_us(state: &State) -> u64 {
    (START_US + state.now_us).saturating_add_signed(state.offset_us)
}

/// The most that was admitted, against the bound, and how many states there were.
fn explore(burst: u32, depth: u32, budget: u64) -> (u64, u64, usize) {
    let mut explorer = Explorer::new(burst, budget);
    let first = explorer.first();
    explorer.explore(&first, depth);
    (explorer.most_us, explorer.bound_us, explorer.seen.len())
}

fn depth() -> u32 {
    let depth = std::env::var("TIDEGATE_DEPTH").ok();
    depth.and_then(|depth| depth.parse().ok()).unwrap_or(6)
}

#[test]
fn no_order_of_events_breaks_the_bound() {
    for burst in [2, 3] {
        let (most, bound, states) = explore(burst, depth(), u64::MAX);
        println!("burst {burst}: {states} states, depth {}", depth());
        assert!(most <= bound, "burst {burst}: {most} us, at most {bound}");
        assert!(states > 10_000, "only {states} states");
    }
}
