//! What waits for one Envoy to read it: the last word on each bucket, and no more than that.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use super::wire::{BucketAction, BucketName, QuotaResponse, Todo};

/// Buckets of one message.
const MAX_OF_MESSAGE: usize = 500;

/// Buckets that wait. An Envoy that leaves more unread loses its stream.
const MAX_WAITING: usize = 5_000;

/// How long an Envoy may leave its assignments unread.
const PATIENCE: Duration = Duration::from_secs(5);

/// The actions for one Envoy.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    waiting: Mutex<Waiting>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct Waiting {
    actions: BTreeMap<Arc<BucketName>, Todo>,
    /// Since when.
    since: Option<Instant>,
    is_closed: bool,
}

impl Outbox {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an action, in place of an earlier one for the bucket. False when the Envoy does
    /// not read.
    pub(super) fn put(&self, name: Arc<BucketName>, todo: Todo) -> bool {
        let mut waiting = self.waiting();
        let now = Instant::now();
        let since = *waiting.since.get_or_insert(now);
        waiting.actions.insert(name, todo);
        let is_read = waiting.actions.len() <= MAX_WAITING && now.duration_since(since) < PATIENCE;
        drop(waiting);
        self.changed.notify_one();
        is_read
    }

    /// Nothing more will come.
    pub(super) fn close(&self) {
        self.waiting().is_closed = true;
        self.changed.notify_one();
    }

    /// The next message; `None` when there will be no more.
    pub(super) async fn next(&self) -> Option<QuotaResponse> {
        loop {
            let changed = self.changed.notified();
            match self.take() {
                Some(response) => return Some(response),
                None if self.waiting().is_closed => return None,
                None => changed.await,
            }
        }
    }

    fn take(&self) -> Option<QuotaResponse> {
        let mut waiting = self.waiting();
        let mut bucket_action = Vec::new();
        while bucket_action.len() < MAX_OF_MESSAGE
            && let Some((name, todo)) = waiting.actions.pop_first()
        {
            bucket_action.push(BucketAction {
                bucket_id: Some(Arc::unwrap_or_clone(name)),
                todo: Some(todo),
            });
        }
        if waiting.actions.is_empty() {
            waiting.since = None;
        }
        (!bucket_action.is_empty()).then_some(QuotaResponse { bucket_action })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use futures_util::FutureExt;

    use super::super::wire::{Abandon, BucketName, Todo};
    use super::{MAX_WAITING, Outbox};

    fn name(text: &str) -> Arc<BucketName> {
        let mut name = BucketName::default();
        name.bucket.insert("user".into(), text.into());
        Arc::new(name)
    }

    #[test]
    fn last_word_on_a_bucket_is_sent_and_too_many_are_noticed() {
        let outbox = Outbox::default();
        for _ in 0..3 {
            assert!(outbox.put(name("ann"), Todo::Abandon(Abandon {})));
        }
        let sent = outbox.next().now_or_never().flatten();
        assert_eq!(sent.expect("a message").bucket_action.len(), 1);
        assert!(outbox.next().now_or_never().is_none());
        for number in 0..MAX_WAITING {
            assert!(outbox.put(name(&number.to_string()), Todo::Abandon(Abandon {})));
        }
        assert!(!outbox.put(name("bob"), Todo::Abandon(Abandon {})));
        outbox.close();
        let mut sent = 0;
        while let Some(response) = outbox.next().now_or_never().expect("nothing to wait for") {
            sent += response.bucket_action.len();
        }
        assert_eq!(sent, MAX_WAITING + 1);
    }
}
