//! When a node sends its counts: in rounds, one per interval. A round sends every key that
//! was queued when it began, a bounded number at a time. A state machine without its own
//! clock, which production and the simulator both drive.

use std::time::Duration;

use super::table::{Outgoing, Table};

/// Keys in flight at once.
const AT_ONCE: usize = 512;

/// The longest pause after a failure, and the pause of a node that is in a hurry.
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
const SHORT_PAUSE: Duration = Duration::from_millis(20);

#[derive(Debug, Default)]
pub(crate) struct Sender {
    /// When the next round may begin.
    next: Duration,
    in_flight: usize,
    /// Rounds in a row that have failed, and whether this one has.
    failures: u32,
    has_failed: bool,
}

impl Sender {
    /// What to send now. Begins a round when the last one is over and it is time.
    pub(crate) fn send(
        &mut self,
        table: &Table,
        interval: Duration,
        now: Duration,
    ) -> Vec<Outgoing> {
        if table.due() == 0 && table.queued() > 0 && now >= self.next {
            table.begin_round();
            self.next = now + interval;
            self.has_failed = false;
        }
        let parcels = table.send(AT_ONCE.saturating_sub(self.in_flight), now);
        self.in_flight += parcels.len();
        parcels
    }

    /// A parcel has arrived, or the store has answered that its key is bad.
    pub(crate) fn arrived(&mut self) {
        self.in_flight -= 1;
        self.failures = 0;
    }

    /// The store has failed: ends the round and waits, longer each time.
    pub(crate) fn failed(&mut self, table: &Table, interval: Duration, now: Duration) {
        self.in_flight -= 1;
        table.end_round();
        // All parcels of a round may fail together: that is one failure.
        if !self.has_failed {
            self.has_failed = true;
            self.failures = self.failures.saturating_add(1);
        }
        let pause = interval * 2_u32.saturating_pow(self.failures.min(9));
        self.next = now + pause.min(LONGEST_PAUSE.max(interval));
    }

    /// Begins the next round at once, or after a short pause while the store fails.
    pub(crate) fn hurry(&mut self, now: Duration) {
        let pause = match self.failures {
            0 => Duration::ZERO,
            _ => SHORT_PAUSE,
        };
        self.next = self.next.min(now + pause);
    }

    /// When there is something to do again, unless a parcel lands before.
    pub(crate) fn wakes_at(&self, table: &Table) -> Option<Duration> {
        (table.due() == 0 && table.queued() > 0).then_some(self.next)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use tidegate::{Cost, Limit, Policy};

    use super::*;

    const INTERVAL: Duration = Duration::from_millis(50);
    const START_US: u64 = 1_700_000_000_000_000;

    fn ask(table: &Table, policy: &Policy, keys: u64, now: Duration) {
        for key in 0..keys {
            let key = key.to_string();
            let attributes = [("key", &*key)];
            let keys = policy.keys(&attributes).expect("the one attribute");
            table.decide(&keys, Cost::ONE, now).expect("room for a key");
        }
    }

    /// The parcel arrives at a store that knows nothing else.
    fn arrive(table: &Table, outgoing: &Outgoing, sent: Duration, now: Duration) {
        let now_us = START_US + u64::try_from(now.as_micros()).expect("a time");
        let count = outgoing.parcel.arrive(None, now_us);
        table.arrived(outgoing, sent, now, (now_us, count));
    }

    fn policy() -> Policy {
        let policy = Policy::builder("p").limit(Limit::per_second(1_000_000));
        policy.build().expect("a policy")
    }

    #[test]
    fn g4_every_busy_key_is_sent_in_every_interval() {
        for keys in [1, 10, 40, 500] {
            let (policy, table) = (policy(), Table::new("tg", 1, START_US, Duration::ZERO));
            let mut sender = Sender::default();
            let mut sent: HashMap<String, u32> = HashMap::new();
            for round in 0..60 {
                let now = INTERVAL * round;
                ask(&table, &policy, keys, now);
                for outgoing in sender.send(&table, INTERVAL, now) {
                    *sent.entry(outgoing.key.clone()).or_default() += 1;
                    arrive(&table, &outgoing, now, now + Duration::from_millis(1));
                    sender.arrived();
                }
            }
            assert_eq!(sent.len() as u64, keys);
            let seldom = sent.values().min();
            assert_eq!(seldom, Some(&60), "{keys} keys, sent in 60 intervals");
        }
    }

    #[test]
    fn a_round_of_many_keys_sends_each_of_them_once() {
        let (policy, table) = (policy(), Table::new("tg", 1, START_US, Duration::ZERO));
        let (mut sender, mut sent) = (Sender::default(), HashMap::<String, u32>::new());
        let keys = 5_000;
        ask(&table, &policy, keys, Duration::ZERO);
        let mut flying = sender.send(&table, INTERVAL, Duration::ZERO);
        assert_eq!(flying.len(), AT_ONCE);
        while let Some(outgoing) = flying.pop() {
            *sent.entry(outgoing.key.clone()).or_default() += 1;
            // Each is asked for again as soon as it has arrived.
            arrive(&table, &outgoing, Duration::ZERO, Duration::ZERO);
            sender.arrived();
            ask(&table, &policy, 100, Duration::ZERO);
            flying.extend(sender.send(&table, INTERVAL, Duration::ZERO));
            assert!(sender.in_flight <= AT_ONCE);
        }
        assert_eq!(sent.len() as u64, keys);
        assert!(sent.values().all(|times| *times == 1));
        assert_eq!(sender.wakes_at(&table), Some(INTERVAL));
    }

    #[test]
    fn a_round_that_fails_counts_once_and_pauses_grow() {
        let (policy, table) = (policy(), Table::new("tg", 1, START_US, Duration::ZERO));
        let mut sender = Sender::default();
        let (mut now, mut pauses) = (Duration::ZERO, Vec::new());
        for _ in 0..5 {
            ask(&table, &policy, 20, now);
            for outgoing in sender.send(&table, INTERVAL, now) {
                table.failed(&outgoing);
                sender.failed(&table, INTERVAL, now);
            }
            let next = sender.wakes_at(&table).expect("keys to tell");
            pauses.push((next - now).as_millis());
            now = next;
        }
        assert_eq!(pauses, [100, 200, 400, 500, 500]);
    }
}
