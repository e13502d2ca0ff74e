//! Rules of a node that the simulation does not judge: who is served, what is given back, and
//! when a node asks again. `crates/tidegate-testkit/mutations` has the mistakes that break the
//! others.

use tidegate::{Cost, Limit};
use tidegate_testkit::simulation::START_US;

use super::kept::Store;
use super::key::{Answer, Key};
use super::message::Message;
use super::refund::{is_of, mark};
use super::tokens::Tokens;
use crate::node::Why;

const MS: u64 = 1_000;

/// A node, a store, and the messages between them.
struct Pair {
    key: Key<u32>,
    store: Store,
}

impl Pair {
    fn new(limit: &str) -> Self {
        let limit = Limit::parse(limit).expect("a limit");
        Self {
            key: Key::new(limit, 0),
            store: Store::default(),
        }
    }

    /// What there is to say.
    fn say(&mut self, now_us: u64, nonce: u64) -> Message {
        let message = self.key.message(now_us, Why::Asked, || nonce);
        message.expect("something to say")
    }

    /// This many callers ask a node that is asked for a lot.
    fn ask(&mut self, callers: u32, now_us: u64, nonce: u64) -> Message {
        self.key.note(Cost::of(100));
        (0..callers).for_each(|who| self.key.wait(Cost::ONE, who));
        self.say(now_us, nonce)
    }

    /// The store hears at one moment, and the node of that at another.
    fn hear(&mut self, nonce: u64, message: &Message, [at, heard]: [u64; 2]) -> Vec<(u32, Answer)> {
        let reply = self.store.message(message, START_US + at);
        self.key.answered(nonce, &reply, heard)
    }

    fn lease(&mut self, now_us: u64, nonce: u64) {
        let message = self.ask(1, now_us, nonce);
        self.hear(nonce, &message, [now_us; 2]);
    }

    fn spends(&self, now_us: u64) -> bool {
        self.key.spend(Cost::ONE, now_us).is_some()
    }
}

#[test]
fn request_keeps_the_date_of_its_first_message() {
    let mut pair = Pair::new("100r/s");
    let message = pair.ask(1, 0, 1);
    // Somebody asks while the message is handed over once more.
    pair.key.wait(Cost::ONE, 1);
    assert_eq!(pair.key.message(300 * MS, Why::Asked, || 2), None);
    pair.hear(1, &message, [300 * MS, 400 * MS]);
    assert!(pair.spends(899 * MS) && !pair.spends(900 * MS));
}

#[test]
fn callers_that_arrive_during_a_request_are_served_in_order() {
    let mut pair = Pair::new("100r/s");
    let message = pair.ask(1, 0, 1);
    (1..=3).for_each(|who| pair.key.wait(Cost::ONE, who));
    let answers = pair.hear(1, &message, [0, MS]);
    let told: Vec<u32> = answers.iter().map(|(who, _)| *who).collect();
    assert_eq!(told, [0, 1, 2, 3]);
    assert!(matches!(answers[3].1, Answer::Spent(..)));
}

/// R8: a receipt names its lease by ten bits of the nonce, and a later lease may have the
/// same.
#[test]
fn r8_token_of_an_ended_lease_does_not_go_back_into_a_later_one() {
    for limit in ["10000r/s", "10000r/s fixed_window"] {
        let mut pair = Pair::new(limit);
        pair.lease(0, 1);
        let tokens = pair.key.tokens();
        let spent = pair.key.spend(Cost::ONE, MS).expect("a lease");
        let lease = |pair: &Pair| {
            let is_meant = |lease: &Tokens| is_of(lease, mark(&spent), spent.at_us);
            pair.key.open_lease(is_meant)
        };
        assert_eq!(lease(&pair), Some(1), "{limit}");
        assert!(pair.key.put_back(spent.nonce, Cost::ONE));
        assert_eq!(pair.key.tokens(), tokens, "{limit}");
        pair.key.close_all();
        assert!(!pair.key.put_back(spent.nonce, Cost::ONE), "{limit}");
        pair.lease(1_100 * MS, 1 + (1 << 10));
        assert!(pair.spends(1_101 * MS), "{limit}: the later lease is open");
        assert_eq!(lease(&pair), None, "{limit}");
    }
}

#[test]
fn idle_lease_is_returned_unspent() {
    let mut pair = Pair::new("100r/s");
    pair.lease(0, 1);
    pair.key.sweep(50 * MS);
    assert!(!pair.key.has_something_to_say());
    pair.key.sweep(550 * MS);
    let message = pair.say(550 * MS, 2);
    let spent: Vec<u32> = message.settles.iter().map(|it| it.spent).collect();
    assert_eq!(spent, [0]);
    pair.hear(2, &message, [550 * MS, 551 * MS]);
    assert!(!pair.key.is_active());
}

#[test]
fn refusal_holds_for_as_long_as_the_store_said() {
    let mut pair = Pair::new("10r/s burst=2");
    let message = pair.ask(3, 0, 1);
    let answers = pair.hear(1, &message, [0; 2]).into_iter();
    let refused = answers.filter(|(_, it)| matches!(it, Answer::Refused(_)));
    assert_eq!(refused.count(), 1);
    assert!(pair.key.refuses(Cost::ONE, 99 * MS).is_some());
    assert!(pair.key.refuses(Cost::ONE, 100 * MS).is_none());
}

#[test]
fn returned_leases_are_told_of_until_the_store_has_heard() {
    let mut pair = Pair::new("100r/s");
    pair.lease(0, 1);
    pair.key.close_all();
    let first = pair.say(MS, 2);
    pair.key.failed(2, true);
    let again = pair.say(2 * MS, 3);
    assert_eq!(first.settles, again.settles);
    pair.key.failed(3, true);
    pair.key.sweep(2_000 * MS);
    assert!(!pair.key.is_active(), "after 2 T the store has charged it");
    assert_eq!(pair.key.stats.lapsed, 1);
}
