//! What a policy did to a log: counts in all, per client, per minute and over time.
//!
//! Clients are told apart by 128 bits of a seeded hash. Only of those that were refused the
//! values are kept, since only they are shown. So the memory is bounded by the number of
//! clients: about 60 bytes for each.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher};

use foldhash::quality::RandomState;

use super::chart::Chart;

const MINUTE_US: u64 = 60_000_000;

/// A client by hash.
pub(super) type Print = [u64; 2];

/// Hashes the values of a key.
#[derive(Debug, Clone, Default)]
pub(super) struct Prints([RandomState; 2]);

impl Prints {
    pub(super) fn of<'v>(&self, values: impl Iterator<Item = &'v [u8]> + Clone) -> Print {
        [0, 1].map(|half: usize| {
            let mut hasher = self.0[half].build_hasher();
            for value in values.clone() {
                hasher.write_usize(value.len());
                hasher.write(value);
            }
            hasher.finish()
        })
    }
}

/// Hashes of hashes: they are random already.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Same;

/// Takes the first half.
#[derive(Debug, Default)]
pub(super) struct FirstHalf(Option<u64>);

impl BuildHasher for Same {
    type Hasher = FirstHalf;

    fn build_hasher(&self) -> FirstHalf {
        FirstHalf::default()
    }
}

impl Hasher for FirstHalf {
    fn finish(&self) -> u64 {
        self.0.unwrap_or_default()
    }

    fn write(&mut self, bytes: &[u8]) {
        if self.0.is_none() {
            let half = bytes.first_chunk().copied().map(u64::from_ne_bytes);
            self.0 = half;
        }
    }

    fn write_usize(&mut self, _: usize) {}

    fn write_u64(&mut self, half: u64) {
        self.0.get_or_insert(half);
    }
}

/// Requests of a client, and how many of them are marked: refused, or decided in two ways.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) requests: u64,
    pub(super) marked: u64,
}

/// The minute with the most marked requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Minute {
    pub(super) at_us: u64,
    pub(super) marked: u64,
}

/// A client that was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Client {
    /// The values of its attributes, in the policy's order.
    pub(super) values: Vec<Vec<u8>>,
    pub(super) counts: Counts,
}

/// All that is counted.
#[derive(Debug, Default)]
pub(super) struct Tally {
    prints: Prints,
    all: Counts,
    clients: HashMap<Print, Counts, Same>,
    /// The values of clients with a marked request.
    marked: HashMap<Print, Vec<Vec<u8>>, Same>,
    minute: Option<Minute>,
    worst: Option<Minute>,
    chart: Chart,
}

impl Tally {
    /// Counts a request of the client with these values. Times never decrease.
    pub(super) fn add<'v>(
        &mut self,
        at_us: u64,
        values: impl Iterator<Item = &'v [u8]> + Clone,
        is_marked: bool,
    ) {
        let count = |counts: &mut Counts| {
            counts.requests += 1;
            counts.marked += u64::from(is_marked);
        };
        count(&mut self.all);
        self.chart.add(at_us, is_marked);
        let print = self.prints.of(values.clone());
        count(self.clients.entry(print).or_default());
        if is_marked {
            let values = || values.map(<[u8]>::to_vec).collect();
            self.marked.entry(print).or_insert_with(values);
            let start_us = at_us / MINUTE_US * MINUTE_US;
            let minute = self.minute.get_or_insert(Minute {
                at_us: start_us,
                marked: 0,
            });
            if minute.at_us != start_us {
                *minute = Minute {
                    at_us: start_us,
                    marked: 0,
                };
            }
            minute.marked += 1;
            if self.worst.is_none_or(|worst| minute.marked > worst.marked) {
                self.worst = Some(*minute);
            }
        }
    }

    /// Requests in all.
    pub(super) fn all(&self) -> Counts {
        self.all
    }

    /// Clients, and how many of them have a marked request.
    pub(super) fn clients(&self) -> Counts {
        Counts {
            requests: self.clients.len() as u64,
            marked: self.marked.len() as u64,
        }
    }

    /// The most requests of one client.
    pub(super) fn most(&self) -> u64 {
        let most = self.clients.values().map(|counts| counts.requests).max();
        most.unwrap_or(0)
    }

    /// The minute with the most marked requests, the first of them.
    pub(super) fn worst(&self) -> Option<Minute> {
        self.worst
    }

    /// The counts over time.
    pub(super) fn chart(&self) -> &Chart {
        &self.chart
    }

    /// The clients with the most marked requests.
    pub(super) fn top(&self, count: usize) -> Vec<Client> {
        let order = |print: &Print| {
            let counts = self.clients[print];
            (
                std::cmp::Reverse((counts.marked, counts.requests)),
                &self.marked[print],
            )
        };
        let mut prints: Vec<Print> = self.marked.keys().copied().collect();
        if prints.len() > count {
            prints.select_nth_unstable_by(count, |one, other| order(one).cmp(&order(other)));
            prints.truncate(count);
        }
        prints.sort_unstable_by(|one, other| order(one).cmp(&order(other)));
        let client = |print: &Print| Client {
            values: self.marked[print].clone(),
            counts: self.clients[print],
        };
        prints.iter().map(client).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_tuples() {
        let prints = Prints::default();
        let print = |values: [&str; 2]| prints.of(values.iter().map(|value| value.as_bytes()));
        assert_ne!(print(["ab", "c"]), print(["a", "bc"]));
        assert_ne!(print(["", "a"]), print(["a", ""]));
        assert_eq!(print(["a", "b"]), print(["a", "b"]));
    }
}
