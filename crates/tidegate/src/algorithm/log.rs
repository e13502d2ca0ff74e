//! The events of a sliding log: their times and costs, in segments.
//!
//! Each record holds the time of an event and the *cumulative* cost up to and with it,
//! so the cost of any run of records is one subtraction. Which events are too old, and
//! which one must go to make room, are binary searches.
//!
//! Records lie in segments of 256, oldest first, and totals count from the start of
//! their segment. So no operation does work in proportion to the number of events: a
//! log grows by one segment at a time, frees a few old ones per write, and a refund
//! rewrites one segment and one number in each later one. With a million events that
//! is at most some microseconds, which matters because a store holds a lock meanwhile.
//! Totals wrap around; only their differences count, and those stay within `N`.
//!
//! Times are *raw*: the clock's reading plus `shift_us`, which grows by the step
//! whenever the clock steps back. So raw time never goes back, and a step moves all
//! events at once without touching them.

use std::collections::VecDeque;
use std::mem;

use crate::cost::Cost;

/// Records of a full segment, and of the smallest one: the first of a new log.
const SEGMENT: usize = 256;
const SMALLEST: usize = 4;

/// Old segments that one write frees. A write adds at most one.
const FREED: usize = 32;

/// The admitted events of one key.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Log {
    /// The oldest segment: most logs have no other.
    front: Segment,
    rest: VecDeque<Segment>,
    /// Segments at the front that no longer count and are yet to be freed.
    dead: usize,
    /// Raw time less the clock's reading.
    shift_us: u64,
    /// The clock's reading when the log was last written.
    last_us: u64,
    /// Records that all segments together have room for.
    capacity: usize,
}

/// Some consecutive records: `start..start + len` of a fixed block.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Segment {
    records: Box<[Record]>,
    start: u16,
    len: u16,
    /// The total before the first record of the block.
    base: u32,
}

/// One admitted event, or several of the same microsecond: 12 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(C, packed(4))]
struct Record {
    /// When, in raw time.
    raw_us: u64,
    /// The cost of all events of the block up to and with this one, wrapping.
    total: u32,
}

/// Where a record lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct RecordIndex {
    segment: usize,
    /// Counted from the segment's first live record.
    index: usize,
}

/// A log seen at an instant: what still counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogView {
    used: u32,
    /// The oldest record that counts, or the end.
    first: RecordIndex,
    /// The total before it.
    before: u32,
    /// When the newest event happened, in raw time.
    newest_raw_us: u64,
    /// This instant, in raw time and on the clock.
    raw_us: u64,
    now_us: u64,
}

/// How a log makes room for one more record.
enum Room {
    /// The newest record has the same time.
    Merge,
    /// Behind the newest record.
    Append,
    /// In the same segment, once its records have moved to the start.
    Compact,
    /// In a larger block for the only segment.
    Grow(usize),
    /// In a new segment.
    Add,
}

impl LogView {
    /// The cost of the events in the window.
    pub const fn used(&self) -> u32 {
        self.used
    }

    /// This instant.
    pub const fn now_us(&self) -> u64 {
        self.now_us
    }

    /// This instant in raw time: what a refund recognises a charge by.
    pub const fn raw_us(&self) -> u64 {
        self.raw_us
    }

    /// Until the newest event leaves a window of this length.
    pub(super) const fn reset_after_us(&self, window_us: u64) -> u64 {
        match self.used {
            0 => 0,
            _ => self.newest_raw_us + window_us - self.raw_us,
        }
    }
}

impl Log {
    /// When the log was last written.
    pub const fn last_us(&self) -> u64 {
        self.last_us
    }

    /// Bytes it occupies.
    pub fn bytes(&self) -> usize {
        mem::size_of::<Self>()
            + self.capacity * mem::size_of::<Record>()
            + self.rest.len() * mem::size_of::<Segment>()
    }

    /// The events of the last `window_us` before this instant.
    pub fn at(&self, window_us: u64, now_us: u64) -> LogView {
        let shift_us = self.shift_us + self.last_us.saturating_sub(now_us);
        let raw_us = now_us + shift_us;
        let first = self.find(self.dead, |_, record| record.raw_us + window_us <= raw_us);
        let before = self.total_before(first);
        let last = self.segment(self.rest.len());
        let newest = last.live().last();
        LogView {
            used: newest.map_or(0, |newest| {
                let total = last.base.wrapping_add(newest.total);
                total.wrapping_sub(before)
            }),
            first,
            before,
            newest_raw_us: newest.map_or(0, |newest| newest.raw_us),
            raw_us,
            now_us,
        }
    }

    /// The log at an instant when none of its events count any more.
    pub(crate) fn ended(&self, now_us: u64) -> LogView {
        let segment = self.rest.len();
        let first = RecordIndex {
            segment,
            index: usize::from(self.segment(segment).len),
        };
        LogView {
            used: 0,
            first,
            before: self.total_before(first),
            newest_raw_us: 0,
            raw_us: now_us,
            now_us,
        }
    }

