//! What drives the keys of a policy: messages that are due at once leave with the check that
//! needs them, all others in rounds. A task sends the rounds while there is something to tell.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::time::Duration;

use futures_util::FutureExt;
use tidegate::{KeyHasher, Policy};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::process::{Process, now_us};
use super::table::{Envelope, Table};
use super::{Key, Why};
use crate::error::{ErrorKind, StoreError};
use crate::fingerprint::Fingerprint;
use crate::store::RedisStore;

/// Messages of a round that are in flight at once: they must not fill the queue of the store,
/// which checks need.
pub(crate) const AT_ONCE: usize = 512;

/// The longest pause after a failure, and the pause of a node that is in a hurry.
const LONGEST_PAUSE_US: u64 = 500_000;
const SHORT_PAUSE_US: u64 = 20_000;

/// How long the store is tried to be told what is left, when nobody asks any more.
const FAREWELL_US: u64 = 10_000_000;

/// A policy whose checks this node decides. When it is dropped, the store is told the rest.
#[derive(Debug)]
pub(crate) struct Node<K: Key>(Arc<Inner<K>>);

#[derive(Debug)]
struct Inner<K: Key> {
    table: Table<K>,
    /// The process that the keys are of. Its children ask as in the mode `exact`, and leave
    /// the table alone: one of their parent's threads may have had a lock on it.
    process: Process,
    store: RedisStore,
    /// What the keys are made of: another policy with the same has the same keys.
    made_of: String,
    interval_us: AtomicU64,
    is_running: AtomicBool,
    is_hurried: AtomicBool,
    is_over: AtomicBool,
    /// Lets the task look at `is_hurried` and `is_over`.
    wake: Notify,
}

impl<K: Key> Node<K> {
    /// For this policy, with a round in every interval.
    pub(crate) fn new(
        policy: &Policy,
        store: &RedisStore,
        table: Table<K>,
        interval: Duration,
    ) -> Self {
        let node = Self(Arc::new(Inner {
            table,
            process: Process::this(),
            store: store.clone(),
            made_of: made_of(policy),
            interval_us: AtomicU64::new(0),
            is_running: AtomicBool::new(false),
            is_hurried: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
            wake: Notify::new(),
        }));
        node.set_interval(interval);
        node
    }

    /// Itself, if this policy has the same keys.
    pub(crate) fn for_policy(
        self: &Arc<Self>,
        policy: &Policy,
        store: &RedisStore,
    ) -> Option<Arc<Self>> {
        let is_same = Arc::ptr_eq(&self.0.store.0, &store.0) && self.0.made_of == made_of(policy);
        (self.0.process.is_this() && is_same).then(|| Arc::clone(self))
    }

    pub(crate) fn set_interval(&self, interval: Duration) {
        let interval_us = u64::try_from(interval.as_micros()).unwrap_or(u64::MAX);
        self.0.interval_us.store(interval_us, Relaxed);
    }

    #[cfg(test)]
    pub(crate) fn interval(&self) -> Duration {
        Duration::from_micros(self.0.interval_us.load(Relaxed))
    }

    /// The keys; none in a process that was forked.
    #[inline]
    pub(crate) fn table(&self) -> Option<&Table<K>> {
        self.0.process.is_this().then_some(&self.0.table)
    }

    /// Does something with a key, if it is here.
    pub(crate) fn with_key<T>(
        &self,
        fingerprint: Fingerprint,
        change: impl FnOnce(&mut K) -> T,
    ) -> Option<T> {
        let mut shard = self.table()?.write(fingerprint);
        shard.get_mut(fingerprint).map(change)
    }

    /// What makes fingerprints of the keys.
    #[inline]
    pub(crate) fn hasher(&self) -> &KeyHasher {
        self.0.table.hasher()
    }

