//! Waiting instead of being refused.

use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// The timer of the runtime.
type Sleep = Box<dyn Fn(Duration) -> Pin<Box<dyn Future<Output = ()> + Send>> + Send + Sync>;

/// How long requests may wait, and how many at once.
pub(crate) struct Wait {
    deadline: Duration,
    sleep: Sleep,
    most: usize,
    waiting: AtomicUsize,
}

/// The wait of one request.
pub(crate) struct Waiting<'w> {
    wait: &'w Wait,
    start: Instant,
    slept: Duration,
    /// Whether it is among those that are counted.
    counted: bool,
}

impl Wait {
    pub(crate) fn new<F>(
        deadline: Duration,
        most: usize,
        sleep: impl Fn(Duration) -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        Self {
            deadline,
            sleep: Box::new(move |duration| Box::pin(sleep(duration))),
            most,
            waiting: AtomicUsize::new(0),
        }
    }

    pub(crate) fn start(&self) -> Waiting<'_> {
        Waiting {
            wait: self,
            start: Instant::now(),
            slept: Duration::ZERO,
            counted: false,
        }
    }
}

impl Waiting<'_> {
    /// Sleeps, or returns that waiting is useless: it never helps, would take too long, or
    /// too many requests are waiting already.
    pub(crate) async fn sleep(&mut self, retry_after: Option<Duration>) -> bool {
        let Some(duration) = retry_after else {
            return false;
        };
        // Timers are coarse: what was asked for may be less than what has passed.
        let passed = self.slept.max(self.start.elapsed());
        if passed.saturating_add(duration) > self.wait.deadline || !self.enter() {
            return false;
        }
        self.slept += duration;
        (self.wait.sleep)(duration).await;
        true
    }

    fn enter(&mut self) -> bool {
        // Counted once, also beyond the maximum: whoever is refused here leaves.
        let is_new = !mem::replace(&mut self.counted, true);
        !is_new || self.wait.waiting.fetch_add(1, Ordering::Relaxed) < self.wait.most
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if self.counted {
            self.wait.waiting.fetch_sub(1, Ordering::Relaxed);
        }
    }
}
