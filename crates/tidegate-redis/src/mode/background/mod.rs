//! The mode `background`: a node decides on its own, by what it has admitted itself and
//! what it last heard from the store, and tells the store of it a moment later. Nobody
//! waits for the store.
//!
//! What is told is counted whether it fits or not, so that whatever the nodes together
//! have admitted too much is waited off before more is admitted. What could not be told
//! is kept, merged with what comes after it, and told again.
//!
//! [`Key`] is the state machine of one key, and [`Node`] tells the store.

mod key;
mod unsent;

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};

use smallvec::SmallVec;
use tidegate::algorithm::{Numbers, State};
use tidegate::{Cost, Decision, LevelOutcome, Limit, Policy, PolicyDecision, Receipt, Source};

use super::exact::Exact;
use super::{Query, wall_us};
use crate::error::StoreError;
use crate::node::{Node, SHARDS, Table, now_us, offset};
use crate::store::RedisStore;
pub(crate) use key::Key;
#[cfg(test)]
pub(crate) use unsent::{Parcel, Unsent, give_back};

/// A policy that is decided here.
#[derive(Debug)]
pub(crate) struct Background {
    pub(crate) node: Arc<Node<Key>>,
    /// Decides where there is no room for a key.
    pub(super) exact: Exact,
}

/// The store's clock less this node's, as it was last heard of any key.
#[derive(Debug)]
pub(crate) struct Clock(AtomicI64);

/// A decision of this node.
#[derive(Debug)]
pub(crate) struct Decided {
    pub(crate) decision: Decision,
    /// Which of the keys it reports: all of them, unless one found no room.
    pub(crate) levels: SmallVec<[usize; 2]>,
}

impl Background {
    /// Decides. `None` where there is no room for a key, and none that is here refuses.
    pub(super) fn now<'p>(&self, query: &Query<'p, '_>) -> Option<PolicyDecision<'p>> {
        let Decided { decision, levels } = self.node.table()?.decide(query, now_us())?;
        self.node.start();
        let reported = query.keys.iter().enumerate();
        let reported = reported.filter(|(level, _)| levels.contains(level));
        Some(query.reporting(reported.map(|(_, key)| key), decision))
    }

    /// Has the store decide. What it admits, the keys that are here know, too.
    pub(super) async fn ask<'p>(
        &self,
        query: &Query<'p, '_>,
    ) -> Result<PolicyDecision<'p>, StoreError> {
        let decision = self.exact.ask(query).await?;
        if decision.receipt().is_some()
            && let Some(table) = self.node.table()
        {
            table.each_of(query, now_us(), |key, _| key.admitted(query.cost));
        }
        Ok(query.decided(decision))
    }

    /// Gives back what a node has charged for these keys, where the store has not been told
    /// of it. A charge of the store is given back there.
    pub(super) async fn refund(
        &self,
        query: &Query<'_, '_>,
        receipt: &Receipt,
    ) -> Result<bool, StoreError> {
        if !receipt.charges().any(|(_, mark)| key::is_parcel(mark)) {
            return self.exact.refund(query, receipt, "", |_| true).await;
        }
        let mut any = false;
        let charges: SmallVec<[(Cost, u64); 2]> = receipt.charges().collect();
        if let Some(table) = self.node.table() {
            table.each_of(query, now_us(), |key, level| {
                if let Some((cost, parcel)) = charges.get(level) {
                    any |= key.give_back(receipt.id(), *cost, receipt.decided_at_us(), *parcel);
                }
            });
        }
        Ok(any)
    }
}

/// For a policy that was not decided here before.
pub(super) fn node(policy: &Policy, store: &RedisStore) -> Arc<Node<Key>> {
    let levels = policy.levels().len();
    let table = table(&store.0.prefix, levels, wall_us(), now_us());
    Arc::new(Node::new(policy, store, table, policy.sync_interval()))
}

/// For policies of so many levels whose keys begin like this. Until the store is heard of,
/// its clock is taken to read `store_us` at `now_us`.
pub(crate) fn table(prefix: &str, levels: usize, store_us: u64, now_us: u64) -> Table<Key> {
    // The keys of several levels are charged together.
    let shards = if levels > 1 { 1 } else { SHARDS };
    let clock = Clock(AtomicI64::new(offset(store_us, now_us)));
    Table::new(prefix, shards, clock)
}

