//! What a decision says is so: waiting exactly `retry_after` helps, `remaining`
//! requests pass, after `reset_after` the key is as new, and looking changes
//! nothing.

use std::time::Duration;

use proptest::prelude::*;
use tidegate::Cost;

use super::{Case, Run, for_each_algorithm};
use crate::support::micros;

for_each_algorithm!(
    waiting_exactly_retry_after_admits,
    remaining_requests_are_admitted_and_one_more_is_not,
    after_exactly_reset_after_the_key_is_as_new,
    a_peek_changes_nothing,
);

/// Wherever refusals count or not, and also after the clock stepped back.
fn waiting_exactly_retry_after_admits(case: &Case) -> Result<(), TestCaseError> {
    let count_denied = case.steps.len().is_multiple_of(2);
    let mut run = Run::new(case);
    run.limiter = run.limiter.count_denied(count_denied);
    for step in &case.steps {
        if run.is_over() {
            break;
        }
        run.advance(step.advance);
        run.step_back(step);
        let cost = run.cost(step.take);
        let before = run.peek(1).remaining();
        let decision = run.check(cost);
        prop_assert!(decision.remaining() <= before);
        prop_assert_eq!(decision.allowed(), decision.denied_by().is_none());
        if decision.allowed() {
            prop_assert_eq!(decision.retry_after(), Some(Duration::ZERO));
            continue;
        }
        let fits = cost.get() <= decision.limit();
        prop_assert_eq!(decision.retry_after().is_some(), fits);
        let Some(wait) = decision.retry_after() else {
            continue;
        };
        run.set(run.now_us + micros(wait) - 1);
        let early = if count_denied {
            // A refusal at a cost that fits takes what is left.
            prop_assert_eq!(decision.remaining(), 0);
            run.peek(cost.get())
        } else {
            run.check(cost)
        };
        let a_little_longer = Some(Duration::from_micros(1));
        prop_assert_eq!(early.retry_after(), a_little_longer, "of {:?}", wait);
        run.set(run.now_us + 1);
        prop_assert!(run.check(cost).allowed(), "refused after {:?}", wait);
    }
    Ok(())
}

fn remaining_requests_are_admitted_and_one_more_is_not(case: &Case) -> Result<(), TestCaseError> {
    let mut run = Run::new(case);
    for step in &case.steps {
        let (_, decision) = run.step(step);
        let remaining = decision.remaining();
        prop_assert!(remaining <= decision.limit());
        if remaining > 0 {
            prop_assert!(run.peek(remaining).allowed(), "{} remain", remaining);
        }
        if let Some(more) = remaining.checked_add(1) {
            prop_assert!(!run.peek(more).allowed(), "only {} remain", remaining);
        }
        // One by one, where that is soon done.
        if remaining <= 20 && step.extra % 8 == 0 {
            for left in (0..remaining).rev() {
                let decision = run.check(Cost::ONE);
                prop_assert!(decision.allowed());
                prop_assert_eq!(decision.remaining(), left);
            }
            prop_assert!(!run.check(Cost::ONE).allowed());
        }
    }
    Ok(())
}

fn after_exactly_reset_after_the_key_is_as_new(case: &Case) -> Result<(), TestCaseError> {
    let mut run = Run::new(case);
    for step in &case.steps {
        let (_, decision) = run.step(step);
        let (now_us, reset_us) = (run.now_us, micros(decision.reset_after()));
        let as_new = |run: &mut Run, at_us| {
            run.set(at_us);
            let seen = run.peek(1);
            seen.remaining() == seen.limit() && seen.reset_after().is_zero()
        };
        prop_assert!(as_new(&mut run, now_us + reset_us), "not after {reset_us}");
        let is_early = reset_us > 0 && as_new(&mut run, now_us + reset_us - 1);
        prop_assert!(!is_early, "before {reset_us}");
        run.set(now_us);
    }
    Ok(())
}

fn a_peek_changes_nothing(case: &Case) -> Result<(), TestCaseError> {
    let (mut quiet, mut watched) = (Run::new(case), Run::new(case));
    for step in &case.steps {
        watched.advance(step.advance);
        for cost in [u32::from(step.extra) + 1, u32::MAX] {
            let peeked = watched.peek(cost);
            prop_assert_eq!(peeked.receipt(), None);
            let _ = watched.limiter.peek("somebody else", Cost::of(cost));
        }
        // What a peek says is what a check decides.
        let cost = watched.cost(step.take);
        let peeked = watched.peek(cost.get());
        let decision = watched.check(cost);
        prop_assert_eq!(peeked.allowed(), decision.allowed());
        prop_assert_eq!(peeked.retry_after(), decision.retry_after());

        let (_, undisturbed) = quiet.step(step);
        prop_assert_eq!(decision, undisturbed);
        prop_assert_eq!(watched.limiter.stats(), quiet.limiter.stats());
    }
    Ok(())
}
