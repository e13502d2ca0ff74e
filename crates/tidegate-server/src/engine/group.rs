//! Calls that belong together: charged all or none, and to their end.

use futures_util::FutureExt;
use futures_util::future::join_all;
use tidegate::{Cost, PolicyDecision, Receipt};
use tidegate_redis::TryCheckError;

use super::{Call, Engine, Kind};

impl Engine {
    /// Charges all of them, or none: what was charged before a refusal or an error is given
    /// back, and the calls behind a refusal only look.
    pub async fn ask_all<'q>(
        &self,
        calls: &[Call<'q>],
    ) -> Result<Vec<PolicyDecision<'q>>, TryCheckError> {
        let mut decisions = Vec::with_capacity(calls.len());
        let (mut is_refused, mut failed) = (false, None);
        for call in calls {
            let mut call = *call;
            if is_refused {
                (call.kind, call.cost) = (Kind::Peek, Cost::ONE);
            }
            match self.ask_one(&call).await {
                Ok(decision) => {
                    is_refused |= call.kind == Kind::Check && !decision.allowed();
                    decisions.push(decision);
                }
                Err(error) => {
                    failed = Some(error);
                    break;
                }
            }
        }
        if is_refused || failed.is_some() {
            let charged = calls.iter().zip(&decisions);
            let charged = charged.filter_map(|(call, it)| Some((*call, it.receipt()?)));
            self.give_back(charged).await;
        }
        failed.map_or(Ok(decisions), Err)
    }

    /// Gives back what these calls have charged.
    pub(crate) async fn give_back<'a>(&self, charged: impl Iterator<Item = (Call<'a>, Receipt)>) {
        let refunds = charged.map(async |(call, receipt)| {
            let refund = self.refund(call.entry, call.attributes, &receipt);
            if let Err(error) = refund.await {
                let policy = call.entry.policy().name();
                tracing::debug!(%error, policy, "a charge was not given back");
            }
        });
        join_all(refunds).await;
    }

    /// Does work to its end, also when the caller goes away: what has to wait goes on on
    /// the main runtime.
    pub(crate) async fn to_the_end<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> T {
        let mut work = Box::pin(work);
        match (work.as_mut().now_or_never(), &self.home) {
            (Some(done), _) => done,
            (None, Some(home)) => home.spawn(work).await.expect("work does not panic"),
            (None, None) => work.await,
        }
    }
}
