//! Audits against the limiter, and against looking at every stretch one by one.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use proptest::prelude::*;
use tidegate::audit::{Audit, Background, Record};
use tidegate::{Align, Cost, Kind, Limit};

use super::{Case, Run, for_each_algorithm};
use crate::support::KEY;

for_each_algorithm!(what_a_limiter_admits_holds);

fn what_a_limiter_admits_holds(case: &Case) -> Result<(), TestCaseError> {
    let mut run = Run::new(case);
    let mut audit = Audit::new(case.limit);
    let mut claim = Claim {
        limit: case.limit,
        events: Vec::new(),
        losses: 0,
        partial: false,
        offered: None,
    };
    for step in &case.steps {
        let (cost, decision) = run.step(step);
        if decision.allowed() {
            claim.events.push((run.now_us, cost.get().into()));
        }
        audit.push(&Record::of(KEY, cost, &decision));
    }
    prop_assert!(claim.is_right(), "{:?}", claim.events);
    let verdict = audit.verdict();
    prop_assert!(verdict.held(), "{verdict:?}");
    prop_assert_eq!(verdict.admitted, claim.events.len() as u64);
    let decisions = verdict.admitted + verdict.refused;
    prop_assert_eq!(decisions, case.steps.len() as u64);
    // Less is known, and nothing is found that was not there before.
    for partial in [audit.clone().partial(true), audit.allow_losses(1)] {
        let verdict = partial.clone().verdict();
        prop_assert!(verdict.held(), "{verdict:?}");
    }
    Ok(())
}

/// Times and windows are whole multiples of this in random records, so that looking at
/// every stretch is a matter of a few dozen.
const GRID_US: u64 = 500;

/// What was admitted under a limit, and what an audit allows for.
#[derive(Debug, Clone)]
struct Claim {
    limit: Limit,
    /// In order.
    events: Vec<(u64, u64)>,
    losses: u32,
    partial: bool,
    /// Offered to each node in `D`, which is two intervals of the grid.
    offered: Option<Vec<u64>>,
}

/// Claims that no limiter has made, about as full as the limit.
fn claims() -> impl Strategy<Value = Claim> {
    let event = (0_u64..24, 1_u64..4);
    let events = prop::collection::vec(event, 0..14);
    let numbers = (1_u32..9, 2_u64..9, 0..6, 1_u32..9);
    let offered = prop::option::weighted(0.3, prop::collection::vec(0_u64..5, 0..4));
    (numbers, events, 0_u32..3, any::<bool>(), offered).prop_map(
        |((requests, window, kind, burst), mut events, losses, partial, offered)| {
            let limit = Limit::per(requests, Duration::from_micros(window * GRID_US));
            let limit = match kind {
                0 => limit.burst(burst),
                1 if burst < requests => limit.burst(burst).strict(),
                2 => limit.fixed_window(),
                3 => limit.fixed_window().align(Align::Epoch),
                4 => limit.sliding_window(),
                _ => limit.sliding_log(),
            };
            for (at, _) in &mut events {
                *at *= GRID_US;
            }
            events.sort_unstable();
            Claim {
                limit,
                events,
                losses: losses.saturating_sub(1),
                partial,
                offered,
            }
        },
    )
}

impl Claim {
    fn audit(&self) -> Audit {
        let audit = Audit::new(self.limit)
            .allow_losses(self.losses)
            .partial(self.partial);
        match &self.offered {
            Some(offered) => {
                let half = Duration::from_micros(GRID_US / 2);
                audit.background(Background::new(half, half, offered.iter().copied()))
            }
            None => audit,
        }
    }

    /// What the others may not have told yet, each at most `most` requests, in parts of
    /// which a request has so many.
    fn unheard(&self, most: u128, parts: u128) -> u128 {
        let mut offered = self.offered.clone().unwrap_or_default();
        offered.sort_unstable();
        let others = offered.into_iter().skip(1).map(u128::from);
        others.map(|offered| (offered * parts).min(most)).sum()
    }

