//! Windows that open with a request.
//!
//! When all requests are known, so are the windows: the first opens with the first
//! request, the next with the first request after its end.
//!
//! When some are not known (the record began in the middle of a window, or a request of
//! another node opened one), any request may be the first known one of a window that
//! was opened earlier. Then the question is whether there are windows at all, none
//! beginning before the last one ends, that have every request in them and none too
//! much. It is answered from left to right: for each request, the earliest that a
//! window can end which has it as its last. That window began no earlier than the one
//! before it ended, so, with `first` the first request in it,
//!
//! ```text
//! end(last) = max(last + 1, length + min end(first - 1))
//! ```
//!
//! over all `first` from which to `last` is not too much and not too long, and which
//! the window before can leave out: `end(first - 1) <= first`. An earlier end leaves
//! more choice, so the earliest is all there is to know. The minimum is one over a
//! range that only moves forward, for which a queue of candidates in ascending order
//! does: each request enters and leaves it once.

use std::collections::VecDeque;

use super::Event;
use super::rule::Window;
use super::verdict::{Found, Stretch};
use super::windows::each;

/// The windows of a record that has every request.
pub(super) fn known(events: &[Event], window: Window) -> Found {
    let mut rest = events;
    let windows = std::iter::from_fn(|| {
        let start_us = rest.first()?.at_us;
        let length = rest.partition_point(|event| event.at_us - start_us < window.length_us);
        let (events, later) = rest.split_at(length);
        rest = later;
        Some(events)
    });
    each(windows, window.most)
}

/// Whether there are windows for a record that lacks requests.
pub(super) fn unknown(events: &[Event], window: Window) -> Found {
    // Those that may be the first of a window that has the request at hand: which they
    // are, and the end of the window before. In ascending order of both.
    let mut candidates: VecDeque<(usize, u128)> = VecDeque::new();
    let length_us = u128::from(window.length_us);
    let mut end = None;
    let (mut first, mut sum) = (0, 0_u64);
    for (index, event) in events.iter().enumerate() {
        let at_us = u128::from(event.at_us);
        let before = end.unwrap_or(0);
        if before <= at_us {
            while candidates.back().is_some_and(|(_, later)| *later >= before) {
                candidates.pop_back();
            }
            candidates.push_back((index, before));
        }
        sum = sum.saturating_add(event.cost);
        while first <= index
            && (sum > window.most || event.at_us - events[first].at_us >= window.length_us)
        {
            sum -= events[first].cost;
            first += 1;
        }
        while candidates.front().is_some_and(|(index, _)| *index < first) {
            candidates.pop_front();
        }
        let Some((start, before)) = candidates.front() else {
            return Err(crowded(&events[..=index], window.most));
        };
        // Nobody knows how early the first window began.
        let earliest = match start {
            0 => 0,
            _ => before + length_us,
        };
        end = Some(earliest.max(at_us + 1));
    }
    Ok(None)
}

/// The shortest interval before the last request in which too much was admitted.
fn crowded(events: &[Event], most: u64) -> Stretch {
    let to_us = events[events.len() - 1].at_us;
    let mut admitted = 0_u64;
    let mut from_us = to_us;
    for event in events.iter().rev() {
        admitted = admitted.saturating_add(event.cost);
        from_us = event.at_us;
        if admitted > most {
            break;
        }
    }
    Stretch {
        from_us,
        to_us,
        admitted,
        bound: most,
        ..Stretch::default()
    }
}
