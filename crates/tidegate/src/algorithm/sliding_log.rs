//! The sliding log: every admitted event of the last window, exact.
//!
//! Any stretch of length `W` holds at most `N`: an event counts for exactly `W`
//! and is gone at age `W`. The price is memory, one record an event.
//!
//! # Shape
//! The records lie in a ring, oldest first. Each holds its time and the
//! *cumulative* cost up to and with it, so the cost of any run of records is one
//! subtraction, and both questions (which events are too old, which event must go
//! to make room) are binary searches: work stays small however many events expire
//! at once. Totals wrap around; only their differences count, and those stay
//! within `N`.
//!
//! Times in the ring are *raw*: the clock's reading plus `shift_us`, which grows
//! by the step whenever the clock steps back. So raw time never goes back, and a
//! step moves all events at once without touching them.
//!
//! The ring's memory belongs to the store: this file works on a header and a
//! slice of records, and never makes the slice longer.
//!
//! # Example
//! 5 per 10 s:
//!
//! | at (s) | cost | events in the window | admitted | retry after (s) |
//! | --- | --- | --- | --- | --- |
//! | 0 | 3 | 3 | yes | 0 |
//! | 4 | 2 | 5 | yes | 0 |
//! | 5 | 1 | 5 | no | 5 |
//! | 5 | 4 | 5 | no | 9 |
//! | 10 | 3 | 2 + 3 | yes | 0 |

use super::{Outcome, Used};
use crate::cost::Cost;
use crate::error::LimitError;
use crate::limit::Algorithm;
use crate::rate::Rate;

/// The most requests a log holds.
const MAX_REQUESTS: u32 = 1_000_000;

/// At most `requests` in any stretch of a window's length.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SlidingLog {
    rate: Rate,
}

/// One admitted event, or several of the same microsecond: 12 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(C, packed(4))]
pub struct LogRecord {
    /// When, in raw time.
    pub raw_us: u64,
    /// The cost of all events up to and with this one, wrapping.
    pub total: u32,
}

/// Where in its ring a log lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LogHeader {
    /// Index of the oldest record.
    pub head: u32,
    /// Number of records.
    pub len: u32,
    /// The total before the oldest record.
    pub before: u32,
    /// Raw time less the clock's reading.
    pub shift_us: u64,
    /// The clock's reading when the log was last written.
    pub last_us: u64,
}

/// A log seen at an instant: what still counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogView {
    /// The cost of the events in the window.
    pub used: u32,
    /// How many of the oldest records have expired.
    expired: u32,
    /// The total before the oldest one that counts.
    before: u32,
    /// The total of all.
    total: u32,
    /// When the newest event happened, in raw time.
    newest_raw_us: u64,
    /// This instant, in raw time.
    raw_us: u64,
    /// This instant.
    now_us: u64,
}

impl SlidingLog {
    /// A log of this rate, of at most 1,000,000 requests.
    pub const fn new(rate: Rate) -> Result<Self, LimitError> {
        if rate.requests() > MAX_REQUESTS {
            return Err(LimitError::RequestsOf {
                requests: rate.requests(),
                algorithm: Algorithm::SlidingLog,
                max: MAX_REQUESTS,
            });
        }
        Ok(Self { rate })
    }

    /// The rate it was made of.
    #[must_use]
    pub const fn rate(&self) -> Rate {
        self.rate
    }

    /// The log at an instant.
    #[must_use]
    pub fn at(&self, header: &LogHeader, records: &[LogRecord], now_us: u64) -> LogView {
        let shift_us = header.shift_us + header.last_us.saturating_sub(now_us);
        let raw_us = now_us + shift_us;
        let window_us = self.rate.window_us();
        let expired = partition(header, records, 0, |record| {
            record.raw_us + window_us <= raw_us
        });
        let before = match expired.checked_sub(1) {
            Some(index) => get(header, records, index).total,
            None => header.before,
        };
        let newest = match header.len.checked_sub(1) {
            Some(index) => get(header, records, index),
            None => LogRecord {
                raw_us: 0,
                total: header.before,
            },
        };
        LogView {
            used: newest.total.wrapping_sub(before),
            expired,
            before,
            total: newest.total,
            newest_raw_us: newest.raw_us,
            raw_us,
            now_us,
        }
    }

