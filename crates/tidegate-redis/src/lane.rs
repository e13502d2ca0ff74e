//! A lane: one connection and its queue.
//!
//! All requests that are queued when the lane is ready are sent in one batch, as one write.
//! A lane that is idle sends at once. While a batch is in flight, the next one leaves when
//! it fills a call, when the answers arrive, or after a millisecond. So a busy lane sends
//! larger batches instead of more of them, which costs the server less, and late replies
//! hold up no batch.
//!
//! The lane's task drives the connection and its batches, so a check wakes no other task. A
//! batch answers every caller as soon as its reply is there: a connection that is lost
//! afterwards makes no answer unknown that has arrived.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt, MaybeDone, maybe_done, poll_immediate};
use redis::aio::MultiplexedConnection;
use redis::{RedisError, RedisResult, Value};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::task::unconstrained;
use tokio::time::{Instant, Sleep, sleep_until};

use crate::batch::{Call, Command, PARTS, Reply, Request, Retry, calls};
use crate::connect::{Connection, Connector, SILENCE};
use crate::error::{ErrorKind, StoreError};
use crate::lock::lock;

/// Requests that may wait for a lane, and checks that may wait for a leased key.
pub(crate) const QUEUE: usize = 8_192;

/// Requests of one batch.
pub(crate) const BATCH: usize = 512;

/// Batches of one lane in flight at once: while one is being answered, the next is being
/// written.
pub(crate) const IN_FLIGHT: usize = 3;

/// How long a batch may wait for more requests while another one is in flight. Within a
/// data center the answers arrive sooner.
const HOLD: Duration = Duration::from_millis(1);

/// How the connections of a server are made, and how many of them there are.
#[derive(Clone)]
pub(crate) struct LaneOptions {
    pub(crate) connections: usize,
    /// How many replicas must have a charge, and how long to wait for them.
    pub(crate) replica_acks: u32,
    pub(crate) timeout: Duration,
    /// Whether the keys of a call must be in one slot.
    pub(crate) is_cluster: bool,
    pub(crate) counters: Arc<Counters>,
}

/// How much was asked, and how much of that was sent.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) questions: AtomicU64,
    pub(crate) commands: AtomicU64,
    pub(crate) batches: AtomicU64,
    /// How long the last batch on an idle connection took; 0 before the first.
    pub(crate) round_trip_us: AtomicU64,
}

/// One connection to a server, made when it is first needed.
pub(crate) struct Lane {
    /// To the task, once there is one. Its end of the queue goes with it.
    queue: Mutex<Option<mpsc::Sender<Request>>>,
    shared: Arc<Shared>,
}

/// What a lane, its task and its batches share.
struct Shared {
    connector: Connector,
    options: LaneOptions,
    /// The queue has enough requests for a call.
    is_full: Notify,
    start: Instant,
    /// When the server last answered, in microseconds since the start.
    heard_us: AtomicU64,
    /// Whether the connection is given up because the server says nothing.
    is_silent: AtomicBool,
}

pub(crate) fn queue_full() -> StoreError {
    let detail = format!("{QUEUE} checks are already waiting");
    StoreError::new(ErrorKind::QueueFull, detail)
}

impl Lane {
    pub(crate) fn new(connector: Connector, options: &LaneOptions) -> Self {
        Self {
            queue: Mutex::default(),
            shared: Arc::new(Shared {
                connector,
                options: options.clone(),
                is_full: Notify::new(),
                start: Instant::now(),
                heard_us: AtomicU64::new(0),
                is_silent: AtomicBool::new(false),
            }),
        }
    }

