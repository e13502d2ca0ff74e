//! The store: its servers, the deadline of a check, retries, statistics and log lines.

use std::collections::HashMap;
use std::fmt;
use std::hash::BuildHasher;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use foldhash::fast::FixedState;
use futures_util::future::join_all;
use redis::Value;
use tidegate::{Cost, Keys};
use tokio::time::{Instant, sleep};

use crate::batch::{Command, Reply};
use crate::breaker::{Change, Failure};
use crate::cluster::Cluster;
use crate::error::{ErrorKind, StoreError};
use crate::eviction;
use crate::lane::{Counters, LaneOptions};
use crate::lock::lock;
use crate::options::RedisOptions;
use crate::outage::Fallbacks;
use crate::retry::Schedule;
use crate::script::{Script, Scripts, Task, Time};
use crate::server::{Permit, Server, jitter};

/// The shortest deadline of a probe. No caller waits for it, and a host that stalls for a
/// moment does not mean that the store failed.
const PROBE: Duration = Duration::from_secs(1);

/// What a probe asks a server to do: what every check needs, on a key that nobody else has.
const PROBE_SCRIPT: &str = "return redis.call('SET', KEYS[1], '', 'PX', 1)";

/// The pause between two lines of the log about errors of one kind.
const BETWEEN_LINES: Duration = Duration::from_secs(10);

/// How often a check may be redirected to another server before it pauses.
const REDIRECTIONS: u32 = 8;

/// A Redis or Valkey server that keeps counters for many machines.
///
/// Making one does not connect, so it succeeds even if the server is down. Clones are
/// handles to the same connections.
#[derive(Clone)]
pub struct RedisStore(pub(crate) Arc<Inner>);

pub(crate) struct Inner {
    name: String,
    /// What it was made of, hashed: it may hold a password.
    origin: u64,
    pub(crate) prefix: String,
    /// The deadline of a check.
    pub(crate) timeout: Duration,
    pub(crate) cluster: Cluster,
    pub(crate) scripts: Scripts,
    probe: Arc<Script>,
    counters: Arc<Counters>,
    errors: [AtomicU64; ErrorKind::ALL.len()],
    retries: AtomicU64,
    /// When each kind of line was last logged.
    lines: Mutex<HashMap<&'static str, Instant>>,
    /// Whether the last call was answered.
    up: AtomicBool,
    /// What policies do without an answer, for the log.
    pub(crate) fallbacks: Fallbacks,
}

/// Statistics of a store.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RedisStats {
    /// Whether the last call was answered, even with an error; true before the first call.
    pub up: bool,
    /// Whether the breaker is open: the store kept failing and is not asked.
    pub breaker_open: bool,
    /// Requests to the store: checks, peeks, refunds, resets.
    pub questions: u64,
    /// Commands sent for them: fewer, because checks share commands.
    pub commands: u64,
    /// Writes to connections for these commands.
    pub batches: u64,
    /// Retried requests.
    pub retries: u64,
    /// Failed requests, by kind.
    pub errors: Vec<(ErrorKind, u64)>,
    /// How long a server took to answer the last batch that it got while it was idle, the
    /// network included; `None` before the first answer.
    pub round_trip: Option<Duration>,
}

