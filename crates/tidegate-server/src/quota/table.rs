//! All buckets of a process, which of them is due, and how many there may be.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use super::bucket::{Bucket, Terms};
use super::{Assignment, SETTLE_S, whole};
use crate::serve::Reserved;

/// An Envoy that reports a bucket: one bucket id on one stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HolderId(u64);

/// A bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BucketId(u64);

/// What a bucket is charged to: a policy, and the attributes of a check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subject {
    /// The policy's name.
    pub policy: String,
    /// The attributes.
    pub attributes: Vec<(String, Vec<u8>)>,
}

/// What is to be done.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Tell an Envoy its assignment, which lasts for
    /// [`LIFETIME_S`](super::LIFETIME_S).
    Assign(HolderId, Assignment),
    /// Tell an Envoy to forget the bucket; it is no holder any more.
    Abandon(HolderId),
    /// Charge this much, or as much of it as there is, and say how much it was
    /// ([`Table::charged`]).
    Charge(BucketId, Arc<Subject>, u32),
}

/// There is no room for another bucket, or another Envoy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the quota table is full: {0} buckets on all streams together")]
pub struct Full(usize);

/// The buckets of a process. Times are in seconds since any moment, and never go back.
#[derive(Debug)]
pub struct Table {
    buckets: HashMap<BucketId, Entry>,
    /// Buckets by policy and key.
    names: HashMap<(String, String), BucketId>,
    holders: HashMap<HolderId, BucketId>,
    /// When each bucket is due, in microseconds.
    due: BTreeSet<(u64, BucketId)>,
    next: u64,
    /// Spreads the ticks of processes that compete.
    random: u64,
    started_s: f64,
    most: usize,
}

#[derive(Debug)]
struct Entry {
    bucket: Bucket,
    subject: Arc<Subject>,
    name: (String, String),
    due_us: u64,
    /// What it takes of the budget, as long as it is here.
    _room: Option<Arc<Reserved>>,
}

impl Table {
    /// An empty table for at most `most` buckets on all streams together.
    #[must_use]
    pub fn new(started_s: f64, seed: u64, most: usize) -> Self {
        Self {
            buckets: HashMap::new(),
            names: HashMap::new(),
            holders: HashMap::new(),
            due: BTreeSet::new(),
            next: 0,
            random: seed | 1,
            started_s,
            most,
        }
    }

    /// Buckets that are assigned.
    #[must_use]
    pub fn buckets(&self) -> usize {
        self.buckets.len()
    }

    /// Buckets on all streams together.
    #[must_use]
    pub fn holders(&self) -> usize {
        self.holders.len()
    }

    /// An Envoy reports a bucket for the first time on its stream; `key` is the bucket's key
    /// under the policy, and `room` what both take. It has admitted `used` requests per second before, if it had the
    /// bucket before, and `allowed` requests that nobody knows of yet.
    pub fn join(
        &mut self,
        now_s: f64,
        (subject, key, room): (Subject, String, Option<Arc<Reserved>>),
        terms: Terms,
        (allowed, used): (u64, f64),
        out: &mut Vec<Action>,
    ) -> Result<HolderId, Full> {
        if self.holders.len() >= self.most || self.buckets.len() >= self.most {
            return Err(Full(self.most));
        }
        let holder = HolderId(self.fresh());
        let name = (subject.policy.clone(), key);
        let id = match self.names.get(&name) {
            Some(id) => *id,
            None => {
                let id = BucketId(self.fresh());
                let entry = Entry {
                    bucket: Bucket::new(terms, now_s, self.started_s),
                    subject: Arc::new(subject),
                    name: name.clone(),
                    due_us: micros(now_s),
                    _room: room,
                };
                self.names.insert(name, id);
                self.due.insert((entry.due_us, id));
                self.buckets.insert(id, entry);
                id
            }
        };
        self.holders.insert(holder, id);
        if let Some(entry) = self.buckets.get_mut(&id) {
            entry.bucket.join(now_s, holder, used, out);
            let counts = (allowed as f64, 0.0);
            entry.bucket.report(now_s, holder, terms, counts, out);
        }
        self.step(now_s, id, out);
        Ok(holder)
    }

    /// What an Envoy has admitted and refused since its last report.
    pub fn report(
        &mut self,
        now_s: f64,
        holder: HolderId,
        terms: Terms,
        (allowed, denied): (u64, u64),
        out: &mut Vec<Action>,
    ) {
        let Some(id) = self.holders.get(&holder) else {
            return;
        };
        let Some(entry) = self.buckets.get_mut(id) else {
            return;
        };
        let counts = (allowed as f64, denied as f64);
        let before = out.len();
        entry.bucket.report(now_s, holder, terms, counts, out);
        if out[before..].contains(&Action::Abandon(holder)) {
            self.holders.remove(&holder);
        }
    }

    /// The stream of an Envoy has ended.
    pub fn leave(&mut self, now_s: f64, holder: HolderId) {
        let id = self.holders.remove(&holder);
        if let Some(entry) = id.and_then(|id| self.buckets.get_mut(&id)) {
            entry.bucket.leave(now_s, holder);
        }
    }

    /// A charge has come to this much.
    pub fn charged(&mut self, now_s: f64, id: BucketId, paid: u32, out: &mut Vec<Action>) {
        if let Some(entry) = self.buckets.get_mut(&id) {
            entry.bucket.charged(now_s, paid, out);
            self.schedule(now_s, id);
        }
    }

    /// Does what is due.
    pub fn tick(&mut self, now_s: f64, out: &mut Vec<Action>) {
        while let Some((due_us, id)) = self.due.first().copied() {
            if due_us > micros(now_s) {
                return;
            }
            self.step(now_s, id, out);
        }
    }

    /// When something is due, in seconds.
    #[must_use]
    pub fn due_s(&self) -> Option<f64> {
        self.due.first().map(|(due_us, _)| *due_us as f64 / 1e6)
    }

    fn step(&mut self, now_s: f64, id: BucketId, out: &mut Vec<Action>) {
        let Some(entry) = self.buckets.get_mut(&id) else {
            return;
        };
        let charge = entry.bucket.tick(now_s, out);
        out.extend(charge.map(|cost| Action::Charge(id, Arc::clone(&entry.subject), cost)));
        if entry.bucket.is_over() {
            self.due.remove(&(entry.due_us, id));
            self.names.remove(&entry.name);
            self.buckets.remove(&id);
        } else {
            self.schedule(now_s, id);
        }
    }

    /// The next tick comes after about a period, or as soon as others have made room.
    fn schedule(&mut self, now_s: f64, id: BucketId) {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let share = (self.random >> 11) as f64 / (1_u64 << 53) as f64;
        let Some(entry) = self.buckets.get_mut(&id) else {
            return;
        };
        let period_s = entry.bucket.period_s();
        let wait_s = match entry.bucket.is_hungry(now_s) {
            true => period_s.min(SETTLE_S + 0.05),
            false => period_s,
        };
        let due_us = micros(now_s + wait_s * (0.75 + share / 2.0));
        self.due.remove(&(entry.due_us, id));
        self.due.insert((due_us, id));
        entry.due_us = due_us;
    }

    fn fresh(&mut self) -> u64 {
        self.next += 1;
        self.next
    }
}

fn micros(time_s: f64) -> u64 {
    whole(time_s * 1e6)
}