    /// Puts a command into the queue. The reply arrives later.
    pub(crate) fn send(
        &self,
        command: &Arc<Command>,
        asking: bool,
        deadline: Instant,
    ) -> Result<oneshot::Receiver<Result<Reply, StoreError>>, StoreError> {
        let (reply, answer) = oneshot::channel();
        *lock(&command.sent) = None;
        let request = Request {
            command: Arc::clone(command),
            asking,
            deadline,
            is_alone: false,
            reply,
        };
        let mut queue = lock(&self.queue);
        // The first request, or the runtime that the task was started on has ended. A caller
        // without a runtime panics here, before anything is changed.
        let mut task = None;
        let is_running = queue.as_ref().is_some_and(|queue| !queue.is_closed());
        if !is_running {
            let (sender, requests) = mpsc::channel(QUEUE);
            task = Some(Task::new(&self.shared, requests));
            *queue = Some(sender);
        }
        let sent = queue.as_ref().map(|queue| {
            let sent = queue.try_send(request);
            let waiting = queue.max_capacity() - queue.capacity();
            (sent, waiting)
        });
        drop(queue);
        // Not under the lock: a runtime that is shutting down drops the task at once.
        if let Some(task) = task {
            tokio::spawn(task.run());
        }
        match sent {
            Some((Err(TrySendError::Full(_)), _)) => return Err(queue_full()),
            Some((_, waiting)) if waiting >= PARTS => self.shared.is_full.notify_one(),
            _ => {}
        }
        Ok(answer)
    }

    /// How long a command that was put into the queue at `start` has waited behind others,
    /// while the server answered them. `None` if the server has been silent since.
    pub(crate) fn queued(&self, command: &Command, start: Instant) -> Option<Duration> {
        (self.shared.heard() > start).then(|| {
            let left = lock(&command.sent).unwrap_or_else(Instant::now);
            left.saturating_duration_since(start)
        })
    }
}

impl Shared {
    /// When the server last answered.
    fn heard(&self) -> Instant {
        self.start + Duration::from_micros(self.heard_us.load(Relaxed))
    }

    /// The server has answered, to a batch that was sent to an idle connection at this time.
    fn hear(&self, sent: Option<Instant>) {
        let now = Instant::now();
        let us = |since| u64::try_from(now.duration_since(since).as_micros()).unwrap_or(u64::MAX);
        self.heard_us.store(us(self.start), Relaxed);
        if let Some(sent) = sent {
            let round_trip_us = &self.options.counters.round_trip_us;
            round_trip_us.store(us(sent).max(1), Relaxed);
        }
    }

    /// Requests as few calls.
    fn calls(&self, requests: impl IntoIterator<Item = Request>, by_name: bool) -> Vec<Call> {
        let calls = calls(requests, self.options.is_cluster, by_name);
        let commands = &self.options.counters.commands;
        commands.fetch_add(calls.len() as u64, Relaxed);
        calls
    }

    /// What becomes of a call that did not run.
    fn again(&self, call: Call, retry: &Retry) -> Vec<Call> {
        let now = Instant::now();
        let again = call.again(retry).filter(|it| it.is_wanted(now));
        self.calls(again, !matches!(retry, Retry::ByText))
    }

    /// The error of what was on its way when the connection was lost: it may have run.
    fn lost(&self, error: &RedisError) -> StoreError {
        let detail = match self.is_silent.load(Relaxed) {
            true => "the server stopped answering".into(),
            false => format!("the connection was lost: {error}"),
        };
        StoreError::new(ErrorKind::OutcomeUnknown, detail)
    }
}

/// A connection, and the batches that are on their way on it.
struct Link {
    connection: Connection,
    /// No more is sent on it: another one may lead to a master.
    is_left: bool,
    /// When a batch was last sent.
    sent: Instant,
    /// Each says at its end whether the server is a replica.
    batches: Vec<BoxFuture<'static, bool>>,
}

/// What the task of a lane needs.
struct Task {
    shared: Arc<Shared>,
    queue: mpsc::Receiver<Request>,
    /// Requests out of the queue that are about to be sent.
    requests: Vec<Request>,
    link: Option<Link>,
    /// When a connection that says nothing is given up.
    silence: Pin<Box<Sleep>>,
    /// Until when the next batch waits for more requests, unless it need not.
    hold: Pin<Box<Sleep>>,
}

impl Task {
    fn new(shared: &Arc<Shared>, queue: mpsc::Receiver<Request>) -> Self {
        Self {
            shared: Arc::clone(shared),
            queue,
            requests: Vec::new(),
            link: None,
            silence: Box::pin(sleep_until(Instant::now() + SILENCE)),
            hold: Box::pin(sleep_until(Instant::now())),
        }
    }