impl Table<Key> {
    /// Decides, and charges every level or none. No level may block: that is decided
    /// before. Where there is no room for a key, the keys that are here decide if one of
    /// them refuses; otherwise the answer is `None`.
    pub(crate) fn decide(&self, query: &Query<'_, '_>, now_us: u64) -> Option<Decided> {
        let (first, cost) = (*query.prints.first()?, query.cost);
        let offset_us = self.shared.0.load(Relaxed);
        let mut shard = self.write(first);
        // Of a key that is not here, nothing is known.
        let mut admits: SmallVec<[Option<bool>; 4]> = SmallVec::new();
        for (fingerprint, key) in query.levels() {
            let new = || Some(Key::new(*key.limit(), offset_us, now_us));
            let entry = self.key(&mut shard, fingerprint, &key, now_us, new);
            admits.push(entry.map(|entry| {
                entry.tick(key.limit(), now_us);
                entry.admits(cost)
            }));
        }
        let is_partial = admits.contains(&None);
        let denied_by = admits.iter().position(|admits| *admits == Some(false));
        if is_partial && denied_by.is_none() {
            return None;
        }
        let (mut decided_at_us, mut outcomes) = (None, SmallVec::<[LevelOutcome; 2]>::new());
        let mut reported = SmallVec::new();
        for (level, (fingerprint, admits)) in query.prints.iter().zip(&admits).enumerate() {
            // Of a partial answer, only the levels that refuse are reported.
            let is_reported = !is_partial || *admits == Some(false);
            let Some(entry) = shard.get_mut(*fingerprint).filter(|_| is_reported) else {
                continue;
            };
            if denied_by.is_none() {
                entry.charge(cost);
            }
            decided_at_us.get_or_insert(entry.now_us(now_us));
            let outcome = entry.outcome(cost, *admits == Some(true));
            outcomes.push(LevelOutcome::new(outcome, cost, entry.last_parcel));
            reported.push(level);
            self.list(&mut shard, *fingerprint);
        }
        drop(shard);
        let decided_at_us =
            decided_at_us.unwrap_or_else(|| now_us.saturating_add_signed(offset_us));
        let denied_by = if is_partial { Some(0) } else { denied_by };
        let receipt = denied_by.is_none().then(Receipt::fresh_id);
        let source = Source::Background;
        Some(Decided {
            decision: Decision::from_store(outcomes, decided_at_us, denied_by, source, receipt),
            levels: reported,
        })
    }

    /// Changes those of the keys that are here, brought to this instant.
    fn each_of(&self, query: &Query<'_, '_>, now_us: u64, mut change: impl FnMut(&mut Key, usize)) {
        for (level, (fingerprint, key)) in query.levels().enumerate() {
            let is_blocked = *key.limit() == Limit::block();
            if let Some(entry) = self.write(fingerprint).get_mut(fingerprint)
                && !is_blocked
            {
                entry.tick(key.limit(), now_us);
                change(entry, level);
            }
        }
    }
}

