//! The keys of a policy that leases, on this node: those that are worth a lease, or were a
//! moment ago. A token is spent without a lock if this thread has spent some of the same
//! lease before, and under a shared lock of its shard otherwise; everything else takes the
//! shard for itself.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use foldhash::fast::FixedState;
use tidegate::{Cost, LevelKey, Limit};
use tokio::sync::oneshot;

use super::clock;
use super::cold::Cold;
use super::held::{Lease, Spent};
use super::key::{Answer, FEW, Key, Reason, Refused, Tally, horizon_us};
use super::message::{Message, Reply};
use super::near;
use crate::background::KEYS;
use crate::error::StoreError;
use crate::fingerprint::{Fingerprint, Fingerprints, shard_of};
use crate::lane::queue_full;

/// Who waits for an answer.
pub(super) type Waiter = oneshot::Sender<Result<Answer, StoreError>>;

const SHARDS: usize = 16;

#[derive(Debug)]
pub(super) struct Table {
    prefix: String,
    shards: Box<[RwLock<Shard>]>,
    fingerprints: Fingerprints,
    /// The keys that are not here.
    cold: Cold,
    /// Keys that have to be looked at by themselves.
    active: AtomicUsize,
}

#[derive(Debug, Default)]
struct Shard {
    keys: HashMap<Fingerprint, Entry, FixedState>,
    /// Keys that have leases, or something to say.
    active: Vec<Fingerprint>,
    /// Of keys that are gone.
    tally: Tally,
    swept_at_us: u64,
}

#[derive(Debug)]
struct Entry {
    key: Key<Waiter>,
    stored: Box<str>,
    is_listed: bool,
}

/// A message, and where it comes from.
#[derive(Debug)]
pub(super) struct Outgoing {
    pub(super) fingerprint: Fingerprint,
    pub(super) id: u64,
    pub(super) stored: Box<str>,
    pub(super) message: Message,
}

/// What a level says to a check before the store is asked.
#[derive(Debug)]
pub(super) enum Taken {
    Spent(Spent),
    Refused(Refused),
    /// The store has to be asked, and for a lease, too, if this is enough to be worth one:
    /// how much is asked for here, unless the key knows that itself.
    Missing(Option<f64>),
    /// The store has to be asked, as in the mode `exact`.
    Cold,
}

impl Table {
    pub(super) fn new(prefix: &str) -> Self {
        Self {
            prefix: prefix.to_owned(),
            shards: (0..SHARDS).map(|_| RwLock::default()).collect(),
            fingerprints: Fingerprints::default(),
            cold: Cold::new(),
            active: AtomicUsize::new(0),
        }
    }

    #[inline]
    pub(super) fn fingerprint(&self, key: &LevelKey<'_>) -> Fingerprint {
        self.fingerprints.of(key)
    }

    /// Takes tokens of a lease, or refuses by what was heard.
    pub(super) fn take(
        &self,
        fingerprint: Fingerprint,
        limit: &Limit,
        cost: Cost,
        now_us: u64,
    ) -> Taken {
        if let Some(spent) = near::spend(fingerprint, cost, now_us) {
            return Taken::Spent(spent);
        }
        let shard = self.read(fingerprint);
        let entry = shard.keys.get(&fingerprint);
        if let Some((spent, lease)) = entry.and_then(|it| it.key.spend_lease(cost, now_us)) {
            near::keep(fingerprint, lease);
            return Taken::Spent(spent);
        }
        let Some(entry) = entry else {
            drop(shard);
            let horizon_us = horizon_us(limit);
            let demand = self.cold.note(fingerprint, cost, horizon_us, now_us);
            return match demand < FEW {
                true => Taken::Cold,
                false => Taken::Missing(Some(demand)),
            };
        };
        entry.key.note(cost);
        let refused = entry.key.refuses(cost, now_us);
        let refused = refused.filter(|_| entry.key.limit == *limit);
        refused.map_or(Taken::Missing(None), Taken::Refused)
    }

