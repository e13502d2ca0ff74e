//! The keys of a policy on this node, in shards with a lock each, and the queue of those that
//! the next round has to look at.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};

use foldhash::fast::FixedState;
use tidegate::{KeyHasher, LevelKey};

use super::{Key, Why};
use crate::error::StoreError;
use crate::fingerprint::{Fingerprint, shard_of};
use crate::lock::{lock, read, write};

/// The keys that a node keeps of a policy at once. For others, the store is asked as in the mode
/// `exact`: checks of them wait, but nothing is forgotten, and nothing grows.
const KEYS: usize = 1 << 17;

/// The shards of a policy whose keys are charged one by one.
pub(crate) const SHARDS: usize = 16;

/// How often a full shard is searched for keys that can go.
const SEARCH_US: u64 = 1_000_000;

#[derive(Debug)]
pub(crate) struct Table<K: Key> {
    prefix: String,
    shards: Box<[RwLock<Shard<K>>]>,
    pub(crate) keys_per_shard: usize,
    /// Of these keys alone: what a thread remembers of others must not be found here.
    hasher: KeyHasher,
    pub(crate) shared: K::Shared,
    /// Those that were looked at longest ago come first. Locked after a shard, never before.
    queue: Mutex<VecDeque<Fingerprint>>,
}

#[derive(Debug)]
pub(crate) struct Shard<K> {
    keys: HashMap<Fingerprint, Entry<K>, FixedState>,
    searched_at_us: Option<u64>,
}

#[derive(Debug)]
struct Entry<K> {
    key: K,
    stored: Box<str>,
    is_listed: bool,
}

/// A message, and which key it is about.
#[derive(Debug, Clone)]
pub(crate) struct Envelope<M> {
    fingerprint: Fingerprint,
    number: u64,
    /// The key in the store.
    pub(crate) stored: Box<str>,
    pub(crate) message: M,
}

impl<K: Key> Table<K> {
    /// For keys that begin like this. A check finds the keys of all its levels in one shard
    /// if there is only one.
    pub(crate) fn new(prefix: &str, shards: usize, shared: K::Shared) -> Self {
        let shard = || Shard {
            keys: HashMap::default(),
            searched_at_us: None,
        };
        Self {
            prefix: prefix.to_owned(),
            shards: (0..shards).map(|_| RwLock::new(shard())).collect(),
            keys_per_shard: KEYS / shards,
            hasher: KeyHasher::new(),
            shared,
            queue: Mutex::default(),
        }
    }

    #[inline]
    pub(super) fn hasher(&self) -> &KeyHasher {
        &self.hasher
    }

