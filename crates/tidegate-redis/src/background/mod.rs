//! The mode `background`: a node decides on its own, by what it has admitted itself and
//! what it last heard from the store, and tells the store of it a moment later. Nobody
//! waits for the store.
//!
//! What is told is counted whether it fits or not, so that whatever the nodes together
//! have admitted too much is waited off before more is admitted. What could not be told
//! is kept, merged with what comes after it, and told again.
//!
//! [`Table`] and [`Sender`] are the state machines; here is what drives them.

mod entry;
mod sender;
mod table;
mod unsent;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::time::Duration;

use tidegate::algorithm::State;
use tidegate::{Cost, Keys, Policy, Receipt};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

use crate::call::Numbers;
use crate::count;
use crate::error::{ErrorKind, StoreError};
use crate::local;
use crate::script::Task;
use crate::store::RedisStore;
pub(crate) use sender::Sender;
pub(crate) use table::{Decided, KEYS, Outgoing, Table};
#[cfg(test)]
pub(crate) use unsent::{KEPT, Parcel, Unsent};

/// How long the store may take to hear of something. Nobody waits for it, and what is
/// given up too early may be counted twice; but no connection is silent for longer.
const PATIENCE: Duration = Duration::from_secs(1);

/// How long the store is tried to be told what is left, when nobody asks any more.
const FAREWELL: Duration = Duration::from_secs(10);

/// A policy that is decided here. A task reports to the store, and ends some time after
/// the last caller is gone.
#[derive(Debug)]
pub(crate) struct Background(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    table: Table,
    store: RedisStore,
    sync_interval_us: AtomicU64,
    /// What the keys are made of: another policy with the same has the same keys.
    made_of: String,
    start: Instant,
    is_running: AtomicBool,
    is_over: AtomicBool,
    /// Whether the task has nothing to tell, and wants to hear when there is.
    is_idle: AtomicBool,
    wake: Notify,
    is_hurried: AtomicBool,
}

impl Background {
    /// For this policy; what was there before goes on, unchanged, if it has the same keys.
    pub(crate) fn new(
        policy: &Policy,
        store: &RedisStore,
        before: Option<&Arc<Self>>,
    ) -> Arc<Self> {
        let levels = policy.levels().iter();
        let levels: Vec<_> = levels.map(|it| (it.name(), it.key().to_string())).collect();
        let tag: Vec<&str> = policy.tag().collect();
        let made_of = format!("{levels:?} {tag:?}");
        if let Some(before) = before
            && before.0.made_of == made_of
            && before.0.store.is_same(store)
        {
            return Arc::clone(before);
        }
        let (prefix, levels) = (store.prefix(), policy.levels().len());
        Arc::new(Self(Arc::new(Inner {
            table: Table::new(prefix, levels, local::now_us(), Duration::ZERO),
            store: store.clone(),
            sync_interval_us: AtomicU64::new(micros(policy.sync_interval())),
            made_of,
            start: Instant::now(),
            is_running: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
            is_idle: AtomicBool::new(false),
            wake: Notify::new(),
            is_hurried: AtomicBool::new(false),
        })))
    }

    /// Tells the store this often from now on.
    pub(crate) fn set_sync_interval(&self, interval: Duration) {
        let interval_us = micros(interval);
        self.0.sync_interval_us.store(interval_us, Relaxed);
    }

    #[cfg(test)]
    pub(crate) fn sync_interval(&self) -> Duration {
        self.0.sync_interval()
    }

    /// Decides. `None` where there is no room for a key, and none that is here refuses.
    pub(crate) fn decide(&self, keys: &Keys<'_>, cost: Cost) -> Option<Decided> {
        let inner = &self.0;
        let decided = inner.table.decide(keys, cost, inner.start.elapsed())?;
        inner.start();
        if decided.is_more && inner.is_idle.load(SeqCst) && inner.is_idle.swap(false, SeqCst) {
            inner.wake.notify_one();
        }
        Some(decided)
    }

    /// The store has admitted what there was no room for: the keys that are here know it.
    pub(crate) fn admitted(&self, keys: &Keys<'_>, cost: Cost) {
        self.0.table.admitted(keys, cost, self.0.start.elapsed());
    }

    /// Gives back what a node has charged for these keys, where the store has not been
    /// told of it. Says whether there was any of that; `None` for a charge of the store.
    pub(crate) fn give_back(&self, keys: &Keys<'_>, receipt: &Receipt) -> Option<bool> {
        let is_of_a_node = receipt.charges().any(|(_, mark)| table::is_parcel(mark));
        let now = self.0.start.elapsed();
        is_of_a_node.then(|| self.0.table.give_back(keys, receipt, now))
    }

