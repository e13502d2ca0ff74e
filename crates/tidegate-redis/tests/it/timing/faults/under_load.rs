//! A fault in the middle of a load: what is the same for every one of them.

use std::time::Duration;

use tidegate_redis::ErrorKind;
use tokio::runtime::Handle;
use tokio::time::sleep;

use super::load::{self, Load};
use super::{Rig, until};

/// Checks per second.
const RATE: u32 = 500;

/// Tasks that a store keeps: a worker and a connection for each of its two lanes.
const TASKS: usize = 4;

/// Something that goes wrong, and what is known of it.
pub(super) struct Fault<'f> {
    pub(super) what: &'f str,
    /// What a store may say while it lasts.
    pub(super) kinds: &'f [ErrorKind],
    /// How long it goes on after it was noticed.
    pub(super) lasts: Duration,
    /// The longest until the store is asked as before when it is over: the longest pause
    /// between probes, and the one that succeeds.
    pub(super) closes_within: Duration,
}

impl<'f> Fault<'f> {
    pub(super) fn new(what: &'f str, kinds: &'f [ErrorKind]) -> Self {
        Self {
            what,
            kinds,
            lasts: Duration::from_millis(1_200),
            closes_within: Duration::from_millis(1_500),
        }
    }

    /// Lets it happen to a store that is well. The breaker opens, stays open while it
    /// lasts and closes after it; `on_error` is obeyed by every check, 999 of 1,000 have
    /// their answer within a deadline and 10 ms, nobody is stuck, and nothing is left
    /// behind.
    pub(super) async fn strikes(
        &self,
        rig: &Rig,
        begins: impl FnOnce(),
        ends: impl FnOnce(),
    ) -> Load {
        rig.until_answered().await;
        let load = load::start(rig, RATE);
        sleep(Duration::from_millis(300)).await;
        begins();
        self.passes(rig, load, ends).await
    }

    /// The same from where it has begun, and the load as well.
    pub(super) async fn passes(&self, rig: &Rig, load: load::Running, ends: impl FnOnce()) -> Load {
        let what = self.what;
        let opened = until("open", || rig.store.stats().breaker_open).await;
        rig.is_obeyed().await;
        sleep(self.lasts).await;
        assert!(rig.store.stats().breaker_open, "{what}");
        // On a machine that stalls, deadlines may have come first; then a probe meets it.
        let told = || self.kinds.iter().any(|kind| rig.count(*kind) > 0);
        until("the error is counted", told).await;
        ends();
        let closed = until("closed", || !rig.store.stats().breaker_open).await;
        println!("{what}: opened after {opened:?}, closed {closed:?} after it was over");
        assert!(closed.is_within(self.closes_within), "{what}: {closed:?}");
        self.is_over(rig, load).await
    }

    /// What holds when all is well again.
    pub(super) async fn is_over(&self, rig: &Rig, load: load::Running) -> Load {
        let what = self.what;
        let tasks = load.tasks.max(TASKS);
        let load = load.stop_after(Duration::from_millis(700)).await;
        rig.until_answered().await;
        let alive = || Handle::current().metrics().num_alive_tasks();
        until("nothing is left behind", || alive() <= tasks).await;
        load.keeps_the_deadline(what);
        for (kind, count) in rig.store.stats().errors {
            // Whatever the machine does, the deadline may come first, also in the queue; and
            // connections seem to be dead while it stalls, all of which is lost then.
            let always = [
                ErrorKind::BreakerOpen,
                ErrorKind::Timeout,
                ErrorKind::QueueFull,
            ];
            let stalled = [ErrorKind::Connect, ErrorKind::OutcomeUnknown];
            let most = match () {
                () if self.kinds.contains(&kind) || always.contains(&kind) => u64::MAX,
                () if stalled.contains(&kind) => load.late_checks(),
                () => 0,
            };
            assert!(count <= most, "{what}: {count} of {kind}, {most} expected");
        }
        load
    }
}
