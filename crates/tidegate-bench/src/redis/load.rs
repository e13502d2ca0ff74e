//! Which keys are asked for, and in what order: all alike, or a few much more often.

use crate::keys::Random;

/// Keys of every measurement of throughput.
pub(super) const KEYS: usize = 100_000;

/// Where a command has the digits of a key that is yet to be chosen.
pub(super) const DIGITS: &str = "999999999999";

/// The exponent of Zipf's law: key number `n` comes as often as `1 / n^1.2`.
const ZIPF: f64 = 1.2;

/// Draws of one order, which callers then repeat.
const DRAWS: usize = 1 << 20;

/// An order of keys. It lives as long as the program: tasks borrow from it.
pub(super) type Order = &'static [&'static str];

/// All keys alike, and by Zipf's law.
#[derive(Clone, Copy)]
pub(super) struct Orders {
    pub(super) uniform: Order,
    pub(super) zipf: Order,
}

impl Orders {
    pub(super) fn new() -> Self {
        let keys: Vec<&'static str> = (0..KEYS).map(|index| &*name(index).leak()).collect();
        let mut random = Random::new(1);
        let uniform: Vec<_> = (0..DRAWS).map(|_| keys[random.index(KEYS)]).collect();
        let shares = zipf_shares();
        let zipf: Vec<_> = (0..DRAWS)
            .map(|_| {
                let draw = random.fraction();
                keys[shares.partition_point(|share| *share <= draw)]
            })
            .collect();
        Self {
            uniform: uniform.leak(),
            zipf: zipf.leak(),
        }
    }
}

/// Key number `index`: 12 digits, which is what `redis-benchmark` makes.
pub(super) fn name(index: usize) -> String {
    format!("{index:012}")
}

/// How much of all requests the first keys have together, up to each of them.
fn zipf_shares() -> Vec<f64> {
    let weights = (1..=KEYS).map(|rank| (rank as f64).powf(-ZIPF));
    let mut sums: Vec<f64> = weights
        .scan(0.0, |sum, weight| {
            *sum += weight;
            Some(*sum)
        })
        .collect();
    let all = sums[KEYS - 1];
    for sum in &mut sums {
        *sum /= all;
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn under_zipf_one_key_has_a_fifth_of_all_requests() {
        let orders = Orders::new();
        let share = |order: Order, key: &str| {
            let asked = order.iter().filter(|asked| **asked == key).count();
            asked as f64 / order.len() as f64
        };
        let first = name(0);
        // One over the sum of 1 / n^1.2, up to n = 100 thousand.
        assert!((share(orders.zipf, &first) - 0.196).abs() < 0.005);
        assert!(share(orders.uniform, &first) < 0.000_1);
    }
}
