//! The numbers of `CL.THROTTLE` and `THROTTLE` beside those of redis-cell and
//! throttlecrab, over random sequences on one clock.

use std::collections::HashMap;
use std::time::{Duration, SystemTime};

use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use throttlecrab::{PeriodicStore, RateLimiter};
use tidegate::{Charge, Cost, ManualClock, MemoryStore};

use super::frame::Arguments;
use super::reply::Replies;
use super::throttle::Dialect;
use crate::engine::Bucket;

/// Our own side: one store, one clock.
struct Own {
    clock: ManualClock,
    store: MemoryStore,
}

impl Own {
    fn new(at_us: u64) -> Self {
        let clock = ManualClock::at_us(at_us);
        let store = MemoryStore::builder().clock(clock.clone()).build();
        Self { clock, store }
    }

    /// The five numbers of a call.
    fn call(&self, dialect: Dialect, words: [u64; 4], key: &str) -> Vec<i64> {
        let words = words.map(|word| word.to_string());
        let [burst, count, period, quantity] = words.each_ref().map(String::as_bytes);
        let arguments: Arguments<'_> = [
            dialect.name().as_bytes(),
            key.as_bytes(),
            burst,
            count,
            period,
            quantity,
        ]
        .into_iter()
        .collect();
        let call = dialect.read(&arguments).expect("a call that is right");
        let bucket = Bucket::alone(call.numbers, &self.store);
        let key = [("key", key)];
        let (check, _) = bucket.check(&key).expect("a store in memory");
        let charge = match call.quantity {
            Some(_) => Charge::Admitted,
            None => Charge::Nothing,
        };
        let check = check.cost(call.quantity.unwrap_or(Cost::ONE));
        let decision = self.store.decide(&[check], charge);
        let mut replies = Replies::default();
        dialect.write(&mut replies, &bucket, call.quantity, &decision);
        let text = String::from_utf8(replies.bytes).expect("text");
        let lines = text.strip_prefix("*5\r\n").expect("five numbers").lines();
        lines
            .map(|line| line[1..].parse().expect("a number"))
            .collect()
    }
}

/// What redis-cell 0.3 and 0.4 compute, in its own steps: nanoseconds, a theoretical
/// arrival time per key, seconds that round up.
#[derive(Default)]
struct Cell(HashMap<String, i64>);

impl Cell {
    fn call(&mut self, words: [u64; 4], key: &str, now: i64) -> [i64; 5] {
        let [max_burst, count, period, quantity] = words.map(|it| i64::try_from(it).unwrap());
        let emission = period * 1_000_000_000 / count;
        let tolerance = emission * (max_burst + 1);
        let increment = emission * quantity;
        // A key expires when its time has come.
        let tat = self.0.get(key).copied().filter(|tat| *tat > now);
        let tat = tat.unwrap_or(now);
        let new_tat = now.max(tat) + increment;
        let diff = now - (new_tat - tolerance);
        let limited = diff < 0;
        let ttl = if limited { tat - now } else { new_tat - now };
        if !limited {
            self.0.insert(key.to_owned(), new_tat);
        }
        let retry = (limited && increment <= tolerance).then_some(-diff);
        // The module leaves out what is below a millisecond, and we leave out nothing.
        let seconds = |ns: i64| ns / 1_000_000_000 + i64::from(ns % 1_000_000_000 > 0);
        [
            limited.into(),
            max_burst + 1,
            ((tolerance - ttl) / emission).max(0),
            retry.map_or(-1, seconds),
            seconds(ttl),
        ]
    }
}

/// Steps of a sequence: how long after the last one, and for how much.
fn steps(longest_us: u64) -> impl Strategy<Value = Vec<(u64, u64)>> {
    let wait = prop_oneof![
        Just(0),
        0..=longest_us,
        (0..=longest_us / 1_000_000).prop_map(|s| s * 1_000_000)
    ];
    prop::collection::vec((wait, 0..=4_u64), 1..40)
}

/// `max_burst`, `count` and `period`.
fn triples() -> impl Strategy<Value = [u64; 3]> {
    let count = prop_oneof![1..=10_u64, 1..=1_000_u64];
    (0..=20_u64, count, 1..=120_u64).prop_map(|(burst, count, period)| [burst, count, period])
}

