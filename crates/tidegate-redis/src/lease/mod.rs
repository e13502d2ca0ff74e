//! The mode `lease`: a node takes tokens out of the store ahead of time and spends them
//! itself. The fleet keeps to the limit as in the mode `exact`, because what is out is not
//! there for anybody else.
//!
//! [`Key`](key::Key) is the state machine of one key. Here is what drives it: messages that
//! leave when somebody waits or a lease is half spent, and a sweep every 50 ms while there
//! are leases.

mod clock;
mod cold;
mod fork;
pub(crate) mod held;
#[cfg(test)]
pub(crate) mod kept;
pub(crate) mod key;
pub(crate) mod message;
mod near;
pub(crate) mod out;
#[cfg(test)]
mod rules;
mod table;

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::task::{Context, Poll};
use std::time::Duration;

use smallvec::SmallVec;
use tidegate::{Cost, Keys, LevelKey, Policy, Receipt};
use tokio::sync::{Semaphore, oneshot};
use tokio::time::{Instant, sleep, timeout};

use crate::error::{ErrorKind, StoreError};
use crate::fingerprint::Fingerprint;
use crate::script::Task;
use crate::store::RedisStore;
use fork::Process;
use held::Lease;
pub(crate) use held::Spent;
pub(crate) use key::{Answer, Reason, Refused};
use message::{Reply, TERM_US};
use table::{Outgoing, Table, Taken};

/// How often keys that have leases are looked after.
const SWEEP: Duration = Duration::from_millis(50);

/// How long the store is tried to be told what is left, when nobody asks any more.
const FAREWELL: Duration = Duration::from_secs(2);

/// Messages of a sweep that are in flight at once. When many keys fall idle together, their
/// returns must not fill the queue of the store, which checks need.
const RETURNS: u32 = 512;

/// Marks of tokens from a lease have this bit, ten of the lease's nonce, and 53 of the era.
const LEASED: u64 = 1 << 63;
const ERA_BITS: u32 = 53;

/// A policy that leases.
#[derive(Debug)]
pub(crate) struct Leases(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    table: Table,
    /// The process that has the leases. Its children ask as in the mode `exact`, and leave
    /// the table alone: one of their parent's threads may have had a lock on it.
    process: Process,
    store: RedisStore,
    /// What the keys are made of: another policy with the same has the same keys.
    made_of: String,
    /// Permits for the messages of a sweep.
    returns: Arc<Semaphore>,
    is_running: AtomicBool,
    is_over: AtomicBool,
}

/// What a policy that leases has been through on this node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct LeaseStats {
    /// Tokens that are here to be spent.
    pub leased_tokens: u64,
    /// Leases that the store has granted, and their tokens.
    pub grants: u64,
    /// The tokens of those leases.
    pub granted_tokens: u64,
    /// Leases that were returned.
    pub settles: u64,
    /// Leases that could not be returned in time: the store counts all of their tokens.
    pub lapsed: u64,
    /// Messages about keys that were sent to the store.
    pub messages: u64,
}

/// What a check has got of its levels before the store is asked. What it holds goes back
/// unless it is [kept](Self::keep).
pub(crate) struct Taking<'l> {
    leases: &'l Leases,
    pub(crate) levels: SmallVec<[Level; 2]>,
    cost: Cost,
    is_kept: bool,
}

/// One level of a check.
pub(crate) struct Level {
    fingerprint: Fingerprint,
    pub(crate) got: Got,
}

/// What there is of a level.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Got {
    Spent(Spent),
    Refused(Refused),
    /// Nothing, but it may be worth a lease: how much was asked for, if the key does not
    /// know.
    Missing(Option<f64>),
    /// Nothing, and it is not worth a lease.
    Cold,
}