/// The reply of the script: the store's time, and the count over all nodes.
pub(crate) fn heard(limit: &Limit, reply: &[i64]) -> Option<(u64, State)> {
    let mut numbers = Numbers::new(reply);
    let now_us = numbers.next()?;
    numbers.next()?;
    let (count, _) = limit.read_state(now_us, &mut numbers)?;
    numbers.is_empty().then_some((now_us, count))
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use crate::error::ErrorKind;
    use crate::mode::tests::check;
    use crate::node::{AT_ONCE, Envelope, Rounds, Why};

    const INTERVAL_US: u64 = 50_000;
    const SECOND_US: u64 = 1_000_000;
    const START_US: u64 = 1_700_000_000_000_000;

    fn policy(limit: Limit) -> Policy {
        Policy::builder("p").limit(limit).build().expect("a policy")
    }

    fn busy() -> (Policy, Table<Key>, Rounds) {
        let policy = policy(Limit::per_second(1_000_000));
        (policy, table("tg", 1, START_US, 0), Rounds::default())
    }

    fn decide(table: &Table<Key>, policy: &Policy, key: &str, now_us: u64) -> Option<bool> {
        let decided = table.decide(&check(policy, &[("key", key)], Cost::ONE), now_us)?;
        Some(decided.decision.allowed())
    }

    fn ask(table: &Table<Key>, policy: &Policy, keys: u64, now_us: u64) {
        for key in 0..keys {
            decide(table, policy, &key.to_string(), now_us).expect("room for a key");
        }
    }

    /// The messages of a round, as long as so few are in flight.
    fn send(
        table: &Table<Key>,
        rounds: &mut Rounds,
        in_flight: usize,
        now_us: u64,
    ) -> Vec<Envelope<Parcel>> {
        let round = (Why::Round, AT_ONCE - in_flight);
        rounds.messages(table, round, INTERVAL_US, now_us)
    }

    /// The parcel arrives at a store that no other node uses.
    fn arrive(table: &Table<Key>, envelope: &Envelope<Parcel>, now_us: u64) {
        let store_us = START_US + now_us;
        let count = envelope.message.arrive(None, store_us);
        table.answered(envelope, (store_us, count), now_us);
    }

    #[test]
    fn g4_every_busy_key_is_sent_in_every_interval() {
        for keys in [1, 10, 40, 500] {
            let (policy, table, mut rounds) = busy();
            let mut sent: HashMap<Box<str>, u32> = HashMap::new();
            for round in 0..60 {
                let now_us = INTERVAL_US * round;
                ask(&table, &policy, keys, now_us);
                for envelope in send(&table, &mut rounds, 0, now_us) {
                    *sent.entry(envelope.stored.clone()).or_default() += 1;
                    arrive(&table, &envelope, now_us + 1_000);
                }
            }
            assert_eq!(sent.len() as u64, keys);
            let seldom = sent.values().min();
            assert_eq!(seldom, Some(&60), "{keys} keys, sent in 60 intervals");
        }
    }

    #[test]
    fn a_round_of_many_keys_sends_each_of_them_once() {
        let (policy, table, mut rounds) = busy();
        let (keys, mut sent) = (5_000, HashMap::<Box<str>, u32>::new());
        ask(&table, &policy, keys, 0);
        let mut flying = send(&table, &mut rounds, 0, 0);
        assert_eq!(flying.len(), AT_ONCE);
        while let Some(envelope) = flying.pop() {
            *sent.entry(envelope.stored.clone()).or_default() += 1;
            // Each is asked for again as soon as it has arrived.
            arrive(&table, &envelope, 0);
            ask(&table, &policy, 100, 0);
            flying.extend(send(&table, &mut rounds, flying.len(), 0));
            assert!(flying.len() <= AT_ONCE);
        }
        assert_eq!(sent.len() as u64, keys);
        assert!(sent.values().all(|times| *times == 1));
        assert_eq!(rounds.next_us(), Some(INTERVAL_US));
    }

    #[test]
    fn a_round_that_fails_counts_once_and_pauses_grow() {
        let (policy, table, mut rounds) = busy();
        let error = StoreError::new(ErrorKind::Timeout, "no answer");
        let (mut now_us, mut pauses) = (0, Vec::new());
        for _ in 0..5 {
            ask(&table, &policy, 20, now_us);
            for envelope in send(&table, &mut rounds, 0, now_us) {
                table.failed(&envelope, &error);
                rounds.failed(INTERVAL_US, now_us);
            }
            let next_us = rounds.next_us().expect("a round that is over");
            pauses.push((next_us - now_us) / 1_000);
            now_us = next_us;
        }
        assert_eq!(pauses, [100, 200, 400, 500, 500]);
    }

    #[test]
    fn full_table_has_no_room_until_keys_are_reported_and_refilled() {
        let policy = policy(Limit::per_second(1));
        let mut table = table("tg", 2, START_US, 0);
        table.keys_per_shard = 3;
        let decide = |key: &str, now_us: u64| decide(&table, &policy, key, now_us);
        for key in ["a", "b", "c"] {
            assert_eq!(decide(key, 0), Some(true));
        }
        assert_eq!(decide("d", 0), None);
        assert_eq!(decide("a", 0), Some(false));
        // Fully refilled, but not reported yet.
        assert_eq!(decide("d", 2 * SECOND_US), None);
        let mut rounds = Rounds::default();
        let sent = send(&table, &mut rounds, 0, 2 * SECOND_US);
        assert_eq!(sent.len(), 3);
        for envelope in sent {
            arrive(&table, &envelope, 2 * SECOND_US);
        }
        // Told, they can go once a round has seen it.
        assert!(send(&table, &mut rounds, 0, 3 * SECOND_US).is_empty());
        assert_eq!(decide("d", 3 * SECOND_US), Some(true));
        assert_eq!(table.listed(), 1);
    }

    #[test]
    fn full_table_refuses_what_a_key_that_is_here_refuses() {
        let policy = Policy::builder("p")
            .level("total", "", Limit::per_hour(2))
            .level("address", "{ip}", Limit::per_hour(5));
        let policy = policy.build().expect("a policy");
        let mut table = table("tg", 2, START_US, 0);
        table.keys_per_shard = 3;
        let decide = |ip: &str| table.decide(&check(&policy, &[("ip", ip)], Cost::ONE), 0);
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
    fn answer_for_a_key_that_was_forgotten_is_ignored() {
        let (policy, table) = (policy(Limit::per_hour(2)), table("tg", 1, START_US, 0));
        let mut rounds = Rounds::default();
        assert_eq!(decide(&table, &policy, "a", 0), Some(true));
        let old = send(&table, &mut rounds, 0, 0);
        table.forget(&["tg:{a}:p:p".into()], SECOND_US);
        for allowed in [true, true, false] {
            assert_eq!(decide(&table, &policy, "a", SECOND_US), Some(allowed));
        }
        let error = StoreError::new(ErrorKind::Timeout, "no answer");
        let new = send(&table, &mut rounds, 0, SECOND_US);
        table.failed(&old[0], &error);
        let count = old[0].message.limit.new_state(START_US);
        table.answered(&old[0], (START_US, count), SECOND_US);
        assert_eq!(decide(&table, &policy, "a", SECOND_US), Some(false));
        table.failed(&new[0], &error);
        let again = send(&table, &mut rounds, 0, 2 * SECOND_US);
        assert_eq!(again[0].message.unsent.cost, 2);
    }
}
