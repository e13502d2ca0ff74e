//! The store: where the server is, how long a check may take, and whether to ask at all.

use std::fmt;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use redis::io::tcp::TcpSettings;
use redis::{IntoConnectionInfo, Value};
use tidegate::{Charge, Cost, Decision, Keys, Limit, Limiter, Policy, Receipt};
use tokio::time::{Instant, sleep, timeout_at};

use crate::breaker::{Asked, Breaker, Change, Failure, Permit};
use crate::call::{Call, Prepared, refund_arguments, stored_keys};
use crate::error::{ErrorKind, StoreError};
use crate::eviction;
use crate::lane::{Answer, Lane, Question, Traffic};
use crate::retry::Schedule;
use crate::script::{Script, Scripts, Task, Time};

/// A Redis or Valkey server that keeps counts for many machines.
///
/// Making one does not connect: a store that is down is a store that is down, not an
/// error. Clones are handles to the same connections.
#[derive(Clone)]
pub struct RedisStore(Arc<Inner>);

struct Inner {
    name: String,
    /// What it was made of, hashed: it may hold a password.
    origin: u64,
    prefix: String,
    timeout: Duration,
    lanes: Box<[Lane]>,
    scripts: Scripts,
    breaker: Mutex<Breaker>,
    /// The breaker's time is counted from here.
    start: Instant,
    random: RandomState,
    traffic: Arc<Traffic>,
    errors: [AtomicU64; ErrorKind::ALL.len()],
    retries: AtomicU64,
    /// Log lines about errors, a few of each kind a minute.
    lines: Limiter,
    /// Whether the log says that the store keeps failing.
    said_to_fail: AtomicBool,
}

/// How to reach a server, and how long to wait for it.
#[derive(Debug, Clone)]
#[must_use = "options do nothing until a store is made of them"]
pub struct RedisOptions {
    name: String,
    prefix: String,
    timeout: Duration,
    connections: usize,
    certificates: Option<redis::TlsCertificates>,
}

/// What a store has been through.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RedisStats {
    /// Whether the store is not asked at the moment, because it kept failing.
    pub breaker_open: bool,
    /// Questions that were put: checks, looks, refunds, resets.
    pub questions: u64,
    /// Commands that were sent for them: fewer, where checks were alike.
    pub commands: u64,
    /// Writes that those took.
    pub batches: u64,
    /// Questions that were put again.
    pub retries: u64,
    /// Questions that had no answer in the end, by kind.
    pub errors: Vec<(ErrorKind, u64)>,
}

impl Default for RedisOptions {
    fn default() -> Self {
        Self {
            name: "default".into(),
            prefix: "tg".into(),
            timeout: Duration::from_millis(50),
            connections: 2,
            certificates: None,
        }
    }
}

impl RedisOptions {
    /// The name of the store, in log lines.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// How keys begin: `tg` unless said otherwise.
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// How long a check may take, retries included: 50 ms unless said otherwise.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Connections to the server: 2 unless said otherwise.
    pub fn connections(mut self, connections: usize) -> Self {
        self.connections = connections.max(1);
        self
    }

    /// Certificates for `rediss://`, in PEM: the authority that has signed the server's,
    /// where that is not a public one, and a certificate of our own with its key, where
    /// the server asks for one.
    pub fn certificates(
        mut self,
        authority: Option<Vec<u8>>,
        own: Option<(Vec<u8>, Vec<u8>)>,
    ) -> Self {
        self.certificates = Some(redis::TlsCertificates {
            client_tls: own.map(|(client_cert, client_key)| redis::ClientTlsConfig {
                client_cert,
                client_key,
            }),
            root_cert: authority,
        });
        self
    }
}

impl RedisStore {
    /// A store at `redis://` or `rediss://`, with user, password and database as they
    /// stand in the URL.
    pub fn new(url: &str, options: RedisOptions) -> Result<Self, StoreError> {
        // The client leaves it to us who does the arithmetic of TLS, and panics when
        // nobody does; whoever has chosen before stays.
        drop(rustls::crypto::ring::default_provider().install_default());
        let origin = origin(url, &options);
        // A batch does not wait until the one before it has arrived.
        let tcp = TcpSettings::default().set_nodelay(true);
        let server = url.into_connection_info();
        let server = server.map(|server| server.set_tcp_settings(tcp));
        let client = server.and_then(|server| match options.certificates {
            Some(certificates) => redis::Client::build_with_tls(server, certificates),
            None => redis::Client::open(server),
        });
        // The client's own message may repeat the URL, and with it a password.
        let client = client.map_err(|error| {
            let detail = format!("the URL of store {:?}: {:?}", options.name, error.kind());
            StoreError::new(ErrorKind::Other, detail)
        })?;
        let traffic = Arc::new(Traffic::default());
        let lane = || Lane::new(client.clone(), Arc::clone(&traffic));
        Ok(Self(Arc::new(Inner {
            name: options.name,
            origin,
            prefix: options.prefix,
            timeout: options.timeout,
            lanes: (0..options.connections).map(|_| lane()).collect(),
            scripts: Scripts::new(Time::Server),
            breaker: Mutex::default(),
            start: Instant::now(),
            random: RandomState::new(),
            traffic,
            errors: [const { AtomicU64::new(0) }; ErrorKind::ALL.len()],
            retries: AtomicU64::new(0),
            lines: Limiter::in_memory(Limit::per_minute(6).burst(1)),
            said_to_fail: AtomicBool::new(false),
        })))
    }