impl RedisStore {
    /// A store at `redis://` or `rediss://`, with user, password and database from the URL;
    /// or behind sentinels, `redis-sentinel://h1:p1,h2:p2/master`; or on a cluster,
    /// `redis-cluster://h1:p1,h2:p2`. Connections speak RESP2, or what the URL asks for.
    ///
    /// Fails if the URL names no server, or if the prefix is invalid.
    pub fn new(url: &str, options: RedisOptions) -> Result<Self, StoreError> {
        // The client needs a provider of cryptography for TLS and panics without one. One
        // that the program has already installed stays.
        drop(rustls::crypto::ring::default_provider().install_default());
        if !is_prefix(&options.prefix) {
            let (name, prefix) = (&options.name, &options.prefix);
            let detail = format!(
                "the prefix of store {name:?} is {prefix:?}: expected 1 to 64 of the characters A-Z a-z 0-9 . _ : -"
            );
            return Err(StoreError::new(ErrorKind::Other, detail));
        }
        let origin = FixedState::default().hash_one((url, &options));
        let counters = Arc::new(Counters::default());
        let lanes = LaneOptions {
            connections: options.connections,
            replica_acks: options.replica_acks,
            timeout: options.timeout,
            is_cluster: false,
            counters: Arc::clone(&counters),
        };
        let cluster = Cluster::new(url, options.credentials, lanes);
        // The client's own message may repeat the URL, and with it a password.
        let cluster = cluster.map_err(|error| {
            let detail = format!("the URL of store {:?}: {:?}", options.name, error.kind());
            StoreError::new(ErrorKind::Other, detail)
        })?;
        Ok(Self(Arc::new(Inner {
            name: options.name,
            origin,
            prefix: options.prefix,
            timeout: options.timeout,
            cluster,
            scripts: Scripts::new(Time::Server),
            probe: Arc::new(Script::new(PROBE_SCRIPT.into())),
            counters,
            errors: [const { AtomicU64::new(0) }; ErrorKind::ALL.len()],
            retries: AtomicU64::new(0),
            lines: Mutex::default(),
            up: AtomicBool::new(true),
            fallbacks: Fallbacks::default(),
        })))
    }

    /// Its name in log lines.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Its statistics.
    #[must_use]
    pub fn stats(&self) -> RedisStats {
        let inner = &self.0;
        let count = |counter: &AtomicU64| counter.load(Relaxed);
        let errors = ErrorKind::ALL.into_iter().zip(&inner.errors);
        let servers = inner.cluster.servers();
        let round_trip_us = count(&inner.counters.round_trip_us);
        RedisStats {
            up: inner.up.load(Relaxed),
            breaker_open: servers.iter().any(|server| server.is_open()),
            questions: count(&inner.counters.questions),
            commands: count(&inner.counters.commands),
            batches: count(&inner.counters.batches),
            retries: count(&inner.retries),
            errors: errors.map(|(kind, errors)| (kind, count(errors))).collect(),
            round_trip: (round_trip_us > 0).then(|| Duration::from_micros(round_trip_us)),
        }
    }

    /// How long until a failing store is asked again.
    #[must_use]
    pub fn next_probe(&self) -> Duration {
        let servers = self.0.cluster.servers().into_iter();
        let waits = servers.map(|server| server.next_probe());
        let waits = waits.filter(|wait| !wait.is_zero());
        waits.min().unwrap_or_default()
    }

    /// Asks every server whether it can still count, by writing a key that nobody reads.
    /// What comes of it is in [`stats`](Self::stats) and the log, as of any question: for
    /// stores that nobody asks. A server that is left alone for a while is not asked.
    pub async fn probe(&self) {
        let permits = self.permits_to_ask_each().await;
        // All at once, each with its own deadline: a silent one does not use up the others'.
        join_all(permits.map(|permit| self.probe_server(permit, None))).await;
    }

    /// How long a server may take where no check waits for it.
    fn patience(&self) -> Duration {
        self.0.timeout.max(PROBE)
    }

    /// A permit for each server, but for those that are left alone.
    async fn permits_to_ask_each(&self) -> impl Iterator<Item = Permit> {
        let cluster = &self.0.cluster;
        // Waits until it is known which servers there are.
        drop(cluster.server(None, Instant::now() + self.patience()).await);
        let servers = cluster.servers().into_iter();
        servers.filter_map(|server| {
            let mut permit = server.permit().ok()?;
            permit.is_patient = true;
            Some(permit)
        })
    }

    /// Probes a server, with a key of its own where one is known.
    async fn probe_server(&self, mut permit: Permit, key: Option<String>) {
        let inner = &self.0;
        let tagged = key.as_ref().and_then(|key| key.split_once("}:"));
        let keys = vec![match tagged {
            Some((tagged, _)) => format!("{tagged}}}:probe"),
            None => format!("{}:{{probe}}:probe", inner.prefix),
        }];
        let script = Arc::clone(&inner.probe);
        let command = Arc::new(Command::script(script, keys, Vec::new()));
        let start = Instant::now();
        let deadline = start + self.patience();
        match permit.attempt(&command, false, deadline).await {
            // Of a key that another server has, it says so.
            Err(error) if error.kind() != ErrorKind::Moved => {
                inner.cluster.doubt(error.kind());
                let server = Arc::clone(&permit.server);
                self.unanswered(&server, Some(&mut permit), &error, start, false);
            }
            _ => self.answered(&mut permit),
        }
    }

