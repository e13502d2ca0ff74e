//! A clock that steps back or forward keeps the rules.
//!
//! A key has a time of its own: a step back of the clock is no time, a step
//! forward is time like any other. In that time, the key's decisions are those of
//! a clock that never stepped.

use proptest::prelude::*;
use tidegate::{Align, Kind, Limit};

use super::exact::Model;
use super::{Case, Run, for_each_algorithm, window_us};

for_each_algorithm!(in_the_keys_own_time_the_rules_hold);

/// A key's own time: when it was last written, on the clock and on its own.
struct OwnTime {
    clock_us: u64,
    own_us: u64,
}

impl OwnTime {
    fn at(&self, now_us: u64) -> u64 {
        self.own_us + now_us.saturating_sub(self.clock_us)
    }
}

fn in_the_keys_own_time_the_rules_hold(case: &Case) -> Result<(), TestCaseError> {
    let mut run = Run::new(case);
    let mut model = Model::new(case.limit);
    let mut time = OwnTime {
        clock_us: run.now_us,
        own_us: run.now_us,
    };
    let mut events: Vec<(u64, u64, u64)> = Vec::new();
    let mut steps_back = 0;
    for step in &case.steps {
        run.advance(step.advance);
        run.step_back(step);
        let cost = run.cost(step.take);
        let decision = run.check(cost);
        let own_us = time.at(run.now_us);
        let stepped_back = run.now_us < time.clock_us;
        steps_back += u64::from(stepped_back);
        if decision.allowed() || stepped_back {
            time = OwnTime {
                clock_us: run.now_us,
                own_us,
            };
        }
        // Windows that lie on the clock move with it, so only their bound is
        // known; the others are as if nothing had happened.
        if on_the_clock(&case.limit) {
            if decision.allowed() {
                events.push((own_us, cost.get().into(), steps_back));
            }
            continue;
        }
        let admitted = cost.get() <= model.remaining(own_us);
        prop_assert_eq!(decision.allowed(), admitted, "own time {}", own_us);
        if admitted {
            model.charge(own_us, cost.get());
        }
        let remaining = model.remaining(own_us);
        prop_assert_eq!(decision.remaining(), remaining, "own time {}", own_us);
    }
    let (window_us, limit) = (window_us(&case.limit), u64::from(run.peek(1).limit()));
    for (first, &(from, _, before)) in events.iter().enumerate() {
        let mut sum = 0;
        for &(_, cost, steps_back) in events[first..]
            .iter()
            .take_while(|(at, ..)| at - from < window_us)
        {
            sum += cost;
            // Moved by a step and then aligned again, a fixed window is cut short.
            // Two counters only fade.
            let bound = match case.limit.kind() {
                Kind::SlidingWindow(_) => 2 * limit - 1,
                _ => (3 + steps_back - before) * limit,
            };
            prop_assert!(sum <= bound, "{} from {}", sum, from);
        }
    }
    Ok(())
}

fn on_the_clock(limit: &Limit) -> bool {
    match limit.kind() {
        Kind::FixedWindow(window) => window.align() == Align::Epoch,
        Kind::SlidingWindow(_) => true,
        _ => false,
    }
}