    /// Its name in log lines.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// What it has been through.
    #[must_use]
    pub fn stats(&self) -> RedisStats {
        let inner = &self.0;
        let count = |counter: &AtomicU64| counter.load(Relaxed);
        let errors = ErrorKind::ALL.iter().zip(&inner.errors);
        RedisStats {
            breaker_open: self.breaker(|breaker| breaker.is_open()),
            questions: count(&inner.traffic.questions),
            commands: count(&inner.traffic.commands),
            batches: count(&inner.traffic.batches),
            retries: count(&inner.retries),
            errors: errors
                .map(|(kind, errors)| (*kind, count(errors)))
                .collect(),
        }
    }

    /// How long until a store that fails is asked again.
    #[must_use]
    pub fn next_probe(&self) -> Duration {
        let now = self.0.start.elapsed();
        self.breaker(|breaker| breaker.next_probe(now))
    }

    /// What all checks of a policy have in common.
    pub(crate) fn prepare(&self, policy: &Policy, charge: Charge) -> Prepared {
        Prepared::new(&self.0.scripts, policy, charge)
    }

    /// Decides the levels of these keys in one step.
    pub(crate) async fn decide(
        &self,
        prepared: &Prepared,
        keys: &Keys<'_>,
        cost: Cost,
        charge: Charge,
    ) -> Result<Decision, StoreError> {
        let (scripts, prefix) = (&self.0.scripts, &self.0.prefix);
        let call = Call::new(prepared, scripts, prefix, keys, cost, charge);
        match self.run(Question::Check(call)).await? {
            Answer::Decision(decision) => Ok(decision),
            Answer::Value(_) => Err(StoreError::new(ErrorKind::Script, "no decision")),
        }
    }

    /// Gives back what a decision about these keys has charged.
    pub(crate) async fn refund(
        &self,
        keys: &Keys<'_>,
        receipt: &Receipt,
    ) -> Result<(), StoreError> {
        let limits: Vec<Limit> = keys.iter().map(|key| *key.limit()).collect();
        let Some(arguments) = refund_arguments(receipt, &limits) else {
            return Ok(());
        };
        let script = self.0.scripts.get(Task::Refund, &limits);
        let keys = stored_keys(keys, &self.0.prefix).into_vec();
        self.script(script, keys, arguments).await.map(|_| ())
    }

    /// Forgets keys. Says how many there were.
    pub(crate) async fn delete(&self, keys: Vec<String>) -> Result<usize, StoreError> {
        match self.run(Question::Delete(keys)).await? {
            Answer::Value(Value::Int(count)) => Ok(usize::try_from(count).unwrap_or(0)),
            _ => Err(StoreError::new(ErrorKind::Other, "DEL answers no number")),
        }
    }

    /// Has a script compiled and kept.
    pub(crate) async fn load(&self, script: &Arc<Script>) -> Result<(), StoreError> {
        let question = Question::Load(Arc::clone(script));
        self.run(question).await.map(|_| ())
    }

    /// What is wrong with how the server keeps its memory. Whoever may not ask, or has no
    /// answer within the deadline, does not know of anything. That is not an error, nor
    /// held against the store: no limit needs it.
    pub(crate) async fn eviction_warning(&self) -> Option<String> {
        if self.breaker(|breaker| breaker.is_open()) {
            return None;
        }
        let question = Arc::new(Question::Memory);
        let deadline = Instant::now() + self.0.timeout;
        let asked = self.attempt(self.lane(&question), &question, deadline);
        let Answer::Value(info) = asked.await.ok()? else {
            return None;
        };
        let info: String = redis::from_redis_value(info).ok()?;
        eviction::warning(&info)
    }

    /// Whether it was made of this URL and these options.
    pub(crate) fn is_made_of(&self, url: &str, options: &RedisOptions) -> bool {
        self.0.origin == origin(url, options)
    }

    /// Runs a script.
    pub(crate) async fn script(
        &self,
        script: Arc<Script>,
        keys: Vec<String>,
        arguments: Vec<Vec<u8>>,
    ) -> Result<Value, StoreError> {
        let question = Question::Script {
            script,
            keys,
            arguments,
        };
        match self.run(question).await? {
            Answer::Value(value) => Ok(value),
            Answer::Decision(_) => Err(StoreError::new(ErrorKind::Script, "no value")),
        }
    }

    pub(crate) fn prefix(&self) -> &str {
        &self.0.prefix
    }

