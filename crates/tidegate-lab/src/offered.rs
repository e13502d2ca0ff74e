//! The most that a node was offered for a key within a given time, which other nodes in
//! mode `background` may not know about yet.

use std::collections::{HashMap, VecDeque};

/// What one node was asked for, as its record goes by.
#[derive(Debug, Default)]
pub(crate) struct Offered {
    keys: HashMap<Box<[u8]>, Moment>,
    pub(crate) most: u64,
}

/// The last questions about a key: when, and the cost.
#[derive(Debug, Default)]
struct Moment {
    questions: VecDeque<(u64, u32)>,
    sum: u64,
}

impl Offered {
    /// Another question, with the length of a moment.
    pub(crate) fn add(&mut self, key: &[u8], at_us: u64, cost: u32, length_us: u64) {
        if !self.keys.contains_key(key) {
            self.keys.insert(key.into(), Moment::default());
        }
        let Some(moment) = self.keys.get_mut(key) else {
            return;
        };
        moment.questions.push_back((at_us, cost));
        moment.sum += u64::from(cost);
        // Lines are nearly in the order of time; one that is not stays for as long as
        // those around it.
        while let Some((first_us, cost)) = moment.questions.front()
            && at_us.saturating_sub(*first_us) > length_us
        {
            moment.sum -= u64::from(*cost);
            moment.questions.pop_front();
        }
        self.most = self.most.max(moment.sum);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_within_a_moment_is_that_of_one_key() {
        let mut offered = Offered::default();
        let checks = [("a", 0, 1), ("b", 1, 5), ("a", 10, 2), ("a", 11, 2)];
        for (key, at_us, cost) in checks.into_iter().chain([("a", 30, 4)]) {
            offered.add(key.as_bytes(), at_us, cost, 10);
        }
        assert_eq!(offered.most, 5);
        offered.add(b"a", 40, 4, 10);
        assert_eq!(offered.most, 8);
    }
}
