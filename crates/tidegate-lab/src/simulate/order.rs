//! Lines of several logs, in one order of time.
//!
//! Programs write a line when a request ends, and their processes write in turns, so lines
//! are out of order by a little. Each log has a window of [`WINDOW`] lines: a line that
//! comes at most so many lines late is put in its place. One that comes later is left out
//! and counted. That keeps the memory flat however long a log is.
//!
//! Many logs know whole seconds only. The `n` lines of a second are spread over it evenly,
//! in their order: the first at the second, the next `1/n` s later. So a run gives the same
//! result each time, and a limit of ten per second admits ten evenly spaced requests.
//!
//! ```text
//! lines of a log -> window, sorted -+
//! lines of a log -> window, sorted -+-> merged by time -> spread -> batches
//! ```

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::batch::{Batch, pack};
use super::format::Reader;
use super::input::{Line, Lines, Log};
use super::time::At;
use super::values::Values;

/// How many lines late a line may come.
pub(super) const WINDOW: usize = 32_768;

/// How many bytes of attributes a window may hold: lines that are all very long make it
/// shorter.
const WINDOW_BYTES: usize = 64 << 20;

/// How many requests or bytes a batch has at least, and at most: it ends with a second,
/// unless that has too many.
const BATCH: usize = 4_096;
const MAX_BATCH: usize = 1 << 20;
const BATCH_BYTES: usize = 16 << 20;
const MAX_BATCH_BYTES: usize = 256 << 20;

const SECOND_US: u64 = 1_000_000;

/// How many unreadable lines are shown.
const SHOWN: usize = 5;

/// How many bytes of one are shown.
const SHOWN_BYTES: usize = 120;

/// What was found in the logs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) lines: u64,
    pub(super) unreadable: u64,
    /// Lines that came too late to be put in their place.
    pub(super) late: u64,
    /// The first few of both, in the order of the command line.
    pub(super) shown: Vec<Bad>,
    /// The first and the last instant, as the log has them.
    pub(super) span_us: Option<(u64, u64)>,
}

/// A line that was left out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Bad {
    pub(super) log: String,
    pub(super) line: u64,
    pub(super) reason: String,
    pub(super) text: String,
}

/// Why reading has ended early.
#[derive(Debug, thiserror::Error)]
pub(super) enum Stopped {
    /// A log cannot be read.
    #[error("{log}: {error}")]
    Log { log: String, error: io::Error },
    /// Nobody wants the batches.
    #[error("the other thread has ended")]
    Unwanted,
}

/// One request, in a window.
#[derive(Debug, Clone, Copy)]
struct Entry {
    at: At,
    start: u32,
    length: u32,
}

/// A log that is being read.
struct Window {
    log: usize,
    name: String,
    lines: Lines,
    reader: Reader,
    values: Values,
    found: Found,
    /// Sorted up to what is handed out.
    entries: Vec<Entry>,
    bytes: Vec<u8>,
    /// The next to be handed out, and the first that is not sorted in for good.
    next: usize,
    ready: usize,
    /// Nothing before this can be put in its place any more.
    handed_out: Option<At>,
    is_over: bool,
    /// The window, in lines.
    window: usize,
}

impl Window {
    fn open(
        log: usize,
        logs: &[Log],
        reader: &Reader,
        read: &Arc<AtomicU64>,
        window: usize,
    ) -> Result<Self, Stopped> {
        let name = logs[log].name();
        let lines = logs[log].open(read).map_err(|error| Stopped::Log {
            log: name.clone(),
            error,
        })?;
        let mut opened = Self {
            log,
            name,
            lines,
            reader: reader.clone(),
            values: Values::default(),
            found: Found::default(),
            entries: Vec::new(),
            bytes: Vec::new(),
            next: 0,
            ready: 0,
            handed_out: None,
            is_over: false,
            window,
        };
        opened.fill()?;
        Ok(opened)
    }

    /// The time of the next request.
    fn peek(&self) -> Option<At> {
        let entry = (self.next < self.ready).then(|| self.entries[self.next]);
        entry.map(|entry| entry.at)
    }

    /// The next request, packed. There must be one.
    fn take(&mut self) -> (At, &[u8]) {
        let entry = self.entries[self.next];
        self.next += 1;
        let start = entry.start as usize;
        (entry.at, &self.bytes[start..start + entry.length as usize])
    }