    /// How long after the view the event leaves the window that, with all before it,
    /// costs at least `excess`.
    pub(super) fn leaves_after_us(&self, view: &LogView, excess: u32, window_us: u64) -> u64 {
        let place = self.find(view.first.segment, |segment, record| {
            let total = segment.base.wrapping_add(record.total);
            let since = total.wrapping_sub(view.before);
            // Records before the first that counts wrap around to far more.
            since < excess || since > view.used
        });
        let record = self.segment(place.segment).live().get(place.index);
        record.map_or(0, |record| {
            (record.raw_us + window_us).saturating_sub(view.raw_us)
        })
    }

    /// Bytes that [`write`](Self::write) of an event at this view adds, for a log of at
    /// most `max` records.
    pub fn growth(&self, view: &LogView, max: u32) -> usize {
        match self.room(view, max) {
            Room::Merge | Room::Append | Room::Compact => 0,
            Room::Grow(records) => (records - self.front_capacity()) * mem::size_of::<Record>(),
            Room::Add => SEGMENT * mem::size_of::<Record>() + mem::size_of::<Segment>(),
        }
    }

    /// Trims what no longer counts at `view` and appends an event of this cost.
    pub fn write(&mut self, view: &LogView, cost: u32, max: u32) {
        let room = self.room(view, max);
        self.trim(view);
        let last = self.rest.len();
        match room {
            Room::Merge => {
                let segment = self.segment_mut(last);
                let newest = usize::from(segment.start + segment.len) - 1;
                let total = segment.records[newest].total;
                segment.records[newest].total = total.wrapping_add(cost);
                return;
            }
            Room::Append => {}
            Room::Compact => {
                let segment = self.segment_mut(last);
                segment.rebase();
                let (start, len) = (usize::from(segment.start), usize::from(segment.len));
                segment.records.copy_within(start..start + len, 0);
                segment.start = 0;
            }
            Room::Grow(records) => {
                let segment = self.segment_mut(last);
                segment.rebase();
                let mut larger = vec![Record::default(); records].into_boxed_slice();
                larger[..segment.live().len()].copy_from_slice(segment.live());
                let smaller = mem::replace(&mut segment.records, larger);
                segment.start = 0;
                self.capacity = self.capacity + records - smaller.len();
            }
            Room::Add => {
                let base = self.segment(last).end_total();
                self.rest.push_back(Segment {
                    records: vec![Record::default(); SEGMENT].into_boxed_slice(),
                    start: 0,
                    len: 0,
                    base,
                });
                self.capacity += SEGMENT;
            }
        }
        let last = self.rest.len();
        self.segment_mut(last).push(view.raw_us, cost);
    }

    /// Trims what no longer counts at `view`, and remembers the clock.
    pub fn trim(&mut self, view: &LogView) {
        self.dead = view.first.segment;
        let segment = self.segment_mut(view.first.segment);
        segment.trim(view.first.index);
        self.shift_us = view.raw_us - view.now_us;
        self.last_us = view.now_us;
        for _ in 0..FREED.min(self.dead) {
            self.remove_segment(0);
        }
    }

    /// Gives back a cost that was charged at `raw_us`, if that event still counts.
    /// Says whether it did.
    pub fn refund(&mut self, view: &LogView, cost: Cost, raw_us: u64) -> bool {
        let cost = cost.get();
        let place = self.find(view.first.segment, |_, record| record.raw_us < raw_us);
        let is_live = (place.segment, place.index) >= (view.first.segment, view.first.index);
        let record = self.segment(place.segment).live().get(place.index).copied();
        let Some(record) = record.filter(|record| is_live && record.raw_us == raw_us) else {
            return false;
        };
        let before = self.total_before(place);
        let segment = self.segment_mut(place.segment);
        let total = segment.base.wrapping_add(record.total);
        let spent = total.wrapping_sub(before);
        if spent < cost {
            return false;
        }
        // Later totals shrink, and a record with nothing left closes up.
        segment.take(place.index, cost, spent == cost);
        for later in place.segment + 1..=self.rest.len() {
            let segment = self.segment_mut(later);
            segment.base = segment.base.wrapping_sub(cost);
        }
        if self.segment(place.segment).len == 0 && !self.rest.is_empty() {
            self.remove_segment(place.segment);
        }
        self.shift_us = view.raw_us - view.now_us;
        self.last_us = view.now_us;
        true
    }

