//! The most frequent keys of the last minute, or hour: sketches of six parts of it, of
//! which the oldest is forgotten when a new part begins. So an answer is about the last 50
//! to 60 seconds, or minutes.

use std::collections::HashMap;

use super::sketch::Sketch;

/// The parts of a window, as many as it has sketches.
const PARTS: u64 = 6;

/// How far a sampled count may be off, in standard deviations: one in a thousand is.
const DEVIATIONS: f64 = 3.3;

/// The most frequent keys lately.
#[derive(Debug)]
pub(crate) struct Window {
    /// How long a part is.
    part_s: u64,
    /// The number of the newest part.
    newest: u64,
    parts: [Sketch; 6],
}

/// What all parts of a window say together.
#[derive(Debug, Default)]
pub(crate) struct Sum {
    keys: HashMap<u64, (Box<[u8]>, u64)>,
    /// What the sketches may have got wrong.
    sketched: u64,
    heaviest: u64,
}

impl Window {
    /// A window of this many seconds.
    pub(crate) fn new(seconds: u64) -> Self {
        Self {
            part_s: seconds / PARTS,
            newest: 0,
            parts: Default::default(),
        }
    }

    /// Adds a weight to a key.
    pub(crate) fn add(&mut self, now_s: u64, hash: u64, key: &[u8], weight: u64) {
        self.turn(now_s);
        let place = place(self.newest);
        self.parts[place].add(hash, key, weight);
    }

    /// What it has counted.
    pub(crate) fn sum(&mut self, now_s: u64) -> Sum {
        self.turn(now_s);
        let mut sum = Sum::default();
        for part in &self.parts {
            for (hash, key, count) in part.iter() {
                let (_, total) = sum.keys.entry(hash).or_insert_with(|| (key.into(), 0));
                *total = total.saturating_add(count);
            }
            sum.sketched = sum.sketched.saturating_add(part.error());
            sum.heaviest = sum.heaviest.max(part.heaviest());
        }
        sum
    }

    /// Its parts.
    #[cfg(test)]
    pub(crate) fn parts(&self) -> impl Iterator<Item = &Sketch> {
        self.parts.iter()
    }

    /// Forgets the parts whose time is over.
    fn turn(&mut self, now_s: u64) {
        let now = now_s / self.part_s;
        let passed = now.saturating_sub(self.newest).min(PARTS);
        for part in 0..passed {
            self.parts[place(now - part)].clear();
        }
        self.newest = self.newest.max(now);
    }
}

fn place(number: u64) -> usize {
    usize::try_from(number % PARTS).expect("less than the parts there are")
}

impl Sum {
    /// How often a key occurred, about.
    pub(crate) fn count(&self, hash: u64) -> u64 {
        self.keys.get(&hash).map_or(0, |(_, count)| *count)
    }

    /// The most frequent keys, with the count of each.
    pub(crate) fn most(&self, count: usize) -> Vec<(u64, &[u8], u64)> {
        let keys = self.keys.iter();
        let mut keys: Vec<_> = keys
            .map(|(hash, (key, count))| (*hash, &**key, *count))
            .collect();
        keys.sort_unstable_by(|a, b| (b.2, a.1).cmp(&(a.2, b.1)));
        keys.truncate(count);
        keys
    }

    /// How far a count may be from the truth, either way, also that of a key that is not
    /// there. Where every request was counted, this is certain. Where one of `w` was, each
    /// for `w`, a count of `n` has a standard deviation of `sqrt(n * (w - 1))`; the error
    /// then holds for 999 keys of 1,000.
    pub(crate) fn error(&self) -> u64 {
        let largest = self.keys.values().map(|(_, count)| *count).max();
        let (largest, weight) = (to_float(largest.unwrap_or(0)), to_float(self.heaviest));
        let sampled = match self.heaviest {
            0 | 1 => 0.0,
            // Of a key that was never drawn, the count says nothing: a few draws are.
            _ => DEVIATIONS * (largest.max(11.0 * weight) * (weight - 1.0)).sqrt(),
        };
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a conversion of floats saturates, and this one is positive"
        )]
        let sampled = sampled.ceil() as u64;
        self.sketched.saturating_add(sampled)
    }
}

fn to_float(number: u64) -> f64 {
    number as f64
}