    /// Waits for an answer of the store. False where the store is asked as in the mode
    /// `exact`: for a key that is not worth a lease any more, and where there is no room.
    /// Fails where too many wait already.
    pub(super) fn wait(
        &self,
        fingerprint: Fingerprint,
        key: &LevelKey<'_>,
        (cost, demand): (Cost, Option<f64>),
        waiter: Option<Waiter>,
        now_us: u64,
    ) -> Result<bool, StoreError> {
        let mut shard = self.write(fingerprint);
        let shard = &mut *shard;
        if !shard.keys.contains_key(&fingerprint) {
            let Some(demand) = demand.filter(|_| shard.has_room(now_us)) else {
                return Ok(false);
            };
            let entry = Entry {
                key: Key::with_demand(*key.limit(), now_us, demand),
                stored: key.stored(&self.prefix).into(),
                is_listed: false,
            };
            shard.keys.insert(fingerprint, entry);
        }
        let Some(entry) = shard.keys.get_mut(&fingerprint) else {
            return Ok(false);
        };
        entry.key.set_limit(key.limit());
        if entry.key.asks_plainly(now_us) {
            return Ok(false);
        }
        if let Some(waiter) = waiter {
            if entry.key.is_full(Waiter::is_closed) {
                return Err(queue_full());
            }
            entry.key.wait(cost, waiter);
        }
        Ok(true)
    }

    /// The next message about a key, if there is anything to say.
    pub(super) fn message(
        &self,
        fingerprint: Fingerprint,
        reason: Reason,
        now_us: u64,
    ) -> Option<Outgoing> {
        let mut shard = self.write(fingerprint);
        let outgoing = shard.message(fingerprint, reason, now_us);
        self.list(&mut shard, fingerprint);
        outgoing
    }

    /// The store has answered: tells everybody, and returns the next message.
    pub(super) fn answered(
        &self,
        outgoing: &Outgoing,
        reply: &Reply,
        now_us: u64,
    ) -> Option<Outgoing> {
        let fingerprint = outgoing.fingerprint;
        let mut shard = self.write(fingerprint);
        let entry = shard.keys.get_mut(&fingerprint)?;
        let answers = entry.key.answered(outgoing.id, reply, now_us);
        for (waiter, answer) in answers {
            // Nobody waits any more: a token that was taken for it goes back.
            if let Err(Ok(Answer::Spent(spent, cost))) = waiter.send(Ok(answer)) {
                entry.key.put_back(spent.nonce, cost);
            }
        }
        let has_waiting = entry.key.has_waiting();
        let next = match has_waiting {
            true => shard.message(fingerprint, Reason::Usual, now_us),
            false => None,
        };
        self.list(&mut shard, fingerprint);
        next
    }

    /// The store has not answered.
    pub(super) fn failed(&self, outgoing: &Outgoing, error: &StoreError, may_have_arrived: bool) {
        let mut shard = self.write(outgoing.fingerprint);
        if let Some(entry) = shard.keys.get_mut(&outgoing.fingerprint) {
            for waiter in entry.key.failed(outgoing.id, may_have_arrived) {
                drop(waiter.send(Err(error.clone())));
            }
            for waiter in entry.key.take_waiting() {
                drop(waiter.send(Err(error.clone())));
            }
        }
        self.list(&mut shard, outgoing.fingerprint);
    }

    /// Looks after all keys that have leases, and returns what there is to say: about so
    /// many of them at most, and about those that somebody waits for. At the end,
    /// everything is returned.
    pub(super) fn sweep(&self, is_over: bool, most: usize, now_us: u64) -> Vec<Outgoing> {
        let mut messages = Vec::new();
        for shard in &self.shards {
            let mut shard = shard.write().unwrap_or_else(PoisonError::into_inner);
            for fingerprint in std::mem::take(&mut shard.active) {
                let Some(entry) = shard.keys.get_mut(&fingerprint) else {
                    self.active.fetch_sub(1, Relaxed);
                    continue;
                };
                drop(entry.key.sweep(now_us));
                let reason = match is_over {
                    true => Reason::Over,
                    false => Reason::Usual,
                };
                if is_over {
                    entry.key.close_all();
                }
                let has_room = messages.len() < most || entry.key.has_waiting();
                if has_room && (is_over || entry.key.has_something_to_say()) {
                    messages.extend(shard.message(fingerprint, reason, now_us));
                }
                let Some(entry) = shard.keys.get_mut(&fingerprint) else {
                    continue;
                };
                entry.is_listed = entry.key.is_active();
                match entry.is_listed {
                    true => shard.active.push(fingerprint),
                    false => {
                        self.active.fetch_sub(1, Relaxed);
                    }
                }
            }
        }
        messages
    }

