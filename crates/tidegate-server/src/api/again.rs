//! Polling a connection once more, here and now, when it was woken while it was polled.
//!
//! hyper wakes a connection whenever a handler takes a piece of a body, also when it was
//! the last one. By way of the scheduler every request with a body would be two turns of
//! its task, and a second thread would be woken to take one of them over. A second look
//! in the same turn finds that there is nothing to do, or does it.

use std::pin::Pin;
use std::sync::atomic::AtomicU8;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Wake, Waker};

/// How often a future is polled in one turn at most. Others want to run, too.
const TURNS: u32 = 2;

/// Polls one future, always the same.
#[derive(Debug)]
pub(super) struct Again {
    wakes: Arc<Wakes>,
    waker: Waker,
}

/// What the future wakes.
#[derive(Debug)]
struct Wakes {
    state: AtomicU8,
    task: OnceLock<Waker>,
}

/// The future waits, and to wake it is to wake its task.
const WAITS: u8 = 0;
/// It is being polled.
const POLLED: u8 = 1;
/// And has been woken since that began.
const WOKEN: u8 = 2;

impl Again {
    pub(super) fn new() -> Self {
        let wakes = Arc::new(Wakes {
            state: AtomicU8::new(WAITS),
            task: OnceLock::new(),
        });
        Self {
            waker: Arc::clone(&wakes).into(),
            wakes,
        }
    }

    pub(super) fn poll<F: Future>(
        &self,
        cx: &mut Context<'_>,
        mut future: Pin<&mut F>,
    ) -> Poll<F::Output> {
        let state = &self.wakes.state;
        // A connection is polled by one task, which keeps its waker for life.
        self.wakes.task.get_or_init(|| cx.waker().clone());
        for _ in 0..TURNS {
            state.store(POLLED, Release);
            let own = &mut Context::from_waker(&self.waker);
            if let Poll::Ready(output) = future.as_mut().poll(own) {
                return Poll::Ready(output);
            }
            let waits = state.compare_exchange(POLLED, WAITS, AcqRel, Acquire);
            if waits.is_ok() {
                return Poll::Pending;
            }
        }
        state.store(WAITS, Release);
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

impl Again {
    /// Whether the future has been woken since it is being polled.
    #[inline]
    pub(super) fn is_woken(&self) -> bool {
        self.wakes.state.load(Acquire) != POLLED
    }

    /// Forgets that the future was woken while it is being polled, because the wake-up was
    /// for nothing. Nothing else can be lost: sockets wake it from the
    /// thread that polls it, and no other request of the connection is waiting.
    #[inline]
    pub(super) fn forget(&self) {
        let state = &self.wakes.state;
        let _ = state.compare_exchange(WOKEN, POLLED, AcqRel, Acquire);
    }
}

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let woken = self.state.compare_exchange(POLLED, WOKEN, AcqRel, Acquire);
        if let (Err(WAITS), Some(task)) = (woken, self.task.get()) {
            task.wake_by_ref();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::pin::pin;
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

    use super::*;

    /// A task that counts how often it is woken.
    #[derive(Default)]
    struct Task(AtomicU32);

    impl Wake for Task {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Relaxed);
        }
    }

    #[test]
    fn woken_while_polled_it_is_polled_again_and_then_left_to_the_task() {
        // Of the polls, so many wake their own future: how many polls there are in the
        // first turn, and whether the task is woken.
        for (waking, polls, woken) in [(0, 1, 0), (1, 2, 0), (2, 2, 1), (3, 2, 1)] {
            let (task, again) = (Arc::new(Task::default()), Again::new());
            let polled = AtomicU32::new(0);
            let mut future = pin!(poll_fn(|cx| {
                if polled.fetch_add(1, Relaxed) < waking {
                    cx.waker().wake_by_ref();
                }
                Poll::<()>::Pending
            }));
            let waker = Arc::clone(&task).into();
            let cx = &mut Context::from_waker(&waker);
            assert!(again.poll(cx, future.as_mut()).is_pending());
            assert_eq!(polled.load(Relaxed), polls, "{waking} wake");
            assert_eq!(task.0.load(Relaxed), woken, "{waking} wake");
        }
    }

    #[test]
    fn woken_later_it_wakes_the_task_each_time() {
        let (task, again) = (Arc::new(Task::default()), Again::new());
        let mut kept = None;
        let mut future = pin!(poll_fn(|cx| {
            kept = Some(cx.waker().clone());
            Poll::<()>::Pending
        }));
        let waker = Arc::clone(&task).into();
        let cx = &mut Context::from_waker(&waker);
        assert!(again.poll(cx, future.as_mut()).is_pending());
        let kept = kept.expect("a waker");
        for woken in 1..4 {
            kept.wake_by_ref();
            assert_eq!(task.0.load(Relaxed), woken);
        }
    }
}
