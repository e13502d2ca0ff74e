//! The refusal memory: until a key has room again, the store would refuse it again, so it is
//! not asked.
//!
//! A refusal holds from *the moment the question was sent* for as long as the store said
//! to wait. The store decided later than that, so it would refuse for at least as long:
//! a key is never refused here when the store, asked at the same moment, would have
//! admitted it; unless somebody has given back or forgotten a charge elsewhere, which is
//! why a refusal is remembered for a second at most.
//!
//! A state machine without a clock of its own.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use smallvec::SmallVec;
use tidegate::algorithm::Outcome;
use tidegate::{Cost, Decision, LevelKey, LevelOutcome, Limit};

use super::Query;
use crate::fingerprint::{Fingerprint, shard_of};
use crate::lock::lock;

/// The keys remembered at once: this many in each of so many parts. More of them are
/// asked for.
const SHARDS: usize = 16;
const KEYS: usize = 4_096;

/// What the store has refused lately.
#[derive(Debug)]
pub(crate) struct Refusals {
    longest: Duration,
    shards: [Mutex<Shard>; SHARDS],
    /// How often some were forgotten: an answer from before that says nothing.
    forgotten: AtomicU64,
}

/// Some of the keys, and when those that were over were last looked for.
#[derive(Debug, Default)]
struct Shard {
    keys: HashMap<Fingerprint, Refusal>,
    swept: Option<Duration>,
}

#[derive(Debug, Clone, Copy)]
struct Refusal {
    cost: Cost,
    /// A check may bring another one.
    limit: Limit,
    /// When the question was sent, when it was answered, and the answer.
    sent: Duration,
    answered: Duration,
    outcome: Outcome,
}

/// A question on its way.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sent {
    at: Duration,
    forgotten: u64,
}

/// The levels that refuse, with their numbers as they are by now.
pub(crate) type Known<'k> = SmallVec<[(LevelKey<'k>, LevelOutcome); 2]>;

impl Refusals {
    /// Remembers refusals for so long at most.
    pub(crate) fn new(longest: Duration) -> Self {
        Self {
            longest,
            shards: Default::default(),
            forgotten: AtomicU64::new(0),
        }
    }

    /// The levels that still refuse this cost.
    pub(crate) fn find<'k>(&self, query: &'k Query<'_, '_>, now: Duration) -> Known<'k> {
        let (mut known, cost) = (Known::new(), query.cost);
        for (fingerprint, key) in query.levels() {
            let refusal = self.shard(fingerprint).keys.get(&fingerprint).copied();
            let refusal =
                refusal.filter(|refusal| refusal.cost == cost && refusal.limit == *key.limit());
            if let Some(outcome) = refusal.and_then(|refusal| refusal.at(now, self.longest)) {
                known.push((key, LevelOutcome::new(outcome, cost, 0)));
            }
        }
        known
    }

    /// A question is about to be sent.
    pub(crate) fn sent(&self, now: Duration) -> Sent {
        Sent {
            at: now,
            forgotten: self.forgotten.load(Relaxed),
        }
    }

    /// What came of it, now.
    pub(crate) fn learn(
        &self,
        query: &Query<'_, '_>,
        sent: Sent,
        decision: &Decision,
        now: Duration,
    ) {
        if decision.allowed() {
            return;
        }
        for ((fingerprint, key), level) in query.levels().zip(decision.levels()) {
            let outcome = level.outcome();
            if outcome.retry_after_us == Some(0) {
                continue;
            }
            let refusal = Refusal {
                cost: query.cost,
                limit: *key.limit(),
                sent: sent.at,
                answered: now,
                outcome,
            };
            let mut shard = self.shard(fingerprint);
            // Under the lock: what is forgotten from now on is removed after this.
            if sent.forgotten != self.forgotten.load(Relaxed) {
                return;
            }
            shard.make_room(sent.at, self.longest);
            if shard.keys.len() < KEYS {
                shard.keys.insert(fingerprint, refusal);
            }
        }
    }

    /// Somebody here has given back or forgotten what these keys have used.
    pub(crate) fn forget(&self, prints: &[Fingerprint]) {
        self.forgotten.fetch_add(1, Relaxed);
        for fingerprint in prints {
            self.shard(*fingerprint).keys.remove(fingerprint);
        }
    }

    /// The same of all keys.
    pub(crate) fn forget_all(&self) {
        self.forgotten.fetch_add(1, Relaxed);
        for shard in &self.shards {
            lock(shard).keys.clear();
        }
    }

    fn shard(&self, fingerprint: Fingerprint) -> MutexGuard<'_, Shard> {
        lock(&self.shards[shard_of(fingerprint, SHARDS)])
    }
}