    /// Whether any key has to be looked after.
    pub(super) fn is_active(&self) -> bool {
        self.active.load(Relaxed) > 0
    }

    pub(super) fn put_back(&self, fingerprint: Fingerprint, nonce: u64, cost: Cost) -> bool {
        let shard = self.read(fingerprint);
        let entry = shard.keys.get(&fingerprint);
        entry.is_some_and(|entry| entry.key.put_back(nonce, cost))
    }

    /// What was spent of a key's leases since this was last asked.
    pub(super) fn newly_spent(&self, fingerprint: Fingerprint, now_us: u64) -> u64 {
        let mut shard = self.write(fingerprint);
        let entry = shard.keys.get_mut(&fingerprint);
        entry.map_or(0, |entry| entry.key.newly_spent(now_us))
    }

    /// A charge of the key was given back.
    pub(super) fn refunded(&self, fingerprint: Fingerprint, now_us: u64) {
        let mut shard = self.write(fingerprint);
        if let Some(entry) = shard.keys.get_mut(&fingerprint) {
            entry.key.refunded(now_us);
        }
    }

    /// The open lease that a receipt is of.
    pub(super) fn open_lease(
        &self,
        fingerprint: Fingerprint,
        is_meant: impl Fn(&Lease) -> bool,
    ) -> Option<u64> {
        let shard = self.read(fingerprint);
        let entry = shard.keys.get(&fingerprint);
        entry.and_then(|entry| entry.key.open_lease(is_meant))
    }

    /// Forgets keys, by what they are called in the store.
    pub(super) fn forget(&self, stored: &[String]) {
        for shard in &self.shards {
            let mut shard = shard.write().unwrap_or_else(PoisonError::into_inner);
            for entry in shard.keys.values_mut() {
                if stored.iter().any(|key| **key == *entry.stored) {
                    entry.key.forget();
                }
            }
        }
    }

    /// What has become of leases so far, and the tokens that are here.
    pub(super) fn tally(&self) -> (Tally, u64) {
        let (mut all, mut tokens) = (Tally::default(), 0);
        for shard in &self.shards {
            let shard = shard.read().unwrap_or_else(PoisonError::into_inner);
            all.add(&shard.tally);
            for entry in shard.keys.values() {
                all.add(&entry.key.tally);
                tokens += entry.key.tokens();
            }
        }
        (all, tokens)
    }

    fn list(&self, shard: &mut Shard, fingerprint: Fingerprint) {
        if let Some(entry) = shard.keys.get_mut(&fingerprint)
            && !entry.is_listed
            && entry.key.is_active()
        {
            entry.is_listed = true;
            shard.active.push(fingerprint);
            self.active.fetch_add(1, Relaxed);
        }
    }

    fn read(&self, fingerprint: Fingerprint) -> RwLockReadGuard<'_, Shard> {
        let shard = &self.shards[shard_of(fingerprint, SHARDS)];
        shard.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self, fingerprint: Fingerprint) -> RwLockWriteGuard<'_, Shard> {
        let shard = &self.shards[shard_of(fingerprint, SHARDS)];
        shard.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shard {
    fn message(
        &mut self,
        fingerprint: Fingerprint,
        reason: Reason,
        now_us: u64,
    ) -> Option<Outgoing> {
        let entry = self.keys.get_mut(&fingerprint)?;
        entry.key.keep_waiting(|waiter| !waiter.is_closed());
        let message = entry.key.message(now_us, reason, nonce)?;
        Some(Outgoing {
            fingerprint,
            id: entry.key.request()?,
            stored: entry.stored.clone(),
            message,
        })
    }

    /// Whether there is room for another key, after those have gone that nobody asks for.
    fn has_room(&mut self, now_us: u64) -> bool {
        if self.keys.len() < KEYS / SHARDS {
            return true;
        }
        if now_us.saturating_sub(self.swept_at_us) < 1_000_000 {
            return false;
        }
        self.swept_at_us = now_us;
        let tally = &mut self.tally;
        self.keys.retain(|_, entry| {
            let is_kept = entry.is_listed || !entry.key.is_forgettable(now_us);
            if !is_kept {
                tally.add(&entry.key.tally);
            }
            is_kept
        });
        self.keys.len() < KEYS / SHARDS
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
            RandomState::new().hash_one((std::process::id(), clock::now_us()))
        }
    }
}
