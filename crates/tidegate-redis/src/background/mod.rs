//! The mode `background`: a node decides on its own, by what it has admitted itself and
//! what it last heard from the store, and tells the store of it a moment later. Nobody
//! waits for the store.
//!
//! What is told is counted whether it fits or not, so that whatever the nodes together
//! have admitted too much is waited off before more is admitted. What could not be told
//! is kept, merged with what comes after it, and told again.
//!
//! [`Table`] is the state machine; here is what drives it.

mod entry;
mod table;
mod unsent;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed, Ordering::SeqCst};
use std::time::Duration;

use tidegate::{Cost, Decision, Keys, Policy, Receipt};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

use crate::call::Numbers;
use crate::count::Count;
use crate::error::{ErrorKind, StoreError};
use crate::local;
use crate::script::Task;
use crate::store::RedisStore;
pub(crate) use table::{Outgoing, Table};
#[cfg(test)]
pub(crate) use unsent::{KEPT, Parcel, Unsent};

/// Keys that are told of at once.
const AT_ONCE: usize = 1_024;

/// How long the store may take to hear of something. Nobody waits for it, and what is
/// given up too early is counted twice.
const PATIENCE: Duration = Duration::from_secs(5);

/// The longest pause before what has failed is tried again.
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// How long the store is tried to be told what is left, when nobody asks any more.
const FAREWELL: Duration = Duration::from_secs(10);

/// A policy that is decided here. The store is told by a task that ends some time after
/// the last of those who ask is gone.
#[derive(Debug)]
pub(crate) struct Background(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    table: Table,
    store: RedisStore,
    sync_interval: Duration,
    /// What the keys are made of: another policy with the same has the same keys.
    made_of: String,
    start: Instant,
    is_running: AtomicBool,
    is_over: AtomicBool,
    /// Whether the task has nothing to tell, and wants to hear when there is.
    is_idle: AtomicBool,
    wake: Notify,
    hurry: AtomicBool,
}

impl Background {
    /// For this policy; what was there before goes on if it has the same keys.
    pub(crate) fn new(
        policy: &Policy,
        store: &RedisStore,
        before: Option<&Arc<Self>>,
    ) -> Arc<Self> {
        let levels = policy.levels().iter();
        let levels: Vec<_> = levels.map(|it| (it.name(), it.key().to_string())).collect();
        let tag: Vec<&str> = policy.tag().collect();
        let sync_interval = policy.sync_interval();
        let made_of = format!("{levels:?} {tag:?} {sync_interval:?}");
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
            sync_interval,
            made_of,
            start: Instant::now(),
            is_running: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
            is_idle: AtomicBool::new(false),
            wake: Notify::new(),
            hurry: AtomicBool::new(false),
        })))
    }

    /// Decides. `None` where there is no room for a key.
    pub(crate) fn decide(&self, keys: &Keys<'_>, cost: Cost) -> Option<Decision> {
        let inner = &self.0;
        let (decision, is_more) = inner.table.decide(keys, cost, inner.start.elapsed())?;
        if !inner.is_running.load(Relaxed) && !inner.is_running.swap(true, Relaxed) {
            tokio::spawn(Arc::clone(inner).run());
        }
        if is_more && inner.is_idle.load(SeqCst) && inner.is_idle.swap(false, SeqCst) {
            inner.wake.notify_one();
        }
        Some(decision)
    }

    /// Gives back what a decision about these keys charged, where the store has not been
    /// told of it.
    /// Says whether it was one of those.
    pub(crate) fn give_back(&self, keys: &Keys<'_>, receipt: &Receipt) -> bool {
        let now = self.0.start.elapsed();
        self.0.table.give_back(keys, receipt, now)
    }

    /// Forgets keys, by what they are called in the store.
    pub(crate) fn forget(&self, stored: &[String]) {
        self.0.table.forget(stored);
    }

    /// Tells the store everything, now: whether it was told within this time.
    pub(crate) async fn flush(&self, within: Duration) -> bool {
        self.0.flush(within).await
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.0.is_over.store(true, Relaxed);
        self.0.wake.notify_one();
    }
}

