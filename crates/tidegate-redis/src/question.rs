//! Requests to a server: checks and background counts, which share calls, and other
//! commands. Each has its own reply type.

use std::sync::Arc;

use redis::Value;
use tidegate::{Charge, Decision};
use tokio::sync::oneshot;

use crate::call::Call;
use crate::error::StoreError;
use crate::script::Script;

/// A question, and the type of its answer.
pub(crate) trait Question: Send + Sync + 'static {
    type Answer: Send + 'static;

    /// The keys it is about.
    fn keys(&self) -> &[String];

    /// Whether a request waits for it to be decided.
    fn is_check(&self) -> bool {
        false
    }

    /// The question as a lane takes it.
    fn asked(self: &Arc<Self>, responder: Responder<Self::Answer>) -> Asked;
}

/// Where an answer goes.
pub(crate) type Responder<A> = oneshot::Sender<Result<A, StoreError>>;

/// A question in flight, with the caller that waits for its answer.
pub(crate) enum Asked {
    Check(Arc<Call>, Responder<Decision>),
    Flush(Arc<Flush>, Responder<Vec<u8>>),
    Command(Arc<Command>, Responder<Value>),
}

impl Asked {
    /// Whether its caller has left.
    pub(crate) fn is_closed(&self) -> bool {
        match self {
            Self::Check(_, responder) => responder.is_closed(),
            Self::Flush(_, responder) => responder.is_closed(),
            Self::Command(_, responder) => responder.is_closed(),
        }
    }

    pub(crate) fn fail(self, error: StoreError) {
        match self {
            Self::Check(_, responder) => drop(responder.send(Err(error))),
            Self::Flush(_, responder) => drop(responder.send(Err(error))),
            Self::Command(_, responder) => drop(responder.send(Err(error))),
        }
    }
}

impl Question for Call {
    type Answer = Decision;

    fn keys(&self) -> &[String] {
        &self.keys
    }

    fn is_check(&self) -> bool {
        self.charge != Charge::Nothing
    }

    fn asked(self: &Arc<Self>, responder: Responder<Decision>) -> Asked {
        Asked::Check(Arc::clone(self), responder)
    }
}

/// What a node has admitted of a key. The answer is the store's time, and what the key
/// comes to.
#[derive(Debug)]
pub(crate) struct Flush {
    pub(crate) script: Arc<Script>,
    pub(crate) key: [String; 1],
    pub(crate) argument: Vec<u8>,
}

impl Question for Flush {
    type Answer = Vec<u8>;

    fn keys(&self) -> &[String] {
        &self.key
    }

    fn asked(self: &Arc<Self>, responder: Responder<Vec<u8>>) -> Asked {
        Asked::Flush(Arc::clone(self), responder)
    }
}

/// Any other command.
#[derive(Debug)]
pub(crate) enum Command {
    /// A script with keys and arguments of its own.
    Script {
        script: Arc<Script>,
        keys: Vec<String>,
        arguments: Vec<Vec<u8>>,
    },
    /// Keys to forget.
    Delete(Vec<String>),
    /// A script to compile and keep.
    Load(Arc<Script>),
    /// What the server says about its memory.
    Memory,
}

impl Command {
    /// Whether it may change anything that replicas should have.
    pub(crate) fn writes(&self) -> bool {
        matches!(self, Self::Script { .. } | Self::Delete(_))
    }
}

impl Question for Command {
    type Answer = Value;

    fn keys(&self) -> &[String] {
        match self {
            Self::Script { keys, .. } | Self::Delete(keys) => keys,
            Self::Load(_) | Self::Memory => &[],
        }
    }

    /// A script of the user's own decides. (A refund is one, too, and hardly ever fails
    /// alone.)
    fn is_check(&self) -> bool {
        matches!(self, Self::Script { .. })
    }

    fn asked(self: &Arc<Self>, responder: Responder<Value>) -> Asked {
        Asked::Command(Arc::clone(self), responder)
    }
}
