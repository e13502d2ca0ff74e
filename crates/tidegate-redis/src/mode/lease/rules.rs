//! The rules of the protocol, one by one. `crates/tidegate-testkit/mutations` has the mistakes
//! that break them.

use smallvec::{SmallVec, smallvec};
use tidegate::{Cost, Limit};

use super::kept::Store;
use super::key::{Answer, Key};
use super::message::{Grant, Message, Reply, Run, Settle};
use super::refund::{is_of, mark};
use super::tokens::Tokens;
use crate::node::Why;

const MS: u64 = 1_000;
const START_US: u64 = 1_700_000_000_000_000;

/// A node, a store, and the messages between them.
struct Pair {
    limit: Limit,
    key: Key<u32>,
    store: Store,
    nonces: u64,
}

impl Pair {
    fn new(limit: &str) -> Self {
        let limit = Limit::parse(limit).expect("a limit");
        Self {
            limit,
            key: Key::new(limit, 0),
            store: Store::default(),
            nonces: 0,
        }
    }

    fn arrive(&mut self, message: &Message, now_us: u64) -> Reply {
        self.store.message(message, START_US + now_us)
    }

    /// The node asks, as one that is asked for a lot.
    fn send(&mut self, now_us: u64) -> (u64, Message) {
        self.key.note(Cost::of(100));
        self.key.wait(Cost::ONE, 0);
        self.nonces += 1;
        let nonce = self.nonces;
        let message = self.key.message(now_us, Why::Asked, || nonce);
        (nonce, message.expect("something to say"))
    }

    /// Asks, and has the answer at once.
    fn lease(&mut self, now_us: u64) -> Vec<(u32, Answer)> {
        let (id, message) = self.send(now_us);
        let reply = self.arrive(&message, now_us);
        self.key.answered(id, &reply, now_us)
    }

    fn spends(&self, now_us: u64) -> bool {
        self.key.spend(Cost::ONE, now_us).is_some()
    }

    /// What the store has, as whole tokens used and out.
    fn look(&mut self, now_us: u64) -> (u32, u32) {
        let (used, out, _) = self
            .store
            .check(self.limit, Cost::ONE, 0, START_US + now_us);
        let used = self.limit.outcome(&used, Cost::ONE, true);
        (used.limit - used.remaining(), out.tokens)
    }
}

#[test]
fn lease_is_valid_from_when_it_was_asked_for() {
    let mut pair = Pair::new("100r/s");
    let (id, message) = pair.send(0);
    let reply = pair.arrive(&message, 0);
    pair.key.answered(id, &reply, 400 * MS);
    assert!(pair.spends(899 * MS) && !pair.spends(900 * MS));
}

#[test]
fn request_keeps_the_date_of_its_first_message() {
    let mut pair = Pair::new("100r/s");
    let (id, message) = pair.send(0);
    // Somebody asks while the message is handed over once more.
    pair.key.wait(Cost::ONE, 1);
    assert_eq!(pair.key.message(300 * MS, Why::Asked, || 2), None);
    let reply = pair.arrive(&message, 300 * MS);
    pair.key.answered(id, &reply, 400 * MS);
    assert!(pair.spends(899 * MS) && !pair.spends(900 * MS));
}

#[test]
fn answer_to_a_request_that_was_given_up_is_ignored() {
    let mut pair = Pair::new("100r/s");
    let (id, message) = pair.send(0);
    let reply = pair.arrive(&message, 0);
    pair.key.sweep(500 * MS);
    pair.key.answered(id, &reply, 501 * MS);
    assert!(!pair.spends(502 * MS));
}

#[test]
fn lease_that_is_returned_is_not_spent_any_more() {
    let mut pair = Pair::new("100r/s");
    pair.lease(0);
    // While a second one is asked for, the first is spent on.
    while pair.key.tokens() > 20 {
        assert!(pair.spends(MS));
    }
    let (_, message) = pair.send(2 * MS);
    let returned: Vec<u64> = message.settles.iter().map(|it| it.nonce).collect();
    let spent = pair.key.spend(Cost::ONE, 3 * MS);
    assert!(spent.is_none_or(|spent| !returned.contains(&spent.nonce)));
}

#[test]
fn what_is_out_is_not_there_for_others() {
    let mut pair = Pair::new("10/100s");
    pair.lease(0);
    assert_eq!(pair.look(0), (1, 5));
    let (_, _, admitted) = pair.store.check(pair.limit, Cost::ONE, 9, START_US);
    assert_eq!(admitted, 4);
}

#[test]
fn lease_that_ends_is_charged_in_full() {
    let mut pair = Pair::new("10/100s");
    pair.lease(0);
    assert_eq!(pair.look(1_000 * MS), (6, 0));
}

#[test]
fn what_is_out_does_not_drain() {
    let mut pair = Pair::new("10r/s");
    pair.lease(0);
    assert_eq!(pair.look(0), (1, 5));
    assert_eq!(pair.look(900 * MS), (0, 5));
}

#[test]
fn key_outlives_its_leases_until_they_have_drained() {
    let mut pair = Pair::new("10r/s");
    pair.lease(0);
    let expires_ms = pair.store.kept.as_ref().map(|kept| kept.expires_ms);
    // One used and five out: a second, and what six take to drain.
    assert_eq!(expires_ms, Some(START_US / MS + 1_600));
}

#[test]
fn lease_that_is_returned_is_charged_for_what_was_spent() {
    // At most for what it had.
    for (spent, used) in [(2, 3), (8, 6)] {
        let mut pair = Pair::new("10/100s");
        pair.lease(0);
        let message = Message {
            limit: pair.limit,
            settles: smallvec![Settle { nonce: 1, spent }],
            asks: SmallVec::new(),
            grant: None,
        };
        pair.arrive(&message, 0);
        assert_eq!(pair.look(0), (used, 0), "{spent} spent");
    }
}