    /// A permit to ask a server. While its breaker is open there is none, and when it is time
    /// for a probe, this sends one that nobody waits for.
    fn permit(&self, server: &Arc<Server>, key: Option<&str>) -> Result<Permit, StoreError> {
        let permit = server.permit()?;
        if !permit.is_probe {
            return Ok(permit);
        }
        let (store, key) = (self.clone(), key.map(str::to_owned));
        tokio::spawn(async move { store.probe_server(permit, key).await });
        Err(server.not_asked())
    }

    /// Forgets keys. Returns how many existed.
    pub(crate) async fn delete(&self, keys: Vec<String>) -> Result<usize, StoreError> {
        match self.run(Command::delete(keys)).await? {
            Value::Int(count) => Ok(usize::try_from(count).unwrap_or(0)),
            _ => Err(StoreError::new(ErrorKind::Other, "DEL returned no number")),
        }
    }

    /// What is wrong with the server's memory settings. Without permission to ask, or without
    /// an answer within the deadline, there is no warning. That is not an error and does not
    /// count against the store, because no limit depends on it.
    pub(crate) async fn eviction_warning(&self) -> Option<String> {
        let command = &Arc::new(Command::words(&["INFO", "memory"]));
        let permits = self.permits_to_ask_each().await;
        let permits = permits.filter(|permit| !permit.is_probe);
        let warnings = join_all(permits.map(|mut permit| async move {
            let deadline = Instant::now() + self.patience();
            let answer = permit.attempt(command, false, deadline).await;
            let error = answer.as_ref().err().map(StoreError::kind);
            self.heard(!error.is_some_and(ErrorKind::speaks_of_the_store));
            let info: Option<String> = redis::from_redis_value(answer.ok()?.value).ok();
            eviction::warning(&info?)
        }));
        warnings.await.into_iter().flatten().next()
    }

    /// What is wrong with the distance to the servers, if any has answered yet. One long
    /// round trip may be a machine that stalls, so it is measured again.
    pub(crate) async fn distance_warning(&self) -> Option<String> {
        let mut round_trip = self.stats().round_trip?;
        for _ in 0..2 {
            if round_trip > self.0.timeout / 2 {
                self.probe().await;
                round_trip = round_trip.min(self.stats().round_trip?);
            }
        }
        let [round_trip_ms, timeout_ms] = [round_trip, self.0.timeout].map(|it| it.as_millis());
        (round_trip > self.0.timeout / 2).then(|| {
            format!(
                "a round trip takes {round_trip_ms} ms, over half of the timeout of {timeout_ms} ms: on_error decides the checks that take longer; expected a nearer server or a longer timeout"
            )
        })
    }

    /// Whether it was made of this URL and these options.
    pub(crate) fn is_made_of(&self, url: &str, options: &RedisOptions) -> bool {
        self.0.origin == FixedState::default().hash_one((url, options))
    }

    /// Runs a script.
    pub(crate) async fn script(
        &self,
        script: Arc<Script>,
        keys: Vec<String>,
        arguments: Vec<Vec<u8>>,
    ) -> Result<Value, StoreError> {
        self.run(Command::script(script, keys, arguments)).await
    }

    /// Takes a cost off the counts of fixed windows, down to zero.
    pub(crate) async fn give_back(&self, keys: &Keys<'_>, cost: Cost) -> Result<(), StoreError> {
        for key in keys.iter() {
            let limit = key.limit();
            if !limit.algorithm().profile().gives_back {
                continue;
            }
            let mut argument = Vec::new();
            limit.write_limit(cost, &mut argument);
            limit.write_give_back(cost, &mut argument);
            let script = self.0.scripts.get(Task::Flush, [limit]);
            let (key, within) = (key.stored(&self.0.prefix), self.0.timeout);
            self.message(&script, key, argument, within, true).await?;
        }
        Ok(())
    }

