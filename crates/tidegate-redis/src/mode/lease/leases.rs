//! The leases of a policy on this node.
//!
//! [`Key`] is the state machine of one key. Messages leave when somebody waits or a lease is
//! half spent, and in rounds of the [`Node`] while there are leases.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use smallvec::SmallVec;
use tidegate::{Cost, LevelKey, Limit, Policy, Receipt};
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout};

use super::demand::DemandSketch;
use super::key::{Answer, FEW, Key, Refused, horizon_us};
use super::message::{Message, Reply, TERM_US};
use super::refund::is_of;
use super::tokens::{Spent, Tokens};
use super::{Lease, recent};
use crate::error::{ErrorKind, StoreError};
use crate::fingerprint::Fingerprint;
use crate::lane::queue_full;
use crate::lock::lock;
use crate::mode::Query;
use crate::node::{self, Node, SHARDS, Table, Why, now_us};
use crate::script::Task;
use crate::store::RedisStore;

/// How often keys that have leases are looked at.
const ROUND: Duration = Duration::from_millis(50);

/// The keys of a policy, with their leases.
pub(in crate::mode) type Leases = Node<Key<Waiter>>;

/// Who waits for an answer.
type Waiter = oneshot::Sender<Result<Answer, StoreError>>;

/// What the keys of a policy have in common.
#[derive(Debug)]
pub(crate) struct Shared {
    /// How much is asked for keys that are not here.
    cold: DemandSketch,
    /// What has become of the leases of keys that were here.
    gone: Mutex<LeaseStats>,
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
pub(super) struct Taking<'l> {
    lease: &'l Lease,
    pub(super) levels: SmallVec<[Level; 2]>,
    cost: Cost,
}

/// One level of a check.
pub(super) struct Level {
    fingerprint: Fingerprint,
    pub(super) taken: Taken,
}

/// What there is of a level.
#[derive(Debug, Clone, Copy)]
pub(super) enum Taken {
    Spent(Spent),
    Refused(Refused),
    /// Nothing, but it may be worth a lease: how much was asked for, if the key does not
    /// know.
    Missing(Option<f64>),
    /// Nothing, and it is not worth a lease.
    Cold,
}

/// For a policy that had no leases before.
pub(in crate::mode) fn node(policy: &Policy, store: &RedisStore) -> Arc<Leases> {
    let shared = Shared {
        cold: DemandSketch::new(),
        gone: Mutex::default(),
    };
    let table = Table::new(&store.0.prefix, SHARDS, shared);
    Arc::new(Node::new(policy, store, table, ROUND))
}

