//! Requests in flight with their waiting callers: checks, counts of this node, and other
//! commands. Requests that can share a call are merged here.

use std::collections::HashMap;
use std::sync::Arc;

use foldhash::fast::FixedState;
use redis::Value;
use smallvec::SmallVec;
use tidegate::{Charge, Decision};
use tokio::time::Instant;

use crate::call::Call;
use crate::error::StoreError;
use crate::lane::Request;
use crate::question::{Asked, Command, Flush, Responder};
use crate::script::Script;
use crate::slots::slot;

/// Callers of one check, and checks or keys of one call.
pub(crate) const CALLERS: usize = 1_000;
pub(crate) const CALL: usize = 16;

/// A check, and all callers who ask for the same one.
pub(crate) struct PendingCheck {
    pub(crate) call: Arc<Call>,
    pub(crate) asking: bool,
    pub(crate) is_alone: bool,
    pub(crate) waiting: SmallVec<[(Responder<Decision>, Instant); 1]>,
}

/// What this node has admitted of a key.
pub(crate) struct PendingFlush {
    pub(crate) flush: Arc<Flush>,
    pub(crate) asking: bool,
    pub(crate) is_alone: bool,
    pub(crate) responder: Responder<Vec<u8>>,
    pub(crate) deadline: Instant,
}

/// Any other command.
pub(crate) struct PendingCommand {
    pub(crate) command: Arc<Command>,
    pub(crate) asking: bool,
    pub(crate) responder: Responder<Value>,
    pub(crate) deadline: Instant,
}

/// What can be sent again, or fail.
pub(crate) trait Pending {
    fn send_again(self, is_alone: bool, again: &mut Vec<Request>);
    fn fail(self, error: &StoreError);
}

/// What may share a call with others: those of one script, and in a cluster of one slot.
pub(crate) trait Shareable {
    fn script(&self) -> &Arc<Script>;
    fn key(&self) -> Option<&String>;
    /// Whether its keys are on their way to this server.
    fn is_asking(&self) -> bool;
    fn is_alone(&self) -> bool;
}

/// What shares a call of a script; never empty.
pub(crate) struct Bundle<P> {
    pub(crate) script: Arc<Script>,
    pub(crate) asking: bool,
    pub(crate) all: Vec<P>,
}

/// Puts together what can share a call, in order.
pub(crate) fn bundles<P: Shareable>(all: Vec<P>, is_cluster: bool) -> Vec<Bundle<P>> {
    let mut calls: Vec<Bundle<P>> = Vec::new();
    let mut open: HashMap<(*const Script, u16), usize, FixedState> = HashMap::default();
    for one in all {
        let slot = match one.key().filter(|_| !one.is_alone()) {
            Some(key) if is_cluster => Some(slot(key.as_bytes())),
            Some(_) => Some(0),
            None => None,
        };
        let place = slot.map(|slot| (Arc::as_ptr(one.script()), slot));
        let index = place.and_then(|place| open.get(&place));
        let call = index.and_then(|index| calls.get_mut(*index));
        match call.filter(|call| call.all.len() < CALL) {
            Some(call) => call.all.push(one),
            None => {
                if let Some(place) = place {
                    open.insert(place, calls.len());
                }
                calls.push(Bundle {
                    script: Arc::clone(one.script()),
                    asking: one.is_asking(),
                    all: vec![one],
                });
            }
        }
    }
    calls
}

impl PendingCheck {
    /// What the script is given: how many ask, and the rest of the argument.
    pub(crate) fn argument(&self) -> ([u8; 4], &[u8]) {
        let asked = match self.call.charge {
            Charge::Nothing => 0,
            _ => u32::try_from(self.waiting.len()).unwrap_or(u32::MAX),
        };
        (asked.to_le_bytes(), self.call.limits_argument())
    }
}

impl Shareable for PendingCheck {
    fn script(&self) -> &Arc<Script> {
        self.call.batch_script()
    }

    fn key(&self) -> Option<&String> {
        self.call.keys.first()
    }

    fn is_asking(&self) -> bool {
        self.asking
    }

    fn is_alone(&self) -> bool {
        self.is_alone || self.asking
    }
}

impl Shareable for PendingFlush {
    fn script(&self) -> &Arc<Script> {
        &self.flush.script
    }

    fn key(&self) -> Option<&String> {
        self.flush.key.first()
    }

    fn is_asking(&self) -> bool {
        self.asking
    }

    fn is_alone(&self) -> bool {
        self.is_alone || self.asking
    }
}

impl<P: Pending> Pending for Bundle<P> {
    fn send_again(self, is_alone: bool, again: &mut Vec<Request>) {
        for one in self.all {
            one.send_again(is_alone, again);
        }
    }

    fn fail(self, error: &StoreError) {
        self.all.into_iter().for_each(|one| one.fail(error));
    }
}

impl Pending for PendingCheck {
    fn send_again(self, is_alone: bool, again: &mut Vec<Request>) {
        let waiting = self.waiting.into_iter();
        again.extend(waiting.map(|(responder, deadline)| Request {
            asked: Asked::Check(Arc::clone(&self.call), responder),
            asking: self.asking,
            deadline,
            is_alone,
        }));
    }

    fn fail(self, error: &StoreError) {
        for (responder, _) in self.waiting {
            drop(responder.send(Err(error.clone())));
        }
    }
}

impl Pending for PendingFlush {
    fn send_again(self, is_alone: bool, again: &mut Vec<Request>) {
        again.push(Request {
            asked: Asked::Flush(self.flush, self.responder),
            asking: self.asking,
            deadline: self.deadline,
            is_alone,
        });
    }

    fn fail(self, error: &StoreError) {
        drop(self.responder.send(Err(error.clone())));
    }
}

impl Pending for PendingCommand {
    fn send_again(self, is_alone: bool, again: &mut Vec<Request>) {
        again.push(Request {
            asked: Asked::Command(self.command, self.responder),
            asking: self.asking,
            deadline: self.deadline,
            is_alone,
        });
    }

    fn fail(self, error: &StoreError) {
        drop(self.responder.send(Err(error.clone())));
    }
}
