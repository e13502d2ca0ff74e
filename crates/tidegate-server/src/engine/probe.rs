//! Probes idle stores, so that `tidegate_store_up` and the log are correct without traffic.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tidegate_redis::AnyStore;
use tokio::time::{MissedTickBehavior, interval};

use super::Engine;

/// How often an idle store is asked.
const PERIOD: Duration = Duration::from_secs(1);

impl Engine {
    /// Asks every store that had no question for a while, for ever.
    pub async fn probe_idle_stores(self: Arc<Self>) {
        let mut tick = interval(PERIOD);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // Questions that each store had when it was last looked at.
        let mut before: HashMap<String, u64> = HashMap::new();
        loop {
            tick.tick().await;
            let current = self.current.load_full();
            for (name, store) in current.limiter.stores() {
                let AnyStore::Redis(store) = store else {
                    continue;
                };
                let questions = store.stats().questions;
                if before.get(name) == Some(&questions) {
                    store.probe().await;
                }
                before.insert(name.into(), store.stats().questions);
            }
        }
    }
}
