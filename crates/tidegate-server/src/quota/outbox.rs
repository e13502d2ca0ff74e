//! What waits for one Envoy to read it: the last word on each bucket, and no more than that.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use super::memory;
use super::wire::{BucketAction, BucketName, QuotaResponse, Todo};
use crate::serve::{Connection, Reserved};

/// Buckets of one message.
const MAX_OF_MESSAGE: usize = 500;

/// The actions for one Envoy.
#[derive(Debug)]
pub(super) struct Outbox {
    waiting: Mutex<Waiting>,
    changed: Notify,
    connection: Arc<Connection>,
}

#[derive(Debug, Default)]
struct Waiting {
    /// What the bucket of an assignment takes is reserved elsewhere.
    actions: BTreeMap<Arc<BucketName>, (Todo, Option<Reserved>)>,
    is_closed: bool,
}

impl Outbox {
    pub(super) fn new(connection: &Arc<Connection>) -> Self {
        Self {
            waiting: Mutex::default(),
            changed: Notify::new(),
            connection: Arc::clone(connection),
        }
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an action, in place of an earlier one for the bucket. A bucket that is unknown
    /// and finds no room is abandoned when it is reported again.
    pub(super) fn put(&self, name: Arc<BucketName>, todo: Todo) {
        let room = match todo {
            Todo::Assign(_) => None,
            Todo::Abandon(_) => match self.connection.reserve(memory(&name)) {
                Ok(room) => Some(room),
                Err(_) => return,
            },
        };
        self.waiting().actions.insert(name, (todo, room));
        self.changed.notify_one();
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
            && let Some((name, (todo, _))) = waiting.actions.pop_first()
        {
            bucket_action.push(BucketAction {
                bucket_id: Some(Arc::unwrap_or_clone(name)),
                todo: Some(todo),
            });
        }
        (!bucket_action.is_empty()).then_some(QuotaResponse { bucket_action })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use futures_util::FutureExt;

    use super::super::wire::{Abandon, BucketName, Todo};
    use super::{MAX_OF_MESSAGE, Outbox};
    use crate::serve::Connection;

    fn name(text: &str) -> Arc<BucketName> {
        let mut name = BucketName::default();
        name.bucket.insert("user".into(), text.into());
        Arc::new(name)
    }

    #[test]
    fn last_word_on_a_bucket_is_sent_and_unknown_ones_are_on_the_budget() {
        let connection = Connection::alone();
        let outbox = Outbox::new(&connection);
        for _ in 0..3 {
            outbox.put(name("ann"), Todo::Abandon(Abandon {}));
        }
        let sent = outbox.next().now_or_never().flatten();
        assert_eq!(sent.expect("a message").bucket_action.len(), 1);
        assert!(outbox.next().now_or_never().is_none());
        assert_eq!(connection.waiting(), 0);
        let all = 100 * MAX_OF_MESSAGE;
        for number in 0..all {
            outbox.put(name(&number.to_string()), Todo::Abandon(Abandon {}));
        }
        assert!(connection.waiting() > 15 << 20);
        outbox.close();
        let mut sent = 0;
        while let Some(response) = outbox.next().now_or_never().expect("nothing to wait for") {
            sent += response.bucket_action.len();
        }
        assert!(sent < all, "{sent}");
        assert_eq!(connection.waiting(), 0);
    }
}
