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
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::time::Duration;

use tidegate::algorithm::State;
use tidegate::{Cost, Decision, Keys, Policy, Receipt};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

use crate::call::Numbers;
use crate::count;
use crate::error::{ErrorKind, StoreError};
use crate::local;
use crate::script::Task;
use crate::store::RedisStore;
pub(crate) use table::{Outgoing, Table};
#[cfg(test)]
pub(crate) use unsent::{KEPT, Parcel, Unsent};

/// Keys that are told of at once.
const AT_ONCE: usize = 512;

/// How long the store may take to hear of something. Nobody waits for it, and what is
/// given up too early may be counted twice; but no connection is silent for longer.
const PATIENCE: Duration = Duration::from_secs(1);

/// The pauses before what has failed is tried again: the longest, and that of somebody
/// who is in a hurry.
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
const SHORT_PAUSE: Duration = Duration::from_millis(20);

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
    /// For this policy; what was there before goes on if it has the same keys.
    pub(crate) fn new(
        policy: &Policy,
        store: &RedisStore,
        before: Option<&Arc<Self>>,
    ) -> Arc<Self> {
        let levels = policy.levels().iter();
        let levels: Vec<_> = levels.map(|it| (it.name(), it.key().to_string())).collect();
        let tag: Vec<&str> = policy.tag().collect();
        let made_of = format!("{levels:?} {tag:?}");
        let sync_interval_us = u64::try_from(policy.sync_interval().as_micros()).unwrap_or(0);
        if let Some(before) = before
            && before.0.made_of == made_of
            && before.0.store.is_same(store)
        {
            before.0.sync_interval_us.store(sync_interval_us, Relaxed);
            return Arc::clone(before);
        }
        let (prefix, levels) = (store.prefix(), policy.levels().len());
        Arc::new(Self(Arc::new(Inner {
            table: Table::new(prefix, levels, local::now_us(), Duration::ZERO),
            store: store.clone(),
            sync_interval_us: AtomicU64::new(sync_interval_us),
            made_of,
            start: Instant::now(),
            is_running: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
            is_idle: AtomicBool::new(false),
            wake: Notify::new(),
            is_hurried: AtomicBool::new(false),
        })))
    }

    /// Decides. `None` where there is no room for a key.
    pub(crate) fn decide(&self, keys: &Keys<'_>, cost: Cost) -> Option<Decision> {
        let inner = &self.0;
        let (decision, is_more) = inner.table.decide(keys, cost, inner.start.elapsed())?;
        inner.start();
        if is_more && inner.is_idle.load(SeqCst) && inner.is_idle.swap(false, SeqCst) {
            inner.wake.notify_one();
        }
        Some(decision)
    }

    /// The store has admitted what there was no room for: the keys that are here know it.
    pub(crate) fn admitted(&self, keys: &Keys<'_>, cost: Cost) {
        self.0.table.admitted(keys, cost, self.0.start.elapsed());
    }

    /// Gives back what a decision about these keys charged, where the store has not been
    /// told of it. Says whether there was any of that.
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
        let told = async {
            while !self.0.table.is_told() {
                self.0.start();
                self.0.is_hurried.store(true, Relaxed);
                self.0.wake.notify_one();
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(within, told).await.is_ok()
    }
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
    let mut on_their_way: JoinSet<Result<(), StoreError>> = JoinSet::new();
    let (mut next, mut failures) = (Instant::now(), 0_u32);
    // Keys of this round that have not left, because there were too many at once.
    let mut left = 0;
    let mut end: Option<Instant> = None;
    loop {
        if end.is_none() && inner.is_over.load(Relaxed) {
            end = Some(Instant::now() + FAREWELL);
        }
        if end.is_some_and(|end| inner.table.is_told() || Instant::now() >= end) {
            return;
        }
        let most = left.min(AT_ONCE.saturating_sub(on_their_way.len()));
        if most > 0 {
            left -= most;
            for outgoing in inner.table.send(most, inner.start.elapsed()) {
                let inner = Arc::clone(inner);
                let flight = Flight {
                    inner,
                    outgoing,
                    has_arrived: false,
                };
                on_their_way.spawn(flight.tell());
            }
        }
        if inner.is_hurried.swap(false, Relaxed) || end.is_some() {
            let pause = if failures > 0 {
                SHORT_PAUSE
            } else {
                Duration::ZERO
            };
            next = next.min(Instant::now() + pause);
        }
        // First said, then looked: whoever adds a key after the look sees this.
        inner.is_idle.store(true, SeqCst);
        let has_more = inner.table.queued() > 0;
        inner.is_idle.store(!has_more, SeqCst);
        tokio::select! {
            biased;
            Some(told) = on_their_way.join_next() => match told {
                // A store that fails is not tried again and again.
                Ok(Err(error)) if !error.kind().is_about_a_key() => {
                    (left, failures) = (0, failures.saturating_add(1));
                    let pause = inner.sync_interval() * 2_u32.saturating_pow(failures.min(9));
                    let longest = LONGEST_PAUSE.max(inner.sync_interval());
                    next = Instant::now() + pause.min(longest);
                }
                _ => failures = 0,
            },
            () = sleep_until(next), if has_more && left == 0 => {
                left = inner.table.queued();
                next = Instant::now() + inner.sync_interval();
            }
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
    async fn tell(mut self) -> Result<(), StoreError> {
        let inner = &self.inner;
        let sent = inner.start.elapsed();
        let Outgoing { key, parcel, .. } = &self.outgoing;
        let told = inner.store.tell(key, parcel.limit, parcel.arguments());
        let heard = told.await?;
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

impl RedisStore {
    /// Tells the store what was admitted of a key: the time there, and what it has come
    /// to.
    async fn tell(
        &self,
        key: &str,
        limit: tidegate::Limit,
        arguments: Vec<Vec<u8>>,
    ) -> Result<(u64, State), StoreError> {
        let script = self.known_script(Task::Flush, &limit);
        let keys = vec![key.to_owned()];
        let reply = self.told(script, keys, arguments, PATIENCE).await?;
        let reply: Option<Vec<i64>> = redis::from_redis_value(reply).ok();
        let heard = reply.and_then(|reply| heard(&limit, &reply));
        heard.ok_or_else(|| StoreError::new(ErrorKind::Script, "no count"))
    }
}

/// What the script that is told says: the time there, and what it has come to.
pub(crate) fn heard(limit: &tidegate::Limit, reply: &[i64]) -> Option<(u64, State)> {
    let mut numbers = Numbers::new(reply);
    let now_us = numbers.next().ok()?;
    numbers.next().ok()?;
    let (count, _) = count::read(limit, now_us, &mut numbers).ok()?;
    numbers.end().ok()?;
    Some((now_us, count))
}
