//! Zones in Redis: one thread per worker that does all I/O, and the questions it is asked.
//!
//! What this worker can decide alone, from a lease, from its own count or from the memory of
//! refusals, is decided on nginx's own thread, there and then. Only what has to wait for the
//! store goes over to the other thread.

use std::pin::Pin;
use std::sync::{Arc, OnceLock, mpsc};
use std::task::{Context, Poll, Waker};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use tidegate::{Cost, Decision, Policy};
use tidegate_redis::{Policies, PolicyLimiter, RedisStore};
use tokio::runtime::{self, EnterGuard, Handle};
use tokio::sync::oneshot;

use crate::answer::Decided;
use crate::handler::Check;
use crate::spec::StoreSpec;

/// How long the end of a worker may wait for what the stores do not know yet.
const FLUSH: Duration = Duration::from_millis(500);

/// The runtime of this worker, for as long as it lives: a worker starts once.
static RUNTIME: OnceLock<Handle> = OnceLock::new();

/// May this request go on?
pub(crate) struct Question {
    pub(crate) zone: usize,
    pub(crate) key: Box<[u8]>,
    pub(crate) cost: Cost,
}

impl Question {
    pub(crate) fn of(check: &Check<'_>) -> Self {
        Self {
            zone: check.zone,
            key: check.key.into(),
            cost: check.cost,
        }
    }
}

/// A zone in Redis, before the thread starts.
pub(crate) struct RemoteZone {
    pub(crate) number: usize,
    pub(crate) policy: Policy,
}

/// The zones in Redis.
pub(crate) struct Remote {
    runtime: &'static Handle,
    /// nginx's thread is inside the runtime for good: to enter it for each request costs more
    /// than most decisions.
    _inside: EnterGuard<'static>,
    limiter: Arc<Policies>,
    /// By the number of the zone.
    handles: Vec<Option<PolicyLimiter>>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

type Answering = Pin<Box<dyn Future<Output = Decided> + Send>>;

impl Remote {
    /// Starts the thread, over these stores and these zones.
    pub(crate) fn start(stores: &[StoreSpec], zones: &[RemoteZone]) -> Result<Self, String> {
        let runtime = runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| format!("cannot start the I/O thread: {error}"))?;
        let handle = RUNTIME.get_or_init(|| runtime.handle().clone());
        let inside = handle.enter();
        let mut opened = Vec::new();
        for store in stores {
            let redis = RedisStore::new(&store.url, store.options());
            let redis = redis.map_err(|error| error.to_string())?;
            opened.push((store.name.as_str(), redis));
        }
        let policies = zones.iter().map(|zone| zone.policy.clone());
        let limiter = Policies::new(opened, policies);
        let limiter = limiter.map_err(|error| error.to_string())?;
        let mut handles = Vec::new();
        for RemoteZone { number, policy } in zones {
            if handles.len() <= *number {
                handles.resize(number + 1, None);
            }
            handles[*number] = limiter.handle(policy.name()).ok().cloned();
        }
        let (stop, stopped) = oneshot::channel::<()>();
        let thread = Builder::new().name("tidegate".into()).spawn(move || {
            // An end without a message is an end, too.
            runtime.block_on(async { drop(stopped.await) });
        });
        let thread = thread.map_err(|error| format!("cannot start the I/O thread: {error}"))?;
        Ok(Self {
            runtime: handle,
            _inside: inside,
            limiter: Arc::new(limiter),
            handles,
            stop: Some(stop),
            thread: Some(thread),
        })
    }

    /// The decision of a zone, if this worker can make it alone.
    #[inline]
    pub(crate) fn decide(&self, zone: usize, key: &[u8], cost: Cost) -> Option<Decision> {
        let handle = self.handles.get(zone)?.as_ref()?;
        let decision = handle.now(&tidegate::Question::new(&[("key", key)], cost))?;
        Some(decision.into_decision())
    }

    /// The answers, if they are known at once; otherwise they are handed to `done`, on the
    /// other thread.
    pub(crate) fn ask(
        &self,
        questions: Vec<Question>,
        done: impl FnOnce(Decided) + Send + 'static,
    ) -> Option<Decided> {
        let asked = questions.into_iter().filter_map(|question| {
            let handle = self.handles.get(question.zone)?.clone()?;
            Some((handle, question))
        });
        let asked: Vec<_> = asked.collect();
        let mut answering: Answering = Box::pin(answer(asked));
        // It is looked at again by the other thread, which then is the one to wake.
        let mut context = Context::from_waker(Waker::noop());
        match answering.as_mut().poll(&mut context) {
            Poll::Ready(answers) => Some(answers),
            Poll::Pending => {
                self.runtime.spawn(async move { done(answering.await) });
                None
            }
        }
    }

    /// Tells the stores what they do not know yet, for a moment, and ends the thread.
    pub(crate) fn stop(mut self) {
        let (flushed, wait) = mpsc::channel::<()>();
        let limiter = Arc::clone(&self.limiter);
        self.runtime.spawn(async move {
            limiter.flush(FLUSH).await;
            drop(flushed);
        });
        let _ = wait.recv_timeout(FLUSH * 2);
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

/// Asks in order. The first refusal ends it, and what was charged before it is given back.
async fn answer(asked: Vec<(PolicyLimiter, Question)>) -> Decided {
    let mut decided = Decided::new();
    for (handle, question) in &asked {
        let attributes = [("key", &question.key)];
        // A zone's policy needs a key and nothing else.
        let Ok(decision) = handle.check(&attributes, question.cost).await else {
            continue;
        };
        let decision: Decision = decision.into_decision();
        let is_allowed = decision.allowed();
        decided.push((question.zone, decision));
        if !is_allowed {
            break;
        }
    }
    if decided.last().is_some_and(|(_, last)| !last.allowed()) {
        let refusal = decided.pop();
        for (zone, decision) in decided.drain(..) {
            let asked = asked.iter().find(|(_, question)| question.zone == zone);
            if let (Some((handle, question)), Some(receipt)) = (asked, decision.receipt()) {
                // A store that fails now is not worth a failed request.
                drop(handle.refund(&[("key", &question.key)], &receipt).await);
            }
        }
        decided.extend(refusal);
    }
    decided
}