impl Shard {
    /// Drops what is over, if it is full: now and then, so that a flood of new keys does
    /// not pay for a look at all of them each time.
    fn make_room(&mut self, now: Duration, longest: Duration) {
        let is_due = self.swept.is_none_or(|swept| now >= swept + longest / 8);
        if self.keys.len() >= KEYS && is_due {
            self.keys
                .retain(|_, refusal| refusal.at(now, longest).is_some());
            self.swept = Some(now);
        }
    }
}

impl Refusal {
    /// Its numbers by now, if it still holds. It has held since the question was sent; its
    /// times count from the answer, so that a caller that waits for them waits long enough.
    fn at(&self, now: Duration, longest: Duration) -> Option<Outcome> {
        let micros = |duration: Duration| u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        let passed = now.saturating_sub(self.sent);
        let wait_us = self.outcome.retry_after_us;
        if passed >= longest || wait_us.is_some_and(|wait| micros(passed) >= wait) {
            return None;
        }
        let since_us = micros(now.saturating_sub(self.answered));
        Some(Outcome {
            retry_after_us: wait_us.map(|wait| wait.saturating_sub(since_us)),
            reset_after_us: self.outcome.reset_after_us.saturating_sub(since_us),
            ..self.outcome
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate::{Limit, ManualClock, MemoryStore, Policy, PolicyLimiter};

    use crate::mode::tests::check;

    const MS: Duration = Duration::from_millis(1);

    /// A policy whose counts are in memory, which replaces a remote server.
    struct Far {
        policy: Policy,
        limiter: PolicyLimiter,
        clock: ManualClock,
        refusals: Refusals,
    }

    impl Far {
        /// Remembers refusals for a second at most.
        fn new(limit: Limit) -> Self {
            let policy = Policy::builder("p").limit(limit).build().unwrap();
            let clock = ManualClock::at_us(1_700_000_000_000_000);
            let store = MemoryStore::builder().clock(clock.clone()).build();
            let limiter = PolicyLimiter::over(&store, policy.clone()).unwrap();
            Self {
                policy,
                limiter,
                clock,
                refusals: Refusals::new(1_000 * MS),
            }
        }

        fn decide(&self, query: &Query<'_, '_>) -> Decision {
            let limiter = &self.limiter;
            limiter.decide_keys(&query.keys, query.cost, query.charge)
        }

        fn known(&self, key: &str, cost: u32, now: Duration) -> Option<Option<Duration>> {
            let attributes = [("key", key)];
            let query = check(&self.policy, &attributes, Cost::of(cost));
            let known = self.refusals.find(&query, now);
            let (_, level) = known.first()?;
            Some(level.outcome.retry_after_us.map(Duration::from_micros))
        }

        fn held(&self) -> usize {
            let shards = self.refusals.shards.iter();
            shards.map(|it| it.lock().unwrap().keys.len()).sum()
        }

        /// A question that is sent at `now` and decided so much later.
        fn ask(&self, key: &str, cost: u32, now: Duration, delay: Duration) -> bool {
            let attributes = [("key", key)];
            let query = check(&self.policy, &attributes, Cost::of(cost));
            let sent = self.refusals.sent(now);
            self.clock.advance(delay);
            let decision = self.decide(&query);
            self.refusals.learn(&query, sent, &decision, now + delay);
            decision.allowed()
        }
    }

    /// Elsewhere a refusal counts from when its answer came, and a slow one carries it over into
    /// the next window.
    #[test]
    fn b9_refusal_holds_from_the_sending_for_as_long_as_it_says() {
        let far = Far::new(Limit::per_second(10).burst(1));
        assert!(far.ask("a", 1, Duration::ZERO, Duration::ZERO));
        assert_eq!(far.known("a", 1, Duration::ZERO), None, "it was admitted");
        // Decided 30 ms later, when 70 ms are left of the 100.
        assert!(!far.ask("a", 1, Duration::ZERO, 30 * MS));
        assert_eq!(far.known("a", 1, 30 * MS), Some(Some(70 * MS)));
        assert_eq!(far.known("a", 1, 69 * MS), Some(Some(31 * MS)));
        assert_eq!(far.known("a", 1, 70 * MS), None);
        assert_eq!(far.known("b", 1, 30 * MS), None, "another key");
        assert_eq!(far.known("a", 2, 30 * MS), None, "another cost");
    }

    #[test]
    fn it_is_forgotten_after_a_while_and_tells_the_whole_wait_until_then() {
        let far = Far::new(Limit::per_hour(1));
        assert!(far.ask("a", 1, Duration::ZERO, Duration::ZERO));
        assert!(!far.ask("a", 1, Duration::ZERO, Duration::ZERO));
        let hour = Duration::from_secs(3_600);
        assert_eq!(far.known("a", 1, 999 * MS), Some(Some(hour - 999 * MS)));
        assert_eq!(far.known("a", 1, 1_000 * MS), None);
        // What never fits is refused for as long, without a time.
        assert!(!far.ask("a", 2, 2_000 * MS, Duration::ZERO));
        assert_eq!(far.known("a", 2, 2_500 * MS), Some(None));
    }

    /// R10: a refund ends while an older refusal is on its way into the memory.
    #[test]
    fn r10_refusal_from_before_a_refund_is_not_remembered() {
        let far = Far::new(Limit::per_hour(1));
        let query = check(&far.policy, &[("key", "a")], Cost::of(2));
        let learn = |sent| far.refusals.learn(&query, sent, &far.decide(&query), MS);
        let forgets: [&dyn Fn(); 2] = [&|| far.refusals.forget(&query.prints), &|| {
            far.refusals.forget_all()
        }];
        for forget in forgets {
            learn(far.refusals.sent(Duration::ZERO));
            assert_eq!(far.known("a", 2, MS), Some(None));
            let sent = far.refusals.sent(Duration::ZERO);
            forget();
            learn(sent);
            assert_eq!(far.held(), 0);
        }
        let sent = far.refusals.sent(Duration::ZERO);
        let fingerprint = query.prints[0];
        std::thread::scope(|scope| {
            let shard = far.refusals.shard(fingerprint);
            scope.spawn(|| learn(sent));
            // Long enough that it waits for the lock.
            std::thread::sleep(50 * MS);
            // What `forget` does, which has the lock.
            far.refusals.forgotten.fetch_add(1, Relaxed);
            drop(shard);
        });
        assert_eq!(far.known("a", 2, 2 * MS), None);
    }

    #[test]
    fn keys_are_bounded_and_those_that_are_over_make_room() {
        let far = Far::new(Limit::per_hour(1));
        let many = SHARDS * KEYS * 2;
        let refuse = |now: Duration| {
            for number in 0..many {
                far.ask(&number.to_string(), 2, now, Duration::ZERO);
            }
            far.held()
        };
        assert_eq!(refuse(Duration::ZERO), SHARDS * KEYS);
        assert_eq!(refuse(1_000 * MS), SHARDS * KEYS);
        let last = (many - 1).to_string();
        assert_eq!(far.known(&last, 2, 1_500 * MS), None, "no room for it");
        assert!(far.known("0", 2, 1_500 * MS).is_some(), "remembered anew");
    }
}
