//! A node: asks the store within a deadline, unless it remembers a refusal.

use std::collections::HashMap;
use std::time::Duration;

use tidegate::{Cost, Decision, Policy};

use crate::refusals::{Refusals, Sent};

pub(super) struct Node {
    refusals: Refusals,
    /// Its clock against the world's: parts in a million, faster or slower.
    drift: i64,
    /// Questions on their way, by number.
    waiting: HashMap<u64, Waiting>,
    /// Nothing happens here before this.
    pub(super) paused_until: Duration,
}

struct Waiting {
    key: String,
    cost: Cost,
    sent: Sent,
}

impl Node {
    pub(super) fn new(policy: &Policy, drift: i64) -> Self {
        Self {
            refusals: Refusals::new(policy.refusal_memory()),
            drift,
            waiting: HashMap::new(),
            paused_until: Duration::ZERO,
        }
    }

    /// What its clock reads.
    fn clock(&self, now: Duration) -> Duration {
        drifted(now, self.drift)
    }

    /// A request comes: whether it is refused from memory, or has to be asked for.
    pub(super) fn remembers(&self, policy: &Policy, now: Duration, key: &str, cost: Cost) -> bool {
        let attributes = [("key", key)];
        let keys = policy.keys(&attributes).expect("the one attribute");
        let known = self.refusals.find(&keys, cost, self.clock(now));
        !known.is_empty()
    }

    /// A question leaves.
    pub(super) fn ask(&mut self, number: u64, now: Duration, key: &str, cost: Cost) {
        let sent = self.refusals.sent(self.clock(now));
        let key = key.to_owned();
        self.waiting.insert(number, Waiting { key, cost, sent });
    }

    /// An answer comes: whether anybody still waits for it.
    pub(super) fn hear(
        &mut self,
        policy: &Policy,
        number: u64,
        now: Duration,
        decision: &Decision,
    ) -> bool {
        let Some(waiting) = self.waiting.remove(&number) else {
            return false;
        };
        let now = self.clock(now);
        let attributes = [("key", &*waiting.key)];
        let keys = policy.keys(&attributes).expect("the one attribute");
        self.refusals
            .learn(&keys, waiting.cost, waiting.sent, decision, now);
        true
    }

    /// A charge was given back from here.
    pub(super) fn gave_back(&self, policy: &Policy, key: &str) {
        let attributes = [("key", key)];
        let keys = policy.keys(&attributes).expect("the one attribute");
        self.refusals.forget(&keys);
    }

    /// How many questions of it are on their way.
    pub(super) fn unanswered(&self) -> u64 {
        self.waiting.len() as u64
    }

    /// The deadline of a question: whether it was still waited for.
    pub(super) fn give_up(&mut self, number: u64) -> bool {
        self.waiting.remove(&number).is_some()
    }
}

/// A moment on a clock that runs wrong by so many parts in a million.
pub(super) fn drifted(now: Duration, drift: i64) -> Duration {
    let off = now.as_micros() * u128::from(drift.unsigned_abs()) / 1_000_000;
    let off = Duration::from_micros(u64::try_from(off).unwrap_or(0));
    match drift < 0 {
        true => now - off,
        false => now + off,
    }
}