impl Leases {
    /// For this policy. The leases of the policy before go on if it has the same keys.
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
            && before.0.process.is_this()
            && before.0.store.is_same(store)
        {
            return Arc::clone(before);
        }
        Arc::new(Self(Arc::new(Inner {
            table: Table::new(store.prefix()),
            process: Process::this(),
            store: store.clone(),
            made_of,
            returns: Arc::new(Semaphore::new(RETURNS as usize)),
            is_running: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
        })))
    }

    /// Takes tokens of a lease that this thread has spent before.
    #[inline]
    pub(crate) fn spend(&self, key: &LevelKey<'_>, cost: Cost) -> Option<Spent> {
        if !self.0.process.is_this() {
            return None;
        }
        let now_us = clock::now_us();
        let fingerprint = self.0.table.fingerprint(key);
        let spent = near::spend(fingerprint, cost, now_us)?;
        if spent.is_half {
            self.0.speak(fingerprint, Reason::Usual);
        }
        Some(spent)
    }

    /// Takes tokens of every level that has a lease here.
    pub(crate) fn take(&self, keys: &Keys<'_>, cost: Cost) -> Taking<'_> {
        let table = &self.0.table;
        let now_us = clock::now_us();
        let mut levels: SmallVec<[Level; 2]> = SmallVec::new();
        let is_ours = self.0.process.is_this();
        for key in keys.iter() {
            let fingerprint = table.fingerprint(&key);
            if !is_ours {
                let got = Got::Cold;
                levels.push(Level { fingerprint, got });
                continue;
            }
            let got = match table.take(fingerprint, key.limit(), cost, now_us) {
                Taken::Spent(spent) => {
                    if spent.is_half {
                        self.0.speak(fingerprint, Reason::Usual);
                    }
                    Got::Spent(spent)
                }
                Taken::Refused(refused) => Got::Refused(refused),
                Taken::Missing(demand) => Got::Missing(demand),
                Taken::Cold => Got::Cold,
            };
            levels.push(Level { fingerprint, got });
        }
        Taking {
            leases: self,
            levels,
            cost,
            is_kept: false,
        }
    }

    /// What was spent of the leases of a key since this was last asked.
    pub(crate) fn newly_spent(&self, key: &LevelKey<'_>) -> Option<Cost> {
        let table = &self.0.table;
        let is_ours = self.0.process.is_this();
        let spent = is_ours.then(|| table.newly_spent(table.fingerprint(key), clock::now_us()))?;
        Cost::new(spent.min(u32::MAX.into())).ok()
    }

    /// Asks the store for one level, and waits for the answer for as long as a check may
    /// take. `None` where it is asked for as in the mode `exact`.
    pub(crate) async fn ask(
        &self,
        level: &Level,
        key: &LevelKey<'_>,
        cost: Cost,
    ) -> Option<Result<Answer, StoreError>> {
        let (sender, answer) = oneshot::channel();
        let now_us = clock::now_us();
        let (table, asked) = (&self.0.table, (cost, level.got.demand()));
        match table.wait(level.fingerprint, key, asked, Some(sender), now_us) {
            Ok(true) => {}
            Ok(false) => return None,
            Err(error) => return Some(Err(error)),
        }
        self.0.speak_at_once(level.fingerprint).await;
        let within = self.0.store.timeout();
        Some(match timeout(within, answer).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) | Err(_) => {
                let detail = "no answer within the deadline";
                Err(StoreError::new(ErrorKind::Timeout, detail))
            }
        })
    }

    /// Wants a lease of a level that the store is asked for in another way.
    pub(crate) fn want(&self, level: &Level, key: &LevelKey<'_>, cost: Cost) {
        let now_us = clock::now_us();
        let (table, asked) = (&self.0.table, (cost, level.got.demand()));
        if let Ok(true) = table.wait(level.fingerprint, key, asked, None, now_us) {
            self.0.speak(level.fingerprint, Reason::Wanted);
        }
    }

    /// The leases that a receipt is of, level by level, while they are open.
    pub(crate) fn open_leases(
        &self,
        keys: &Keys<'_>,
        receipt: &Receipt,
    ) -> SmallVec<[Option<(Fingerprint, u64, Cost)>; 2]> {
        let table = &self.0.table;
        let levels = keys.iter().zip(receipt.charges());
        let is_ours = self.0.process.is_this();
        let levels = levels.map(|(key, (cost, mark))| {
            if !is_ours {
                return None;
            }
            let fingerprint = table.fingerprint(&key);
            let is_meant = |lease: &Lease| is_of(lease, mark, receipt.decided_at_us());
            let nonce = table.open_lease(fingerprint, is_meant)?;
            Some((fingerprint, nonce, cost))
        });
        levels.collect()
    }

    /// Puts tokens back into a lease, unless it was closed. Says whether it did.
    pub(crate) fn put_back(&self, fingerprint: Fingerprint, nonce: u64, cost: Cost) -> bool {
        self.0.process.is_this() && self.0.table.put_back(fingerprint, nonce, cost)
    }

    /// A charge of these keys was given back: what the store has refused before, it may admit.
    pub(crate) fn refunded(&self, keys: &Keys<'_>) {
        if self.0.process.is_this() {
            let table = &self.0.table;
            for key in keys.iter() {
                table.refunded(table.fingerprint(&key), clock::now_us());
            }
        }
    }

    /// Forgets keys, by what they are called in the store.
    pub(crate) fn forget(&self, stored: &[String]) {
        if self.0.process.is_this() {
            self.0.table.forget(stored);
        }
    }

    /// Returns all leases, now: whether the store has heard of that within this time.
    pub(crate) async fn flush(&self, within: Duration) -> bool {
        let returned = async {
            while self.0.process.is_this() && self.0.table.is_active() {
                self.0.sweep(true);
                sleep(Duration::from_millis(2)).await;
            }
        };
        timeout(within, returned).await.is_ok()
    }

    pub(crate) fn stats(&self) -> LeaseStats {
        if !self.0.process.is_this() {
            return LeaseStats::default();
        }
        let (tally, leased_tokens) = self.0.table.tally();
        LeaseStats {
            leased_tokens,
            grants: tally.grants,
            granted_tokens: tally.granted,
            settles: tally.settles,
            lapsed: tally.lapsed,
            messages: tally.messages,
        }
    }
}