    /// Sends what waits, batch by batch, until nobody can ask any more.
    async fn run(mut self) {
        loop {
            let in_flight = self.in_flight();
            // Nobody can ask any more.
            let is_over = self.queue.is_closed() && self.queue.is_empty();
            if is_over && self.requests.is_empty() && in_flight == 0 {
                return;
            }
            // WAIT holds up whatever comes after it on the connection.
            let most = match self.shared.options.replica_acks {
                0 => IN_FLIGHT,
                _ => 1,
            };
            let has_room = in_flight < most;
            if has_room && !self.requests.is_empty() {
                // They were left when the connection turned out to lead elsewhere.
                self.send().await;
                continue;
            }
            let has_room = has_room && !is_over;
            let is_short = in_flight > 0 && self.queue.len() < PARTS;
            let is_held = is_short && !self.hold.is_elapsed();
            tokio::select! {
                biased;
                is_alive = poll_fn(|context| match &mut self.link {
                    Some(link) => link.poll(context),
                    None => Poll::Pending,
                }) => if !is_alive {
                    self.lose().await;
                },
                _ = self.queue.recv_many(&mut self.requests, BATCH), if has_room && !is_held => {
                    self.send().await;
                }
                () = self.shared.is_full.notified(), if has_room && is_held => {}
                () = &mut self.hold, if has_room && is_held => {}
                () = &mut self.silence, if in_flight > 0 => self.look_for_silence().await,
            }
        }
    }

    /// How many batches are on their way; more than there can be, where no other may follow.
    fn in_flight(&self) -> usize {
        match &self.link {
            Some(link) if link.is_left && !link.batches.is_empty() => usize::MAX,
            Some(link) => link.batches.len(),
            None => 0,
        }
    }

    /// A connection with something on its way that has said nothing for a while is given up.
    async fn look_for_silence(&mut self) {
        let Some(link) = &self.link else {
            return;
        };
        // Later than the breaker opens: it counts deadlines anew on a new connection.
        let patience = SILENCE.max(2 * self.shared.options.timeout);
        let until = link.sent.max(self.shared.heard()) + patience;
        if Instant::now() < until {
            self.silence.as_mut().reset(until);
            return;
        }
        self.shared.is_silent.store(true, Relaxed);
        self.lose().await;
    }

    /// Sends the requests, over a connection that is made if need be.
    async fn send(&mut self) {
        if !self.is_connected().await {
            return;
        }
        // Not before: connecting takes time, and a caller that has given up meanwhile must
        // not be charged.
        let now = Instant::now();
        while self.requests.len() < BATCH
            && let Ok(request) = self.queue.try_recv()
        {
            self.requests.push(request);
        }
        for request in &self.requests {
            *lock(&request.command.sent) = Some(now);
        }
        self.requests.retain(|it| it.is_wanted(now));
        let counters = &self.shared.options.counters;
        let questions = self.requests.len() as u64;
        counters.questions.fetch_add(questions, Relaxed);
        if let Some(link) = &mut self.link
            && !self.requests.is_empty()
        {
            counters.batches.fetch_add(1, Relaxed);
            let batch = Batch {
                commands: link.connection.commands.clone(),
                shared: Arc::clone(&self.shared),
                timed: link.batches.is_empty().then_some(now),
            };
            let calls = self.shared.calls(self.requests.drain(..), true);
            link.batches.push(Box::pin(batch.run(calls)));
            link.sent = now;
            self.hold.as_mut().reset(now + HOLD);
        }
    }

    /// Makes a connection, unless there is a good one. If that fails, so do all requests.
    async fn is_connected(&mut self) -> bool {
        if let Some(link) = &mut self.link {
            link.is_left |= !self.shared.connector.leads_like(&link.connection);
            if !link.is_left {
                return true;
            }
            if !link.batches.is_empty() {
                // What is on its way is waited for.
                return false;
            }
        }
        match self.shared.connector.connect().await {
            Ok(connection) => {
                self.shared.is_silent.store(false, Relaxed);
                self.link = Some(Link {
                    connection,
                    is_left: false,
                    sent: Instant::now(),
                    batches: Vec::new(),
                });
            }
            Err(error) => {
                self.link = None;
                let error = StoreError::from_client(&error, false);
                let waiting = std::iter::from_fn(|| self.queue.try_recv().ok());
                for request in self.requests.drain(..).chain(waiting) {
                    drop(request.reply.send(Err(error.clone())));
                }
            }
        }
        self.link.is_some()
    }

    /// The connection is of no use any more. What was sent may have run.
    async fn lose(&mut self) {
        if let Some(link) = self.link.take() {
            // Without it, all that is on its way fails at once.
            drop(link.connection.driver);
            for batch in link.batches {
                batch.await;
            }
        }
    }
}