const START_US: u64 = 1_795_000_000_000_000;

fn runner() -> TestRunner {
    TestRunner::new(ProptestConfig {
        cases: 4_000,
        failure_persistence: None,
        ..ProptestConfig::default()
    })
}

#[test]
fn cl_throttle_answers_as_redis_cell_does() {
    let sequences = (prop::collection::vec(triples(), 1..3), steps(5_000_000));
    let ran = runner().run(&sequences, |(triples, steps)| {
        let (own, mut cell, mut now_us) = (Own::new(START_US), Cell::default(), START_US);
        for (index, (wait_us, quantity)) in steps.into_iter().enumerate() {
            now_us += wait_us;
            own.clock.set_us(now_us);
            // Other numbers for the same key continue with the time that is left.
            let [burst, count, period] = triples[index % triples.len()];
            let words = [burst, count, period, quantity];
            let ours = own.call(Dialect::Cell, words, "k");
            let theirs = cell.call(words, "k", i64::try_from(now_us * 1_000).unwrap());
            if theirs[0] == 1 && quantity == 0 {
                // A look that is "limited" because the burst has shrunk: ours only looks.
                continue;
            }
            prop_assert_eq!(&ours[..], &theirs[..], "{:?}", words);
        }
        Ok(())
    });
    ran.expect("the same numbers");
}

#[test]
fn throttle_answers_as_throttlecrab_does() {
    let sequences = (triples(), steps(3_000_000));
    let ran = runner().run(&sequences, |([burst, count, period], steps)| {
        let mut crab = RateLimiter::new(PeriodicStore::new());
        let (own, mut now_us) = (Own::new(START_US), START_US);
        // Below that, its keys expire at once.
        let burst = burst + 2;
        let (mut key, mut full_at_us) = (0, START_US);
        for (wait_us, quantity) in steps {
            now_us += wait_us;
            own.clock.set_us(now_us);
            if now_us >= full_at_us {
                // When a bucket is full, throttlecrab goes on filling it up to twice its
                // size: from then on it is another key here.
                key += 1;
            }
            let name = format!("k{key}");
            let words = [burst, count, period, quantity];
            let ours = own.call(Dialect::Crab, words, &name);
            let numbers = words.map(|it| i64::try_from(it).unwrap());
            let [burst, count, period, quantity] = numbers;
            let now = SystemTime::UNIX_EPOCH + Duration::from_micros(now_us);
            let asked = crab.rate_limit(&name, burst, count, period, quantity, now);
            let (allowed, theirs) = asked.expect("numbers that are right");
            let seconds = |time: Duration| i64::try_from(time.as_secs()).unwrap();
            let expected = [
                i64::from(allowed),
                theirs.limit,
                theirs.remaining,
                seconds(theirs.reset_after),
                seconds(theirs.retry_after),
            ];
            prop_assert_eq!(&ours[..], &expected[..], "{:?}", words);
            // A bucket of `B` tokens every `E` is full `E*(B - 2)` before its key expires.
            let token_ns = u128::from(words[2]) * 1_000_000_000 / u128::from(words[1]);
            let surplus = token_ns * u128::from(words[0]);
            let debt = (theirs.reset_after.as_nanos() + 2 * token_ns).saturating_sub(surplus);
            full_at_us = now_us + u64::try_from(debt.div_ceil(1_000)).unwrap();
        }
        Ok(())
    });
    ran.expect("the same numbers");
}

#[test]
fn readme_of_redis_cell_is_answered_as_it_says() {
    let own = Own::new(START_US);
    let call = |quantity| own.call(Dialect::Cell, [15, 30, 60, quantity], "user123");
    assert_eq!(call(1), [0, 16, 15, -1, 2]);
    assert_eq!(call(15), [0, 16, 0, -1, 32]);
    assert_eq!(call(1), [1, 16, 0, 2, 32]);
    assert_eq!(call(0), [0, 16, 0, -1, 32]);
    assert_eq!(call(17), [1, 16, 0, -1, 32], "never");
    own.clock.set_us(START_US + 1);
    assert_eq!(call(1), [1, 16, 0, 2, 32], "rounded up");
}