    /// Forgets keys, by what they are called in the store.
    pub(crate) fn forget(&self, stored: &[String]) {
        self.0.table.forget(stored);
    }

    /// Tells the store everything, now: whether it was told within this time.
    pub(crate) async fn flush(&self, within: Duration) -> bool {
        let synced = async {
            while !self.0.table.is_synced() {
                self.0.start();
                self.0.is_hurried.store(true, Relaxed);
                self.0.wake.notify_one();
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(within, synced).await.is_ok()
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

impl Drop for Background {
    fn drop(&mut self) {
        self.0.is_over.store(true, Relaxed);
        self.0.wake.notify_one();
    }
}

impl Inner {
    /// Starts the task that tells the store, if it is not there.
    fn start(self: &Arc<Self>) {
        if !self.is_running.load(Relaxed) && !self.is_running.swap(true, Relaxed) {
            let running = Running(Arc::clone(self));
            tokio::spawn(run(running));
        }
    }

    fn sync_interval(&self) -> Duration {
        Duration::from_micros(self.sync_interval_us.load(Relaxed))
    }
}

/// Tells the store, every interval, what there is to tell.
async fn run(running: Running) {
    let inner = &running.0;
    let mut flights: JoinSet<Result<(), StoreError>> = JoinSet::new();
    let mut sender = Sender::default();
    let mut end: Option<Instant> = None;
    loop {
        if end.is_none() && inner.is_over.load(Relaxed) {
            end = Some(Instant::now() + FAREWELL);
        }
        if end.is_some_and(|end| inner.table.is_synced() || Instant::now() >= end) {
            return;
        }
        if inner.is_hurried.swap(false, Relaxed) || end.is_some() {
            sender.hurry(inner.start.elapsed());
        }
        let now = inner.start.elapsed();
        for outgoing in sender.send(&inner.table, inner.sync_interval(), now) {
            let flight = Flight {
                inner: Arc::clone(inner),
                outgoing,
                has_arrived: false,
            };
            flights.spawn(flight.flush());
        }
        // Set before the look: a task that adds a key after the look sees it.
        inner.is_idle.store(true, SeqCst);
        let next = sender.wakes_at(&inner.table);
        inner.is_idle.store(next.is_none(), SeqCst);
        tokio::select! {
            biased;
            Some(landed) = flights.join_next() => match landed {
                // A store that fails is not tried again and again.
                Ok(Err(error)) if !error.kind().is_about_a_key() => {
                    let now = inner.start.elapsed();
                    sender.failed(&inner.table, inner.sync_interval(), now);
                }
                _ => sender.arrived(),
            },
            () = sleep_until(inner.start + next.unwrap_or_default()), if next.is_some() => {}
            () = inner.wake.notified() => {}
        }
    }
}

/// The task is there; it may end with its runtime, and is then started anew.
struct Running(Arc<Inner>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.is_running.store(false, Relaxed);
    }
}

/// A parcel on its way. If that ends in any way but by its arrival, it has failed.
struct Flight {
    inner: Arc<Inner>,
    outgoing: Outgoing,
    has_arrived: bool,
}

impl Flight {
    async fn flush(mut self) -> Result<(), StoreError> {
        let inner = &self.inner;
        let sent = inner.start.elapsed();
        let Outgoing { key, parcel, .. } = &self.outgoing;
        let script = inner.store.known_script(Task::Flush, &parcel.limit);
        let (key, argument) = (key.clone(), parcel.argument());
        let within = PATIENCE.max(inner.store.timeout());
        let message = inner.store.message(&script, key, argument, within, false);
        let reply = message.await?;
        let numbers = script.numbers(&reply);
        let heard = numbers.and_then(|numbers| heard(&parcel.limit, &numbers));
        let heard = heard.ok_or_else(|| StoreError::new(ErrorKind::Script, "no count"))?;
        let now = inner.start.elapsed();
        inner.table.arrived(&self.outgoing, sent, now, heard);
        self.has_arrived = true;
        Ok(())
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        if !self.has_arrived {
            self.inner.table.failed(&self.outgoing);
        }
    }
}

/// The reply of the script: the store's time, and the count over all nodes.
pub(crate) fn heard(limit: &tidegate::Limit, reply: &[i64]) -> Option<(u64, State)> {
    let mut numbers = Numbers::new(reply);
    let now_us = numbers.next().ok()?;
    numbers.next().ok()?;
    let (count, _) = count::read(limit, now_us, &mut numbers).ok()?;
    numbers.end().ok()?;
    Some((now_us, count))
}
