//! Which stores are down, since when, and how often that was so.

use std::collections::HashMap;
use std::time::Instant;

use tidegate_redis::AnyStore;

use crate::engine::Current;

/// Outages of stores since the start.
#[derive(Debug, Default)]
pub(super) struct Outages(HashMap<String, Seen>);

/// What was seen of a store.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Seen {
    /// How often it was found down.
    pub(super) outages: u64,
    pub(super) down_since: Option<Instant>,
}

impl Outages {
    /// Looks at every store of the config in force. Stores of earlier ones are forgotten.
    pub(super) fn look(&mut self, current: &Current) {
        let mut seen = HashMap::new();
        for (name, store) in current.limiter.stores() {
            let mut before = self.0.remove(name).unwrap_or_default();
            let is_up = match store {
                AnyStore::Memory(_) => true,
                AnyStore::Redis(store) => store.stats().up,
            };
            match (is_up, before.down_since) {
                (true, _) => before.down_since = None,
                (false, None) => {
                    before.outages += 1;
                    before.down_since = Some(Instant::now());
                }
                (false, Some(_)) => {}
            }
            seen.insert(name.to_owned(), before);
        }
        self.0 = seen;
    }

    pub(super) fn of(&self, store: &str) -> Seen {
        self.0.get(store).copied().unwrap_or_default()
    }
}
