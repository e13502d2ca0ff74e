//! The error of the counts, on streams whose truth is known, and the bound of the memory.

use std::collections::HashMap;

use proptest::prelude::*;
use tidegate::Limit;
use tidegate_testkit::simulation::Random;

use super::sketch::{COUNTERS, Sketch};
use super::*;

/// Keys by a Zipf law: the kth most frequent one is asked for `k^-exponent` as often.
struct Zipf {
    upper: Vec<f64>,
    random: Random,
}

impl Zipf {
    fn new(keys: u32, exponent: f64, seed: u64) -> Self {
        let mut total = 0.0;
        let upper = (1..=keys).map(|rank| {
            total += f64::from(rank).powf(-exponent);
            total
        });
        Self {
            upper: upper.collect(),
            random: Random::new(seed),
        }
    }
}

impl Iterator for Zipf {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        let reached = self.random.share() * self.upper.last()?;
        Some(self.upper.partition_point(|upper| *upper < reached) as u64)
    }
}

fn policy(key: &str) -> Policy {
    let policy = Policy::builder("p").key(key).limit(Limit::per_second(1));
    policy.build().unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn counts_are_as_right_as_the_sketch_says(
        keys in 10_u32..5_000,
        exponent in 0.0..2.0,
        seed: u64,
        length in 1_usize..5_000,
    ) {
        let (mut sketch, mut truth) = (Sketch::default(), HashMap::new());
        for key in Zipf::new(keys, exponent, seed).take(length) {
            sketch.add(key, &key.to_le_bytes(), 1);
            *truth.entry(key).or_insert(0_u64) += 1;
        }
        let error = sketch.error();
        prop_assert!(error <= (length / COUNTERS) as u64);
        let counts: HashMap<u64, u64> = sketch.iter().map(|it| (it.0, it.2)).collect();
        prop_assert!(counts.len() <= COUNTERS);
        for (key, truth) in truth {
            match counts.get(&key) {
                Some(count) => prop_assert!(truth <= *count && *count <= truth + error),
                None => prop_assert!(truth <= error),
            }
        }
    }

    #[test]
    fn window_counts_its_parts_and_nothing_older(
        exponent in 0.5..1.5,
        seed: u64,
        seconds in 1_u64..130,
    ) {
        let mut window = Window::new(60);
        let mut truth: HashMap<u64, u64> = HashMap::new();
        let mut zipf = Zipf::new(2_000, exponent, seed);
        let mut total = 0;
        for now in 0..seconds {
            for key in zipf.by_ref().take(40) {
                window.add(now, key, &key.to_le_bytes(), 1);
                // The last six parts of ten seconds, of which the newest has begun.
                if now / 10 + 6 > (seconds - 1) / 10 {
                    *truth.entry(key).or_default() += 1;
                    total += 1;
                }
            }
        }
        let sum = window.sum(seconds - 1);
        let error = sum.error();
        prop_assert!(error <= total / COUNTERS as u64);
        for (key, truth) in truth {
            prop_assert!(sum.count(key).abs_diff(truth) <= error);
        }
        prop_assert!(window.sum(seconds + 59).most(9).is_empty(), "all is forgotten");
    }
}

/// What passes a gate at this many decisions per second, for some seconds, and what is
/// counted of that.
fn sampled(per_second: u64, seconds: u64, seed: u64) -> (Sum, HashMap<u64, u64>, u64) {
    let (gate, mut window) = (Gate::new(seed), Window::new(60));
    let (mut truth, mut taken) = (HashMap::new(), 0);
    let keys = Zipf::new(1_000, 1.1, seed).take(usize::try_from(per_second * seconds).unwrap());
    for (number, key) in keys.enumerate() {
        *truth.entry(key).or_default() += 1;
        if gate.is_open() {
            let now_ms = number as u64 * 1_000 / per_second;
            window.add(now_ms / 1_000, key, &key.to_le_bytes(), gate.take(now_ms));
            taken += 1;
        }
    }
    (window.sum(seconds - 1), truth, taken)
}