    /// The log at an instant when none of its events count.
    #[must_use]
    pub const fn new_view(&self, header: &LogHeader, now_us: u64) -> LogView {
        LogView {
            used: 0,
            expired: header.len,
            before: 0,
            total: 0,
            newest_raw_us: 0,
            raw_us: now_us,
            now_us,
        }
    }

    /// Whether this cost fits beside the events in the window.
    #[must_use]
    pub fn admits(&self, view: &LogView, cost: Cost) -> bool {
        cost.get() <= self.remaining(view)
    }

    /// How many records the ring must hold for one more charge.
    #[must_use]
    pub fn room_needed(&self, header: &LogHeader, view: &LogView) -> u32 {
        let live = header.len - view.expired;
        live + u32::from(live == 0 || view.newest_raw_us != view.raw_us)
    }

    /// The view after taking a cost, which [`write`](Self::write) puts into the
    /// ring.
    #[must_use]
    pub const fn charge(&self, view: LogView, cost: u32) -> LogView {
        LogView {
            used: view.used + cost,
            total: view.total.wrapping_add(cost),
            newest_raw_us: view.raw_us,
            ..view
        }
    }

    /// Drops what has expired at `view` and appends an event of this cost, for
    /// which the ring must have room.
    pub fn write(
        &self,
        header: &mut LogHeader,
        records: &mut [LogRecord],
        view: &LogView,
        cost: u32,
    ) {
        self.settle(header, records, view);
        if header.len == 0 || view.newest_raw_us != view.raw_us {
            header.len += 1;
        }
        let newest = slot(header, records, header.len - 1);
        records[newest] = LogRecord {
            raw_us: view.raw_us,
            total: view.total.wrapping_add(cost),
        };
    }

    /// The cost that counting a refused request adds: at most up to full.
    #[must_use]
    pub fn saturated_cost(&self, view: &LogView, cost: Cost) -> u32 {
        cost.get().min(self.remaining(view))
    }

    /// Drops what has expired, and remembers the clock.
    pub fn settle(&self, header: &mut LogHeader, records: &[LogRecord], view: &LogView) {
        header.head = u32::try_from(slot(header, records, view.expired)).unwrap_or(0);
        header.len -= view.expired;
        header.before = view.before;
        header.shift_us = view.raw_us - view.now_us;
        header.last_us = view.now_us;
    }

    /// Gives back a cost that was charged at `raw_us`, if that event still
    /// counts. Returns the view after it.
    pub fn refund(
        &self,
        header: &mut LogHeader,
        records: &mut [LogRecord],
        view: LogView,
        cost: Cost,
        raw_us: u64,
    ) -> LogView {
        let index = partition(header, records, view.expired, |record| {
            record.raw_us < raw_us
        });
        if index >= header.len {
            return view;
        }
        let before = match index.checked_sub(1) {
            Some(previous) if index > view.expired => get(header, records, previous).total,
            _ => view.before,
        };
        let record = get(header, records, index);
        let spent = record.total.wrapping_sub(before);
        if record.raw_us != raw_us || spent < cost.get() {
            return view;
        }
        let index = index - view.expired;
        self.settle(header, records, &view);
        // Later totals shrink; a record with nothing left closes up.
        let emptied = u32::from(spent == cost.get());
        for later in index + emptied..header.len {
            let mut record = get(header, records, later);
            record.total = record.total.wrapping_sub(cost.get());
            let to = slot(header, records, later - emptied);
            records[to] = record;
        }
        header.len -= emptied;
        self.at(header, records, view.now_us)
    }