impl Got {
    /// How much is asked for here, if the key does not know.
    fn demand(&self) -> Option<f64> {
        match self {
            Self::Missing(demand) => *demand,
            Self::Spent(_) | Self::Refused(_) | Self::Cold => None,
        }
    }
}

impl Drop for Leases {
    fn drop(&mut self) {
        // The task returns what is left.
        self.0.is_over.store(true, SeqCst);
    }
}

impl Taking<'_> {
    /// The check goes on: its tokens are spent.
    pub(crate) fn keep(mut self) {
        self.is_kept = true;
    }
}

impl Drop for Taking<'_> {
    fn drop(&mut self) {
        if self.is_kept {
            return;
        }
        for level in &self.levels {
            if let Got::Spent(spent) = level.got {
                self.leases
                    .put_back(level.fingerprint, spent.nonce, self.cost);
            }
        }
    }
}

/// What a receipt knows a token of a lease by.
#[inline]
pub(crate) fn mark(spent: &Spent) -> u64 {
    LEASED | part(spent.nonce) << ERA_BITS | spent.era_us & ((1 << ERA_BITS) - 1)
}

/// The era of a mark, and whether it is of a lease.
pub(crate) fn era(mark: u64) -> (u64, bool) {
    match mark & LEASED {
        0 => (mark, false),
        _ => (mark & ((1 << ERA_BITS) - 1), true),
    }
}

/// Whether a charge with this mark, at this time, can be of this lease. Parts of nonces
/// repeat, so an earlier lease may have had the same.
fn is_of(lease: &Lease, mark: u64, decided_at_us: u64) -> bool {
    let (era_us, is_leased) = era(mark);
    is_leased && part(lease.nonce) == mark_part(mark) && lease.may_have_given(era_us, decided_at_us)
}

