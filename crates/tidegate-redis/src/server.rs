//! One server: its connections and its breaker. The servers of a cluster fail independently.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::batch::{Command, Reply};
use crate::breaker::{Attempt, Breaker, Change, Failure, Permission};
use crate::connect::Connector;
use crate::error::{ErrorKind, StoreError};
use crate::lane::{Lane, LaneOptions};
use crate::lock::lock;
use crate::outage::Outage;

/// A server, or, without lanes, the lack of one.
pub(crate) struct Server {
    /// Where it is, for log lines: never with a password.
    pub(crate) address: String,
    lanes: Box<[Lane]>,
    /// How long a check may take, for messages.
    timeout: Duration,
    breaker: Mutex<Breaker>,
    /// Tells those who wait for an answer that the breaker opens.
    opened: Notify,
    /// What the log says of its failures.
    pub(crate) outage: Outage,
    /// Why there is no server, where there is none.
    pub(crate) why: Mutex<Option<StoreError>>,
    /// The breaker's time is counted from here.
    start: Instant,
    random: RandomState,
}

impl Server {
    pub(crate) fn new(address: String, connector: &Connector, options: &LaneOptions) -> Self {
        let lane = || Lane::new(connector.clone(), options);
        let lanes = (0..options.connections).map(|_| lane()).collect();
        Self::with(address, lanes, options.timeout)
    }

    /// No server: every question fails, until the breaker stops them.
    pub(crate) fn nowhere(timeout: Duration) -> Self {
        Self::with("no server".into(), Box::default(), timeout)
    }

    fn with(address: String, lanes: Box<[Lane]>, timeout: Duration) -> Self {
        Self {
            address,
            lanes,
            timeout,
            breaker: Mutex::new(Breaker::new(timeout)),
            opened: Notify::new(),
            outage: Outage::default(),
            why: Mutex::default(),
            start: Instant::now(),
            random: RandomState::new(),
        }
    }

    /// A permit to ask it now, or to probe it, unless its breaker is open.
    pub(crate) fn permit(self: &Arc<Self>) -> Result<Permit, StoreError> {
        let now = self.start.elapsed();
        let (attempt, is_probe) = match self.breaker(|breaker| breaker.ask(now)) {
            Permission::Go(attempt) => (attempt, false),
            Permission::Probe(attempt) => (attempt, true),
            Permission::Wait(_) => return Err(self.not_asked()),
        };
        Ok(Permit {
            server: Arc::clone(self),
            attempt,
            is_probe,
            is_patient: is_probe,
            is_our_fault: false,
            is_resolved: false,
        })
    }

    /// The error of a question that is not put because the breaker is open.
    pub(crate) fn not_asked(&self) -> StoreError {
        let wait = self.next_probe();
        let detail = format!("{}: not asked for another {wait:?}", self.address);
        StoreError::new(ErrorKind::BreakerOpen, detail)
    }

    /// Questions about the same values share a lane, whatever their policy: those alike
    /// travel as one, and a trial travels with the policy in force.
    fn lane(&self, keys: &[String]) -> Option<&Lane> {
        let lanes = self.lanes.len() as u64;
        let values = keys.last().map(|key| values(key));
        let index = self.random.hash_one(values).checked_rem(lanes)?;
        self.lanes.get(usize::try_from(index).ok()?)
    }

    pub(crate) fn is_open(&self) -> bool {
        self.breaker(|breaker| breaker.is_open())
    }

    /// How long until it is asked again, if it fails.
    pub(crate) fn next_probe(&self) -> Duration {
        let now = self.start.elapsed();
        self.breaker(|breaker| breaker.next_probe(now))
    }

    fn breaker<T>(&self, change: impl FnOnce(&mut Breaker) -> T) -> T {
        change(&mut lock(&self.breaker))
    }
}

/// Permission of a server's breaker to ask it. The holder reports the outcome; a permit
/// that is dropped without one lets the next probe out: its caller has left, or the question
/// was never sent.
pub(crate) struct Permit {
    pub(crate) server: Arc<Server>,
    attempt: Attempt,
    /// Whether the breaker is open, and this is to find out about the server.
    pub(crate) is_probe: bool,
    /// Whether no check waits for the answer: it has until its deadline, even if the server
    /// is silent.
    pub(crate) is_patient: bool,
    /// Whether the question has spent most of its time here, behind others.
    pub(crate) is_our_fault: bool,
    is_resolved: bool,
}

