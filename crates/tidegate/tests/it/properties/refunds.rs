//! A refund never lets more through than if the request had not been made.
//!
//! Two limiters see one trace; one of them also takes a request that the other
//! never sees, and gives it back later. Whatever the first admits, the second must
//! admit, and it never has less left.

use proptest::prelude::*;
use tidegate::{Align, Cost, Decision, Kind};

use super::{Case, Run, for_each_algorithm, window_us};

for_each_algorithm!(
    a_refund_lets_no_more_through_than_no_request,
    a_refund_at_once_undoes_the_request,
);

fn a_refund_lets_no_more_through_than_no_request(case: &Case) -> Result<(), TestCaseError> {
    let (mut refunded, mut other) = (Run::new(case), Run::new(case));
    let mut held: Vec<(u64, Decision)> = Vec::new();
    // A window that opens with the first request opens earlier by one that is
    // given back, and so is over earlier: the promise holds while it lasts.
    let from_the_first =
        matches!(case.limit.kind(), Kind::FixedWindow(window) if window.align() == Align::First);
    for step in &case.steps {
        refunded.advance(step.advance);
        other.set(refunded.now_us);
        let now_us = refunded.now_us;
        if from_the_first
            && held
                .first()
                .is_some_and(|(taken_us, _)| now_us - taken_us >= window_us(&case.limit))
        {
            return Ok(());
        }
        match step.extra % 4 {
            0 => {
                let extra = refunded.check(refunded.cost(step.take));
                if extra.allowed() {
                    held.push((now_us, extra));
                }
            }
            1 if !held.is_empty() => {
                let (_, extra) = held.remove(usize::from(step.extra) % held.len());
                let receipt = extra.receipt().expect("it was charged");
                refunded.limiter.refund(crate::support::KEY, &receipt);
                if from_the_first {
                    // Its window is still the one to watch.
                    held.insert(0, (receipt.decided_at_us(), extra));
                    held.truncate(1);
                    return compare(&refunded, &other);
                }
            }
            _ => {
                let cost = refunded.cost(step.take);
                if refunded.check(cost).allowed() {
                    prop_assert!(other.check(cost).allowed(), "more was let through");
                }
            }
        }
        compare(&refunded, &other)?;
    }
    Ok(())
}

fn compare(refunded: &Run, other: &Run) -> Result<(), TestCaseError> {
    let (refunded, other) = (refunded.peek(1), other.peek(1));
    prop_assert!(
        refunded.remaining() <= other.remaining(),
        "{:?} {:?}",
        refunded,
        other
    );
    Ok(())
}

fn a_refund_at_once_undoes_the_request(case: &Case) -> Result<(), TestCaseError> {
    let mut run = Run::new(case);
    for step in &case.steps {
        run.advance(step.advance);
        let cost = run.cost(step.take);
        let before = run.peek(1);
        let decision = run.check(cost);
        let Some(receipt) = decision.receipt() else {
            prop_assert!(!decision.allowed());
            continue;
        };
        prop_assert_eq!(receipt.decided_at_us(), run.now_us);
        if step.extra % 2 == 0 {
            run.limiter.refund(crate::support::KEY, &receipt);
            let after = run.peek(1);
            prop_assert_eq!(after.remaining(), before.remaining());
            prop_assert_eq!(after.reset_after(), before.reset_after());
            // A receipt of another key's is of no use to one that holds nothing.
            run.limiter.refund("somebody else", &receipt);
            prop_assert_eq!(
                run.limiter.peek("somebody else", Cost::ONE).remaining(),
                before.limit()
            );
        }
    }
    Ok(())
}
