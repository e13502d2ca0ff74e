//! What the modes `lease` and `background` share: a node keeps something of each key, decides
//! by it, and tells the store of it in messages. [`Key`] is the state machine of one key,
//! [`Table`] has the keys of a policy, [`Node`] sends their messages.

mod driver;
mod process;
mod table;

use std::fmt::Debug;
use std::future::Future;

use crate::error::StoreError;
use crate::store::RedisStore;
pub(crate) use driver::Node;
#[cfg(test)]
pub(crate) use driver::{AT_ONCE, Rounds};
pub(crate) use process::now_us;
#[cfg(test)]
pub(crate) use table::Envelope;
pub(crate) use table::{SHARDS, Table};

/// What a node keeps of one key: a state machine without a clock or a network of its own.
pub(crate) trait Key: Debug + Send + Sync + 'static {
    /// What it tells the store, and what the store answers.
    type Message: Debug + Send + Sync;
    type Reply: Send;
    /// What the keys of a policy have in common.
    type Shared: Debug + Send + Sync;

    /// Sends a message about the key that the store calls so.
    fn send(
        store: &RedisStore,
        stored: &str,
        message: &Self::Message,
    ) -> impl Future<Output = Result<Self::Reply, StoreError>> + Send;

    /// The next message and its number, if there is anything to say and none is in flight.
    fn message(&mut self, why: Why, now_us: u64) -> Option<(u64, Self::Message)>;

    /// The store has answered the message with this number. Says whether the next one is due
    /// at once.
    fn answered(
        &mut self,
        shared: &Self::Shared,
        number: u64,
        reply: Self::Reply,
        now_us: u64,
    ) -> bool;

    /// The message with this number has failed.
    fn failed(&mut self, number: u64, error: &StoreError);

    /// Forgets what was counted: the store has deleted the key.
    fn forget(&mut self, now_us: u64);

    /// Whether the next round has to look at it.
    fn is_active(&self) -> bool;

    /// Whether the store knows everything that it has to know.
    fn is_told(&self) -> bool {
        !self.is_active()
    }

    /// Whether nothing is lost with it, as long as it is not active.
    fn is_idle(&mut self, now_us: u64) -> bool;

    /// It makes room for another key.
    fn gone(&self, _shared: &Self::Shared) {}
}

/// Why a key is asked for a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Why {
    /// A check waits, or a lease is half spent.
    Asked,
    /// A lease is wanted, though the store is asked in another way.
    Wanted,
    /// A round has come by.
    Round,
    /// The program ends: everything is told.
    Over,
}

/// A clock that reads `us` at this moment of ours, less ours.
pub(crate) fn offset(us: u64, now_us: u64) -> i64 {
    let signed = |us: u64| i64::try_from(us).unwrap_or(i64::MAX);
    signed(us).saturating_sub(signed(now_us))
}