    pub(crate) fn read(&self, fingerprint: Fingerprint) -> RwLockReadGuard<'_, Shard<K>> {
        read(&self.shards[shard_of(fingerprint, self.shards.len())])
    }

    pub(crate) fn write(&self, fingerprint: Fingerprint) -> RwLockWriteGuard<'_, Shard<K>> {
        write(&self.shards[shard_of(fingerprint, self.shards.len())])
    }

    /// The key, or a new one where there is none yet and there is room.
    pub(crate) fn key<'s>(
        &self,
        shard: &'s mut Shard<K>,
        fingerprint: Fingerprint,
        key: &LevelKey<'_>,
        now_us: u64,
        new: impl FnOnce() -> Option<K>,
    ) -> Option<&'s mut K> {
        if !shard.keys.contains_key(&fingerprint) {
            let new = new().filter(|_| self.has_room(shard, now_us))?;
            let entry = Entry {
                key: new,
                stored: key.stored(&self.prefix).into(),
                is_listed: false,
            };
            shard.keys.insert(fingerprint, entry);
        }
        shard.get_mut(fingerprint)
    }

    /// Whether there is room for another key, once those that can go are gone.
    fn has_room(&self, shard: &mut Shard<K>, now_us: u64) -> bool {
        let searched_at_us = shard.searched_at_us;
        let is_due = searched_at_us.is_none_or(|it| now_us >= it + SEARCH_US);
        if shard.keys.len() >= self.keys_per_shard && is_due {
            shard.searched_at_us = Some(now_us);
            shard.keys.retain(|_, entry| {
                let is_gone = !entry.is_listed && entry.key.is_idle(now_us);
                if is_gone {
                    entry.key.gone(&self.shared);
                }
                !is_gone
            });
        }
        shard.keys.len() < self.keys_per_shard
    }

    /// Lets the next round look at a key, if it has to.
    pub(crate) fn list(&self, shard: &mut Shard<K>, fingerprint: Fingerprint) {
        if let Some(entry) = shard.keys.get_mut(&fingerprint)
            && !entry.is_listed
            && entry.key.is_active()
        {
            entry.is_listed = true;
            lock(&self.queue).push_back(fingerprint);
        }
    }

    /// How many keys the next round has to look at.
    pub(crate) fn listed(&self) -> usize {
        lock(&self.queue).len()
    }

    /// The next message about a key.
    pub(crate) fn message(
        &self,
        fingerprint: Fingerprint,
        why: Why,
        now_us: u64,
    ) -> Option<Envelope<K::Message>> {
        let mut shard = self.write(fingerprint);
        let message = shard.message(fingerprint, why, now_us);
        self.list(&mut shard, fingerprint);
        message
    }

    /// Takes so many keys from the queue, and adds their messages. Keys that have to be looked
    /// at again go to the end.
    pub(super) fn visit(
        &self,
        keys: usize,
        why: Why,
        now_us: u64,
        messages: &mut Vec<Envelope<K::Message>>,
    ) {
        let visited: Vec<Fingerprint> = lock(&self.queue).drain(..keys).collect();
        for fingerprint in visited {
            let mut shard = self.write(fingerprint);
            if let Some(entry) = shard.keys.get_mut(&fingerprint) {
                entry.is_listed = false;
            }
            messages.extend(shard.message(fingerprint, why, now_us));
            self.list(&mut shard, fingerprint);
        }
    }

    /// The store has answered. Returns the next message if that is due at once.
    pub(crate) fn answered(
        &self,
        envelope: &Envelope<K::Message>,
        reply: K::Reply,
        now_us: u64,
    ) -> Option<Envelope<K::Message>> {
        let fingerprint = envelope.fingerprint;
        let mut shard = self.write(fingerprint);
        let key = shard.get_mut(fingerprint)?;
        let is_due = key.answered(&self.shared, envelope.number, reply, now_us);
        let next = match is_due {
            true => shard.message(fingerprint, Why::Asked, now_us),
            false => None,
        };
        self.list(&mut shard, fingerprint);
        next
    }

    /// The store has not answered.
    pub(crate) fn failed(&self, envelope: &Envelope<K::Message>, error: &StoreError) {
        let mut shard = self.write(envelope.fingerprint);
        if let Some(key) = shard.get_mut(envelope.fingerprint) {
            key.failed(envelope.number, error);
        }
        self.list(&mut shard, envelope.fingerprint);
    }

    /// The store has deleted these keys.
    pub(crate) fn forget(&self, stored: &[String], now_us: u64) {
        for shard in &self.shards {
            for entry in write(shard).keys.values_mut() {
                if stored.iter().any(|key| **key == *entry.stored) {
                    entry.key.forget(now_us);
                }
            }
        }
    }

    /// Whether the store has been told everything.
    pub(crate) fn is_told(&self) -> bool {
        let is_told = |shard: &Shard<K>| shard.keys.values().all(|entry| entry.key.is_told());
        self.shards.iter().all(|shard| is_told(&read(shard)))
    }

    pub(crate) fn each(&self, mut see: impl FnMut(&K)) {
        for shard in &self.shards {
            read(shard).keys.values().for_each(|it| see(&it.key));
        }
    }
}

impl<K: Key> Shard<K> {
    pub(crate) fn get(&self, fingerprint: Fingerprint) -> Option<&K> {
        self.keys.get(&fingerprint).map(|entry| &entry.key)
    }

    pub(crate) fn get_mut(&mut self, fingerprint: Fingerprint) -> Option<&mut K> {
        self.keys.get_mut(&fingerprint).map(|entry| &mut entry.key)
    }

    fn message(
        &mut self,
        fingerprint: Fingerprint,
        why: Why,
        now_us: u64,
    ) -> Option<Envelope<K::Message>> {
        let entry = self.keys.get_mut(&fingerprint)?;
        let (number, message) = entry.key.message(why, now_us)?;
        Some(Envelope {
            fingerprint,
            number,
            stored: entry.stored.clone(),
            message,
        })
    }
}
