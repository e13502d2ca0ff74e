//! A lane: one connection and its queue.
//!
//! All requests that are queued when the lane is ready are sent in one batch, as one write.
//! A lane that is idle sends at once. While a batch is in flight, the next one leaves when
//! it fills a call, when the answers arrive, or after a millisecond. So a busy lane sends
//! larger batches instead of more of them, which costs the server less, and late replies
//! hold up no batch.
//!
//! The lane's task owns the connection. It writes and reads in one place, and answers
//! every caller as soon as its reply is there: a connection that is lost afterwards makes
//! no answer unknown that has arrived.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use redis::{Cmd, Value};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::{Instant, Sleep, sleep_until};

use crate::acks::Acks;
use crate::batch::{Call, Command, Held, PARTS, Reply, Request, Retry, calls};
use crate::connect::{Connected, Connector, SILENCE};
use crate::error::{ErrorKind, StoreError};
use crate::wire;

/// Requests that may wait for a lane, and checks that may wait for a leased key.
pub(crate) const QUEUE: usize = 8_192;

/// Requests of one batch.
const BATCH: usize = 512;

/// Batches of one lane in flight at once: while one is being answered, the next is being
/// written.
const IN_FLIGHT: u64 = 3;

/// How long a batch may wait for more requests while another one is in flight. Within a
/// data center the answers arrive sooner.
const HOLD: Duration = Duration::from_millis(1);

/// What the buffer of replies begins with, and the most that an idle lane keeps of it.
const BUFFER: usize = 16 << 10;
const KEPT_BUFFER: usize = 1 << 20;

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
    connector: Connector,
    options: LaneOptions,
    /// To the task, once there is one. Its end of the queue goes with it.
    queue: Mutex<Option<mpsc::Sender<Request>>>,
    signals: Arc<Signals>,
}

/// What a lane and its task tell each other.
struct Signals {
    /// The queue has enough requests for a call.
    is_full: Notify,
    start: Instant,
    /// When the server last answered, in microseconds since the start.
    heard_us: AtomicU64,
}

pub(crate) fn queue_full() -> StoreError {
    let detail = format!("{QUEUE} checks are already waiting");
    StoreError::new(ErrorKind::QueueFull, detail)
}