fn part(nonce: u64) -> u64 {
    nonce & 0x3ff
}

fn mark_part(mark: u64) -> u64 {
    mark >> ERA_BITS & 0x3ff
}

impl Inner {
    /// Sends what there is to say about a key.
    #[cold]
    fn speak(self: &Arc<Self>, fingerprint: Fingerprint, reason: Reason) {
        let outgoing = self.table.message(fingerprint, reason, clock::now_us());
        if let Some(outgoing) = outgoing {
            tokio::spawn(Arc::clone(self).fly(outgoing));
            self.start();
        }
    }

    /// The same for a check that waits for the answer. A store that is known to be down gives
    /// it at once, without a task, so that the check need not wait for one.
    async fn speak_at_once(self: &Arc<Self>, fingerprint: Fingerprint) {
        let outgoing = self
            .table
            .message(fingerprint, Reason::Usual, clock::now_us());
        if let Some(outgoing) = outgoing {
            let mut flight = Box::pin(Arc::clone(self).fly(outgoing));
            let look = |context: &mut Context<'_>| Poll::Ready(flight.as_mut().poll(context));
            if poll_fn(look).await.is_pending() {
                tokio::spawn(flight);
            }
            self.start();
        }
    }

    /// Starts the task that looks after leases, if it is not there.
    fn start(self: &Arc<Self>) {
        if !self.is_running.load(SeqCst) && !self.is_running.swap(true, SeqCst) {
            tokio::spawn(run(Running(Arc::clone(self))));
        }
    }

    /// Looks after all leases. Says whether some have to wait until others are returned.
    fn sweep(self: &Arc<Self>, is_over: bool) -> bool {
        if !self.process.is_this() {
            return false;
        }
        let room = self.returns.available_permits();
        let messages = self.table.sweep(is_over, room, clock::now_us());
        let is_cut_short = messages.len() >= room;
        for outgoing in messages {
            let permit = Arc::clone(&self.returns).try_acquire_owned();
            let flight = Arc::clone(self).fly(outgoing);
            tokio::spawn(async move {
                flight.await;
                drop(permit);
            });
        }
        is_cut_short
    }

    /// A message on its way, and those that follow from its answer.
    async fn fly(self: Arc<Self>, outgoing: Outgoing) {
        let mut next = Some(outgoing);
        while let Some(outgoing) = next.take() {
            let message = &outgoing.message;
            let script = self.store.known_script(Task::Lease, &message.limit);
            let (key, argument) = (outgoing.stored.to_string(), message.argument());
            let within = Duration::from_micros(TERM_US / 2);
            let sent = self.store.message(&script, key, argument, within, true);
            let heard = sent.await;
            if !self.process.is_this() {
                return;
            }
            let runs = message.asks.len();
            let reply = heard.and_then(|bytes| {
                let reply = Reply::read(&message.limit, &script, &bytes, runs);
                reply.ok_or_else(|| StoreError::new(ErrorKind::Script, "not a reply of the script"))
            });
            match reply {
                Ok(reply) => next = self.table.answered(&outgoing, &reply, clock::now_us()),
                Err(error) => {
                    let unsent = [ErrorKind::BreakerOpen, ErrorKind::QueueFull];
                    let may_have_arrived = !unsent.contains(&error.kind());
                    self.table.failed(&outgoing, &error, may_have_arrived);
                }
            }
        }
    }
}

/// Looks after leases until there are none.
async fn run(running: Running) {
    let inner = &running.0;
    let mut over_since = None;
    let mut is_cut_short = false;
    loop {
        match is_cut_short {
            // Many have landed by then, if the store is quick.
            true => drop(timeout(SWEEP, inner.returns.acquire_many(RETURNS / 2)).await),
            false => sleep(SWEEP).await,
        }
        let is_over = inner.is_over.load(SeqCst);
        if is_over {
            over_since.get_or_insert_with(Instant::now);
        }
        is_cut_short = inner.sweep(is_over);
        let is_done = !inner.process.is_this() || !inner.table.is_active();
        if is_done || over_since.is_some_and(|since: Instant| since.elapsed() > FAREWELL) {
            // A key that becomes active now starts it anew.
            return;
        }
    }
}