    /// Sends what there is to say about a key now. A store that is known to be down answers at
    /// once, without a task, so that a check need not wait for one.
    #[cold]
    pub(crate) fn send(&self, fingerprint: Fingerprint, why: Why) {
        if let Some(envelope) = self.0.table.message(fingerprint, why, now_us()) {
            let mut flight = Box::pin(self.0.flight(envelope).fly());
            if flight.as_mut().now_or_never().is_none() {
                tokio::spawn(flight);
            }
            self.start();
        }
    }

    /// Starts the task that sends rounds, if it is not there. It may have ended with its
    /// runtime.
    pub(crate) fn start(&self) {
        self.0.start();
    }

    /// Forgets keys, by what they are called in the store.
    pub(crate) fn forget(&self, stored: &[String]) {
        if let Some(table) = self.table() {
            table.forget(stored, now_us());
        }
    }

    /// Tells the store everything, now. Returns whether it was told within this time.
    pub(crate) async fn flush(&self, within: Duration) -> bool {
        let told = async {
            while self.table().is_some_and(|table| !table.is_told()) {
                self.start();
                self.0.is_hurried.store(true, Relaxed);
                self.0.wake.notify_one();
                sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(within, told).await.is_ok()
    }
}

impl<K: Key> Drop for Node<K> {
    fn drop(&mut self) {
        self.0.is_over.store(true, SeqCst);
        self.0.wake.notify_one();
    }
}

fn made_of(policy: &Policy) -> String {
    let levels = policy.levels().iter();
    let levels: Vec<_> = levels.map(|it| (it.name(), it.key().to_string())).collect();
    let tag: Vec<&str> = policy.tag().collect();
    format!("{levels:?} {tag:?}")
}

impl<K: Key> Inner<K> {
    fn start(self: &Arc<Self>) {
        if !self.is_running.load(SeqCst) && !self.is_running.swap(true, SeqCst) {
            tokio::spawn(run(Running(Arc::clone(self))));
        }
    }

    fn flight(self: &Arc<Self>, envelope: Envelope<K::Message>) -> Flight<K> {
        Flight {
            node: Arc::clone(self),
            envelope: Some(envelope),
        }
    }
}

/// A message on its way, and those that follow from its answer. One that is dropped on its
/// way has failed.
struct Flight<K: Key> {
    node: Arc<Inner<K>>,
    envelope: Option<Envelope<K::Message>>,
}

impl<K: Key> Flight<K> {
    async fn fly(mut self) -> Result<(), StoreError> {
        while let Some(envelope) = &self.envelope {
            let node = &self.node;
            let reply = K::send(&node.store, &envelope.stored, &envelope.message).await;
            if !node.process.is_this() {
                break;
            }
            match reply {
                Ok(reply) => self.envelope = node.table.answered(envelope, reply, now_us()),
                Err(error) => {
                    node.table.failed(envelope, &error);
                    self.envelope = None;
                    return Err(error);
                }
            }
        }
        Ok(())
    }
}

impl<K: Key> Drop for Flight<K> {
    fn drop(&mut self) {
        if let Some(envelope) = self.envelope.take()
            && self.node.process.is_this()
        {
            let error = StoreError::new(ErrorKind::OutcomeUnknown, "the runtime has ended");
            self.node.table.failed(&envelope, &error);
        }
    }
}

/// When a node sends what is not due at once: in rounds, one per interval. A round looks at
/// every key that was listed when it began, as long as few enough messages are in flight. A
/// state machine without its own clock.
#[derive(Debug, Default)]
pub(crate) struct Rounds {
    /// When the next one may begin.
    next_us: u64,
    /// Keys that this one has still to look at.
    left: usize,
    /// Rounds in a row that have failed, and whether this one has.
    failures: u32,
    has_failed: bool,
}

impl Rounds {
    /// The messages to send now, at most so many. Begins a round when the last one is over
    /// and it is time.
    pub(crate) fn messages<K: Key>(
        &mut self,
        table: &Table<K>,
        (why, most): (Why, usize),
        interval_us: u64,
        now_us: u64,
    ) -> Vec<Envelope<K::Message>> {
        if self.left == 0 && now_us >= self.next_us {
            self.left = table.listed();
            if self.left > 0 {
                self.next_us = now_us.saturating_add(interval_us);
                self.has_failed = false;
            }
        }
        let mut messages = Vec::new();
        while self.left > 0 && messages.len() < most {
            let keys = self.left.min(most - messages.len());
            self.left -= keys;
            table.visit(keys, why, now_us, &mut messages);
        }
        messages
    }

    /// A message has arrived, or the store has answered that its key is bad.
    pub(crate) fn arrived(&mut self) {
        self.failures = 0;
    }

    /// The store has failed: ends the round and waits, longer each time.
    pub(crate) fn failed(&mut self, interval_us: u64, now_us: u64) {
        self.left = 0;
        // All messages of a round may fail together: that is one failure.
        if !self.has_failed {
            self.has_failed = true;
            self.failures = self.failures.saturating_add(1);
        }
        let pause_us = interval_us.saturating_mul(1 << self.failures.min(9));
        let pause_us = pause_us.min(LONGEST_PAUSE_US.max(interval_us));
        self.next_us = now_us.saturating_add(pause_us);
    }

    /// Begins the next round at once, or after a short pause while the store fails.
    pub(crate) fn hurry(&mut self, now_us: u64) {
        let pause_us = match self.failures {
            0 => 0,
            _ => SHORT_PAUSE_US,
        };
        self.next_us = self.next_us.min(now_us + pause_us);
    }

    /// When the next round may begin, unless this one waits for messages to arrive.
    pub(crate) fn next_us(&self) -> Option<u64> {
        (self.left == 0).then_some(self.next_us)
    }
}

/// Sends rounds until there is nothing to tell.
async fn run<K: Key>(running: Running<K>) {
    let node = Arc::clone(&running.0);
    let mut flights = JoinSet::new();
    let mut rounds = Rounds::default();
    let mut end_us = None;
    while node.process.is_this() {
        let (now_us, interval_us) = (now_us(), node.interval_us.load(Relaxed));
        if node.is_over.load(SeqCst) {
            let end_us = *end_us.get_or_insert(now_us + FAREWELL_US);
            if now_us >= end_us || node.table.is_told() {
                return;
            }
        }
        let mut why = Why::Round;
        if node.is_hurried.swap(false, Relaxed) || end_us.is_some() {
            rounds.hurry(now_us);
            why = Why::Over;
        }
        let room = AT_ONCE.saturating_sub(flights.len());
        for envelope in rounds.messages(&node.table, (why, room), interval_us, now_us) {
            flights.spawn(node.flight(envelope).fly());
        }
        let next_us = rounds.next_us();
        let is_idle = flights.is_empty() && node.table.listed() == 0;
        if is_idle && next_us.is_some_and(|next_us| now_us >= next_us) {
            break;
        }
        let pause = Duration::from_micros(next_us.unwrap_or(0).saturating_sub(now_us));
        tokio::select! {
            biased;
            Some(landed) = flights.join_next() => match landed {
                // A store that fails is not tried again and again.
                Ok(Err(error)) if !error.kind().is_about_a_key() => {
                    rounds.failed(interval_us, self::now_us());
                }
                _ => rounds.arrived(),
            },
            () = sleep(pause), if next_us.is_some() => {}
            () = node.wake.notified() => {}
        }
    }
    drop(running);
    if node.process.is_this() && node.table.listed() > 0 {
        // Listed after the last look, when this still seemed to run.
        node.start();
    }
}

/// The task is there, until this is dropped.
struct Running<K: Key>(Arc<Inner<K>>);

impl<K: Key> Drop for Running<K> {
    fn drop(&mut self) {
        self.0.is_running.store(false, SeqCst);
    }
}