    /// Whether it is right, by looking at every stretch.
    fn is_right(&self) -> bool {
        let Some(spec) = self.limit.spec() else {
            return self.events.is_empty();
        };
        let (window_us, requests) = (spec.rate.window_us(), u128::from(spec.rate.requests()));
        let times = u128::from(self.losses) + 1;
        // The others' windows lie where the node's do, unless each opens its own.
        let of_others = match self.limit.kind() {
            Kind::FixedWindow(fixed) if fixed.align() == Align::First => 2 * requests,
            _ => requests,
        };
        let most = (requests + self.unheard(of_others, 1)) * times;
        let any = |most: u128| {
            intervals(&self.events).all(|(time, cost)| time >= window_us || cost <= most)
        };
        let all = |windows: Vec<u128>| windows.into_iter().all(|cost| cost <= most);
        match self.limit.kind() {
            Kind::TokenBucket(bucket) => {
                let (window, burst) = (u128::from(window_us), u128::from(bucket.burst()));
                let refill = match bucket.is_strict() {
                    true => requests - burst,
                    false => requests,
                };
                let late = refill * 2 * u128::from(GRID_US);
                let more = self.unheard(burst * window + late, window);
                let free = (burst * window + more) * times;
                intervals(&self.events)
                    .all(|(time, cost)| cost * window <= free + refill * u128::from(time))
            }
            Kind::FixedWindow(fixed) if fixed.align() == Align::Epoch => {
                all(aligned(&self.events, window_us))
            }
            Kind::FixedWindow(_) => {
                if self.partial || self.losses > 0 || self.offered.is_some() {
                    let mut dead = HashSet::new();
                    return fits(&self.events, 0, window_us, most, &mut dead);
                }
                all(from_the_first(&self.events, window_us))
            }
            Kind::SlidingWindow(_) => {
                let both = match self.offered {
                    None => most + requests - 1,
                    Some(_) => 2 * most,
                };
                all(aligned(&self.events, window_us)) && any(both)
            }
            Kind::SlidingLog(_) => any(most),
            Kind::Block(_) => self.events.is_empty(),
            #[allow(unreachable_patterns, reason = "for algorithms without a model here")]
            _ => true,
        }
    }
}

/// Every interval from one event to another: how long it is, with the cost in it.
fn intervals(events: &[(u64, u64)]) -> impl Iterator<Item = (u64, u128)> {
    (0..events.len()).flat_map(move |first| {
        let mut sum = 0;
        events[first..].iter().map(move |&(to, cost)| {
            sum += u128::from(cost);
            (to - events[first].0, sum)
        })
    })
}

/// The costs of the windows that are aligned to the epoch.
fn aligned(events: &[(u64, u64)], window_us: u64) -> Vec<u128> {
    let mut windows = HashMap::<u64, u128>::new();
    for &(at, cost) in events {
        *windows.entry(at / window_us).or_default() += u128::from(cost);
    }
    windows.into_values().collect()
}

/// The costs of windows each of which begins with the first event after the last.
fn from_the_first(events: &[(u64, u64)], window_us: u64) -> Vec<u128> {
    let mut windows: Vec<(u64, u128)> = Vec::new();
    for &(at, cost) in events {
        match windows.last_mut() {
            Some((start, sum)) if at - *start < window_us => *sum += u128::from(cost),
            _ => windows.push((at, cost.into())),
        }
    }
    windows.into_iter().map(|(_, sum)| sum).collect()
}

/// Whether windows that begin at `from` or later can hold these events: tries every
/// beginning of the first. (Time is a window late, so that none begins before zero.)
fn fits(
    events: &[(u64, u64)],
    from: u64,
    window_us: u64,
    most: u128,
    dead: &mut HashSet<(usize, u64)>,
) -> bool {
    let Some((at, _)) = events.first() else {
        return true;
    };
    let at = at + window_us;
    let mut start = from.max(at + GRID_US - window_us);
    while start <= at {
        let inside = events
            .iter()
            .take_while(|(at, _)| at + window_us < start + window_us)
            .count();
        let cost: u128 = events[..inside]
            .iter()
            .map(|(_, cost)| u128::from(*cost))
            .sum();
        let rest = &events[inside..];
        if cost <= most && dead.insert((rest.len(), start)) {
            let end = start + window_us;
            if fits(rest, end, window_us, most, dead) {
                return true;
            }
        }
        start += GRID_US;
    }
    false
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 5 * super::config().cases, ..super::config() })]

    #[test]
    fn an_audit_says_what_looking_at_every_stretch_says(claim in claims()) {
        let records = claim.events.iter().rev();
        let records = records.map(|&(at_us, cost)| {
            Record::admitted(KEY, at_us, Cost::new(cost).expect("a few"))
        });
        let verdict = claim.audit().judge(records);
        prop_assert_eq!(verdict.held(), claim.is_right(), "{:?}", verdict);
        for found in verdict.tightest.iter().chain(&verdict.broken) {
            let inside = claim.events.iter();
            let inside = inside.filter(|(at, _)| (found.from_us..=found.to_us).contains(at));
            let cost: u64 = inside.map(|(_, cost)| cost).sum();
            // The rest of an instant may belong to no window that was broken before it.
            prop_assert_eq!(found.admitted, cost, "{}", found);
        }
        if let Some(broken) = verdict.broken {
            prop_assert!(broken.admitted > broken.bound, "{}", broken);
        }
    }
}
