//! The keys of a policy in mode `background`, and the queue of those to send to the store. A
//! state machine without its own clock.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicI64, AtomicU64, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use smallvec::SmallVec;
use tidegate::algorithm::State;
use tidegate::{Cost, Decision, Keys, LevelOutcome, Limit, Receipt, Source};

use super::entry::{Entry, offset, on_clock};
use super::unsent::Parcel;
use crate::fingerprint::{Fingerprint, Fingerprints, shard_of};

/// The keys that are decided here at once. Others are asked for, as in the mode `exact`:
/// they have to wait, but nothing is forgotten, and nothing grows.
pub(crate) const KEYS: usize = 1 << 17;

/// A policy of one level is kept in so many parts. The keys of several levels are
/// charged together, and so are in one.
const SHARDS: usize = 16;

/// How often a full table is searched for keys that can go.
const SWEEP: Duration = Duration::from_secs(1);

/// The bit that tells numbers of parcels from marks of the store, which are times.
const PARCELS: u64 = 1 << 60;

/// Whether the mark of a charge is the number of a parcel: a node has charged it.
pub(super) fn is_parcel(mark: u64) -> bool {
    mark >> PARCELS.trailing_zeros() == 1
}

#[derive(Debug)]
pub(crate) struct Table {
    prefix: String,
    shards: Box<[Mutex<Shard>]>,
    keys_a_shard: usize,
    /// Ordered with the waiting task's own flag, so that no key is missed.
    queued: AtomicUsize,
    /// Keys that the round in progress has still to send.
    due: AtomicUsize,
    /// The number of the last parcel. Those of other nodes, and the store's own marks, are
    /// not among them.
    parcels: AtomicU64,
    /// The part that is sent from first.
    turn: AtomicUsize,
    /// The store's clock less this node's, as it was last heard.
    offset_us: AtomicI64,
    fingerprints: Fingerprints,
}

#[derive(Debug, Default)]
struct Shard {
    keys: HashMap<Fingerprint, Entry>,
    queue: VecDeque<Fingerprint>,
    /// Keys at the front of the queue that the round in progress has still to send.
    due: usize,
    swept: Option<Duration>,
}

/// A decision of this node.
#[derive(Debug)]
pub(crate) struct Decided {
    pub(crate) decision: Decision,
    /// Which of the keys it reports: all of them, unless one found no room.
    pub(crate) levels: SmallVec<[usize; 2]>,
    /// Whether there is more to tell than there was.
    pub(crate) is_more: bool,
}

/// A parcel, and where it comes from.
#[derive(Debug, Clone)]
pub(crate) struct Outgoing {
    fingerprint: Fingerprint,
    number: u64,
    pub(crate) key: String,
    pub(crate) parcel: Parcel,
}

impl Table {
    /// For policies of so many levels whose keys begin like this. Until the store is
    /// heard of, its clock is taken to read `now_us` at `now`.
    pub(crate) fn new(prefix: &str, levels: usize, now_us: u64, now: Duration) -> Self {
        let shards = if levels > 1 { 1 } else { SHARDS };
        Self::with_room(prefix, shards, KEYS / shards, offset(now_us, now))
    }

    fn with_room(prefix: &str, shards: usize, keys_a_shard: usize, offset_us: i64) -> Self {
        Self {
            prefix: prefix.to_owned(),
            shards: (0..shards).map(|_| Mutex::default()).collect(),
            keys_a_shard,
            queued: AtomicUsize::new(0),
            due: AtomicUsize::new(0),
            parcels: AtomicU64::new(PARCELS | offset_us.unsigned_abs()),
            turn: AtomicUsize::new(0),
            offset_us: AtomicI64::new(offset_us),
            fingerprints: Fingerprints::default(),
        }
    }