    /// Puts a question, within the deadline, again where that is safe and may help; or
    /// not at all while the store keeps failing.
    async fn run(&self, question: Question) -> Result<Answer, StoreError> {
        let inner = &self.0;
        let now = inner.start.elapsed();
        let asked = match self.breaker(|breaker| breaker.ask(now)) {
            Permit::Go(asked) => asked,
            Permit::Wait(wait) => {
                let detail = format!("not asked for another {wait:?}");
                return Err(self.counted(StoreError::new(ErrorKind::BreakerOpen, detail)));
            }
        };
        let deadline = Instant::now() + inner.timeout;
        let lane = self.lane(&question);
        let question = Arc::new(question);
        let mut schedule = Schedule::default();
        let error = loop {
            let error = match self.attempt(lane, &question, deadline).await {
                Ok(answer) => {
                    self.answered(asked);
                    return Ok(answer);
                }
                Err(error) => error,
            };
            let left = deadline.saturating_duration_since(Instant::now());
            let pause = match error.kind().is_worth_retrying() {
                true => schedule.pause(left, self.jitter()),
                false => None,
            };
            let Some(pause) = pause else { break error };
            inner.retries.fetch_add(1, Relaxed);
            sleep(pause).await;
        };
        self.failed(asked, &error);
        let error = self.counted(error);
        Err(match error.kind() {
            ErrorKind::WrongType => error.about(question.keys()),
            _ => error,
        })
    }

    async fn attempt(
        &self,
        lane: &Lane,
        question: &Arc<Question>,
        deadline: Instant,
    ) -> Result<Answer, StoreError> {
        let answer = lane.ask(question)?;
        match timeout_at(deadline, answer).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => Err(StoreError::new(ErrorKind::Other, "the runtime is ending")),
            Err(_) => {
                let detail = format!("no answer within {:?}", self.0.timeout);
                Err(StoreError::new(ErrorKind::Timeout, detail))
            }
        }
    }

    /// Questions about one key share a lane, so that those alike can travel together.
    fn lane(&self, question: &Question) -> &Lane {
        let lanes = self.0.lanes.len() as u64;
        let index = self.0.random.hash_one(question.keys().last()) % lanes;
        &self.0.lanes[usize::try_from(index).unwrap_or(0)]
    }

    fn answered(&self, asked: Asked) {
        let change = self.breaker(|breaker| breaker.succeeded(asked));
        if change == Some(Change::Closed) && self.0.said_to_fail.swap(false, Relaxed) {
            tracing::info!(store = self.0.name, "the store answers again");
        }
    }

    fn failed(&self, asked: Asked, error: &StoreError) {
        let inner = &self.0;
        match error.kind() {
            // About ourselves: says nothing about the store.
            ErrorKind::QueueFull | ErrorKind::BreakerOpen => {}
            kind if kind.speaks_of_the_store() => {
                let failure = match kind {
                    ErrorKind::OutcomeUnknown => Failure::Lost,
                    ErrorKind::Timeout => Failure::Waited,
                    // What is asked again is asked until the deadline.
                    kind if kind.is_worth_retrying() => Failure::Waited,
                    _ => Failure::Answered,
                };
                let (now, jitter) = (inner.start.elapsed(), self.jitter());
                let change = self.breaker(|breaker| breaker.failed(asked, failure, now, jitter));
                if change == Some(Change::Opened) && inner.lines.check("open").allowed() {
                    inner.said_to_fail.store(true, Relaxed);
                    let name = &inner.name;
                    tracing::error!(store = name, error = %error.redacted(), "the store keeps failing and is not asked for a while: on_error decides");
                }
            }
            // It has answered, after all.
            _ => self.answered(asked),
        }
    }

    fn counted(&self, error: StoreError) -> StoreError {
        let inner = &self.0;
        let index = ErrorKind::ALL.iter().position(|kind| *kind == error.kind());
        if let Some(counter) = index.and_then(|index| inner.errors.get(index)) {
            counter.fetch_add(1, Relaxed);
        }
        if error.kind() != ErrorKind::BreakerOpen
            && inner.lines.check(error.kind().as_str()).allowed()
        {
            tracing::warn!(store = inner.name, error = %error.redacted(), "the store has not answered: on_error decides");
        }
        error
    }

    fn breaker<T>(&self, change: impl FnOnce(&mut Breaker) -> T) -> T {
        change(
            &mut self
                .0
                .breaker
                .lock()
                .expect("nothing panics under this lock"),
        )
    }

    /// A number from 0 to 1.
    fn jitter(&self) -> f64 {
        let random = RandomState::new().build_hasher().finish() >> 32;
        f64::from(u32::try_from(random).unwrap_or(0)) / f64::from(u32::MAX)
    }
}

/// What tells one store from another.
fn origin(url: &str, options: &RedisOptions) -> u64 {
    foldhash::fast::FixedState::default().hash_one((url, format!("{options:?}")))
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore")
            .field("name", &self.0.name)
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}
