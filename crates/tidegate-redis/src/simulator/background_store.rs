//! The store of nodes in the mode `background`: what they flush is counted by the
//! same arithmetic that the conformance tests hold equal to the script's.

use std::collections::HashMap;

use tidegate::algorithm::{SlidingLogState, State};
use tidegate::{Kind, Limit};

use crate::background::{KEPT, Parcel};

pub(super) struct BackgroundStore {
    limit: Limit,
    keys: HashMap<String, Key>,
    /// How far the clock is off.
    offset_us: i64,
    /// Times everything was forgotten, or the clock was set: what it was set forwards is
    /// time that has passed, which may free all there is.
    pub(super) losses: u32,
}

#[derive(Clone)]
struct Key {
    count: State,
    /// Of a log: when, and what it cost.
    events: Vec<(u64, u32)>,
}

impl BackgroundStore {
    pub(super) fn new(limit: Limit) -> Self {
        Self {
            limit,
            keys: HashMap::new(),
            offset_us: 0,
            losses: 0,
        }
    }

    pub(super) fn flush(&mut self, now_us: u64, key: &str, parcel: &Parcel) -> (u64, State) {
        let now_us = now_us.saturating_add_signed(self.offset_us);
        let stored = self.keys.get(key).cloned();
        let before = stored.and_then(|key| key.at(&self.limit, now_us));
        let (count, mut events) = match before {
            Some(key) => (Some(key.count), key.events),
            None => (None, Vec::new()),
        };
        let after = parcel.arrive(count, now_us);
        let used = |count: State| match count {
            State::SlidingLog(log) => log.used,
            _ => 0,
        };
        let added = used(after) - count.map_or(0, used);
        if added > 0 {
            events.push((now_us, added));
        }
        // A look writes nothing.
        if !parcel.unsent.is_none() {
            let count = after;
            self.keys.insert(key.to_owned(), Key { count, events });
        }
        (now_us, after)
    }

    /// The clock is set, forwards or back.
    pub(super) fn step(&mut self, by_us: i64) {
        self.offset_us += by_us;
        self.losses += 1;
    }

    /// Another server takes over, and knows nothing.
    pub(super) fn fail_over(&mut self) {
        self.keys.clear();
        self.losses += 1;
    }
}

impl Key {
    /// What is stored of it by now: nothing, once it has expired.
    fn at(mut self, limit: &Limit, now_us: u64) -> Option<Self> {
        match (limit.kind(), self.count) {
            (Kind::TokenBucket(_), State::TokenBucket(state)) => {
                let kept_us = u64::try_from(KEPT.as_micros()).unwrap_or(0);
                let is_kept = state.last_us + state.debt.us + kept_us >= now_us;
                is_kept.then_some(self)
            }
            (Kind::SlidingLog(window), State::SlidingLog(log)) => {
                let window_us = window.rate().window_us();
                let back = log.last_us.saturating_sub(now_us);
                self.events.iter_mut().for_each(|(at, _)| *at -= back);
                self.events.retain(|(at, _)| at + window_us > now_us);
                let newest = self.events.last()?.0;
                self.count = State::SlidingLog(SlidingLogState {
                    used: self.events.iter().map(|(_, cost)| cost).sum(),
                    reset_after_us: newest + window_us - now_us,
                    retry_after_us: 0,
                    last_us: now_us,
                });
                Some(self)
            }
            _ => Some(self),
        }
    }
}