impl Link {
    /// Goes on with what is on its way. Ready when a batch is over, or the connection is lost:
    /// says whether it is still there.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<bool> {
        // The driver writes what batches send, and hands them what it reads.
        let is_over = self.poll_batches(context);
        if self.connection.driver.as_mut().poll(context).is_ready() {
            return Poll::Ready(false);
        }
        match self.poll_batches(context) || is_over {
            true => Poll::Ready(true),
            false => Poll::Pending,
        }
    }

    /// Whether one of them is over.
    fn poll_batches(&mut self, context: &mut Context<'_>) -> bool {
        let before = self.batches.len();
        self.batches.retain_mut(|batch| {
            let polled = batch.as_mut().poll(context);
            self.is_left |= polled == Poll::Ready(true);
            polled.is_pending()
        });
        self.batches.len() < before
    }
}

/// A call on its way. Replies arrive in the order of calls.
type CallReply = MaybeDone<BoxFuture<'static, (Call, RedisResult<Value>)>>;

/// What is sent together.
struct Batch {
    commands: MultiplexedConnection,
    shared: Arc<Shared>,
    /// When it was sent, if nothing was on its way before it.
    timed: Option<Instant>,
}

impl Batch {
    /// Sends calls, and again what did not run. Every caller is answered, but for those whose
    /// charges replicas must have: they wait for the others. Returns whether the server is a
    /// replica: it stays one, and another connection may lead to its successor.
    async fn run(mut self, calls: Vec<Call>) -> bool {
        let (mut is_replica, mut held) = (false, Vec::new());
        let needs_replicas = self.shared.options.replica_acks > 0;
        let mut sent = VecDeque::new();
        for call in calls {
            sent.push_back(self.send(call).await);
        }
        while let Some(mut next) = sent.pop_front() {
            (&mut next).await;
            let Some((call, reply)) = Pin::new(&mut next).take_output() else {
                continue;
            };
            if reply.is_ok() {
                self.shared.hear(self.timed.take());
            }
            let error = match reply {
                Ok(Value::ServerError(error)) => match call.retry(&error) {
                    Ok(retry) => {
                        for call in self.shared.again(call, &retry) {
                            sent.push_back(self.send(call).await);
                        }
                        continue;
                    }
                    Err(error) => error,
                },
                Ok(value) => {
                    call.answer(value, needs_replicas.then_some(&mut held));
                    continue;
                }
                Err(error) => self.shared.lost(&error),
            };
            is_replica |= matches!(error.kind(), ErrorKind::ReadOnly | ErrorKind::MasterDown);
            call.fail(&error);
        }
        // Not with the calls: a batch that has charged nothing waits for nobody.
        if !held.is_empty() {
            let missing = self.wait().await;
            for (reply, answer) in held {
                drop(reply.send(missing.clone().map_or(Ok(answer), Err)));
            }
        }
        is_replica
    }

    async fn send(&self, call: Call) -> CallReply {
        let mut sent = maybe_done(exchange(self.commands.clone(), call).boxed());
        // It leaves when it is first polled: also where tokio would have the task yield, which
        // it would after some sixty calls.
        unconstrained(poll_immediate(&mut sent)).await;
        sent
    }

    /// Waits until enough replicas have everything that the connection has written. What is
    /// wrong, if they do not. The connection does nothing else meanwhile, so the next batch
    /// waits for this one. Batches grow with it, and the server is not held up.
    async fn wait(&mut self) -> Option<StoreError> {
        let LaneOptions {
            replica_acks: expected,
            timeout,
            ..
        } = self.shared.options;
        // So that what is missing can still be told before the deadline. Zero would be for ever.
        let patience_ms = u64::try_from((timeout * 3 / 4).as_millis()).unwrap_or(u64::MAX);
        let mut wait = redis::cmd("WAIT");
        wait.arg(expected).arg(patience_ms.max(1));
        let replicas = match self.commands.send_packed_command(&wait).await {
            Ok(Value::Int(replicas)) => replicas,
            // Whatever else it is, such as a master that has become a replica meanwhile,
            // says that nobody knows of a replica.
            Ok(Value::ServerError(error)) => {
                let error = StoreError::from_server(&error);
                return Some(match error.kind() {
                    ErrorKind::NoPermission => error,
                    _ => StoreError::new(ErrorKind::NoReplicas, error.detail()),
                });
            }
            Ok(_) => 0,
            Err(error) => return Some(self.shared.lost(&error)),
        };
        self.shared.hear(None);
        (replicas < i64::from(expected)).then(|| {
            let detail = format!("{replicas} replicas have the charge: expected {expected}");
            StoreError::new(ErrorKind::NoReplicas, detail)
        })
    }
}