    /// Reads on until the window is full twice, and sorts: the first half is then in its
    /// place.
    fn fill(&mut self) -> Result<(), Stopped> {
        self.compact();
        while !self.is_over
            && self.entries.len() < 2 * self.window
            && self.bytes.len() < 2 * WINDOW_BYTES
        {
            self.read_line().map_err(|error| Stopped::Log {
                log: format!("{}:{}", self.name, self.found.lines + 1),
                error,
            })?;
        }
        // Lines of one time keep their order: the sort is stable, and quick where most is
        // in order already.
        self.entries.sort_by_key(|entry| entry.at);
        self.ready = match self.is_over {
            true => self.entries.len(),
            false => self.entries.len() / 2,
        };
        if let Some(last) = self.ready.checked_sub(1) {
            self.handed_out = Some(self.entries[last].at);
        }
        Ok(())
    }

    /// Forgets what was handed out.
    fn compact(&mut self) {
        let mut kept = Vec::with_capacity(self.bytes.len());
        self.entries.drain(..self.next);
        for entry in &mut self.entries {
            let start = entry.start as usize;
            let packed = &self.bytes[start..start + entry.length as usize];
            entry.start = offset(kept.len());
            kept.extend_from_slice(packed);
        }
        self.bytes = kept;
        self.next = 0;
    }

    fn read_line(&mut self) -> io::Result<()> {
        let Some(line) = self.lines.next()? else {
            self.is_over = true;
            return Ok(());
        };
        self.found.lines += 1;
        let read = match line {
            Line::Whole(line) => self.reader.read(line, &mut self.values),
            Line::TooLong(_) => Err("longer than 1 MiB"),
        };
        let at = match read {
            Ok(at) => at,
            Err(reason) => {
                self.found.unreadable += 1;
                let (number, name) = (self.found.lines, &self.name);
                self.found.show(|| bad(name, number, reason.into(), &line));
                return Ok(());
            }
        };
        if let Some(latest) = self.handed_out.filter(|latest| at < *latest) {
            self.found.late += 1;
            let (number, name) = (self.found.lines, &self.name);
            let behind = (latest.us() - at.us()).div_ceil(SECOND_US);
            let reason = format!("{behind} s older than lines far before it");
            self.found.show(|| bad(name, number, reason, &line));
            return Ok(());
        }
        self.found.span(at.us());
        let start = self.bytes.len();
        pack(self.values.iter(), &mut self.bytes);
        self.entries.push(Entry {
            at,
            start: offset(start),
            length: offset(self.bytes.len() - start),
        });
        Ok(())
    }
}

fn offset(number: usize) -> u32 {
    u32::try_from(number).expect("windows are bounded")
}

fn bad(log: &str, number: u64, reason: String, line: &Line<'_>) -> Bad {
    let (Line::Whole(bytes) | Line::TooLong(bytes)) = line;
    let is_cut = bytes.len() > SHOWN_BYTES;
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(SHOWN_BYTES)]);
    let mut text: String = text
        .chars()
        .map(|letter| if letter.is_control() { '·' } else { letter })
        .collect();
    if is_cut {
        text.push('…');
    }
    Bad {
        log: log.into(),
        line: number,
        reason,
        text,
    }
}

impl Found {
    fn show(&mut self, bad: impl FnOnce() -> Bad) {
        if self.shown.len() < SHOWN {
            self.shown.push(bad());
        }
    }

    fn span(&mut self, at_us: u64) {
        let (first, last) = self.span_us.unwrap_or((at_us, at_us));
        self.span_us = Some((first.min(at_us), last.max(at_us)));
    }

    fn add(&mut self, other: Self) {
        self.lines += other.lines;
        self.unreadable += other.unreadable;
        self.late += other.late;
        self.shown.extend(other.shown);
        if let Some((first, last)) = other.span_us {
            self.span(first);
            self.span(last);
        }
    }
}

/// Where a log's next request is.
enum Open {
    /// Its first request is known, and it is opened again when its turn comes: thirty logs
    /// of thirty days then take the memory of one.
    Later,
    Now(Box<Window>),
}

/// Reads logs and hands batches to `each`, in the order of time.
pub(super) fn read(
    logs: &[Log],
    reader: &Reader,
    bytes_read: &Arc<AtomicU64>,
    each: impl FnMut(Batch) -> bool,
) -> Result<Found, Stopped> {
    merge(logs, reader, bytes_read, WINDOW, each)
}