    fn room(&self, view: &LogView, max: u32) -> Room {
        let last = self.rest.len();
        let segment = self.segment(last);
        let is_only = view.first.segment == last;
        let trimmed = if is_only { view.first.index } else { 0 };
        let len = usize::from(segment.len) - trimmed;
        let (start, capacity) = (usize::from(segment.start) + trimmed, segment.records.len());
        let most = usize::try_from(max).unwrap_or(SEGMENT).min(SEGMENT);
        if len > 0 && view.newest_raw_us == view.raw_us {
            Room::Merge
        } else if len == 0 && capacity > 0 {
            Room::Compact
        } else if start + len < capacity {
            Room::Append
        } else if is_only && start > 0 && (start >= capacity / 4 || capacity >= most) {
            Room::Compact
        } else if is_only && last == 0 && capacity < SEGMENT {
            Room::Grow((2 * capacity).max(SMALLEST).min(most).max(len + 1))
        } else {
            Room::Add
        }
    }

    fn front_capacity(&self) -> usize {
        self.front.records.len()
    }

    fn segment(&self, index: usize) -> &Segment {
        match index.checked_sub(1) {
            None => &self.front,
            Some(index) => &self.rest[index],
        }
    }

    fn segment_mut(&mut self, index: usize) -> &mut Segment {
        match index.checked_sub(1) {
            None => &mut self.front,
            Some(index) => &mut self.rest[index],
        }
    }

    fn remove_segment(&mut self, index: usize) {
        let removed = match index.checked_sub(1) {
            Some(index) => self.rest.remove(index),
            None => {
                let next = self.rest.pop_front();
                next.map(|next| mem::replace(&mut self.front, next))
            }
        };
        if let Some(removed) = removed {
            self.capacity -= removed.records.len();
            self.dead -= usize::from(index < self.dead);
        }
    }

    /// The total before a record.
    fn total_before(&self, place: RecordIndex) -> u32 {
        let segment = self.segment(place.segment);
        match (usize::from(segment.start) + place.index).checked_sub(1) {
            Some(previous) => segment.base.wrapping_add(segment.records[previous].total),
            None => segment.base,
        }
    }

    /// The first record from a segment on that is not `early`, which holds for a first
    /// run of them; the end of the last segment if there is none. Looks close to the
    /// start first: most checks trim few events or none.
    fn find(&self, from: usize, early: impl Fn(&Segment, Record) -> bool) -> RecordIndex {
        let last = self.rest.len();
        let is_early = |index: usize| {
            let segment = self.segment(index);
            let newest = segment.live().last();
            newest.is_none_or(|newest| early(segment, *newest))
        };
        let (mut low, mut step) = (from, 1);
        let mut high = loop {
            let probe = low + step - 1;
            if probe >= last {
                break last;
            }
            if !is_early(probe) {
                break probe;
            }
            low = probe + 1;
            step *= 2;
        };
        while low < high {
            let middle = low + (high - low) / 2;
            if is_early(middle) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        let segment = self.segment(low);
        let live = segment.live();
        let near = live.iter().take(4).position(|it| !early(segment, *it));
        let index = near.unwrap_or_else(|| live.partition_point(|it| early(segment, *it)));
        RecordIndex {
            segment: low,
            index,
        }
    }
}

impl Segment {
    fn live(&self) -> &[Record] {
        let start = usize::from(self.start);
        &self.records[start..start + usize::from(self.len)]
    }

    /// The total after its newest record.
    fn end_total(&self) -> u32 {
        let newest = self.live().last();
        self.base
            .wrapping_add(newest.map_or(0, |newest| newest.total))
    }

    fn push(&mut self, raw_us: u64, cost: u32) {
        let end = self.end_total();
        self.len += 1;
        let newest = usize::from(self.start + self.len) - 1;
        self.records[newest] = Record {
            raw_us,
            total: end.wrapping_sub(self.base).wrapping_add(cost),
        };
    }

    /// Forgets the oldest records.
    fn trim(&mut self, count: usize) {
        let count = u16::try_from(count).unwrap_or(self.len).min(self.len);
        self.start += count;
        self.len -= count;
        if self.len == 0 {
            (self.start, self.base) = (0, 0);
        }
    }

    /// Makes totals count from the oldest record that is left.
    fn rebase(&mut self) {
        let start = usize::from(self.start);
        let Some(previous) = start.checked_sub(1) else {
            return;
        };
        let trimmed = self.records[previous].total;
        self.base = self.base.wrapping_add(trimmed);
        for record in &mut self.records[start..start + usize::from(self.len)] {
            record.total = record.total.wrapping_sub(trimmed);
        }
    }

    /// Takes a cost off a record and all later ones, and the record out if it is empty.
    fn take(&mut self, index: usize, cost: u32, empty: bool) {
        let at = usize::from(self.start) + index;
        let end = usize::from(self.start + self.len);
        for record in &mut self.records[at..end] {
            record.total = record.total.wrapping_sub(cost);
        }
        if empty {
            self.records.copy_within(at + 1..end, at);
            self.len -= 1;
        }
    }
}
