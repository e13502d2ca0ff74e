//! The bound of each algorithm over *every* interval of a random trace.

use std::collections::HashMap;

use proptest::prelude::*;
use tidegate::{Align, Kind};

use super::{Case, admitted, for_each_algorithm, window_us};

for_each_algorithm!(admitted_cost_stays_within_the_bound);

fn admitted_cost_stays_within_the_bound(case: &Case) -> Result<(), TestCaseError> {
    let events = admitted(case);
    let window_us = window_us(&case.limit);
    match case.limit.kind() {
        Kind::TokenBucket(bucket) => {
            let requests = bucket.rate().requests();
            let burst = u128::from(bucket.burst());
            let refill = if bucket.is_strict() {
                requests - bucket.burst()
            } else {
                requests
            };
            for (from, to, cost) in intervals(&events) {
                let (time, cost) = (u128::from(to - from), u128::from(cost));
                // cost <= B + N*t/W, in whole numbers.
                let above = cost.saturating_sub(burst) * u128::from(window_us);
                prop_assert!(above <= u128::from(refill) * time, "{} in {}", cost, time);
                if bucket.is_strict() && to - from <= window_us {
                    prop_assert!(cost <= u128::from(requests), "{} in a window", cost);
                }
            }
        }
        Kind::FixedWindow(window) => {
            let limit = u64::from(window.rate().requests());
            let windows = match window.align() {
                Align::Epoch => aligned(&events, window_us),
                Align::First => from_the_first(&events, window_us),
            };
            for cost in windows {
                prop_assert!(cost <= limit, "{} in a window", cost);
            }
        }
        Kind::SlidingWindow(window) => {
            let limit = u64::from(window.rate().requests());
            for cost in aligned(&events, window_us) {
                prop_assert!(cost <= limit, "{} in an aligned window", cost);
            }
            for (from, to, cost) in intervals(&events) {
                let within = to - from < window_us;
                prop_assert!(
                    !within || cost < 2 * limit,
                    "{} from {} to {}",
                    cost,
                    from,
                    to
                );
            }
        }
        Kind::SlidingLog(log) => {
            let limit = u64::from(log.rate().requests());
            for (from, to, cost) in intervals(&events) {
                let within = to - from < window_us;
                prop_assert!(!within || cost <= limit, "{} from {} to {}", cost, from, to);
            }
        }
        Kind::Block(_) => prop_assert!(events.is_empty()),
    }
    Ok(())
}

/// Every interval from one event to another, with the cost admitted in it.
pub(super) fn intervals(events: &[(u64, u64)]) -> impl Iterator<Item = (u64, u64, u64)> {
    (0..events.len()).flat_map(move |first| {
        let mut sum = 0;
        events[first..].iter().map(move |&(to, cost)| {
            sum += cost;
            (events[first].0, to, sum)
        })
    })
}

/// The costs of the windows that are aligned to the epoch.
pub(super) fn aligned(events: &[(u64, u64)], window_us: u64) -> Vec<u64> {
    let mut windows = HashMap::<u64, u64>::new();
    for &(at, cost) in events {
        *windows.entry(at / window_us).or_default() += cost;
    }
    windows.into_values().collect()
}

/// The costs of windows each of which begins with the first event after the last.
pub(super) fn from_the_first(events: &[(u64, u64)], window_us: u64) -> Vec<u64> {
    let mut windows: Vec<(u64, u64)> = Vec::new();
    for &(at, cost) in events {
        match windows.last_mut() {
            Some((start, sum)) if at - *start < window_us => *sum += cost,
            _ => windows.push((at, cost)),
        }
    }
    windows.into_iter().map(|(_, sum)| sum).collect()
}