impl Lane {
    pub(crate) fn new(connector: Connector, options: &LaneOptions) -> Self {
        Self {
            connector,
            options: options.clone(),
            queue: Mutex::default(),
            signals: Arc::new(Signals {
                is_full: Notify::new(),
                start: Instant::now(),
                heard_us: AtomicU64::new(0),
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
        command.queue();
        let request = Request {
            command: Arc::clone(command),
            asking,
            deadline,
            is_alone: false,
            reply,
        };
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        // The first request, or the runtime that the task was started on has ended. A caller
        // without a runtime panics here, before anything is changed.
        let mut task = None;
        let is_running = queue.as_ref().is_some_and(|queue| !queue.is_closed());
        if !is_running {
            let (sender, requests) = mpsc::channel(QUEUE);
            task = Some(Task::new(self, requests));
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
            Some((_, waiting)) if waiting >= PARTS => self.signals.is_full.notify_one(),
            _ => {}
        }
        Ok(answer)
    }

    /// How long a command that was put into the queue at `start` has waited behind others,
    /// while the server answered them. `None` if the server has been silent since.
    pub(crate) fn queued(&self, command: &Command, start: Instant) -> Option<Duration> {
        let signals = &self.signals;
        let heard = signals.start + Duration::from_micros(signals.heard_us.load(Relaxed));
        (heard > start).then(|| {
            let left = command.sent().unwrap_or_else(Instant::now);
            left.saturating_duration_since(start)
        })
    }
}

/// A connection, what is on its way on it, and what has arrived.
struct Link {
    socket: crate::socket::Socket,
    /// Where it leads, if another one may lead elsewhere.
    server: Option<Arc<str>>,
    /// No more is sent on it: another one may lead to a master.
    is_left: bool,
    out: Vec<u8>,
    written: usize,
    /// Whether the socket may have kept some of what was written.
    is_unflushed: bool,
    /// Replies, up to `filled`; the rest is room for more.
    arrived: Vec<u8>,
    filled: usize,
    sent: VecDeque<Sent>,
    /// What was wrong with the last ASKING.
    refused: Option<StoreError>,
    /// Replies that wait until replicas have what they charged.
    held: Vec<Held>,
    batches: u64,
    /// When something was last sent or heard.
    active: Instant,
    /// When a batch was sent with nothing before it, until something is heard.
    timed: Option<Instant>,
}

/// A command on its way, and the number of its batch.
struct Sent {
    batch: u64,
    what: What,
}

enum What {
    /// The keys of the next command are on their way to this server.
    Asking,
    Call(Call),
    /// Replicas must have all that was sent before.
    Wait,
}

/// What the task of a lane needs.
struct Task {
    connector: Connector,
    options: LaneOptions,
    signals: Arc<Signals>,
    queue: mpsc::Receiver<Request>,
    /// Requests out of the queue that are about to be sent.
    requests: Vec<Request>,
    acks: Option<Acks>,
    link: Option<Link>,
    /// When a connection that says nothing is given up.
    silence: Pin<Box<Sleep>>,
    /// Until when the next batch waits for more requests, unless it need not.
    hold: Pin<Box<Sleep>>,
    is_held: bool,
    /// Nobody can ask any more.
    is_over: bool,
}

impl Task {
    fn new(lane: &Lane, queue: mpsc::Receiver<Request>) -> Self {
        Self {
            connector: lane.connector.clone(),
            acks: Acks::new(lane.options.replica_acks, lane.options.timeout),
            options: lane.options.clone(),
            signals: Arc::clone(&lane.signals),
            queue,
            requests: Vec::new(),
            link: None,
            silence: Box::pin(sleep_until(Instant::now() + SILENCE)),
            hold: Box::pin(sleep_until(Instant::now())),
            is_held: false,
            is_over: false,
        }
    }

    /// Sends what waits, batch by batch, until nobody can ask any more.
    async fn run(mut self) {
        loop {
            let in_flight = self.in_flight();
            if self.is_over && in_flight == 0 {
                return;
            }
            // WAIT holds up whatever comes after it on the connection.
            let most = if self.acks.is_some() { 1 } else { IN_FLIGHT };
            let has_room = in_flight < most;
            if has_room && !self.requests.is_empty() {
                // They were left when the connection turned out to lead elsewhere.
                self.send().await;
                continue;
            }
            let has_room = has_room && !self.is_over;
            let is_held = self.is_held && in_flight > 0 && self.queue.len() < PARTS;
            tokio::select! {
                biased;
                arrived = poll_fn(|context| match &mut self.link {
                    Some(link) => link.poll(context),
                    None => Poll::Pending,
                }) => match arrived {
                    Ok(()) => self.read(),
                    Err(error) => self.lose(&format!("the connection was lost: {error}")),
                },
                count = self.queue.recv_many(&mut self.requests, BATCH), if has_room && !is_held => {
                    self.is_over = count == 0;
                    self.send().await;
                }
                () = self.signals.is_full.notified(), if has_room && is_held => {}
                () = &mut self.hold, if has_room && is_held => self.is_held = false,
                () = &mut self.silence, if in_flight > 0 => self.look_for_silence(),
            }
        }
    }

    /// How many batches are on their way; more than there can be, where no other may follow.
    fn in_flight(&self) -> u64 {
        let oldest = self
            .link
            .as_ref()
            .and_then(|link| Some((link, link.sent.front()?)));
        oldest.map_or(0, |(link, oldest)| match link.is_left {
            true => u64::MAX,
            false => link.batches - oldest.batch + 1,
        })
    }

    /// A connection with something on its way that has said nothing for a while is given up.
    fn look_for_silence(&mut self) {
        let Some(link) = &self.link else {
            return;
        };
        // Later than the breaker opens: it counts deadlines anew on a new connection.
        let until = link.active + SILENCE.max(2 * self.options.timeout);
        match Instant::now() < until {
            true => self.silence.as_mut().reset(until),
            false => self.lose("the server stopped answering"),
        }
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
        self.requests.iter().for_each(|it| it.command.leave(now));
        self.requests.retain(|it| it.is_wanted(now));
        let counters = &self.options.counters;
        counters
            .questions
            .fetch_add(self.requests.len() as u64, Relaxed);
        if let Some(link) = &mut self.link
            && !self.requests.is_empty()
        {
            link.batches += 1;
            counters.batches.fetch_add(1, Relaxed);
            link.send(self.requests.drain(..), &self.options, true);
            self.hold.as_mut().reset(now + HOLD);
            self.is_held = true;
        }
    }

    /// Makes a connection, unless there is a good one. If that fails, so do all requests.
    async fn is_connected(&mut self) -> bool {
        if let Some(link) = &mut self.link {
            link.is_left |= !self.connector.leads_to(link.server.as_deref());
            if !link.is_left {
                return true;
            }
            if !link.sent.is_empty() {
                // What is on its way is waited for.
                return false;
            }
        }
        match self.connector.connect().await {
            Ok(connected) => self.link = Some(Link::new(connected)),
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

    /// Hands out what has arrived.
    fn read(&mut self) {
        let Some(link) = &mut self.link else {
            return;
        };
        let heard = link.active.duration_since(self.signals.start);
        let heard_us = u64::try_from(heard.as_micros()).unwrap_or(u64::MAX);
        self.signals.heard_us.store(heard_us, Relaxed);
        match link.read(&self.options, self.acks) {
            Ok(()) => {}
            Err(wrong) => self.lose(wrong),
        }
    }

    /// The connection is of no use any more. What was sent may have run.
    fn lose(&mut self, why: &str) {
        let Some(link) = self.link.take() else {
            return;
        };
        let error = StoreError::new(ErrorKind::OutcomeUnknown, why);
        for (reply, _) in link.held {
            drop(reply.send(Err(error.clone())));
        }
        for sent in link.sent {
            if let What::Call(call) = sent.what {
                call.fail(&error);
            }
        }
    }
}

impl Link {
    fn new((socket, server): Connected) -> Self {
        Self {
            socket,
            server,
            is_left: false,
            out: Vec::with_capacity(16 << 10),
            written: 0,
            is_unflushed: false,
            arrived: vec![0; BUFFER],
            filled: 0,
            sent: VecDeque::new(),
            refused: None,
            held: Vec::new(),
            batches: 0,
            active: Instant::now(),
            timed: None,
        }
    }

    /// Writes what there is to write. Ready when something has arrived.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        while self.written < self.out.len() {
            let socket = Pin::new(&mut self.socket);
            match socket.poll_write(context, &self.out[self.written..]) {
                Poll::Ready(Ok(0)) => {
                    return Poll::Ready(Err(std::io::ErrorKind::WriteZero.into()));
                }
                Poll::Ready(Ok(length)) => self.written += length,
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => break,
            }
            if self.written == self.out.len() {
                self.out.clear();
                self.written = 0;
                self.is_unflushed = true;
            }
        }
        // TLS may have kept some of it, and may not be able to send it yet.
        if self.is_unflushed {
            match Pin::new(&mut self.socket).poll_flush(context) {
                Poll::Ready(Ok(())) => self.is_unflushed = false,
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => {}
            }
        }
        if self.filled == self.arrived.len() {
            self.arrived.resize(2 * self.filled, 0);
        }
        let mut buffer = ReadBuf::new(&mut self.arrived[self.filled..]);
        match Pin::new(&mut self.socket).poll_read(context, &mut buffer) {
            Poll::Ready(Ok(())) if buffer.filled().is_empty() => {
                Poll::Ready(Err(std::io::ErrorKind::UnexpectedEof.into()))
            }
            Poll::Ready(Ok(())) => {
                self.filled += buffer.filled().len();
                self.active = Instant::now();
                Poll::Ready(Ok(()))
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending => Poll::Pending,
        }
    }

    /// Writes requests into the buffer as few commands, and remembers what their replies are
    /// for.
    fn send(
        &mut self,
        requests: impl IntoIterator<Item = Request>,
        options: &LaneOptions,
        by_name: bool,
    ) {
        self.active = Instant::now();
        if self.sent.is_empty() {
            self.timed = Some(self.active);
        }
        let calls = calls(requests, options.is_cluster, by_name);
        options
            .counters
            .commands
            .fetch_add(calls.len() as u64, Relaxed);
        for call in calls {
            if call.is_asking() {
                self.write(&redis::cmd("ASKING"), What::Asking);
            }
            self.write(&call.command(), What::Call(call));
        }
    }

    fn write(&mut self, command: &Cmd, what: What) {
        command.write_packed_command(&mut self.out);
        let batch = self.batches;
        self.sent.push_back(Sent { batch, what });
    }

    /// Takes replies out of what has arrived, and hands them out.
    fn read(&mut self, options: &LaneOptions, acks: Option<Acks>) -> Result<(), &'static str> {
        if let Some(sent) = self.timed.take() {
            let took_us = self.active.duration_since(sent).as_micros();
            let took_us = u64::try_from(took_us).unwrap_or(u64::MAX);
            let round_trip_us = &options.counters.round_trip_us;
            round_trip_us.store(took_us.max(1), Relaxed);
        }
        let mut at = 0;
        while at < self.filled {
            let reply = wire::reply(&self.arrived[at..self.filled]);
            let reply = reply.map_err(|_| "the server's reply is not valid RESP")?;
            let Some((value, length)) = reply else {
                break;
            };
            let sent = self.sent.pop_front();
            let sent = sent.ok_or("the server sent more replies than requested")?;
            self.answer(sent.what, value, options, acks);
            at += length;
        }
        self.arrived.copy_within(at..self.filled, 0);
        self.filled -= at;
        if self.filled == 0 && self.arrived.len() > KEPT_BUFFER {
            self.arrived = vec![0; BUFFER];
        }
        // Not with the batch: one that has charged nothing waits for nobody.
        if let Some(acks) = acks.filter(|_| self.sent.is_empty() && !self.held.is_empty()) {
            self.write(&acks.command(), What::Wait);
        }
        Ok(())
    }

    fn answer(&mut self, what: What, value: Value, options: &LaneOptions, acks: Option<Acks>) {
        let refused = self.refused.take();
        match (what, value) {
            (What::Asking, Value::ServerError(error)) => {
                self.refused = Some(StoreError::from_server(&error));
            }
            (What::Asking, _) => {}
            (What::Wait, value) => {
                let missing = acks.and_then(|acks| acks.missing(&value));
                for (reply, answer) in self.held.drain(..) {
                    let answer = missing.clone().map_or(Ok(answer), Err);
                    drop(reply.send(answer));
                }
            }
            (What::Call(call), Value::ServerError(error)) => match call.retry(&error) {
                Ok(retry) => {
                    let now = Instant::now();
                    let again = call.again(&retry).filter(|it| it.is_wanted(now));
                    self.send(again, options, !matches!(retry, Retry::ByText));
                }
                Err(error) => {
                    // It stays a replica; another connection may lead to its successor.
                    self.is_left |=
                        matches!(error.kind(), ErrorKind::ReadOnly | ErrorKind::MasterDown);
                    // A user who may not say ASKING is sent back and forth: that is why.
                    call.fail(&refused.unwrap_or(error));
                }
            },
            (What::Call(call), value) => {
                call.answer(value, acks.is_some().then_some(&mut self.held));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::RedisOptions;
    use crate::socket::Socket;
    use crate::store::RedisStore;
    use tidegate_testkit::certificates::Certificates;
    use tidegate_testkit::redis::Server;

    /// A connection over TLS, and its server.
    async fn over_tls() -> (Server, Link) {
        drop(rustls::crypto::ring::default_provider().install_default());
        let certificates = Certificates::make();
        let tls = certificates.redis("{port}") + " --port 0";
        let server = Server::start_with(&tls.split(' ').collect::<Vec<_>>());
        let url = format!("rediss://127.0.0.1:{}/", server.port());
        let options = RedisOptions::default();
        let options = options.certificates(Some(certificates.read("authority.crt")), None);
        let connector = Connector::direct(&url, &options.credentials).expect("a valid URL");
        let connected = connector.connect().await.expect("a running server");
        (server, Link::new(connected))
    }

    /// R1: what TLS has buffered is sent as soon as the server reads, not with the next batch.
    #[tokio::test]
    async fn r1_bytes_that_tls_has_buffered_are_sent_without_another_batch() {
        let (server, mut link) = over_tls().await;
        server.signal("STOP");
        let value = "v".repeat(16_000);
        let command = format!("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$16000\r\n{value}\r\n");
        let mut commands = 0;
        let keeps_some = |link: &Link| match &link.socket {
            Socket::Tls(stream) => stream.get_ref().1.wants_write(),
            Socket::Tcp(_) | Socket::Unix(_) => false,
        };
        // Until the socket takes no more, and TLS keeps the rest.
        while !keeps_some(&link) {
            commands += 1;
            link.out.extend_from_slice(command.as_bytes());
            let polled = poll_fn(|context| Poll::Ready(link.poll(context))).await;
            assert!(polled.is_pending(), "{polled:?}");
        }
        assert!(link.out.is_empty(), "TLS has taken the whole batch");
        server.signal("CONT");
        let answered = async {
            while link.filled < commands * "+OK\r\n".len() {
                let read = poll_fn(|context| link.poll(context)).await;
                read.expect("a running server");
            }
        };
        let answered = tokio::time::timeout(Duration::from_secs(20), answered).await;
        assert!(answered.is_ok(), "the end of the batch was not sent");
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