    /// Sends a message about a key, which does not wait for replicas. Returns the bytes of the
    /// reply. `is_retried` says whether it is tried again where that is safe and may help; a
    /// node that counts for itself sends again what did not arrive.
    pub(crate) async fn message(
        &self,
        script: &Arc<Script>,
        key: String,
        argument: Vec<u8>,
        within: Duration,
        is_retried: bool,
    ) -> Result<Vec<u8>, StoreError> {
        let command = Command::message(script, key, argument);
        let bytes = |reply: Reply| Ok(reply.bytes().ok_or_else(not_ours)?.to_vec());
        self.ask(command, within, is_retried, bytes).await
    }

    /// Sends a command, within the deadline, again where that is safe and may help.
    pub(crate) async fn run(&self, command: Command) -> Result<Value, StoreError> {
        let value = |reply: Reply| Ok(reply.value);
        self.ask(command, self.0.timeout, true, value).await
    }

    /// Sends a command within this time, again where that is safe and may help, unless it is
    /// not to be retried; or not at all while the server for it keeps failing. Reads the reply.
    pub(crate) async fn ask<T>(
        &self,
        command: Command,
        within: Duration,
        is_retried: bool,
        read: impl Fn(Reply) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let command = &Arc::new(command);
        let start = Instant::now();
        let deadline = start + within;
        let mut schedule = Schedule::default();
        // Why the attempt before this one failed.
        let mut earlier = None;
        let (cluster, is_check) = (&self.0.cluster, command.is_check);
        let key = command.keys.first().map(String::as_str);
        let mut redirections = 0;
        // Where the last answer led, and whether for keys on their way there.
        let mut next: Option<(Arc<Server>, bool)> = None;
        // A server that is asked again needs no second permit.
        let mut kept: Option<Permit> = None;
        loop {
            let (server, asking) = match next.take() {
                Some(next) => next,
                None => (cluster.server(key, deadline).await, false),
            };
            let kept_permit = kept.take().filter(|it| Arc::ptr_eq(&it.server, &server));
            let permit = kept_permit.map_or_else(|| self.permit(&server, key), Ok);
            let mut permit = permit.inspect_err(|error| {
                cluster.doubt(error.kind());
                self.unanswered(&server, None, error, start, is_check);
            })?;
            // Counts of this node that are given up too early may be counted twice.
            permit.is_patient = !is_retried;
            let answer = permit.attempt(command, asking, deadline).await;
            let error = match answer.and_then(&read) {
                Ok(answer) => {
                    self.answered(&mut permit);
                    return Ok(answer);
                }
                Err(error) => error,
            };
            if redirections < REDIRECTIONS
                && let Some(elsewhere) = cluster.redirected(&error, &server)
            {
                // It did not run here, and this server is well: ask the other one at once.
                self.answered(&mut permit);
                redirections += 1;
                next = Some(elsewhere);
                continue;
            }
            cluster.doubt(error.kind());
            let left = deadline.saturating_duration_since(Instant::now());
            let may_help = is_retried && error.kind().is_worth_retrying();
            let pause = may_help.then(|| schedule.pause(left, jitter())).flatten();
            let paused = match pause {
                Some(pause) => permit.within(deadline, sleep(pause)).await,
                None => None,
            };
            if paused.is_none() {
                let error = error.after(earlier);
                self.unanswered(&server, Some(&mut permit), &error, start, is_check);
                return Err(match error.kind() {
                    ErrorKind::WrongType => error.about(&command.keys),
                    _ => error,
                });
            }
            earlier = Some(error);
            self.0.retries.fetch_add(1, Relaxed);
            redirections = 0;
            kept = Some(permit);
        }
    }

    /// Whether the last call was answered.
    fn heard(&self, up: bool) {
        // Nearly always unchanged: without a write, readers keep their cache line.
        if self.0.up.load(Relaxed) != up {
            self.0.up.store(up, Relaxed);
        }
    }

    /// Whether a line of this kind may be logged: there are a few per minute of each.
    fn may_log(&self, kind: &'static str) -> bool {
        let now = Instant::now();
        let mut lines = lock(&self.0.lines);
        let last = lines.get(kind);
        let is_time = last.is_none_or(|last| now.duration_since(*last) >= BETWEEN_LINES);
        if is_time {
            lines.insert(kind, now);
        }
        is_time
    }