#[test]
fn of_many_decisions_few_are_counted_and_the_error_says_so() {
    assert_eq!(sampled(400, 20, 1).2, 8_000, "few are all counted");
    let (mut outside, mut all) = (0, 0);
    for seed in 1..=3 {
        let (sum, truth, taken) = sampled(40_000, 3, seed);
        assert!(taken < 3_500, "{taken} of 120,000 are counted");
        let error = sum.error();
        assert!(error < 30_000, "{error}");
        for (key, truth) in truth {
            all += 1;
            outside += u64::from(sum.count(key).abs_diff(truth) > error);
        }
        // The most frequent keys are found, in this order or nearly so.
        let most: Vec<u64> = sum.most(3).iter().map(|it| it.0).collect();
        assert!(most.contains(&0) && most.contains(&1), "{most:?}");
    }
    assert!(outside * 1_000 <= all, "{outside} of {all}");
}

#[test]
fn gate_opens_again_after_a_load() {
    let gate = Gate::new(7);
    let mut heaviest = 1;
    for number in 0..300_000_u64 {
        if gate.is_open() {
            heaviest = gate.take(number / 300).max(heaviest);
        }
    }
    assert!(heaviest > 50, "{heaviest}");
    for second in 2..12 {
        gate.relax(second * 1_000);
    }
    for number in 0..100 {
        assert!(gate.is_open());
        assert_eq!(gate.take(20_000 + number * 10), 1);
    }
}

#[test]
fn memory_is_bounded_whatever_the_keys() {
    let top = Top::new(policy("{ip}:{path}").attributes());
    let path = "x".repeat(100_000);
    for number in 0..3_000_u64 {
        let (ip, path) = (number.to_string(), format!("{number}{path}"));
        top.count(&[("ip", &ip), ("path", &path)], 1, 1, number);
    }
    let counts = top.counts();
    let (mut keys, mut bytes) = (0, 0);
    for window in counts.requests.iter().chain(&counts.denied) {
        for (_, key, _) in window.parts().flat_map(Sketch::iter) {
            keys += 1;
            bytes += key.len();
        }
    }
    assert!(keys <= 24 * COUNTERS, "{keys}");
    assert!(bytes <= keys * MAX_KEY, "{bytes}");
    drop(counts);
    // Keys that begin alike are two keys.
    let paths = [format!("{path}a"), format!("{path}b")];
    for path in &paths {
        top.count(&[("ip", "long"), ("path", path)], 10_000, 0, 3_000);
    }
    let most = top.most_at(By::Requests, Since::Minute, 2, 3_000);
    for key in most.keys {
        assert_eq!(key.values[0], "long");
        assert!(key.values[1].ends_with("xx…"), "{}", key.values[1]);
        assert!(key.requests >= 10_000 && key.requests <= 10_000 + most.error);
    }
}

#[test]
fn keys_are_ranked_by_requests_or_refusals_and_after_a_minute_only_the_hour_knows_them() {
    let top = Top::new(policy("{ip}").attributes());
    for (ip, requests, denied) in [("a", 10, 1), ("b", 5, 4), ("c", 1, 0)] {
        for number in 0..requests {
            top.count(&[("ip", ip)], 1, u64::from(number < denied), 0);
        }
    }
    for (by, since, count, now, expected) in [
        (By::Denied, Since::Minute, 9, 3, "b 5 4, a 10 1"),
        (By::Requests, Since::Minute, 9, 3, "a 10 1, b 5 4, c 1 0"),
        (By::Requests, Since::Minute, 1, 3, "a 10 1"),
        (By::Denied, Since::Minute, 9, 70, ""),
        (By::Denied, Since::Hour, 9, 70, "b 5 4, a 10 1"),
    ] {
        let most = top.most_at(by, since, count, now);
        let keys = most.keys.iter();
        let keys = keys.map(|it| format!("{} {} {}", it.values[0], it.requests, it.denied));
        let got = (keys.collect::<Vec<_>>().join(", "), most.error);
        assert_eq!(got, (expected.to_owned(), 0), "{by:?} {since:?} {now}");
    }
}

#[test]
fn keys_of_any_bytes_are_told_apart() {
    let top = Top::new(policy("{a}:{b}").attributes());
    for pair in [("1:2", "3"), ("1", "2:3"), ("", ""), ("é\0", "…")] {
        top.count(&[("a", pair.0), ("b", pair.1)], 1, 0, 0);
    }
    top.count(&[("a", "no b")], 1, 0, 0);
    let most = top.most_at(By::Requests, Since::Hour, 9, 0);
    assert_eq!(most.keys.len(), 4, "{most:?}");
    let values: Vec<&[String]> = most.keys.iter().map(|key| &*key.values).collect();
    assert!(values.contains(&&["1:2".to_owned(), "3".to_owned()][..]));
}