impl Lease {
    /// Takes tokens of every level that has a lease here.
    pub(super) fn take(&self, query: &Query<'_, '_>) -> Taking<'_> {
        let (now_us, cost) = (now_us(), query.cost);
        let take = |(fingerprint, key): (Fingerprint, LevelKey<'_>)| {
            let take = |table: &Table<_>| table.take(fingerprint, key.limit(), cost, now_us);
            let taken = self.node.table().map_or(Taken::Cold, take);
            if let Taken::Spent(Spent { is_half: true, .. }) = taken {
                self.node.send(fingerprint, Why::Asked);
            }
            Level { fingerprint, taken }
        };
        Taking {
            lease: self,
            levels: query.levels().map(take).collect(),
            cost,
        }
    }

    /// What was spent of the leases of a key since this was last asked.
    pub(super) fn newly_spent(&self, fingerprint: Fingerprint) -> Option<Cost> {
        let spent = |key: &mut Key<_>| key.newly_spent(now_us());
        let spent = self.node.with_key(fingerprint, spent)?;
        Cost::new(spent.min(u32::MAX.into())).ok()
    }

    /// Asks the store for one level, which may bring a lease of it, and waits for the answer
    /// for as long as a check may take. `None` where it is asked for as in the mode `exact`.
    pub(super) async fn ask_for_lease(
        &self,
        level: &Level,
        key: &LevelKey<'_>,
        cost: Cost,
    ) -> Result<Option<Answer>, StoreError> {
        let (sender, answer) = oneshot::channel();
        if !self.wait(level, key, cost, Some(sender))? {
            return Ok(None);
        }
        let asked = Instant::now();
        self.node.send(level.fingerprint, Why::Asked);
        let error = match timeout(self.exact.store.0.timeout, answer).await {
            Ok(Ok(Ok(answer))) => return Ok(Some(answer)),
            Ok(Ok(Err(error))) => error,
            Ok(Err(_)) | Err(_) => {
                StoreError::new(ErrorKind::Timeout, "no answer within the deadline")
            }
        };
        if !error.kind().is_about_a_key() {
            // Only a message was sent, and messages are not counted as checks.
            let key = key.stored(&self.exact.store.0.prefix);
            self.exact.store.check_unanswered(&key, asked).await;
        }
        Err(error)
    }

    /// Wants a lease of a level that the store is asked for in another way.
    pub(super) fn want(&self, level: &Level, key: &LevelKey<'_>, cost: Cost) {
        if let Ok(true) = self.wait(level, key, cost, None) {
            self.node.send(level.fingerprint, Why::Wanted);
        }
    }

    /// Waits for an answer of the store. False where the store is asked as in the mode
    /// `exact`: for a key that is not worth a lease any more, and where there is no room.
    /// Fails where too many wait already.
    fn wait(
        &self,
        level: &Level,
        key: &LevelKey<'_>,
        cost: Cost,
        waiter: Option<Waiter>,
    ) -> Result<bool, StoreError> {
        let (Some(table), now_us) = (self.node.table(), now_us()) else {
            return Ok(false);
        };
        let mut shard = table.write(level.fingerprint);
        let new = || match level.taken {
            Taken::Missing(Some(demand)) => Some(Key::with_demand(*key.limit(), now_us, demand)),
            _ => None,
        };
        let Some(entry) = table.key(&mut shard, level.fingerprint, key, now_us, new) else {
            return Ok(false);
        };
        entry.set_limit(key.limit());
        if entry.asks_plainly(now_us) {
            return Ok(false);
        }
        if let Some(waiter) = waiter {
            if entry.is_full(Waiter::is_closed) {
                return Err(queue_full());
            }
            entry.wait(cost, waiter);
        }
        Ok(true)
    }

    /// The leases that a receipt is of, level by level, while they are open.
    pub(super) fn open_leases(
        &self,
        query: &Query<'_, '_>,
        receipt: &Receipt,
    ) -> SmallVec<[Option<(Fingerprint, u64, Cost)>; 2]> {
        let levels = query.prints.iter().zip(receipt.charges());
        let levels = levels.map(|(fingerprint, (cost, mark))| {
            let is_meant = |lease: &Tokens| is_of(lease, mark, receipt.decided_at_us());
            let open = |key: &mut Key<_>| key.open_lease(is_meant);
            let nonce = self.node.with_key(*fingerprint, open)??;
            Some((*fingerprint, nonce, cost))
        });
        levels.collect()
    }

    /// Puts tokens back into a lease, unless it was closed. Says whether it did.
    pub(super) fn put_back(&self, fingerprint: Fingerprint, nonce: u64, cost: Cost) -> bool {
        let put_back = |key: &mut Key<_>| key.put_back(nonce, cost);
        self.node.with_key(fingerprint, put_back) == Some(true)
    }

    /// A charge of these keys was given back: what the store has refused before, it may admit.
    pub(super) fn refunded(&self, prints: &[Fingerprint]) {
        for fingerprint in prints {
            let refunded = |key: &mut Key<_>| key.refunded(now_us());
            self.node.with_key(*fingerprint, refunded);
        }
    }

    pub(crate) fn stats(&self) -> LeaseStats {
        let Some(table) = self.node.table() else {
            return LeaseStats::default();
        };
        let mut stats = *lock(&table.shared.gone);
        table.each(|key| {
            stats.add(&key.stats);
            stats.leased_tokens += key.tokens();
        });
        stats
    }
}

impl LeaseStats {
    /// Adds what has become of leases.
    fn add(&mut self, other: &Self) {
        self.grants += other.grants;
        self.granted_tokens += other.granted_tokens;
        self.settles += other.settles;
        self.lapsed += other.lapsed;
        self.messages += other.messages;
    }
}

