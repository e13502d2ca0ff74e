//! The table of quotas at work: reports come from streams, assignments go to them, and
//! charges to the engine.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use http::StatusCode;
use tidegate::Cost;
use tidegate_redis::TryCheckError;
use tokio::runtime::Handle;
use tokio::sync::Notify;

use super::outbox::Outbox;
use super::terms::{self, Fit, Misfit};
use super::wire::{
    Abandon, Blanket, BucketName, QuotaAssignment, Rule, Strategy, Todo, TokenBucket, Usage,
    UsageReports,
};
use super::{Action, Assignment, BucketId, HolderId, LIFETIME_S, Subject, Table, memory};
use crate::engine::{Call, Current, Engine, Kind};
use crate::serve::{Connection, Reserved};

/// Buckets of one stream.
const MAX_OF_STREAM: usize = 2_000;

/// Buckets on all streams together.
const MAX_BUCKETS: usize = 100_000;

/// One for the whole process.
pub(super) struct Quotas {
    engine: Arc<Engine>,
    /// Where tasks live that belong to no connection.
    home: Option<Handle>,
    started: Instant,
    /// Something may be due earlier than before.
    changed: Notify,
    state: Mutex<State>,
}

struct State {
    table: Table,
    streams: HashMap<StreamId, Stream>,
    holders: HashMap<HolderId, (StreamId, Arc<BucketName>)>,
    next: u64,
    is_ticking: bool,
}

/// A stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct StreamId(u64);

struct Stream {
    domain: String,
    known: HashMap<Arc<BucketName>, (HolderId, Arc<Reserved>)>,
    outbox: Arc<Outbox>,
    /// Whose client has to pay for its buckets.
    connection: Arc<Connection>,
}