    /// Decides, and charges every level or none. No level may block: that is decided
    /// before. Where there is no room for a key, the keys that are here decide if one of
    /// them refuses; otherwise the answer is `None`.
    pub(crate) fn decide(&self, keys: &Keys<'_>, cost: Cost, now: Duration) -> Option<Decided> {
        let levels: SmallVec<[(Fingerprint, &Limit); 2]> = keys
            .iter()
            .map(|key| (self.fingerprints.of(&key), key.limit()))
            .collect();
        let (first, _) = *levels.first()?;
        let mut shard = self.shard(first);
        // Of a key that is not here, nothing is known.
        let mut admits: SmallVec<[Option<bool>; 4]> = SmallVec::new();
        for (key, (fingerprint, limit)) in keys.iter().zip(&levels) {
            if !shard.keys.contains_key(fingerprint) && shard.has_room(self.keys_a_shard, now) {
                let (stored, offset_us) = (key.stored(&self.prefix), self.offset_us.load(Relaxed));
                let number = self.parcels.fetch_add(1, Relaxed) + 1;
                let entry = Entry::new(stored, **limit, (offset_us, number), now);
                shard.keys.insert(*fingerprint, entry);
            }
            admits.push(shard.keys.get_mut(fingerprint).map(|entry| {
                entry.tick(limit, now);
                limit.admits(&entry.local, cost)
            }));
        }
        let is_partial = admits.contains(&None);
        if is_partial && !admits.contains(&Some(false)) {
            return None;
        }
        // Of a partial answer, only the levels that refuse are reported.
        let is_reported = |admits: &Option<bool>| !is_partial || *admits == Some(false);
        let denied_by = match is_partial {
            true => Some(0),
            false => admits.iter().position(|admits| *admits == Some(false)),
        };
        let (mut decided_at_us, mut is_more) = (None, false);
        let mut outcomes: SmallVec<[LevelOutcome; 2]> = SmallVec::new();
        for ((fingerprint, _), admits) in levels.iter().zip(&admits) {
            let entry = shard.keys.get_mut(fingerprint);
            let Some(entry) = entry.filter(|_| is_reported(admits)) else {
                continue;
            };
            if denied_by.is_none() {
                entry.charge(cost);
            }
            decided_at_us.get_or_insert(entry.now_us(now));
            outcomes.push(LevelOutcome {
                outcome: entry.outcome(cost, *admits == Some(true)),
                cost,
                mark: entry.last_parcel,
            });
            if entry.ask() {
                shard.queue.push_back(*fingerprint);
                self.queued.fetch_add(1, SeqCst);
                is_more = true;
            }
        }
        drop(shard);
        let own_us = || on_clock(now, self.offset_us.load(Relaxed));
        let now_us = decided_at_us.unwrap_or_else(own_us);
        let receipt = denied_by.is_none().then(Receipt::fresh_id);
        let source = Source::Background;
        let levels = admits.iter().enumerate();
        let levels = levels.filter(|(_, admits)| is_reported(admits));
        Some(Decided {
            decision: Decision::from_store(outcomes, now_us, denied_by, source, receipt),
            levels: levels.map(|(level, _)| level).collect(),
            is_more,
        })
    }

    /// The store has admitted this, and some of the keys are here.
    pub(crate) fn admitted(&self, keys: &Keys<'_>, cost: Cost, now: Duration) {
        for key in keys.iter().filter(|key| *key.limit() != Limit::block()) {
            let fingerprint = self.fingerprints.of(&key);
            if let Some(entry) = self.shard(fingerprint).keys.get_mut(&fingerprint) {
                entry.tick(key.limit(), now);
                entry.local = key.limit().charge(entry.local, cost);
            }
        }
    }

    /// Gives back what a decision about these keys charged, where it has not been told
    /// to anybody. Says whether there was anything to give back.
    pub(crate) fn give_back(&self, keys: &Keys<'_>, receipt: &Receipt, now: Duration) -> bool {
        let mut any = false;
        for (key, (cost, parcel)) in keys.iter().zip(receipt.charges()) {
            let fingerprint = self.fingerprints.of(&key);
            if *key.limit() == Limit::block() {
                continue;
            }
            if let Some(entry) = self.shard(fingerprint).keys.get_mut(&fingerprint) {
                entry.tick(key.limit(), now);
                any |= entry.give_back(receipt.id(), cost, receipt.decided_at_us(), parcel);
            }
        }
        any
    }

    /// Forgets keys, by what they are called in the store, and what it was not told.
    pub(crate) fn forget(&self, stored: &[String]) {
        for shard in &self.shards {
            let is_meant = |entry: &Entry| stored.iter().any(|key| **key == *entry.key);
            lock(shard).keys.retain(|_, entry| !is_meant(entry));
        }
    }

    /// How many keys wait to be sent.
    pub(crate) fn queued(&self) -> usize {
        self.queued.load(SeqCst)
    }

    /// Whether the store has been told everything.
    pub(crate) fn is_synced(&self) -> bool {
        let mut shards = self.shards.iter();
        shards.all(|shard| lock(shard).keys.values().all(Entry::is_synced))
    }

    /// Keys that the round in progress has still to send.
    pub(crate) fn due(&self) -> usize {
        self.due.load(Relaxed)
    }

    /// Begins a round: every key that is queued now is to be sent before the next one.
    /// Keys that are queued later go behind them.
    pub(crate) fn begin_round(&self) {
        for shard in &self.shards {
            let mut shard = lock(shard);
            let more = shard.queue.len() - shard.due;
            shard.due += more;
            self.due.fetch_add(more, Relaxed);
        }
    }

    /// Ends a round: what it has not sent stays queued for the next one.
    pub(crate) fn end_round(&self) {
        for shard in &self.shards {
            let due = std::mem::take(&mut lock(shard).due);
            self.due.fetch_sub(due, Relaxed);
        }
    }