#[test]
fn message_that_arrives_twice_takes_one_lease() {
    let mut pair = Pair::new("100/100s");
    let message = Message {
        limit: pair.limit,
        settles: SmallVec::new(),
        asks: smallvec![Run {
            cost: Cost::ONE,
            count: 1,
        }],
        grant: Some(Grant { nonce: 1, want: 9 }),
    };
    let replies = [0, 100 * MS].map(|now_us| pair.arrive(&message, now_us));
    let leases = replies.map(|reply| (reply.given, reply.lease_us));
    assert_eq!(leases, [(9, 1_000 * MS), (9, 900 * MS)]);
    assert_eq!(pair.look(100 * MS).1, 9);
}

#[test]
fn few_tokens_are_asked_for_without_a_lease() {
    let mut pair = Pair::new("100r/s");
    pair.key.note(Cost::of(3));
    pair.key.wait(Cost::ONE, 7);
    let message = pair
        .key
        .message(0, Why::Asked, || 1)
        .expect("somebody asks");
    assert_eq!(message.grant, None);
    let reply = pair.arrive(&message, 0);
    let answers = pair.key.answered(1, &reply, MS);
    assert!(matches!(answers[..], [(7, Answer::Admitted { .. })]));
    assert!(!pair.key.is_active());
}

#[test]
fn callers_that_arrive_during_a_request_are_served_in_order() {
    let mut pair = Pair::new("100r/s");
    let (id, message) = pair.send(0);
    for who in 1..=3 {
        pair.key.wait(Cost::ONE, who);
    }
    assert_eq!(
        pair.key.message(0, Why::Asked, || 9),
        None,
        "one request at a time"
    );
    let reply = pair.arrive(&message, 0);
    let answers = pair.key.answered(id, &reply, MS);
    let told: Vec<u32> = answers.iter().map(|(who, _)| *who).collect();
    assert_eq!(told, [0, 1, 2, 3]);
    assert!(matches!(answers[3].1, Answer::Spent(..)));
}

#[test]
fn tokens_go_back_into_an_open_lease_only() {
    let mut pair = Pair::new("100r/s");
    pair.lease(0);
    let before = pair.key.tokens();
    let spent = pair.key.spend(Cost::of(3), MS).expect("a lease");
    assert!(pair.key.put_back(spent.nonce, Cost::of(3)));
    assert_eq!(pair.key.tokens(), before);
    pair.key.close_all();
    assert!(!pair.key.put_back(spent.nonce, Cost::of(3)));
}

/// R8: a receipt names its lease by ten bits of the nonce, and a later lease may have the
/// same.
#[test]
fn r8_token_of_an_ended_lease_does_not_go_back_into_a_later_one() {
    for limit in ["10000r/s", "10000r/s fixed_window"] {
        let mut pair = Pair::new(limit);
        pair.lease(0);
        let spent = pair.key.spend(Cost::ONE, MS).expect("a lease");
        let lease = |pair: &Pair| {
            let is_meant = |lease: &Tokens| is_of(lease, mark(&spent), spent.at_us);
            pair.key.open_lease(is_meant)
        };
        assert_eq!(lease(&pair), Some(1), "{limit}");
        pair.key.close_all();
        pair.nonces = 1 << 10;
        pair.lease(1_100 * MS);
        assert!(pair.spends(1_101 * MS), "{limit}: the later lease is open");
        assert_eq!(lease(&pair), None, "{limit}");
    }
}

#[test]
fn idle_lease_is_returned_unspent() {
    let mut pair = Pair::new("100r/s");
    pair.lease(0);
    assert!(pair.look(0).1 > 0);
    pair.key.sweep(50 * MS);
    assert!(!pair.key.has_something_to_say());
    pair.key.sweep(550 * MS);
    let message = pair
        .key
        .message(550 * MS, Why::Asked, || 2)
        .expect("a lease to return");
    assert_eq!(message.settles.len(), 1);
    let reply = pair.arrive(&message, 550 * MS);
    pair.key.answered(2, &reply, 551 * MS);
    assert_eq!(pair.look(551 * MS), (0, 0));
    assert!(!pair.key.is_active());
}

#[test]
fn refusal_holds_for_as_long_as_the_store_said() {
    let mut pair = Pair::new("10r/s burst=2");
    for who in 0..3 {
        pair.key.wait(Cost::ONE, who);
    }
    let message = pair
        .key
        .message(0, Why::Asked, || 1)
        .expect("somebody asks");
    let reply = pair.arrive(&message, 0);
    let answers = pair.key.answered(1, &reply, 0);
    let refused = answers
        .iter()
        .filter(|(_, it)| matches!(it, Answer::Refused(_)));
    assert_eq!(refused.count(), 1);
    assert!(pair.key.refuses(Cost::ONE, 99 * MS).is_some());
    assert!(pair.key.refuses(Cost::ONE, 100 * MS).is_none());
}

#[test]
fn returned_leases_are_told_of_until_the_store_has_heard() {
    let mut pair = Pair::new("100r/s");
    pair.lease(0);
    pair.key.close_all();
    let first = pair
        .key
        .message(MS, Why::Asked, || 2)
        .expect("a lease to return");
    pair.key.failed(2, true);
    let again = pair
        .key
        .message(2 * MS, Why::Asked, || 3)
        .expect("the same once more");
    assert_eq!(first.settles, again.settles);
    pair.key.failed(3, true);
    pair.key.sweep(2_000 * MS);
    assert!(!pair.key.is_active(), "after 2 T the store has charged it");
    assert_eq!(pair.key.stats.lapsed, 1);
}