    fn answered(&self, permit: &mut Permit) {
        self.heard(true);
        permit.answered();
        let (inner, server) = (&self.0, &permit.server);
        let over = server.outage.answered(|| server.is_open());
        if let Some(over) = over
            && (over.is_long || self.may_log("again"))
        {
            tracing::info!(
                store = inner.name,
                server = server.address,
                outage = format_args!("{:.1} s", over.lasted.as_secs_f64()),
                checks_without_it = over.checks,
                "the store answers again"
            );
        }
    }

    /// Counts a question without an answer, and says so in the log.
    fn unanswered(
        &self,
        server: &Server,
        permit: Option<&mut Permit>,
        error: &StoreError,
        asked: Instant,
        is_check: bool,
    ) {
        let inner = &self.0;
        let kind = error.kind();
        inner.errors[kind as usize].fetch_add(1, Relaxed);
        if kind.is_about_a_key() || kind == ErrorKind::QueueFull {
            // The server has answered, after all.
            if let Some(permit) = permit.filter(|_| kind.is_about_a_key()) {
                self.answered(permit);
            }
            if self.may_log(kind.as_str()) {
                tracing::warn!(
                    store = inner.name,
                    server = server.address,
                    cause = %error.redacted(),
                    "the store cannot decide a check: on_error decides it"
                );
            }
            return;
        }
        macro_rules! log {
            ($level:ident, $what:expr) => {
                tracing::$level!(
                    store = inner.name,
                    server = server.address,
                    cause = %error.redacted(),
                    policies = %inner.fallbacks,
                    "{}", $what
                )
            };
        }
        server.outage.failed(asked, is_check);
        let opened = permit.is_some_and(|permit| self.failed(permit, kind));
        if kind != ErrorKind::BreakerOpen && self.may_log(kind.as_str()) {
            server.outage.said(false);
            match kind {
                ErrorKind::Auth => log!(warn, "the store refused the password: on_error decides"),
                _ => log!(warn, "the store does not answer: on_error decides"),
            }
        }
        if opened && self.may_log("open") {
            server.outage.said(true);
            let what = "the store keeps failing: checks do not wait for it until a probe succeeds";
            log!(error, what);
        }
    }

    /// A check of this key that waited for a message of others has no answer.
    pub(crate) async fn check_unanswered(&self, key: &str, asked: Instant) {
        let server = self.0.cluster.server(Some(key), Instant::now()).await;
        server.outage.failed(asked, true);
    }

    /// Tells the breaker. Whether it has opened.
    fn failed(&self, permit: &mut Permit, kind: ErrorKind) -> bool {
        if !kind.speaks_of_the_store() || permit.is_our_fault {
            // About ourselves: says nothing about the store, and a probe was not put.
            return false;
        }
        self.heard(false);
        let failure = match kind {
            ErrorKind::OutcomeUnknown => Failure::Lost,
            ErrorKind::Timeout => Failure::Waited,
            // What is asked again is asked until the deadline.
            kind if kind.is_worth_retrying() => Failure::Waited,
            _ => Failure::Answered,
        };
        permit.failed(failure) == Some(Change::Opened)
    }
}

/// What no script of ours answers.
pub(crate) fn not_ours() -> StoreError {
    StoreError::new(ErrorKind::Script, "not a reply of the script")
}

/// Whether keys can begin like this. A hash tag begins with a brace: one before it would
/// put the keys of a check into different slots.
fn is_prefix(text: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"._:-".contains(&byte);
    (1..=64).contains(&text.len()) && text.bytes().all(is_part)
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore")
            .field("name", &self.0.name)
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefix_that_breaks_slots_is_refused() {
        for prefix in ["", "{}", "a{b}", "a b", "ü", "a\nb", &"a".repeat(65)] {
            let options = RedisOptions::default().prefix(prefix);
            let made = RedisStore::new("redis://127.0.0.1/", options);
            let error = made.expect_err("a bad prefix").to_string();
            assert!(error.contains(&format!("{prefix:?}")), "{error}");
        }
        for prefix in ["tg", "shop:eu-1", "a.b_c", &"a".repeat(64)] {
            let options = RedisOptions::default().prefix(prefix);
            RedisStore::new("redis://127.0.0.1/", options).expect("a good prefix");
        }
    }
}
