//! Windows that lie on the grid of the epoch, and windows that lie anywhere.

use super::Event;
use super::rule::Window;
use super::verdict::{Found, Stretch};

/// Each window that begins at a whole multiple of its length.
pub(super) fn aligned(events: &[Event], window: Window) -> Found {
    let grid = |event: &Event| event.at_us / window.length_us;
    each(
        events.chunk_by(|one, next| grid(one) == grid(next)),
        window.most,
    )
}

/// Each window that ends with a request: whatever any window has in it, one of these has.
pub(super) fn any(events: &[Event], window: Window) -> Found {
    let mut tightest: Option<Stretch> = None;
    let (mut first, mut sum) = (0, 0_u64);
    for event in events {
        sum = sum.saturating_add(event.cost);
        while event.at_us - events[first].at_us >= window.length_us {
            sum -= events[first].cost;
            first += 1;
        }
        let stretch = Stretch {
            from_us: events[first].at_us,
            to_us: event.at_us,
            admitted: sum,
            bound: window.most,
            ..Stretch::default()
        };
        stretch.hold(&mut tightest)?;
    }
    Ok(tightest)
}

/// Windows that are already told apart.
pub(super) fn each<'e>(windows: impl Iterator<Item = &'e [Event]>, most: u64) -> Found {
    let mut tightest: Option<Stretch> = None;
    for events in windows {
        let mut sum = 0_u64;
        for event in events {
            sum = sum.saturating_add(event.cost);
            let stretch = Stretch {
                from_us: events[0].at_us,
                to_us: event.at_us,
                admitted: sum,
                bound: most,
                ..Stretch::default()
            };
            stretch.hold(&mut tightest)?;
        }
    }
    Ok(tightest)
}