/// Sends a call, after ASKING where its keys are on their way to this server.
async fn exchange(mut commands: MultiplexedConnection, call: Call) -> (Call, RedisResult<Value>) {
    let command = call.command();
    if !call.is_asking() {
        let reply = commands.send_packed_command(&command).await;
        return (call, reply);
    }
    let mut both = redis::pipe();
    both.cmd("ASKING").add_command(command);
    let replies = commands.send_packed_commands(&both, 0, 2).await;
    let reply = replies.map(|replies| match <[Value; 2]>::try_from(replies) {
        // A user who may not say ASKING is sent back and forth: that is why.
        Ok([refusal @ Value::ServerError(_), Value::ServerError(_)]) => refusal,
        Ok([_, reply]) => reply,
        Err(_) => Value::Nil,
    });
    (call, reply)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connect::Direct;
    use crate::options::RedisOptions;
    use crate::store::RedisStore;
    use futures_util::future::join_all;
    use tidegate_testkit::certificates::Certificates;
    use tidegate_testkit::redis::Server;

    /// R1: what TLS has buffered is sent as soon as the server reads, not with the next batch.
    #[tokio::test]
    async fn r1_bytes_that_tls_has_buffered_are_sent_without_another_batch() {
        drop(rustls::crypto::ring::default_provider().install_default());
        let certificates = Certificates::make();
        let tls = certificates.redis("{port}") + " --port 0";
        let server = Server::start_with(&tls.split(' ').collect::<Vec<_>>());
        let url = format!("rediss://127.0.0.1:{}/", server.port());
        let options = RedisOptions::default();
        let options = options.certificates(Some(certificates.read("authority.crt")), None);
        let direct = Direct::new(&url, &options.credentials).expect("a valid URL");
        let connection = direct.connect(SILENCE).await.expect("a running server");
        tokio::spawn(connection.driver);
        server.signal("STOP");
        // More than fits between them, so that some of it stays in TLS.
        let mut set = redis::cmd("SET");
        set.arg("k").arg("v".repeat(16_000));
        let sent = (0..1_000).map(|_| {
            let (mut commands, set) = (connection.commands.clone(), set.clone());
            async move { commands.send_packed_command(&set).await }
        });
        let mut answers = tokio::spawn(join_all(sent));
        let early = tokio::time::timeout(Duration::from_millis(200), &mut answers).await;
        assert!(early.is_err(), "the server is stopped");
        server.signal("CONT");
        let answers = tokio::time::timeout(Duration::from_secs(20), answers).await;
        let answers = answers.expect("the end of the batch was not sent");
        let answers = answers.expect("nothing panics");
        assert!(answers.iter().all(|answer| *answer == Ok(Value::Okay)));
    }

    /// R2: a runtime that is shutting down drops a new task inside `spawn`, and the task locks
    /// the queue when it is dropped.
    #[test]
    fn r2_question_to_a_runtime_that_is_shutting_down_fails_at_once() {
        let options = RedisOptions::default().timeout(Duration::from_secs(20));
        let store = RedisStore::new("redis://127.0.0.1:1/", options).expect("a valid URL");
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime");
        let (sender, failed) = std::sync::mpsc::channel();
        let handle = runtime.handle().clone();
        runtime.spawn_blocking(move || {
            // Once new tasks end at once, it is shutting down.
            while !handle.spawn(std::future::pending::<()>()).is_finished() {
                std::thread::sleep(Duration::from_millis(1));
            }
            let asked = handle.block_on(store.delete(vec!["k".into()]));
            let kind = asked.map_err(|error| error.kind());
            sender.send(kind).expect("a test that waits");
        });
        std::thread::spawn(move || drop(runtime));
        let failed = failed.recv_timeout(Duration::from_secs(20));
        assert_eq!(failed, Ok(Err(ErrorKind::Other)));
    }
}
