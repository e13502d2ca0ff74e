//! Charges that replicas must acknowledge: a batch ends with WAIT, which the server answers
//! when enough replicas have everything that the connection has written.
//!
//! The connection does nothing else meanwhile, so the next batch of a lane waits for the
//! one before. Batches grow with it, and the server is not held up.

use std::time::Duration;

use redis::{Cmd, Value};

use crate::error::{ErrorKind, StoreError};

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

    /// What ends a batch.
    pub(crate) fn command(self) -> Cmd {
        // Zero would be for ever.
        let patience_ms = u64::try_from(self.patience.as_millis()).unwrap_or(u64::MAX);
        let mut command = redis::cmd("WAIT");
        command.arg(self.replicas).arg(patience_ms.max(1));
        command
    }

    /// What is wrong with the answer to it.
    pub(crate) fn missing(self, answer: &Value) -> Option<StoreError> {
        let replicas = match answer {
            Value::Int(replicas) => *replicas,
            // Whatever else it is, such as a master that has become a replica meanwhile,
            // says that nobody knows of a replica.
            Value::ServerError(error) => {
                let error = StoreError::from_server(error);
                return Some(match error.kind() {
                    ErrorKind::NoPermission => error,
                    _ => StoreError::new(ErrorKind::NoReplicas, error.detail()),
                });
            }
            _ => 0,
        };
        let expected = self.replicas;
        (replicas < i64::from(expected)).then(|| {
            let detail = format!("{replicas} replicas have the charge: expected {expected}");
            StoreError::new(ErrorKind::NoReplicas, detail)
        })
    }
}
