//! Who is limited: the keys of a policy that ask most, and that are refused most, in the
//! last minute and hour, in bounded memory.
//!
//! A decision passes two gates of its worker ([`gate`]), one for requests and one for
//! refusals, which let through at most about 500 per second each. What passes is counted in
//! sketches ([`sketch`], [`window`]) that all workers share under a lock. A policy has 24 of
//! them, with 256 keys of at most 256 bytes each: 2 MB at most, and about 0.5 MB where keys
//! are addresses.

mod gate;
mod sketch;
#[cfg(test)]
mod tests;
mod window;

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tidegate::{Attributes, Policy};

use crate::serve::worker;
use gate::Gate;
use window::{Sum, Window};

/// How many bytes of a key are kept. Longer keys are still distinguished, by their hash.
const MAX_KEY: usize = 256;

/// What keys are ranked by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum By {
    /// How often they asked.
    Requests,
    /// How often they were refused, or would have been.
    Denied,
}

/// How far back to look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Since {
    /// The last minute.
    Minute,
    /// The last hour.
    Hour,
}

impl Since {
    /// Its length.
    pub(crate) fn seconds(self) -> u64 {
        match self {
            Self::Minute => 60,
            Self::Hour => 3_600,
        }
    }
}

/// The most frequent keys of a policy.
pub(crate) struct Top {
    /// The attributes that make a key.
    names: Box<[Box<str>]>,
    /// Of each worker; the first for threads that are no workers.
    gates: Box<[Gates]>,
    counts: Mutex<Counts>,
    /// Keys are distinguished by a hash that no client can predict.
    random: RandomState,
    start: Instant,
}

#[derive(Debug)]
#[repr(align(128))]
struct Gates {
    requests: Gate,
    denied: Gate,
}

#[derive(Debug)]
struct Counts {
    requests: [Window; 2],
    denied: [Window; 2],
}

/// The most frequent keys.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Most {
    /// How far a count may be from the truth.
    pub(crate) error: u64,
    pub(crate) keys: Vec<Counted>,
}

/// A key, and how often it occurred.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Counted {
    /// The values of the policy's attributes.
    pub(crate) values: Vec<String>,
    pub(crate) requests: u64,
    pub(crate) denied: u64,
}

impl std::fmt::Debug for Top {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Top").field("names", &self.names).finish()
    }
}

impl Top {
    /// Of the keys that these attributes make.
    pub(crate) fn new<'n>(names: impl IntoIterator<Item = &'n str>) -> Self {
        let random = RandomState::new();
        let gates = (0..=worker::count()).map(|worker| Gates {
            requests: Gate::new(random.hash_one((worker, 0))),
            denied: Gate::new(random.hash_one((worker, 1))),
        });
        let windows = || [Since::Minute, Since::Hour].map(|since| Window::new(since.seconds()));
        Self {
            names: names.into_iter().map(Box::from).collect(),
            gates: gates.collect(),
            counts: Mutex::new(Counts {
                requests: windows(),
                denied: windows(),
            }),
            random,
            start: Instant::now(),
        }
    }

    /// The attributes that make a key, in their order.
    pub(crate) fn names(&self) -> impl ExactSizeIterator<Item = &str> {
        self.names.iter().map(|name| &**name)
    }

    /// Whether it counts the keys of this policy.
    pub(crate) fn is_of(&self, policy: &Policy) -> bool {
        self.names().eq(policy.attributes())
    }

    /// Counts a request, if its turn has come.
    #[inline]
    pub(crate) fn seen(&self, attributes: &dyn Attributes, is_denied: bool) {
        let Some(gates) = self.gates.get(worker::number()) else {
            return;
        };
        let requests = gates.requests.is_open();
        let denied = is_denied && gates.denied.is_open();
        if requests || denied {
            let now = self.start.elapsed();
            let now_ms = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
            let weight = |gate: &Gate, is_open| if is_open { gate.take(now_ms) } else { 0 };
            let requests = weight(&gates.requests, requests);
            let denied = weight(&gates.denied, denied);
            self.count(attributes, requests, denied, now.as_secs());
        }
    }

    /// Lets more requests through gates that were closed for a load that has ended.
    pub(crate) fn relax(&self) {
        let now_ms = u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX);
        for gates in &self.gates {
            gates.requests.relax(now_ms);
            gates.denied.relax(now_ms);
        }
    }

    #[cold]
    fn count(&self, attributes: &dyn Attributes, requests: u64, denied: u64, now_s: u64) {
        let Some((hash, key)) = self.key(attributes) else {
            return;
        };
        let mut counts = self.counts();
        let Counts {
            requests: asked,
            denied: refused,
        } = &mut *counts;
        for (windows, weight) in [(asked, requests), (refused, denied)] {
            for window in windows.iter_mut().filter(|_| weight > 0) {
                window.add(now_s, hash, &key, weight);
            }
        }
    }

    /// The most frequent keys lately.
    pub(crate) fn most(&self, by: By, since: Since, count: usize) -> Most {
        self.most_at(by, since, count, self.start.elapsed().as_secs())
    }

    fn most_at(&self, by: By, since: Since, count: usize, now_s: u64) -> Most {
        let (requests, denied) = {
            let mut counts = self.counts();
            let place = usize::from(since == Since::Hour);
            let requests = counts.requests[place].sum(now_s);
            (requests, counts.denied[place].sum(now_s))
        };
        let ranked = match by {
            By::Requests => &requests,
            By::Denied => &denied,
        };
        let keys = ranked.most(count).into_iter().map(|(hash, key, _)| {
            let denied = denied.count(hash);
            Counted {
                values: decoded(key),
                // What was refused was asked for.
                requests: requests.count(hash).max(denied),
                denied,
            }
        });
        Most {
            keys: keys.collect(),
            error: Sum::error(&requests).max(Sum::error(&denied)),
        }
    }

    /// The key that these attributes make: its hash, and as much of it as is kept. Each
    /// value stands behind its length, and whether it was cut off.
    fn key(&self, attributes: &dyn Attributes) -> Option<(u64, Vec<u8>)> {
        let mut hasher = self.random.build_hasher();
        let mut key = Vec::with_capacity(64);
        let room = (MAX_KEY / self.names.len().max(1)).saturating_sub(3);
        for name in self.names() {
            let value = attributes.value(name)?;
            hasher.write_usize(value.len());
            hasher.write(value);
            let kept = &value[..value.len().min(room)];
            key.extend(u16::try_from(kept.len()).unwrap_or_default().to_le_bytes());
            key.push(u8::from(kept.len() < value.len()));
            key.extend(kept);
        }
        Some((hasher.finish(), key))
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The values of a key, as text.
fn decoded(mut key: &[u8]) -> Vec<String> {
    let mut values = Vec::new();
    while let [low, high, is_cut, rest @ ..] = key {
        let length = usize::from(u16::from_le_bytes([*low, *high]));
        let (value, rest) = rest.split_at(length.min(rest.len()));
        let mut value = String::from_utf8_lossy(value).into_owned();
        if *is_cut == 1 {
            value.push('…');
        }
        values.push(value);
        key = rest;
    }
    values
}
