//! A limit that changes while keys live: what was used stays used, and nothing
//! ever becomes unlimited.

use proptest::prelude::*;
use tidegate::{Cost, Kind, Limit};

use super::{Case, Run, Take, cases, config, limits, window_us};
use crate::support::KEY;

proptest! {
    #![proptest_config(config())]

    #[test]
    fn a_changed_limit_keeps_what_was_used((case, other) in changes()) {
        keeps_what_was_used(&case, other)?;
    }

    #[test]
    fn another_algorithm_starts_anew(case in cases(limits::any()), other in limits::any()) {
        let mut run = Run::new(&case);
        for step in &case.steps {
            let _ = run.step(step);
        }
        if other.algorithm() != case.limit.algorithm() {
            run.limiter.set_limit(other).expect("few limits");
            let seen = run.peek(1);
            prop_assert_eq!(seen.remaining(), seen.limit());
            prop_assert!(run.check(Cost::of(seen.limit())).allowed());
            prop_assert!(!run.check(Cost::ONE).allowed());
        }
    }
}

/// A trace, and another limit of the same algorithm.
fn changes() -> impl Strategy<Value = (Case, Limit)> {
    let bucket = prop_oneof![limits::token_bucket(), limits::strict()];
    let window = prop_oneof![limits::fixed_first(), limits::fixed_epoch()];
    prop_oneof![
        (cases(limits::token_bucket()), bucket),
        (cases(limits::fixed_first()), window),
        (cases(limits::sliding_window()), limits::sliding_window()),
        (cases(limits::sliding_log()), limits::sliding_log()),
    ]
}

/// Flips between two limits of one algorithm, right after admitted requests: then
/// no time has passed that could count at another rate.
fn keeps_what_was_used(case: &Case, other: Limit) -> Result<(), TestCaseError> {
    let mut run = Run::new(case);
    let (mut limit, mut next) = (case.limit, other);
    for step in &case.steps {
        let (_, decision) = run.step(step);
        prop_assert!(decision.remaining() <= decision.limit());
        if !decision.allowed() || step.extra % 3 != 0 {
            continue;
        }
        let used = run.peek(1).rate();
        run.limiter.set_limit(next).expect("few limits");
        let seen = run.peek(1);
        let close = 1e-6 * used.max(1.0);
        // What one microsecond of rounding up may add, and what is lost for good.
        let (more, less) = match (limit.kind(), next.kind()) {
            (Kind::TokenBucket(_), Kind::TokenBucket(bucket)) => {
                let kept = if bucket.is_strict() {
                    bucket.burst()
                } else {
                    0
                };
                let refill = bucket.rate().requests() - kept;
                let per_us = f64::from(refill) / figure(window_us(&next));
                (per_us, used.min(per_us * figure(HUNDRED_YEARS_US)))
            }
            (Kind::SlidingWindow(_), Kind::SlidingWindow(_)) => (1.0, used),
            // A shorter window no longer sees all of it.
            _ if window_us(&next) < window_us(&limit) => (0.0, 0.0),
            // A longer log may still hold what the shorter one did not count.
            (Kind::SlidingLog(_), Kind::SlidingLog(_)) => (f64::from(decision.limit()), used),
            _ => (0.0, used),
        };
        let rate = seen.rate();
        prop_assert!(rate >= less - close, "{} of {} used", rate, used);
        prop_assert!(rate <= used + more + close, "{} of {} used", rate, used);
        let free = (f64::from(seen.limit()) - seen.rate()).max(0.0);
        prop_assert!(f64::from(seen.remaining()) <= free + close + 1e-6 * free);
        (limit, next) = (next, limit);
        // Costs are relative to the last answer, which must be of this limit.
        let _ = run.check(run.cost(Take::All(1)));
    }
    prop_assert!(
        !run.limiter.check_cost(KEY, Cost::of(u32::MAX)).allowed()
            || run.peek(1).limit() == u32::MAX
    );
    Ok(())
}

const HUNDRED_YEARS_US: u64 = 36_525 * crate::support::DAY;

#[expect(clippy::cast_precision_loss, reason = "compared with a tolerance")]
fn figure(us: u64) -> f64 {
    us as f64
}