/// The task is there; it may end with its runtime, and is then started anew.
struct Running(Arc<Inner>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.is_running.store(false, SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::future::Future;
    use std::task::{Context, Poll, Waker};

    use tidegate::{Limit, Mode};

    use super::*;
    use crate::lane::QUEUE;
    use crate::options::RedisOptions;
    use tidegate_testkit::redis::Server;

    /// More than a lane's queue takes.
    const KEYS: u64 = 11_000;

    fn leasing() -> Policy {
        let policy = Policy::builder("p").key("{key}").mode(Mode::Lease);
        let policy = policy.limit(Limit::per_second(1_000)).build();
        policy.expect("a policy")
    }

    /// A level that is worth a lease.
    fn wanting(leases: &Leases, key: &LevelKey<'_>) -> Level {
        Level {
            fingerprint: leases.0.table.fingerprint(key),
            got: Got::Missing(Some(100.0)),
        }
    }

    /// R4: all leases are returned at once, while the store is silent.
    #[tokio::test]
    async fn r4_returns_of_leases_do_not_fill_the_queue_of_checks() {
        let server = Server::start();
        let options = RedisOptions::default().connections(1);
        let options = options.timeout(Duration::from_secs(20));
        let store = RedisStore::new(&server.url(), options).expect("a valid URL");
        let policy = leasing();
        let leases = Leases::new(&policy, &store, None);
        for number in 0..KEYS {
            let attributes = [("key", number.to_string())];
            let keys = policy.keys(&attributes).expect("an attribute");
            for key in keys.iter() {
                leases.want(&wanting(&leases, &key), &key, Cost::ONE);
            }
            if number % 1_000 == 999 {
                // Answered after all that was asked before.
                store.delete(vec!["k".into()]).await.expect("an answer");
            }
        }
        server.signal("STOP");
        leases.0.sweep(true);
        sleep(Duration::from_millis(50)).await;
        let (asked, ()) = tokio::join!(store.delete(vec!["k".into()]), async {
            server.signal("CONT");
        });
        assert_eq!(asked.map_err(|error| error.kind()), Ok(0));
        assert!(leases.flush(Duration::from_secs(20)).await);
        let errors = store.stats().errors;
        assert!(errors.contains(&(ErrorKind::QueueFull, 0)), "{errors:?}");
    }

    /// R6: a request of the key hangs, and checks of it keep coming.
    #[tokio::test]
    async fn r6_waiting_checks_of_a_leased_key_are_bounded() {
        let options = RedisOptions::default().timeout(Duration::from_secs(20));
        let store = RedisStore::new("redis://127.0.0.1:1/", options).expect("a valid URL");
        let policy = leasing();
        let leases = Leases::new(&policy, &store, None);
        let keys = policy.keys(&[("key", "k")]).expect("an attribute");
        let key = keys.iter().next().expect("a level");
        let level = wanting(&leases, &key);
        // The test never yields, so the request is not answered.
        let ask = || {
            let mut asked = Box::pin(leases.ask(&level, &key, Cost::ONE));
            let polled = asked.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            (polled, asked)
        };
        let mut waiting = VecDeque::new();
        // The first is in the request.
        for number in 0..=QUEUE {
            let (polled, asked) = ask();
            assert!(polled.is_pending(), "{number}");
            waiting.push_back(asked);
        }
        let is_refused = |polled: Poll<_>| match polled {
            Poll::Ready(Some(Err(error))) => StoreError::kind(&error) == ErrorKind::QueueFull,
            Poll::Ready(_) | Poll::Pending => false,
        };
        assert!(is_refused(ask().0), "one too many");
        // Callers that have left make room.
        drop(waiting.drain(..2));
        assert!(ask().0.is_pending());
    }
}
