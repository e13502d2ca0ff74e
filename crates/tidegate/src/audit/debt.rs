//! Bounds that grow with time: at most `capacity + refill * t` in any interval.
//!
//! Too much was admitted in an interval if its costs, minus what its length allows, exceed
//! the capacity. The largest such excess of all intervals that end with a request follows
//! from the previous one: subtract what the elapsed time allows, but not below zero (the
//! interval could begin later), and add the cost. So one pass covers all pairs of instants.

use super::Event;
use super::rule::Refill;
use super::verdict::{Found, Stretch};

pub(super) fn scan(events: &[Event], rate: Refill) -> Found {
    let Some(first) = events.first() else {
        return Ok(None);
    };
    let mut tightest: Option<Stretch> = None;
    let mut largest = 0;
    // Of the stretch that ends now and has the largest excess.
    let (mut excess, mut from_us, mut admitted) = (0_u128, first.at_us, 0_u64);
    let mut last_us = first.at_us;
    for event in events {
        let allowed = u128::from(event.at_us - last_us) * rate.refill;
        last_us = event.at_us;
        if allowed >= excess {
            (excess, from_us, admitted) = (0, event.at_us, 0);
        } else {
            excess -= allowed;
        }
        excess += u128::from(event.cost) * rate.request;
        admitted = admitted.saturating_add(event.cost);
        if excess > largest {
            largest = excess;
            let length_us = u128::from(event.at_us - from_us);
            let bound = (rate.capacity + length_us * rate.refill) / rate.request;
            let stretch = Stretch {
                from_us,
                to_us: event.at_us,
                admitted,
                bound: u64::try_from(bound).unwrap_or(u64::MAX),
                ..Stretch::default()
            };
            if excess > rate.capacity {
                return Err(stretch);
            }
            tightest = Some(stretch);
        }
    }
    Ok(tightest)
}