impl Table<Key<Waiter>> {
    /// Takes tokens of a lease, or refuses by what was heard.
    fn take(&self, fingerprint: Fingerprint, limit: &Limit, cost: Cost, now_us: u64) -> Taken {
        if let Some(spent) = recent::spend(fingerprint, cost, now_us) {
            return Taken::Spent(spent);
        }
        let shard = self.read(fingerprint);
        let Some(key) = shard.get(fingerprint) else {
            drop(shard);
            let horizon_us = horizon_us(limit);
            let demand = self.shared.cold.note(fingerprint, cost, horizon_us, now_us);
            return match demand < FEW {
                true => Taken::Cold,
                false => Taken::Missing(Some(demand)),
            };
        };
        if let Some((spent, lease)) = key.spend_lease(cost, now_us) {
            recent::keep(fingerprint, lease);
            return Taken::Spent(spent);
        }
        key.note(cost);
        let refused = key.refuses(cost, now_us);
        let refused = refused.filter(|_| key.limit == *limit);
        refused.map_or(Taken::Missing(None), Taken::Refused)
    }
}

impl node::Key for Key<Waiter> {
    type Message = Message;
    type Reply = Reply;
    type Shared = Shared;

    async fn send(
        store: &RedisStore,
        stored: &str,
        message: &Message,
    ) -> Result<Reply, StoreError> {
        let script = store.0.scripts.get(Task::Lease, [&message.limit]);
        let within = Duration::from_micros(TERM_US / 2);
        let (key, argument) = (stored.to_owned(), message.argument());
        let sent = store.message(&script, key, argument, within, true);
        let bytes = sent.await?;
        let reply = Reply::read(&message.limit, &script, &bytes, message.asks.len());
        reply.ok_or_else(|| StoreError::new(ErrorKind::Script, "not a reply of the script"))
    }

    fn message(&mut self, why: Why, now_us: u64) -> Option<(u64, Message)> {
        if let Why::Round | Why::Over = why {
            drop(self.sweep(now_us));
        }
        match why {
            Why::Round if !self.has_something_to_say() => return None,
            Why::Over => self.close_all(),
            Why::Asked | Why::Wanted | Why::Round => {}
        }
        self.keep_waiting(|waiter| !waiter.is_closed());
        let message = Key::message(self, now_us, why, nonce)?;
        Some((self.request()?, message))
    }

    fn answered(&mut self, _: &Shared, id: u64, reply: Reply, now_us: u64) -> bool {
        for (waiter, answer) in Key::answered(self, id, &reply, now_us) {
            // Nobody waits any more: a token that was taken for it goes back.
            if let Err(Ok(Answer::Spent(spent, cost))) = waiter.send(Ok(answer)) {
                self.put_back(spent.nonce, cost);
            }
        }
        self.has_waiting()
    }

    fn failed(&mut self, id: u64, error: &StoreError) {
        let unsent = [ErrorKind::BreakerOpen, ErrorKind::QueueFull];
        let may_have_arrived = !unsent.contains(&error.kind());
        let asked = Key::failed(self, id, may_have_arrived);
        for waiter in asked.into_iter().chain(self.take_waiting()) {
            drop(waiter.send(Err(error.clone())));
        }
    }

    fn forget(&mut self, _: u64) {
        Key::forget(self);
    }

    fn is_active(&self) -> bool {
        Key::is_active(self)
    }

    fn is_idle(&mut self, now_us: u64) -> bool {
        self.is_forgettable(now_us)
    }

    fn gone(&self, shared: &Shared) {
        lock(&shared.gone).add(&self.stats);
    }
}

/// The name of a lease: from the system, so that no two processes share one, not even
/// those that were one before they forked.
fn nonce() -> u64 {
    let mut bytes = [0; 8];
    match rustix::rand::getrandom(&mut bytes[..], rustix::rand::GetRandomFlags::empty()) {
        Ok(8) => u64::from_le_bytes(bytes),
        _ => {
            use std::hash::{BuildHasher, RandomState};
            RandomState::new().hash_one((std::process::id(), now_us()))
        }
    }
}

impl Level {
    pub(super) fn is_spent(&self) -> bool {
        matches!(self.taken, Taken::Spent(_))
    }

    pub(super) fn is_missing(&self) -> bool {
        matches!(self.taken, Taken::Missing(_))
    }
}

