//! The longest single call: how long a caller may keep a lock that others wait for.
//!
//! A call is timed by the processor time of its thread, so a call that the system
//! interrupts to run somebody else does not look long. What the machine does to a thread
//! besides (interrupts, page faults, a cold cache) is still in it, and a maximum over
//! millions of calls finds all of it. So the measurement runs several times, and counts
//! the run whose longest call was the shortest.

use std::hint::black_box;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use tidegate::{Cost, Limit, Limiter, MemoryStore, Receipt};

use crate::keys;
use crate::report::Longest;

const RUNS: usize = 3;

/// Events that are refunded, oldest first, and checks after all events have expired.
const REFUNDS: u32 = 100;
const AFTER: u64 = 10_000;

/// The sizes of a run.
#[derive(Clone, Copy)]
struct Sizes {
    keys: usize,
    events: u32,
}

/// All rows. A quick run is a hundred times smaller.
pub(crate) fn measure(quick: bool) -> Vec<Longest> {
    let shrink = if quick { 100 } else { 1 };
    let sizes = Sizes {
        keys: 10_000_000 / shrink as usize,
        events: 1_000_000 / shrink,
    };
    let mut rows: Vec<Longest> = Vec::new();
    for run in 1..=RUNS {
        eprintln!("measuring: the longest single call, run {run} of {RUNS}");
        let mut run = vec![new_keys(sizes.keys)];
        run.extend(log(sizes.events));
        match rows.is_empty() {
            true => rows = run,
            false => {
                for (row, other) in rows.iter_mut().zip(run) {
                    row.nanoseconds = row.nanoseconds.min(other.nanoseconds);
                }
            }
        }
    }
    rows
}

/// The longest check while a limiter fills up to its bound.
fn new_keys(keys: usize) -> Longest {
    let limit = Limit::per_hour(10);
    let store = MemoryStore::builder().max_keys(keys).build();
    let limiter = Limiter::over(&store, limit).expect("one limit");
    let mut longest = Stopwatch::default();
    for index in 0..keys {
        let key = keys::key(index);
        longest.time(|| black_box(limiter.check(&key).allowed()));
    }
    longest.row(format!("check of a new key, up to {keys} keys"))
}

/// The longest calls in the life of one large sliding log.
fn log(events: u32) -> Vec<Longest> {
    let window = Duration::from_secs(3_600);
    let limiter = Limiter::in_memory(Limit::per(events, window).sliding_log());
    // Events of one microsecond share a record: each gets one to itself.
    let start_us = limiter.now_us();
    let mut oldest: Vec<Receipt> = Vec::new();
    let mut growing = Stopwatch::default();
    for number in 0..u64::from(events) {
        let now_us = start_us + number;
        let decision = growing.time(|| limiter.check_at("a", Cost::ONE, now_us));
        assert!(decision.allowed(), "event {number}");
        if number < u64::from(REFUNDS) {
            oldest.extend(decision.receipt());
        }
    }
    let full_us = start_us + u64::from(events);
    let mut refused = Stopwatch::default();
    for _ in 0..REFUNDS {
        let decision = refused.time(|| limiter.check_at("a", Cost::ONE, full_us));
        assert!(!decision.allowed());
    }
    let mut refunding = Stopwatch::default();
    for receipt in &oldest {
        assert!(refunding.time(|| limiter.refund("a", receipt)));
    }
    let left = limiter.check_at("a", Cost::of(REFUNDS), full_us);
    assert!(left.allowed(), "refunds make room");
    let mut expiring = Stopwatch::default();
    // Refunds read the clock, which may have gone past the events' own times.
    let over_us = limiter.now_us().max(full_us) + 3_600_000_000;
    for number in 0..AFTER.min(u64::from(events)) {
        let decision = expiring.time(|| limiter.check_at("a", Cost::ONE, over_us + number));
        assert!(decision.allowed(), "after the window");
    }
    vec![
        growing.row(format!("check, `sliding_log` growing to {events} events")),
        refused.row(format!("refused check, `sliding_log` of {events} events")),
        refunding.row(format!("refund of the oldest of {events} events")),
        expiring.row(format!("check after all {events} events expired at once")),
    ]
}

/// The longest of the calls that it has timed, in nanoseconds.
#[derive(Default)]
struct Stopwatch(u64);

impl Stopwatch {
    fn time<T>(&mut self, call: impl FnOnce() -> T) -> T {
        let start = processor_time();
        let answer = call();
        self.0 = self.0.max(processor_time().saturating_sub(start));
        answer
    }

    fn row(self, label: String) -> Longest {
        Longest {
            label,
            nanoseconds: self.0,
        }
    }
}

/// Nanoseconds that this thread has run for.
fn processor_time() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    u64::try_from(time.tv_sec * 1_000_000_000 + time.tv_nsec).unwrap_or_default()
}
