//! A refund never lets more through than if the request had not been made.
//!
//! Two limiters see one trace; one of them also takes a request that the other
//! never sees, and gives it back later. Whatever the first admits, the second must
//! admit, and it never has less left.

use proptest::prelude::*;
use tidegate::{Align, Cost, Kind, Receipt};

use super::{Case, Run, for_each_algorithm};
use crate::support::{KEY, micros};

for_each_algorithm!(
    a_refund_lets_no_more_through_than_no_request,
    a_refund_at_once_undoes_the_request,
);

fn a_refund_lets_no_more_through_than_no_request(case: &Case) -> Result<(), TestCaseError> {
    let (mut refunded, mut other) = (Run::new(case), Run::new(case));
    let mut held: Vec<Receipt> = Vec::new();
    // A window that opens with the first request opens earlier by one that is
    // given back, and so is over earlier: the promise holds while it lasts.
    let from_the_first =
        matches!(case.limit.kind(), Kind::FixedWindow(window) if window.align() == Align::First);
    let mut over_us = u64::MAX;
    for step in &case.steps {
        refunded.advance(step.advance);
        other.set(refunded.now_us);
        if refunded.now_us >= over_us {
            break;
        }
        match step.extra % 4 {
            0 => {
                let extra = refunded.check(refunded.cost(step.take));
                held.extend(extra.receipt());
                if extra.allowed() && from_the_first {
                    over_us = over_us.min(refunded.now_us + micros(extra.reset_after()));
                }
            }
            1 if !held.is_empty() => {
                let receipt = held.remove(usize::from(step.extra) % held.len());
                refunded.limiter.refund(KEY, &receipt);
            }
            _ => {
                let cost = refunded.cost(step.take);
                if refunded.check(cost).allowed() {
                    prop_assert!(other.check(cost).allowed(), "more was let through");
                }
            }
        }
        let (left, wanted) = (refunded.peek(1), other.peek(1));
        prop_assert!(
            left.remaining() <= wanted.remaining(),
            "{left:?} {wanted:?}"
        );
        // With nothing left to give back, a counter or a log has forgotten the
        // requests altogether; a bucket may have drained less.
        let forgets = matches!(
            case.limit.kind(),
            Kind::FixedWindow(_) | Kind::SlidingWindow(_) | Kind::SlidingLog(_)
        );
        let forgotten = forgets && !from_the_first;
        if held.is_empty() && forgotten {
            prop_assert_eq!(left, wanted);
        }
    }
    Ok(())
}

fn a_refund_at_once_undoes_the_request(case: &Case) -> Result<(), TestCaseError> {
    let mut run = Run::new(case);
    for step in &case.steps {
        run.advance(step.advance);
        let cost = run.cost(step.take);
        let before = run.peek(1);
        let decision = run.check(cost);
        prop_assert_eq!(decision.receipt().is_some(), decision.allowed());
        if let Some(receipt) = decision.receipt().filter(|_| step.extra % 2 == 0) {
            prop_assert_eq!(receipt.decided_at_us(), run.now_us);
            // A refusal in between changes nothing, and is not remembered.
            let _ = run.check(Cost::of(decision.remaining().saturating_add(1)));
            run.limiter.refund(KEY, &receipt);
            let after = run.peek(1);
            prop_assert!(run.peek(before.remaining()).allowed());
            prop_assert_eq!(after.remaining(), before.remaining());
            prop_assert_eq!(after.reset_after(), before.reset_after());
        }
    }
    Ok(())
}