impl Taking<'_> {
    /// The check goes on: its tokens are spent.
    pub(super) fn keep(mut self) {
        self.levels.clear();
    }
}

impl Drop for Taking<'_> {
    fn drop(&mut self) {
        for level in &self.levels {
            if let Taken::Spent(spent) = level.taken {
                self.lease
                    .put_back(level.fingerprint, spent.nonce, self.cost);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::future::Future;
    use std::task::{Context, Poll, Waker};

    use tidegate::Mode;
    use tidegate_testkit::redis::Server;
    use tokio::time::sleep;

    use super::*;
    use crate::lane::QUEUE;
    use crate::options::RedisOptions;
    use crate::policy::PolicyLimiter;

    /// More than a lane's queue takes.
    const KEYS: u64 = 11_000;

    fn leasing() -> Policy {
        let policy = Policy::builder("p").key("{key}").mode(Mode::Lease);
        let policy = policy.limit(Limit::per_second(1_000)).build();
        policy.expect("a policy")
    }

    fn lease(limiter: &PolicyLimiter) -> &Lease {
        match limiter.redis().map(|redis| &redis.mode) {
            Some(crate::mode::Mode::Lease(lease)) => lease,
            other => panic!("{other:?}"),
        }
    }

    /// A level that is worth a lease.
    fn wanting(lease: &Lease, key: &LevelKey<'_>) -> Level {
        Level {
            fingerprint: lease.node.hasher().hash(key),
            taken: Taken::Missing(Some(100.0)),
        }
    }

    /// R4: all leases are returned at once, while the store is silent.
    #[tokio::test]
    async fn r4_returns_of_leases_do_not_fill_the_queue_of_checks() {
        let server = Server::start();
        let options = RedisOptions::default().connections(1);
        let options = options.timeout(Duration::from_secs(20));
        let store = RedisStore::new(&server.url(), options).expect("a valid URL");
        let limiter = PolicyLimiter::over(store.clone(), leasing()).expect("a policy");
        let (policy, lease) = (limiter.policy(), lease(&limiter));
        for number in 0..KEYS {
            let attributes = [("key", number.to_string())];
            let keys = policy.keys(&attributes).expect("an attribute");
            for key in keys.iter() {
                lease.want(&wanting(lease, &key), &key, Cost::ONE);
            }
            if number % 1_000 == 999 {
                // Answered after all that was asked before.
                store.delete(vec!["k".into()]).await.expect("an answer");
            }
        }
        server.signal("STOP");
        let (is_flushed, asked) = tokio::join!(lease.node.flush(Duration::from_secs(20)), async {
            sleep(Duration::from_millis(50)).await;
            let (asked, ()) = tokio::join!(store.delete(vec!["k".into()]), async {
                server.signal("CONT");
            });
            asked
        });
        assert_eq!(asked.map_err(|error| error.kind()), Ok(0));
        assert!(is_flushed);
        let errors = store.stats().errors;
        assert!(errors.contains(&(ErrorKind::QueueFull, 0)), "{errors:?}");
    }

    /// R6: a request of the key hangs, and checks of it keep coming.
    #[tokio::test]
    async fn r6_waiting_checks_of_a_leased_key_are_bounded() {
        let options = RedisOptions::default().timeout(Duration::from_secs(20));
        let store = RedisStore::new("redis://127.0.0.1:1/", options).expect("a valid URL");
        let limiter = PolicyLimiter::over(store.clone(), leasing()).expect("a policy");
        let (policy, lease) = (limiter.policy(), lease(&limiter));
        let keys = policy.keys(&[("key", "k")]).expect("an attribute");
        let key = keys.iter().next().expect("a level");
        let level = wanting(lease, &key);
        // The test never yields, so the request is not answered.
        let ask = || {
            let mut asked = Box::pin(lease.ask_for_lease(&level, &key, Cost::ONE));
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
            Poll::Ready(Err(error)) => StoreError::kind(&error) == ErrorKind::QueueFull,
            Poll::Ready(_) | Poll::Pending => false,
        };
        assert!(is_refused(ask().0), "one too many");
        // Callers that have left make room.
        drop(waiting.drain(..2));
        assert!(ask().0.is_pending());
    }
}