    /// Takes the parcels of this round, of at most so many keys: those that have waited
    /// longest.
    pub(crate) fn send(&self, most: usize, now: Duration) -> Vec<Outgoing> {
        let mut parcels = Vec::new();
        // Each part gets its turn: none can keep the others waiting.
        let share = most.div_ceil(self.shards.len());
        while parcels.len() < most && self.due() > 0 {
            let part = self.turn.fetch_add(1, Relaxed) % self.shards.len();
            let mut shard = lock(&self.shards[part]);
            let taken = shard.due.min(share).min(most - parcels.len());
            shard.due -= taken;
            let Shard { keys, queue, .. } = &mut *shard;
            for fingerprint in queue.drain(..taken) {
                let Some(entry) = keys.get_mut(&fingerprint) else {
                    continue;
                };
                let number = self.parcels.fetch_add(1, Relaxed) + 1;
                if let Some(parcel) = entry.send(number, now) {
                    parcels.push(Outgoing {
                        fingerprint,
                        number,
                        key: entry.key.to_string(),
                        parcel,
                    });
                }
            }
            self.due.fetch_sub(taken, Relaxed);
            self.queued.fetch_sub(taken, Relaxed);
        }
        parcels
    }

    /// What was sent then has arrived, at this time of the store, and left this count.
    pub(crate) fn arrived(
        &self,
        outgoing: &Outgoing,
        sent: Duration,
        now: Duration,
        heard: (u64, State),
    ) {
        self.landed(outgoing, |entry| {
            let again = entry.arrived(&outgoing.parcel, sent, now, heard);
            self.offset_us.store(entry.offset_us(), Relaxed);
            again
        });
    }

    /// What was sent has not arrived, as far as anybody knows.
    pub(crate) fn failed(&self, outgoing: &Outgoing) {
        self.landed(outgoing, Entry::failed);
    }

    fn landed(&self, outgoing: &Outgoing, change: impl FnOnce(&mut Entry) -> bool) {
        let mut shard = self.shard(outgoing.fingerprint);
        let entry = shard.keys.get_mut(&outgoing.fingerprint);
        // It may have been forgotten in the meantime.
        if let Some(entry) = entry.filter(|entry| entry.last_parcel == outgoing.number)
            && change(entry)
        {
            shard.queue.push_back(outgoing.fingerprint);
            self.queued.fetch_add(1, SeqCst);
        }
    }

    fn shard(&self, fingerprint: Fingerprint) -> MutexGuard<'_, Shard> {
        lock(&self.shards[shard_of(fingerprint, self.shards.len())])
    }
}

