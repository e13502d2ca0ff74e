//! Callers that ask one check after the other, each waiting for its answer before the
//! next: how many get through in a second, and how long each has waited.

use std::future::Future;
use std::time::{Duration, Instant};

use super::load::Order;

/// How long one measurement takes.
pub(super) const LENGTH: Duration = Duration::from_millis(900);

/// Somebody who asks. Every caller has a clone.
pub(super) trait Ask: Clone + Send + 'static {
    /// Whether a request of this key may go on.
    fn ask(&mut self, key: &'static str) -> impl Future<Output = bool> + Send;
}

/// What callers went through.
#[derive(Debug, Clone, Copy)]
pub(super) struct Measured {
    pub(super) checks: f64,
    pub(super) a_second: f64,
    pub(super) p50_us: f64,
    pub(super) p99_us: f64,
    /// How many of all were admitted.
    pub(super) admitted: f64,
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

/// How long each request has waited, and how many were admitted.
#[derive(Default)]
pub(super) struct Waits {
    nanoseconds: Vec<u64>,
    admitted: u32,
}

impl Waits {
    pub(super) fn add(&mut self, wait: Duration, admitted: bool) {
        let wait = u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX);
        self.nanoseconds.push(wait);
        self.admitted += u32::from(admitted);
    }

    pub(super) fn join(&mut self, other: Self) {
        self.nanoseconds.extend(other.nanoseconds);
        self.admitted += other.admitted;
    }

    /// What they come to, if they were all within this time.
    pub(super) fn measured(mut self, time: Duration) -> Measured {
        self.nanoseconds.sort_unstable();
        let count = self.nanoseconds.len();
        let percentile = |hundredths: usize| {
            let index = (count * hundredths / 100).min(count - 1);
            self.nanoseconds[index] as f64 / 1e3
        };
        Measured {
            checks: count as f64,
            a_second: count as f64 / time.as_secs_f64(),
            p50_us: percentile(50),
            p99_us: percentile(99),
            admitted: f64::from(self.admitted) / count as f64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_come_to_a_rate_and_percentiles() {
        let mut waits = Waits::default();
        for us in 0..1_000 {
            waits.add(Duration::from_micros(us), us < 250);
        }
        let measured = waits.measured(Duration::from_secs(2));
        assert_eq!(measured.a_second, 500.0);
        assert_eq!((measured.p50_us, measured.p99_us), (500.0, 990.0));
        assert_eq!(measured.admitted, 0.25);
    }
}
