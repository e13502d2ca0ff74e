//! Giving back what a request was charged when its response does not count.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use tidegate::{PolicyDecision, Receipt};

use crate::gate::Gate;
use crate::head::ResponseHead;
use crate::value::Values;

/// What a request was charged, by which policies, and under which values.
pub(crate) struct Charged {
    gate: Arc<Gate>,
    values: Vec<(Box<str>, Box<[u8]>)>,
    receipts: Vec<(Box<str>, Receipt)>,
}

/// A refund that takes a while.
pub(crate) type Refund = Pin<Box<dyn Future<Output = ()> + Send>>;

impl Charged {
    pub(crate) fn new(
        gate: &Arc<Gate>,
        decisions: &[PolicyDecision<'_>],
        values: &Values<'_>,
    ) -> Self {
        let receipts = decisions.iter().filter_map(|decision| {
            let receipt = decision.receipt()?;
            Some((decision.policy().name().into(), receipt))
        });
        Self {
            gate: gate.clone(),
            values: values.to_owned(),
            receipts: receipts.collect(),
        }
    }

    /// Whether a response counts.
    pub(crate) fn counts(&self, response: &ResponseHead<'_>) -> bool {
        !self.gate.refund.as_ref().is_some_and(|free| free(response))
    }

    /// Gives it back: at once, or with something to wait for.
    pub(crate) fn give_back(self) -> Option<Refund> {
        match self.gate.limiter.at_once() {
            Some(limiter) => {
                for (policy, receipt) in &self.receipts {
                    // All of this was right a moment ago.
                    drop(
                        limiter
                            .handle(policy)
                            .and_then(|it| it.refund(&self.values, receipt)),
                    );
                }
                None
            }
            None => Some(Box::pin(async move {
                for (policy, receipt) in &self.receipts {
                    let limiter = &self.gate.limiter;
                    limiter.refund(policy, &self.values, receipt).await;
                }
            })),
        }
    }
}