fn merge(
    logs: &[Log],
    reader: &Reader,
    bytes_read: &Arc<AtomicU64>,
    window: usize,
    each: impl FnMut(Batch) -> bool,
) -> Result<Found, Stopped> {
    let mut found: Vec<Found> = vec![Found::default(); logs.len()];
    let mut turns = BinaryHeap::new();
    let mut opened: Vec<Option<Open>> = Vec::new();
    for (index, log) in logs.iter().enumerate() {
        let before = bytes_read.load(Relaxed);
        let first = Window::open(index, logs, reader, bytes_read, window)?;
        opened.push(match first.peek() {
            None => {
                found[index] = first.found;
                None
            }
            Some(at) => {
                turns.push(Reverse((at, index)));
                match logs.len() > 1 && log.is_repeatable() {
                    true => {
                        bytes_read.store(before, Relaxed);
                        Some(Open::Later)
                    }
                    false => Some(Open::Now(Box::new(first))),
                }
            }
        });
    }
    let mut spread = Spread::new(each);
    while let Some(Reverse((_, index))) = turns.pop() {
        let mut current = match opened[index].take() {
            Some(Open::Now(current)) => current,
            _ => Box::new(Window::open(index, logs, reader, bytes_read, window)?),
        };
        let until = turns.peek().map(|Reverse(next)| *next);
        loop {
            let Some(at) = current.peek() else {
                if current.is_over {
                    break;
                }
                current.fill()?;
                // A log may end with lines that cannot be read.
                if current.peek().is_none() && current.is_over {
                    break;
                }
                continue;
            };
            if until.is_some_and(|until| until < (at, index)) {
                turns.push(Reverse((at, index)));
                break;
            }
            let (at, packed) = current.take();
            spread.push(at, packed)?;
        }
        if current.peek().is_some() {
            opened[index] = Some(Open::Now(current));
        } else {
            let log = current.log;
            found[log] = std::mem::take(&mut current.found);
        }
    }
    spread.finish()?;
    let mut all = Found::default();
    for one in found {
        all.add(one);
    }
    all.shown.truncate(SHOWN);
    Ok(all)
}

/// Gives lines of whole seconds a time within their second, and collects batches.
struct Spread<E> {
    each: E,
    batch: Batch,
    /// The second of the last request, where in the batch it begins, and how many of its
    /// requests are known to the second only.
    second: u64,
    start: usize,
    whole: u64,
    /// The second had more requests than a batch may have: the rest goes to its end.
    is_full: bool,
}

impl<E: FnMut(Batch) -> bool> Spread<E> {
    fn new(each: E) -> Self {
        Self {
            each,
            batch: Batch::default(),
            second: 0,
            start: 0,
            whole: 0,
            is_full: false,
        }
    }

    fn push(&mut self, at: At, packed: &[u8]) -> Result<(), Stopped> {
        let second = at.us() / SECOND_US;
        if second != self.second {
            self.end_second();
            self.second = second;
            self.is_full = false;
            if self.batch.len() >= BATCH || self.batch.bytes() >= BATCH_BYTES {
                self.send()?;
            }
        } else if self.batch.len() - self.start >= MAX_BATCH
            || self.batch.bytes() >= MAX_BATCH_BYTES
        {
            self.is_full = self.is_full || self.whole > 0;
            self.end_second();
            self.send()?;
        }
        if self.is_full {
            let last = (self.second + 1) * SECOND_US - 1;
            self.batch.push(last, packed);
            return Ok(());
        }
        // The mark of a whole second stays until all of its lines are there.
        self.whole += u64::from(at.is_whole());
        let marked = if at.is_whole() {
            WHOLE | at.us()
        } else {
            at.us()
        };
        self.batch.push(marked, packed);
        Ok(())
    }

    fn end_second(&mut self) {
        if self.whole > 0 {
            let (count, mut number) = (self.whole, 0);
            self.batch.retime(self.start, |at_us| {
                if at_us & WHOLE == 0 {
                    return at_us;
                }
                let offset = number * SECOND_US / count;
                number += 1;
                (at_us & !WHOLE) + offset
            });
        }
        self.whole = 0;
        self.start = self.batch.len();
    }

    fn send(&mut self) -> Result<(), Stopped> {
        self.start = 0;
        match (self.each)(std::mem::take(&mut self.batch)) {
            true => Ok(()),
            false => Err(Stopped::Unwanted),
        }
    }

    fn finish(mut self) -> Result<(), Stopped> {
        self.end_second();
        match self.batch.len() {
            0 => Ok(()),
            _ => self.send(),
        }
    }
}

/// The mark of a time that is known to the second only.
const WHOLE: u64 = 1 << 63;
