//! Giving back what a request was charged when its response does not count.

use std::sync::Arc;

use tidegate::Receipt;

use crate::gate::Gate;
use crate::head::ResponseHead;
use crate::limiter::LayerPolicy;
use crate::value::OwnedValues;

/// What a request was charged, by which policies, and under which values.
pub(crate) struct Charged {
    pub(crate) gate: Arc<Gate>,
    pub(crate) values: OwnedValues,
    pub(crate) receipts: Vec<(LayerPolicy, Receipt)>,
}

impl Charged {
    /// Whether a response counts.
    pub(crate) fn counts(&self, response: &ResponseHead<'_>) -> bool {
        !self.gate.refund.as_ref().is_some_and(|free| free(response))
    }

    pub(crate) async fn give_back(self) {
        for (policy, receipt) in &self.receipts {
            policy.refund(&self.values, receipt).await;
        }
    }
}