impl Permit {
    /// Sends a command once. `asking` is for keys that are on their way to this server.
    pub(crate) async fn attempt(
        &mut self,
        command: &Arc<Command>,
        asking: bool,
        deadline: Instant,
    ) -> Result<Reply, StoreError> {
        let server = Arc::clone(&self.server);
        let Some(lane) = server.lane(&command.keys) else {
            return Err(lock(&server.why).clone().unwrap_or_else(|| {
                let detail = "no server has the slot of these keys";
                StoreError::new(ErrorKind::ClusterDown, detail)
            }));
        };
        let start = Instant::now();
        let answer = lane.send(command, asking, deadline)?;
        match self.within(deadline, answer).await {
            Some(Ok(answer)) => return answer,
            Some(Err(_)) if Instant::now() < deadline => {
                return Err(StoreError::new(ErrorKind::Other, "the runtime is ending"));
            }
            // The lane has left it out, or nobody has answered.
            Some(Err(_)) | None => {}
        }
        let waited = start.elapsed();
        let queued = lane.queued(command, start);
        if queued.is_some_and(|queued| queued >= deadline - start) {
            let detail = format!("not sent within {waited:?}, behind other checks");
            return Err(StoreError::new(ErrorKind::QueueFull, detail));
        }
        self.is_our_fault = queued.is_some_and(|queued| queued >= server.timeout / 2);
        let detail = match Instant::now() < deadline {
            true => format!("given up after {waited:?}: the server is silent"),
            false => format!("no answer within {:?}", server.timeout),
        };
        Err(StoreError::new(ErrorKind::Timeout, detail))
    }

    /// Waits for something until the deadline, but not for a server that is down.
    pub(crate) async fn within<T>(
        &self,
        deadline: Instant,
        what: impl Future<Output = T>,
    ) -> Option<T> {
        let server = &self.server;
        let mut what = pin!(what);
        // Nearly all answers are there by then, and have only cost a timer.
        let early = match self.is_patient {
            true => deadline,
            false => deadline.min(server.start + self.attempt.at + server.timeout / 2),
        };
        if let Ok(done) = timeout_at(early, &mut what).await {
            return Some(done);
        }
        while Instant::now() < deadline {
            // Heard even if it opens before this is waited for.
            let opened = server.opened.notified();
            let now = server.start.elapsed();
            let until = server.breaker(|breaker| breaker.patience(self.attempt, now))?;
            tokio::select! {
                biased;
                done = &mut what => return Some(done),
                () = opened => {}
                () = sleep_until(deadline.min(server.start + until)) => {}
            }
        }
        None
    }

    /// The server has answered.
    pub(crate) fn answered(&mut self) -> Option<Change> {
        self.is_resolved = true;
        self.server
            .breaker(|breaker| breaker.succeeded(self.attempt))
    }

    /// It has not.
    pub(crate) fn failed(&mut self, failure: Failure) -> Option<Change> {
        self.is_resolved = true;
        let (now, jitter) = (self.server.start.elapsed(), jitter());
        let failed = |breaker: &mut Breaker| breaker.failed(self.attempt, failure, now, jitter);
        let change = self.server.breaker(failed);
        if change == Some(Change::Opened) {
            self.server.opened.notify_waiters();
        }
        change
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if !self.is_resolved {
            self.server
                .breaker(|breaker| breaker.abandoned(self.attempt));
        }
    }
}

/// A number from 0 to 1.
pub(crate) fn jitter() -> f64 {
    let random = RandomState::new().build_hasher().finish() >> 32;
    f64::from(u32::try_from(random).unwrap_or(0)) / f64::from(u32::MAX)
}

/// The values in a key, `<prefix>:{<tag>}:<policy>:<level>[:<values>]`. Without any, they
/// are the tag.
fn values(key: &str) -> &str {
    let Some((_, tagged)) = key.split_once('{') else {
        return key;
    };
    let Some((tag, rest)) = tagged.split_once("}:") else {
        return key;
    };
    rest.splitn(3, ':').nth(2).unwrap_or(tag)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn dropped_permit_does_not_hold_the_breaker_half_open() {
        let server = Arc::new(Server::nowhere(Duration::from_millis(50)));
        for _ in 0..5 {
            let Ok(mut permit) = server.permit() else {
                panic!("not closed");
            };
            permit.failed(Failure::Answered);
        }
        assert!(server.permit().is_err());
        tokio::time::advance(Duration::from_millis(100)).await;
        let Ok(probe) = server.permit() else {
            panic!("no probe");
        };
        assert!(server.permit().is_err(), "one probe at a time");
        drop(probe);
        let Ok(mut probe) = server.permit() else {
            panic!("no other probe at once");
        };
        assert_eq!(probe.answered(), Some(Change::Closed));
        drop(probe);
        assert!(!server.is_open());
    }
}
