//! Charges that replicas must acknowledge: a batch ends with WAIT, which the server answers
//! when enough replicas have everything that the connection has written.
//!
//! The connection does nothing else meanwhile, so the next batch of a lane waits for the
//! one before. Batches grow with it, and the server is not held up.

use std::time::Duration;

use crate::error::{ErrorKind, StoreError};
use crate::wire;

/// How many replicas must have what a batch has charged, and how long to wait for them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Acks {
    replicas: u32,
    patience: Duration,
}

impl Acks {
    /// None, where no replica is needed.
    pub(crate) fn new(replicas: u32, timeout: Duration) -> Option<Self> {
        (replicas > 0).then_some(Self {
            replicas,
            // So that what is missing can still be told before the deadline.
            patience: timeout * 3 / 4,
        })
    }

    /// Writes what ends a batch.
    pub(crate) fn write(self, out: &mut Vec<u8>) {
        // Zero would be for ever.
        let patience = self.patience.as_millis().max(1);
        wire::command(out, 3);
        wire::word(out, b"WAIT");
        wire::number(out, usize::try_from(self.replicas).unwrap_or(usize::MAX));
        wire::number(out, usize::try_from(patience).unwrap_or(usize::MAX));
    }

    /// What is wrong with the answer to it.
    pub(crate) fn missing(self, replicas: Result<i64, StoreError>) -> Option<StoreError> {
        let replicas = match replicas {
            Ok(replicas) => replicas,
            // Whatever else it is, such as a master that has become a replica meanwhile,
            // says that nobody knows of a replica.
            Err(error) => {
                return Some(match error.kind() {
                    ErrorKind::NoPermission => error,
                    _ => StoreError::new(ErrorKind::NoReplicas, error.detail()),
                });
            }
        };
        let expected = self.replicas;
        (replicas < i64::from(expected)).then(|| {
            let detail = format!("{replicas} replicas have the charge: expected {expected}");
            StoreError::new(ErrorKind::NoReplicas, detail)
        })
    }
}