impl Quotas {
    pub(super) fn new(engine: &Arc<Engine>) -> Arc<Self> {
        let seed = RandomState::new().build_hasher().finish();
        Arc::new(Self {
            engine: Arc::clone(engine),
            home: Handle::try_current().ok(),
            started: Instant::now(),
            changed: Notify::new(),
            state: Mutex::new(State {
                table: Table::new(0.0, seed, MAX_BUCKETS),
                streams: HashMap::new(),
                holders: HashMap::new(),
                next: 0,
                is_ticking: false,
            }),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now_s(&self) -> f64 {
        self.started.elapsed().as_secs_f64()
    }

    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        match &self.home {
            Some(home) => drop(home.spawn(task)),
            None => drop(tokio::spawn(task)),
        }
    }

    /// A stream begins.
    pub(super) fn open(self: &Arc<Self>, connection: &Arc<Connection>) -> (StreamId, Arc<Outbox>) {
        let mut state = self.state();
        state.next += 1;
        let id = StreamId(state.next);
        let outbox = Arc::new(Outbox::new(connection));
        let stream = Stream {
            domain: String::new(),
            known: HashMap::new(),
            outbox: Arc::clone(&outbox),
            connection: Arc::clone(connection),
        };
        state.streams.insert(id, stream);
        if !std::mem::replace(&mut state.is_ticking, true) {
            self.spawn(tick(Arc::downgrade(self)));
        }
        self.count(&state);
        (id, outbox)
    }

    /// A stream has ended.
    pub(super) fn close(&self, id: StreamId) {
        let mut state = self.state();
        let now_s = self.now_s();
        let Some(stream) = state.streams.remove(&id) else {
            return;
        };
        stream.outbox.close();
        for (holder, _) in stream.known.into_values() {
            state.holders.remove(&holder);
            state.table.leave(now_s, holder);
        }
        self.count(&state);
    }

    fn count(&self, state: &State) {
        let (streams, buckets) = (state.streams.len(), state.holders.len());
        self.engine.metrics.quotas(streams, buckets);
    }

    /// An Envoy reports.
    pub(super) fn report(self: &Arc<Self>, id: StreamId, reports: UsageReports) {
        let current = self.engine.current();
        let now_s = self.now_s();
        let mut state = self.state();
        let Some(stream) = state.streams.get_mut(&id) else {
            return;
        };
        if !reports.domain.is_empty() && reports.domain != stream.domain {
            stream.domain = reports.domain.chars().take(256).collect();
        }
        let mut out = Vec::new();
        for usage in reports.bucket_quota_usages {
            if let Err(name) = self.usage(&mut state, &current, now_s, id, usage, &mut out) {
                Self::send(&state, id, name, Todo::Abandon(Abandon {}));
            }
        }
        self.carry_out(&mut state, out);
        self.count(&state);
        drop(state);
        self.changed.notify_one();
    }

    /// One bucket of a report. The error is a bucket to abandon.
    fn usage(
        &self,
        state: &mut State,
        current: &Current,
        now_s: f64,
        id: StreamId,
        usage: Usage,
        out: &mut Vec<Action>,
    ) -> Result<(), Arc<BucketName>> {
        let name = Arc::new(usage.bucket_id.unwrap_or_default());
        let (allowed, denied) = (usage.num_requests_allowed, usage.num_requests_denied);
        let Some(stream) = state.streams.get_mut(&id) else {
            return Ok(());
        };
        let known = stream.known.get(&name).map(|(holder, _)| *holder);
        let Fit {
            subject,
            key,
            terms,
        } = match terms::fit(current, &stream.domain, &name) {
            Ok(fit) => fit,
            Err(misfit) => {
                self.unfit(&stream.domain, &misfit);
                if let Some((holder, _)) = stream.known.remove(&name) {
                    state.holders.remove(&holder);
                    state.table.leave(now_s, holder);
                }
                return Err(name);
            }
        };
        self.engine
            .metrics
            .quota_reported(&subject.policy, allowed, denied);
        if let Some(holder) = known {
            let counts = (allowed, denied);
            state.table.report(now_s, holder, terms, counts, out);
            return Ok(());
        }
        if stream.known.len() >= MAX_OF_STREAM {
            self.full(
                &stream.domain,
                &format!("{MAX_OF_STREAM} buckets on one stream"),
            );
            return Err(name);
        }
        let room = match stream.connection.reserve(memory(&name)) {
            Ok(room) => Arc::new(room),
            Err(full) => {
                self.full(&stream.domain, &full.to_string());
                return Err(name);
            }
        };
        // Only a bucket that is not new has been there for a second.
        let elapsed_s = usage.time_elapsed.map_or(0, |it| it.seconds.max(0));
        let used = match elapsed_s {
            0 => 0.0,
            elapsed_s => allowed as f64 / elapsed_s.saturating_add(1) as f64,
        };
        let before = (allowed, used);
        let found = (subject, key, Some(Arc::clone(&room)));
        let joined = state.table.join(now_s, found, terms, before, out);
        match joined {
            Ok(holder) => {
                stream.known.insert(Arc::clone(&name), (holder, room));
                state.holders.insert(holder, (id, name));
                Ok(())
            }
            Err(full) => {
                self.full(&stream.domain, &full.to_string());
                Err(name)
            }
        }
    }

    /// Counts a bucket that fits no policy, and logs a few of them.
    #[cold]
    fn unfit(&self, domain: &str, misfit: &Misfit) {
        let status = match misfit {
            Misfit::Check(tidegate::CheckError::UnknownPolicy(_)) => StatusCode::NOT_FOUND,
            _ => StatusCode::BAD_REQUEST,
        };
        self.problem(status, domain, &misfit.to_string());
    }

    #[cold]
    fn full(&self, domain: &str, detail: &str) {
        self.problem(StatusCode::SERVICE_UNAVAILABLE, domain, detail);
    }

    fn problem(&self, status: StatusCode, domain: &str, detail: &str) {
        let domain: String = domain.chars().take(64).collect();
        let path = format!("StreamRateLimitQuotas, domain {domain:?}");
        let detail = format!("{detail}; the bucket is abandoned");
        self.engine.problem(status, &path, None, &detail);
    }

    /// Sends assignments, and begins charges.
    fn carry_out(self: &Arc<Self>, state: &mut State, actions: Vec<Action>) {
        for next in actions {
            let (holder, todo) = match next {
                Action::Charge(bucket, subject, cost) => {
                    self.spawn(charge(Arc::clone(self), bucket, subject, cost));
                    continue;
                }
                Action::Assign(holder, assignment) => (holder, assign(assignment)),
                Action::Abandon(holder) => (holder, Todo::Abandon(Abandon {})),
            };
            let Some((id, name)) = state.holders.get(&holder) else {
                continue;
            };
            let (id, name) = (*id, Arc::clone(name));
            if let Todo::Abandon(_) = todo {
                state.holders.remove(&holder);
                if let Some(stream) = state.streams.get_mut(&id) {
                    stream.known.remove(&name);
                }
            }
            Self::send(state, id, name, todo);
        }
    }

    /// Sends an action.
    fn send(state: &State, id: StreamId, name: Arc<BucketName>, todo: Todo) {
        if let Some(stream) = state.streams.get(&id) {
            stream.outbox.put(name, todo);
        }
    }

    fn charged(self: &Arc<Self>, bucket: BucketId, paid: u32) {
        let mut state = self.state();
        let mut out = Vec::new();
        let now_s = self.now_s();
        state.table.charged(now_s, bucket, paid, &mut out);
        self.carry_out(&mut state, out);
        drop(state);
        self.changed.notify_one();
    }

    /// Does what is due. Says when more is.
    fn tick(self: &Arc<Self>) -> Option<Duration> {
        let mut state = self.state();
        let mut out = Vec::new();
        let now_s = self.now_s();
        state.table.tick(now_s, &mut out);
        self.carry_out(&mut state, out);
        let due_s = state.table.due_s()?;
        Some(Duration::from_secs_f64((due_s - now_s).max(0.001)))
    }
}

/// Ticks for as long as there is something to tick for.
async fn tick(quotas: Weak<Quotas>) {
    while let Some(quotas) = quotas.upgrade() {
        // Charges return within a deadline, and reports soon, so the wait is short.
        let due = quotas.tick().unwrap_or(Duration::from_secs(1));
        let changed = quotas.changed.notified();
        drop(tokio::time::timeout(due.min(Duration::from_secs(1)), changed).await);
    }
}

/// Charges the store for what is assigned.
async fn charge(quotas: Arc<Quotas>, bucket: BucketId, subject: Arc<Subject>, cost: u32) {
    let paid = pay(&quotas.engine, &subject, cost).await;
    let paid = paid.unwrap_or_else(|error| {
        // The policy is gone; the next report finds that out.
        tracing::debug!(%error, "a quota cannot be charged");
        0
    });
    let metrics = &quotas.engine.metrics;
    metrics.quota_charged(&subject.policy, paid, cost - paid);
    quotas.charged(bucket, paid);
}

/// Charges as much of a cost as there is, and says how much that was. When the store cannot
/// be asked, the policy's `on_error` says whether it counts as charged.
async fn pay(engine: &Engine, subject: &Subject, cost: u32) -> Result<u32, TryCheckError> {
    let current = engine.current();
    let entry = current.entry(&subject.policy)?;
    let mut wanted = Cost::new(cost.into());
    // All of it, or else what is left.
    for _ in 0..2 {
        let Ok(cost) = wanted else { break };
        let call = Call {
            kind: Kind::Assign,
            ..Call::new(entry, &subject.attributes, cost)
        };
        let decision = engine.ask_one(&call).await?;
        if decision.allowed() {
            return Ok(cost.get());
        }
        if decision.is_unavailable() {
            break;
        }
        wanted = Cost::new(decision.remaining().min(cost.get() - 1).into());
    }
    Ok(0)
}

fn assign(assignment: Assignment) -> Todo {
    let seconds = |seconds: u32| prost_types::Duration {
        seconds: seconds.into(),
        nanos: 0,
    };
    let rule = match assignment {
        Assignment::Allow => Rule::Blanket(Blanket::AllowAll.into()),
        Assignment::Deny => Rule::Blanket(Blanket::DenyAll.into()),
        Assignment::Tokens(tokens) => Rule::TokenBucket(TokenBucket {
            max_tokens: tokens.size,
            tokens_per_fill: Some(tokens.fill),
            fill_interval: Some(seconds(tokens.interval_s)),
        }),
    };
    Todo::Assign(QuotaAssignment {
        assignment_time_to_live: Some(seconds(LIFETIME_S)),
        rate_limit_strategy: Some(Strategy { rule: Some(rule) }),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Settings;

    #[tokio::test]
    async fn s17_report_about_the_longest_time_is_taken() {
        let engine = Engine::new(Settings::default().load().unwrap()).unwrap();
        let quotas = Quotas::new(&Arc::new(engine));
        let (id, outbox) = quotas.open(&Connection::alone());
        let bucket = [("key".to_owned(), b"a".to_vec())].into();
        let usage = Usage {
            bucket_id: Some(BucketName { bucket }),
            time_elapsed: Some(prost_types::Duration {
                seconds: i64::MAX,
                nanos: 0,
            }),
            num_requests_allowed: 1,
            num_requests_denied: 0,
        };
        let reports = UsageReports {
            domain: "default".into(),
            bucket_quota_usages: vec![usage],
        };
        quotas.report(id, reports);
        let answer = outbox.next().await.unwrap();
        let todo = answer.bucket_action[0].todo.as_ref();
        assert!(matches!(todo, Some(Todo::Assign(_))), "{todo:?}");
    }
}