    /// The numbers to report, `cost` being what would be asked for again.
    #[must_use]
    pub fn outcome(
        &self,
        header: &LogHeader,
        records: &[LogRecord],
        view: &LogView,
        cost: Cost,
        admitted: bool,
    ) -> Outcome {
        Outcome {
            limit: self.rate.requests(),
            used: Used::requests(view.used),
            retry_after_us: if admitted {
                Some(0)
            } else {
                self.retry_after_us(header, records, view, cost)
            },
            reset_after_us: self.reset_after_us(view),
        }
    }

    /// One check of one level on a ring with room for it, and what to report.
    ///
    /// ```
    /// use tidegate::algorithm::{LogHeader, LogRecord, SlidingLog};
    /// use tidegate::{Cost, Rate};
    ///
    /// let limit = SlidingLog::new("5/10s".parse::<Rate>()?)?;
    /// let (mut header, mut ring) = (LogHeader::default(), [LogRecord::default(); 5]);
    /// limit.step(&mut header, &mut ring, Cost::of(3), 0);
    /// limit.step(&mut header, &mut ring, Cost::of(2), 4_000_000);
    /// let refused = limit.step(&mut header, &mut ring, Cost::ONE, 5_000_000);
    /// assert_eq!((refused.remaining(), refused.retry_after_us), (0, Some(5_000_000)));
    /// let admitted = limit.step(&mut header, &mut ring, Cost::of(3), 10_000_000);
    /// assert_eq!((admitted.remaining(), admitted.retry_after_us), (0, Some(0)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn step(
        &self,
        header: &mut LogHeader,
        records: &mut [LogRecord],
        cost: Cost,
        now_us: u64,
    ) -> Outcome {
        let view = self.at(header, records, now_us);
        if self.admits(&view, cost) {
            self.write(header, records, &view, cost.get());
            let view = self.charge(view, cost.get());
            self.outcome(header, records, &view, cost, true)
        } else {
            self.settle(header, records, &view);
            let view = self.at(header, records, now_us);
            self.outcome(header, records, &view, cost, false)
        }
    }

    /// Until the newest event is gone.
    pub(crate) fn reset_after_us(&self, view: &LogView) -> u64 {
        if view.used == 0 {
            return 0;
        }
        view.newest_raw_us + self.rate.window_us() - view.raw_us
    }

    fn remaining(&self, view: &LogView) -> u32 {
        self.rate.requests().saturating_sub(view.used)
    }

    /// Exact for a cost that is refused now: until the event is gone that makes
    /// room for it.
    fn retry_after_us(
        &self,
        header: &LogHeader,
        records: &[LogRecord],
        view: &LogView,
        cost: Cost,
    ) -> Option<u64> {
        let spare = self.rate.requests().checked_sub(cost.get())?;
        let excess = view.used.saturating_sub(spare);
        let index = partition(header, records, view.expired, |record| {
            record.total.wrapping_sub(view.before) < excess
        });
        let record = get(header, records, index.min(header.len.saturating_sub(1)));
        Some(record.raw_us + self.rate.window_us() - view.raw_us)
    }
}

impl LogView {
    /// This instant.
    #[must_use]
    pub const fn now_us(&self) -> u64 {
        self.now_us
    }

    /// This instant in raw time: what a refund remembers a charge by.
    #[must_use]
    pub const fn raw_us(&self) -> u64 {
        self.raw_us
    }
}

/// The place in the ring of the record `index` after the oldest.
fn slot(header: &LogHeader, records: &[LogRecord], index: u32) -> usize {
    let place = header.head as usize + index as usize;
    if place >= records.len() {
        place - records.len()
    } else {
        place
    }
}

fn get(header: &LogHeader, records: &[LogRecord], index: u32) -> LogRecord {
    records[slot(header, records, index)]
}