impl Inner {
    async fn flush(&self, within: Duration) -> bool {
        let told = async {
            while !self.table.is_told() {
                self.hurry.store(true, Relaxed);
                self.wake.notify_one();
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(within, told).await.is_ok()
    }

    /// Tells the store, every interval, what there is to tell.
    async fn run(self: Arc<Self>) {
        let _running = Running(&self.is_running);
        let mut on_their_way: JoinSet<Result<(), StoreError>> = JoinSet::new();
        let mut pause = self.sync_interval;
        let mut next = Instant::now();
        let mut end: Option<Instant> = None;
        loop {
            if end.is_none() && self.is_over.load(Relaxed) {
                end = Some(Instant::now() + FAREWELL);
            }
            if let Some(end) = end
                && (self.table.is_told() || Instant::now() >= end)
            {
                return;
            }
            // First said, then looked: whoever adds a key after the look sees this.
            self.is_idle.store(true, SeqCst);
            let has_more = self.table.queued() > 0;
            self.is_idle.store(!has_more, SeqCst);
            let has_more = has_more && on_their_way.len() < AT_ONCE;
            tokio::select! {
                biased;
                Some(told) = on_their_way.join_next() => {
                    // A store that fails is not tried again and again.
                    pause = match told {
                        Ok(Err(error)) if !error.kind().is_about_a_key() => {
                            (pause * 2).min(LONGEST_PAUSE.max(self.sync_interval))
                        }
                        _ => self.sync_interval,
                    };
                    continue;
                }
                () = sleep_until(next), if has_more => {}
                () = self.wake.notified() => {
                    if !self.hurry.swap(false, Relaxed) {
                        continue;
                    }
                }
            }
            next = Instant::now() + pause;
            let now = self.start.elapsed();
            let room = AT_ONCE.saturating_sub(on_their_way.len());
            for outgoing in self.table.send(room, now) {
                on_their_way.spawn(Arc::clone(&self).tell(outgoing));
            }
        }
    }

    /// Tells the store of one key.
    async fn tell(self: Arc<Self>, outgoing: Outgoing) -> Result<(), StoreError> {
        let sent = self.start.elapsed();
        let parcel = &outgoing.parcel;
        let told = self
            .store
            .tell(&outgoing.key, parcel.limit, parcel.arguments());
        match told.await {
            Ok(heard) => {
                let now = self.start.elapsed();
                self.table.arrived(&outgoing, sent, now, heard);
                Ok(())
            }
            Err(error) => {
                self.table.failed(&outgoing);
                Err(error)
            }
        }
    }
}

/// The task is there; it may end with its runtime, and is then started anew.
struct Running<'a>(&'a AtomicBool);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.store(false, Relaxed);
    }
}

impl RedisStore {
    /// Tells the store what was admitted of a key: the time there, and what it has come
    /// to.
    async fn tell(
        &self,
        key: &str,
        limit: tidegate::Limit,
        arguments: Vec<Vec<u8>>,
    ) -> Result<(u64, Count), StoreError> {
        let script = self.known_script(Task::Flush, &limit);
        let keys = vec![key.to_owned()];
        let reply = self
            .script_within(script, keys, arguments, PATIENCE)
            .await?;
        let reply: Option<Vec<i64>> = redis::from_redis_value(reply).ok();
        let heard = reply.and_then(|reply| heard(&limit, &reply));
        heard.ok_or_else(|| StoreError::new(ErrorKind::Script, "no count"))
    }
}

/// What the script that is told says: the time there, and what it has come to.
pub(crate) fn heard(limit: &tidegate::Limit, reply: &[i64]) -> Option<(u64, Count)> {
    let mut numbers = Numbers::new(reply);
    let now_us = numbers.next().ok()?;
    numbers.next().ok()?;
    let (count, _) = Count::read(limit, now_us, &mut numbers).ok()?;
    numbers.end().ok()?;
    Some((now_us, count))
}
