//! Trials: policies that are asked beside the one in force, with the same attributes and
//! cost, to see what they would have done. They never refuse and never make a request wait.
//!
//! A trial in memory is decided at once. One in Redis is sent together with the check of
//! the policy in force; if its answer comes later, a task waits for it.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use tokio::runtime::Handle;

use super::home::at;
use super::{Call, Engine, Entry, Kind};

/// Checks of trials on their way.
type Asking = Vec<Pin<Box<dyn Future<Output = ()> + Send>>>;

impl Call<'_> {
    /// What is tried on it.
    #[inline]
    fn trials(&self) -> &[Arc<Entry>] {
        match self.kind {
            Kind::Check => self.entry.trials(),
            Kind::Peek | Kind::GiveBack | Kind::Assign => &[],
        }
    }
}

impl Engine {
    /// Asks the trials of a policy that has decided without waiting.
    #[inline]
    pub(super) fn try_now(&self, call: &Call<'_>) {
        if !call.trials().is_empty() {
            let asking = self.try_all(call);
            self.leave(asking);
        }
    }

    /// Waits for a check of a policy, and asks its trials beside it. A check that is wrong
    /// is not tried.
    pub(super) async fn tried<T, E>(
        &self,
        call: &Call<'_>,
        check: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        if call.trials().is_empty() {
            return at(self.home.as_ref(), check).await;
        }
        let (mut check, mut asking) = (pin!(check), None);
        let both = poll_fn(|cx| {
            let checked = check.as_mut().poll(cx);
            if matches!(checked, Poll::Ready(Err(_))) && asking.is_none() {
                return checked;
            }
            let asking = asking.get_or_insert_with(|| self.try_all(call));
            poll_each(asking, cx);
            checked
        });
        let checked = at(self.home.as_ref(), both).await;
        self.leave(asking.unwrap_or_default());
        checked
    }

    /// Decides the trials in memory, and asks those elsewhere.
    #[cold]
    fn try_all(&self, call: &Call<'_>) -> Asking {
        let (mut asking, start, cost) = (Asking::new(), Instant::now(), call.cost);
        for trial in call.trials() {
            if let Some(memory) = trial.handle().in_memory() {
                // Only a policy that is switched off is asked without its attributes, and
                // then there is nothing to try.
                if let Ok(decision) = memory.check(call.attributes, cost) {
                    let call = Call::new(trial, call.attributes, cost);
                    self.notes.settle_one(&call, &decision, start.elapsed());
                }
                continue;
            }
            let policy = trial.policy();
            let names = policy.attributes().into_iter();
            let values = names
                .chain(policy.optional_attributes())
                .filter_map(|name| {
                    let value: Box<[u8]> = call.attributes.value(name)?.into();
                    Some((Box::from(name), value))
                });
            let attributes: Vec<(Box<str>, Box<[u8]>)> = values.collect();
            let (trial, notes) = (Arc::clone(trial), Arc::clone(&self.notes));
            asking.push(Box::pin(async move {
                if let Ok(decision) = trial.handle().check(&attributes, cost).await {
                    let call = Call::new(&trial, &attributes, cost);
                    notes.settle_one(&call, &decision, start.elapsed());
                }
            }));
        }
        asking
    }

    /// Leaves trials that have no answer yet to a task. They end with the deadline of their
    /// store.
    fn leave(&self, asking: Asking) {
        let here = || Handle::try_current().ok();
        if let Some(home) = self.home.clone().or_else(here) {
            for trial in asking {
                home.spawn(trial);
            }
        }
    }
}

/// Polls trials, and drops those that are done.
fn poll_each(asking: &mut Asking, cx: &mut Context<'_>) {
    asking.retain_mut(|trial| trial.as_mut().poll(cx).is_pending());
}