fn lock(shard: &Mutex<Shard>) -> MutexGuard<'_, Shard> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shard {
    /// Whether there is room for another key, once those that can go are gone.
    fn has_room(&mut self, most: usize, now: Duration) -> bool {
        let is_due = self.swept.is_none_or(|swept| now >= swept + SWEEP);
        if self.keys.len() >= most && is_due {
            self.keys.retain(|_, entry| !entry.is_spent(now));
            self.swept = Some(now);
        }
        self.keys.len() < most
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate::Policy;

    const SECOND: Duration = Duration::from_secs(1);
    const START_US: u64 = 1_700_000_000_000_000;

    fn policy(limit: Limit) -> Policy {
        Policy::builder("p").limit(limit).build().expect("a policy")
    }

    /// A table of so many keys in one part.
    fn table(keys: usize) -> Table {
        Table::with_room("tg", 1, keys, offset(START_US, Duration::ZERO))
    }

    fn decide(table: &Table, policy: &Policy, key: &str, now: Duration) -> Option<bool> {
        let attributes = [("key", key)];
        let keys = policy.keys(&attributes).expect("the one attribute");
        let decided = table.decide(&keys, Cost::ONE, now)?;
        Some(decided.decision.allowed())
    }

    /// Reports to a store that no other node uses.
    fn tell(table: &Table, now: Duration) -> usize {
        table.begin_round();
        let sent = table.send(1_000, now);
        let now_us = START_US + u64::try_from(now.as_micros()).expect("a time");
        for outgoing in &sent {
            let count = outgoing.parcel.arrive(None, now_us);
            table.arrived(outgoing, now, now, (now_us, count));
        }
        sent.len()
    }

    #[test]
    fn full_table_has_no_room_until_keys_are_reported_and_refilled() {
        let (table, policy) = (table(3), policy(Limit::per_second(1)));
        for key in ["a", "b", "c"] {
            assert_eq!(decide(&table, &policy, key, Duration::ZERO), Some(true));
        }
        assert_eq!(decide(&table, &policy, "d", Duration::ZERO), None);
        assert_eq!(decide(&table, &policy, "a", Duration::ZERO), Some(false));
        // Fully refilled, but not reported yet.
        assert_eq!(decide(&table, &policy, "d", 2 * SECOND), None);
        assert_eq!(tell(&table, 2 * SECOND), 3);
        assert_eq!(table.queued(), 0);
        // Told, they can go.
        assert_eq!(decide(&table, &policy, "d", 2 * SECOND + SWEEP), Some(true));
        assert_eq!(table.queued(), 1);
    }

    #[test]
    fn full_table_refuses_what_a_key_that_is_here_refuses() {
        let table = table(3);
        let policy = Policy::builder("p")
            .level("total", "", Limit::per_hour(2))
            .level("address", "{ip}", Limit::per_hour(5));
        let policy = policy.build().expect("a policy");
        let decide = |ip: &str| {
            let attributes = [("ip", ip)];
            let keys = policy.keys(&attributes).expect("the one attribute");
            table.decide(&keys, Cost::ONE, Duration::ZERO)
        };
        for (ip, allowed) in [("a", true), ("b", true), ("a", false)] {
            let decided = decide(ip).expect("room");
            assert_eq!(decided.decision.allowed(), allowed);
            assert_eq!(decided.levels[..], [0, 1]);
        }
        // There is no room for another address, but the total refuses.
        let decided = decide("c").expect("an answer");
        assert!(!decided.decision.allowed());
        assert_eq!(decided.levels[..], [0]);
        assert_eq!(decided.decision.levels().len(), 1);
        assert_eq!(decided.decision.limit(), 2);
    }

    #[test]
    fn keys_are_told_in_turn_and_once_each() {
        let (table, policy) = (table(100), policy(Limit::per_hour(5)));
        for _ in 0..3 {
            for key in 0..10 {
                decide(&table, &policy, &key.to_string(), Duration::ZERO);
            }
        }
        assert_eq!(table.queued(), 10);
        table.begin_round();
        let first = table.send(4, SECOND);
        let keys: Vec<&str> = first.iter().map(|it| &*it.key).collect();
        assert_eq!(
            keys,
            ["tg:{0}:p:p", "tg:{1}:p:p", "tg:{2}:p:p", "tg:{3}:p:p"]
        );
        assert!(first.iter().all(|it| it.parcel.unsent.cost == 3));
        // While one is on its way, its key is not told of again.
        decide(&table, &policy, "0", SECOND);
        assert_eq!(table.queued(), 6);
        assert_eq!(table.send(100, SECOND).len(), 6);
        for outgoing in &first {
            table.failed(outgoing);
        }
        table.begin_round();
        let again = table.send(100, SECOND);
        let costs: Vec<u64> = again.iter().map(|it| it.parcel.unsent.cost).collect();
        assert_eq!(costs, [4, 3, 3, 3]);
        assert!(!table.is_synced());
    }

    #[test]
    fn what_comes_back_for_a_key_that_was_forgotten_says_nothing() {
        let (table, policy) = (table(100), policy(Limit::per_hour(2)));
        assert_eq!(decide(&table, &policy, "a", Duration::ZERO), Some(true));
        table.begin_round();
        let old = table.send(1, Duration::ZERO);
        table.forget(&["tg:{a}:p:p".into()]);
        for allowed in [true, true, false] {
            assert_eq!(decide(&table, &policy, "a", SECOND), Some(allowed));
        }
        table.begin_round();
        let new = table.send(1, SECOND);
        table.failed(&old[0]);
        let count = old[0].parcel.limit.new_state(START_US);
        table.arrived(&old[0], Duration::ZERO, SECOND, (START_US, count));
        assert_eq!(decide(&table, &policy, "a", SECOND), Some(false));
        table.failed(&new[0]);
        table.begin_round();
        assert_eq!(table.send(1, SECOND)[0].parcel.unsent.cost, 2);
    }

    #[test]
    fn charges_made_while_a_look_is_lost_are_all_kept() {
        let (table, policy) = (table(100), policy(Limit::per_second(100).burst(2)));
        for allowed in [true, true] {
            assert_eq!(decide(&table, &policy, "a", Duration::ZERO), Some(allowed));
        }
        assert_eq!(tell(&table, Duration::ZERO), 1);
        assert_eq!(decide(&table, &policy, "a", Duration::ZERO), Some(false));
        table.begin_round();
        let look = table.send(1, Duration::ZERO);
        assert_eq!(look[0].parcel.unsent.cost, 0);
        for allowed in [true, true] {
            assert_eq!(decide(&table, &policy, "a", SECOND), Some(allowed));
        }
        table.failed(&look[0]);
        table.begin_round();
        let again = table.send(1, SECOND)[0].parcel.unsent;
        let State::TokenBucket(own) = again.own else {
            panic!("a bucket");
        };
        assert_eq!((again.cost, own.debt.us), (2, 20_000));
    }
}