/// How many records from the oldest on satisfy `early`, which holds for a first
/// run of them, `from` or more. Looks close to `from` first: most checks trim few
/// events or none.
fn partition(
    header: &LogHeader,
    records: &[LogRecord],
    from: u32,
    early: impl Fn(LogRecord) -> bool,
) -> u32 {
    let (mut low, mut step) = (from, 1);
    let mut high = loop {
        let probe = low + step - 1;
        if probe >= header.len {
            break header.len;
        }
        if !early(get(header, records, probe)) {
            break probe;
        }
        low = probe + 1;
        step *= 2;
    };
    while low < high {
        let middle = low + (high - low) / 2;
        if early(get(header, records, middle)) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    low
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000;

    struct Ring {
        limit: SlidingLog,
        header: LogHeader,
        records: Vec<LogRecord>,
    }

    impl Ring {
        fn new(rate: &str) -> Self {
            let limit = SlidingLog::new(rate.parse().unwrap()).unwrap();
            let records = vec![LogRecord::default(); limit.rate().requests() as usize];
            Self {
                limit,
                header: LogHeader::default(),
                records,
            }
        }

        fn step(&mut self, cost: u32, at: u64) -> (u32, Option<u64>) {
            let outcome = self
                .limit
                .step(&mut self.header, &mut self.records, Cost::of(cost), at);
            (outcome.remaining(), outcome.retry_after_us)
        }

        fn view(&self, at: u64) -> LogView {
            self.limit.at(&self.header, &self.records, at)
        }
    }

    #[test]
    fn the_example_of_the_module() {
        let mut ring = Ring::new("5/10s");
        assert_eq!(ring.step(3, 0), (2, Some(0)));
        assert_eq!(ring.step(2, 4 * SECOND), (0, Some(0)));
        assert_eq!(ring.step(1, 5 * SECOND), (0, Some(5 * SECOND)));
        assert_eq!(ring.step(4, 5 * SECOND), (0, Some(9 * SECOND)));
        assert_eq!(ring.step(3, 10 * SECOND), (0, Some(0)));
    }

    #[test]
    fn an_event_of_age_w_is_gone_and_not_a_microsecond_before() {
        let mut ring = Ring::new("1/10s");
        ring.step(1, 7);
        assert_eq!(ring.step(1, 10 * SECOND + 6), (0, Some(1)));
        assert_eq!(ring.step(1, 10 * SECOND + 7), (0, Some(0)));
    }

    #[test]
    fn a_million_events_expire_in_one_search() {
        let mut ring = Ring::new("1000000/60s");
        for at in 0..1_000_000 {
            assert_eq!(ring.step(1, at).1, Some(0));
        }
        assert_eq!(ring.step(1, 999_999), (0, Some(60 * SECOND - 999_999)));
        // Half of them are too old now; the ring wraps around.
        assert_eq!(ring.step(1, 60 * SECOND + 499_999), (499_999, Some(0)));
        assert_eq!(ring.view(60 * SECOND + 499_999).used, 500_001);
    }

    #[test]
    fn refunds_close_the_gap() {
        let mut ring = Ring::new("5/10s");
        for at in 0..5 {
            ring.step(1, at);
        }
        let view = ring.view(5);
        let view = ring
            .limit
            .refund(&mut ring.header, &mut ring.records, view, Cost::ONE, 2);
        assert_eq!((view.used, ring.header.len), (4, 4));
        let times: Vec<u64> = ring.records[..4]
            .iter()
            .map(|record| record.raw_us)
            .collect();
        assert_eq!(times, [0, 1, 3, 4]);
        // The event is no longer there: nothing more to give back.
        let view = ring
            .limit
            .refund(&mut ring.header, &mut ring.records, view, Cost::ONE, 2);
        assert_eq!(view.used, 4);
    }

    #[test]
    fn a_clock_that_steps_back_takes_the_events_along() {
        let mut ring = Ring::new("2/10s");
        ring.step(1, 100 * SECOND);
        ring.step(1, 104 * SECOND);
        assert_eq!(ring.step(1, 50 * SECOND), (0, Some(6 * SECOND)));
        assert_eq!(ring.step(1, 56 * SECOND - 1), (0, Some(1)));
        assert_eq!(ring.step(1, 56 * SECOND), (0, Some(0)));
    }
}
