//! Callers that ask one check after the other, each waiting for its answer before the
//! next: how many get through in a second, and how long each has waited.

use std::future::Future;
use std::time::{Duration, Instant};

use super::load::Order;
use crate::waits::{Measured, Waits};

/// How long one measurement takes.
pub(super) const LENGTH: Duration = Duration::from_millis(900);

/// A client that is measured. Every caller has a clone.
pub(super) trait Ask: Clone + Send + 'static {
    /// Whether a request of this key may go on.
    fn ask(&mut self, key: &'static str) -> impl Future<Output = bool> + Send;
}

/// So many callers at once, for a while.
pub(super) async fn measure<A: Ask>(asker: &A, callers: usize, order: Order) -> Measured {
    let start = Instant::now();
    let end = start + LENGTH;
    let tasks: Vec<_> = (0..callers)
        .map(|caller| {
            let keys = order.iter().cycle().skip(caller * order.len() / callers);
            tokio::spawn(call(asker.clone(), keys, end))
        })
        .collect();
    let mut waits = Waits::default();
    for task in tasks {
        waits.join(task.await.expect("a caller does not panic"));
    }
    waits.measured(start.elapsed())
}

async fn call<A: Ask>(
    mut asker: A,
    keys: impl Iterator<Item = &'static &'static str>,
    end: Instant,
) -> Waits {
    let mut waits = Waits::default();
    let mut asked_at = Instant::now();
    for key in keys {
        let admitted = asker.ask(key).await;
        let now = Instant::now();
        waits.add(now - asked_at, admitted);
        asked_at = now;
        if now >= end {
            break;
        }
    }
    waits
}
