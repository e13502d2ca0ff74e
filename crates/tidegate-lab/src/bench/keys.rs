//! Chooses the next key and formats it, without allocating. No two callers draw the same
//! sequence.

use std::collections::BTreeMap;

use itoa::Buffer;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use rand_distr::{Distribution, Zipf};
use tidegate::Attributes;

use super::plan::Plan;

/// The keys that a caller draws.
pub(super) struct Keys {
    random: SmallRng,
    count: u32,
    zipf: Option<Zipf<f64>>,
    text: String,
    /// Where the number begins in the text.
    start: usize,
    /// Attributes that have other values.
    fixed: BTreeMap<String, String>,
}

impl Keys {
    pub(super) fn new(plan: &Plan, caller: u32) -> Self {
        let seed = u64::from(plan.number) << 32 | u64::from(caller);
        let zipf = plan
            .zipf
            .map(|exponent| Zipf::new(plan.keys.into(), exponent));
        let mut text = plan.run.clone();
        text.push('-');
        Self {
            random: SmallRng::seed_from_u64(seed),
            count: plan.keys,
            zipf: zipf.and_then(Result::ok),
            start: text.len(),
            text,
            fixed: plan.fixed.clone(),
        }
    }

    /// The number of the next key, whose text is then [`Keys::text`].
    pub(super) fn draw(&mut self) -> u32 {
        let number = match (&self.zipf, self.count) {
            (_, 1) => 0,
            (None, count) => self.random.random_range(0..count),
            (Some(zipf), count) => rank(zipf.sample(&mut self.random), count),
        };
        self.text.truncate(self.start);
        self.text.push_str(Buffer::new().format(number));
        number
    }

    pub(super) fn text(&self) -> &str {
        &self.text
    }
}

/// The number of a rank from 1.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a rank is a whole number from 1 to the count"
)]
fn rank(rank: f64, count: u32) -> u32 {
    (rank as u32).clamp(1, count) - 1
}

/// Every attribute of a check has the key as its value, unless the plan fixes another.
impl Attributes for Keys {
    fn value(&self, name: &str) -> Option<&[u8]> {
        let text = match self.fixed.is_empty() {
            true => &self.text,
            false => self.fixed.get(name).unwrap_or(&self.text),
        };
        Some(text.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::super::plan::tests::plan;
    use super::*;

    fn drawn(keys: u32, zipf: Option<f64>) -> Vec<u32> {
        let plan = Plan {
            keys,
            zipf,
            ..plan()
        };
        let mut drawn = Keys::new(&plan, 0);
        (0..20_000).map(|_| drawn.draw()).collect()
    }

    #[test]
    fn keys_are_drawn_alike_or_by_zipf() {
        let count = |drawn: &[u32], key| drawn.iter().filter(|other| **other == key).count();
        let alike = drawn(10, None);
        assert!((0..10).all(|key| (1_700..2_300).contains(&count(&alike, key))));
        let zipf = drawn(10, Some(1.0));
        // One over the sum of 1/n for n up to ten is 0.34.
        let first = count(&zipf, 0);
        assert!((6_400..7_300).contains(&first), "{first}");
        assert!(count(&zipf, 9) > 500 && zipf.iter().all(|key| *key < 10));
        assert!(drawn(1, Some(1.0)).iter().all(|key| *key == 0));
    }
}
