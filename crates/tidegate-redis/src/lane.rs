//! A lane: one connection and its queue.
//!
//! All requests that are queued when the lane is ready are sent in one batch, as one write.
//! Identical checks in it are one check with several callers; checks by one script are one
//! call. A lane that is idle sends at once. While a batch is in flight, the next one leaves
//! when it fills a call, when the answers arrive, or after a millisecond. So a busy lane
//! sends larger batches instead of more of them, which costs the server less, and late
//! replies hold up no batch.
//!
//! The lane's task owns the connection. It writes and reads in one place, and answers
//! every caller as soon as its reply is there: a connection that is lost afterwards makes
//! no answer unknown that has arrived.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::oneshot;
use tokio::time::{Instant, Sleep, sleep_until};

use crate::acks::Acks;
use crate::connector::{Connected, Connector, SILENCE};
use crate::error::{ErrorKind, StoreError};
use crate::pending::CALL;
use crate::question::{Asked, Question};
use crate::sent::{Held, Sent, Writer};
use crate::server::Wiring;
use crate::wire::{self, Reply};

/// Questions that may wait for a lane, and checks that may wait for a leased key.
pub(crate) const QUEUE: usize = 8_192;

/// Questions of one batch.
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

/// Batches that a lane remembers the times of.
const REMEMBERED: usize = 256;

/// Where the answer to a question arrives.
type Answer<Q> = oneshot::Receiver<Result<<Q as Question>::Answer, StoreError>>;

/// A question that waits, and until when.
pub(crate) struct Request {
    pub(crate) asked: Asked,
    /// Whether its keys are on their way to this server.
    pub(crate) asking: bool,
    /// From then on nobody waits for it: it must not be sent.
    pub(crate) deadline: Instant,
    /// Whether it must have a call of its own.
    pub(crate) is_alone: bool,
}

impl Request {
    /// Whether its caller still waits. On a machine that was busy, callers whose deadline
    /// has passed may not know it yet.
    pub(crate) fn is_wanted(&self, now: Instant) -> bool {
        !self.asked.is_closed() && self.deadline > now
    }
}

/// How much was asked, and how much of that was sent.
#[derive(Debug, Default)]
pub(crate) struct Traffic {
    pub(crate) questions: AtomicU64,
    pub(crate) commands: AtomicU64,
    pub(crate) batches: AtomicU64,
    /// How long the last batch on an idle connection took; 0 before the first.
    pub(crate) round_trip_us: AtomicU64,
}

/// One connection to a server, made when it is first needed.
pub(crate) struct Lane {
    connector: Connector,
    wiring: Wiring,
    queue: Arc<Queue>,
}

/// The requests that wait.
#[derive(Default)]
struct Queue(Mutex<Waiting>);

#[derive(Default)]
struct Waiting {
    requests: VecDeque<Request>,
    /// Requests that have left the queue so far; those in it have the numbers that follow.
    left: u64,
    /// The number of the first request of each batch, and when that left: the last of them.
    batches: VecDeque<(u64, Instant)>,
    /// When the server last answered.
    heard: Option<Instant>,
    /// Wakes the task, once as many requests wait as it can use.
    waker: Option<Waker>,
    wake_at: usize,
    is_running: bool,
    is_over: bool,
}

impl Waiting {
    /// Takes requests out of the queue, the oldest first.
    fn take(&mut self, most: usize, now: Instant) -> Vec<Request> {
        let taken: Vec<Request> = self.requests.drain(..most).collect();
        if self.batches.len() == REMEMBERED {
            self.batches.pop_front();
        }
        self.batches.push_back((self.left, now));
        self.left += taken.len() as u64;
        taken
    }
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(crate) fn queue_full() -> StoreError {
    let detail = format!("{QUEUE} checks are already waiting");
    StoreError::new(ErrorKind::QueueFull, detail)
}

impl Lane {
    pub(crate) fn new(connector: Connector, wiring: &Wiring) -> Self {
        Self {
            connector,
            wiring: wiring.clone(),
            queue: Arc::default(),
        }
    }

    /// Puts a question into the queue; what comes of it arrives later. The number is for
    /// [`queued`](Self::queued).
    pub(crate) fn ask<Q: Question>(
        &self,
        question: &Arc<Q>,
        asking: bool,
        deadline: Instant,
    ) -> Result<(Answer<Q>, u64), StoreError> {
        let (responder, answer) = oneshot::channel();
        let request = Request {
            asked: question.asked(responder),
            asking,
            deadline,
            is_alone: false,
        };
        let mut queue = self.queue.lock();
        if queue.requests.len() >= QUEUE {
            return Err(queue_full());
        }
        // The first one, or the runtime it was started on has ended. A caller without a
        // runtime panics here, before anything is changed.
        let task = (!queue.is_running).then(|| Task::new(self));
        queue.is_running = true;
        let number = queue.left + queue.requests.len() as u64;
        queue.requests.push_back(request);
        let waker = match queue.requests.len() >= queue.wake_at {
            true => queue.waker.take(),
            false => None,
        };
        drop(queue);
        // Not under the lock: a runtime that is shutting down drops the task at once, and
        // the task locks the queue then.
        if let Some(task) = task {
            tokio::spawn(task.run());
        }
        if let Some(waker) = waker {
            waker.wake();
        }
        Ok((answer, number))
    }

    /// How long a request that was put at `start` has waited behind others, while the server
    /// answered them. `None` if the server has been silent since.
    pub(crate) fn queued(&self, number: u64, start: Instant) -> Option<Duration> {
        let queue = self.queue.lock();
        queue.heard.filter(|heard| *heard >= start)?;
        if number >= queue.left {
            return Some(start.elapsed());
        }
        let after = queue.batches.partition_point(|(first, _)| *first <= number);
        let (_, left) = queue.batches.get(after.checked_sub(1)?)?;
        Some(left.saturating_duration_since(start))
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        let mut queue = self.queue.lock();
        queue.is_over = true;
        if let Some(waker) = queue.waker.take() {
            waker.wake();
        }
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
    /// Answers that wait until replicas have what they charged.
    held: Vec<Held>,
    batches: u64,
    /// When something was last sent or heard.
    active: Instant,
    /// When a batch was sent with nothing before it, until something is heard.
    timed: Option<Instant>,
}

/// What the task of a lane needs.
struct Task {
    connector: Connector,
    wiring: Wiring,
    queue: Arc<Queue>,
    acks: Option<Acks>,
    link: Option<Link>,
    /// When a connection that says nothing is given up.
    silence: Pin<Box<Sleep>>,
    /// Until when the next batch waits for more requests.
    hold: Pin<Box<Sleep>>,
}

/// What has happened.
enum Event {
    /// Somebody waits, and the lane is ready.
    Waiting,
    /// Bytes have arrived.
    Arrived,
    /// The connection is lost.
    Lost(std::io::Error),
    /// It has been silent for too long.
    Silent,
    /// Nobody can ask any more.
    Over,
}

impl Task {
    fn new(lane: &Lane) -> Self {
        Self {
            connector: lane.connector.clone(),
            acks: Acks::new(lane.wiring.replica_acks, lane.wiring.timeout),
            wiring: lane.wiring.clone(),
            queue: Arc::clone(&lane.queue),
            link: None,
            silence: Box::pin(sleep_until(Instant::now() + SILENCE)),
            hold: Box::pin(sleep_until(Instant::now())),
        }
    }

    /// Sends what waits, batch by batch, until nobody can ask any more.
    async fn run(mut self) {
        loop {
            let event = poll_fn(|context| self.poll(context)).await;
            match event {
                Event::Waiting => self.batch().await,
                Event::Arrived => self.read(),
                Event::Lost(error) => {
                    self.lose(&format!("the connection was lost: {error}"));
                }
                Event::Silent => self.lose("the server stopped answering"),
                Event::Over => return,
            }
        }
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Event> {
        if let Some(link) = &mut self.link {
            match link.poll(context) {
                Poll::Ready(Ok(())) => return Poll::Ready(Event::Arrived),
                Poll::Ready(Err(error)) => return Poll::Ready(Event::Lost(error)),
                Poll::Pending => {}
            }
            if !link.sent.is_empty() {
                // Later than the breaker opens: it counts deadlines anew on a new connection.
                let until = link.active + SILENCE.max(2 * self.wiring.timeout);
                // Nearly always later than it was: then it need not be set anew.
                while self.silence.as_mut().poll(context).is_ready() {
                    if Instant::now() >= until {
                        return Poll::Ready(Event::Silent);
                    }
                    self.silence.as_mut().reset(until);
                }
            }
        }
        let wanted = self.wanted(context);
        let mut queue = self.queue.lock();
        if queue.requests.len() >= wanted {
            return Poll::Ready(Event::Waiting);
        }
        let is_idle = self.link.as_ref().is_none_or(|link| link.sent.is_empty());
        if queue.is_over && queue.requests.is_empty() && is_idle {
            return Poll::Ready(Event::Over);
        }
        queue.waker = Some(context.waker().clone());
        queue.wake_at = wanted;
        Poll::Pending
    }

    /// How many requests must wait for another batch to leave.
    fn wanted(&mut self, context: &mut Context<'_>) -> usize {
        let in_flight = self.link.as_ref().and_then(|link| {
            let oldest = link.sent.front()?;
            Some((link.is_left, link.batches - oldest.batch() + 1))
        });
        // WAIT holds up whatever comes after it on the connection.
        let most = if self.acks.is_some() { 1 } else { IN_FLIGHT };
        match in_flight {
            None => 1,
            Some((is_left, batches)) if is_left || batches >= most => usize::MAX,
            Some(_) if self.hold.as_mut().poll(context).is_ready() => 1,
            Some(_) => CALL,
        }
    }

    /// Sends all waiting requests, over a connection that is made if need be.
    async fn batch(&mut self) {
        let follows = |link: &Link| self.connector.leads_to(link.server.as_deref());
        let is_good = self
            .link
            .as_ref()
            .map(|link| !link.is_left && follows(link));
        if is_good == Some(false) {
            let link = self.link.as_mut();
            if link.is_some_and(|link| !link.sent.is_empty()) {
                // What is on its way is waited for.
                if let Some(link) = &mut self.link {
                    link.is_left = true;
                }
                return;
            }
            self.link = None;
        }
        if self.link.is_none() {
            match self.connector.connect().await {
                Ok(connected) => self.link = Some(Link::new(connected)),
                Err(error) => {
                    let error = StoreError::from_client(&error, false);
                    let mut queue = self.queue.lock();
                    let all = queue.requests.len();
                    let requests = queue.take(all, Instant::now());
                    drop(queue);
                    for request in requests {
                        request.asked.fail(error.clone());
                    }
                    return;
                }
            }
        }
        // Not before: connecting takes time, and a caller that has given up meanwhile must
        // not be charged.
        let requests = self.take();
        if let Some(link) = &mut self.link
            && !requests.is_empty()
        {
            link.batches += 1;
            self.wiring.traffic.batches.fetch_add(1, Relaxed);
            link.send(requests, &self.wiring, true);
            self.hold.as_mut().reset(Instant::now() + HOLD);
        }
    }

    /// The waiting requests whose callers have not given up.
    fn take(&self) -> Vec<Request> {
        let now = Instant::now();
        let mut queue = self.queue.lock();
        let most = queue.requests.len().min(BATCH);
        let mut wanted = queue.take(most, now);
        drop(queue);
        wanted.retain(|it| it.is_wanted(now));
        let questions = wanted.len() as u64;
        self.wiring.traffic.questions.fetch_add(questions, Relaxed);
        wanted
    }

    /// Hands out what has arrived.
    fn read(&mut self) {
        let Some(link) = &mut self.link else {
            return;
        };
        self.queue.lock().heard = Some(link.active);
        match link.read(&self.wiring, self.acks) {
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
        for held in link.held {
            held.settle(Some(&error));
        }
        for sent in link.sent {
            sent.fail(&error);
        }
    }
}

impl Drop for Task {
    /// Its runtime may have ended: waiting callers get an error, and the next caller starts
    /// it anew.
    fn drop(&mut self) {
        let mut queue = self.queue.lock();
        queue.is_running = false;
        let all = queue.requests.len();
        let requests = queue.take(all, Instant::now());
        drop(queue);
        drop(requests);
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

    /// Writes requests into the buffer, those alike together, and remembers what their
    /// replies are for.
    fn send(&mut self, requests: Vec<Request>, wiring: &Wiring, by_name: bool) {
        self.active = Instant::now();
        if self.sent.is_empty() {
            self.timed = Some(self.active);
        }
        let commands = self.writer(by_name).write(requests, wiring.is_cluster);
        wiring.traffic.commands.fetch_add(commands, Relaxed);
    }

    fn writer(&mut self, by_name: bool) -> Writer<'_> {
        Writer {
            out: &mut self.out,
            sent: &mut self.sent,
            batch: self.batches,
            by_name,
        }
    }

    /// Takes replies out of what has arrived, and hands them out.
    fn read(&mut self, wiring: &Wiring, acks: Option<Acks>) -> Result<(), &'static str> {
        if let Some(sent) = self.timed.take() {
            let took_us = self.active.duration_since(sent).as_micros();
            let took_us = u64::try_from(took_us).unwrap_or(u64::MAX);
            let round_trip_us = &wiring.traffic.round_trip_us;
            round_trip_us.store(took_us.max(1), Relaxed);
        }
        let mut arrived = std::mem::take(&mut self.arrived);
        let mut at = 0;
        let garbled = "the server's reply is not valid RESP";
        while at < self.filled {
            let rest = &arrived[at..self.filled];
            let Some((reply, length)) = wire::reply(rest).map_err(|_| garbled)? else {
                break;
            };
            let Some(sent) = self.sent.pop_front() else {
                return Err("the server sent more replies than requested");
            };
            self.answer(sent, &reply, &arrived[at..at + length], wiring, acks);
            at += length;
        }
        arrived.copy_within(at..self.filled, 0);
        self.filled -= at;
        if self.filled == 0 && arrived.len() > KEPT_BUFFER {
            arrived = vec![0; BUFFER];
        }
        self.arrived = arrived;
        // Not with the batch: one that has charged nothing waits for nobody.
        if let Some(acks) = acks.filter(|_| self.sent.is_empty() && !self.held.is_empty()) {
            self.writer(true).wait(acks);
        }
        Ok(())
    }

    fn answer(
        &mut self,
        sent: Sent,
        reply: &Reply<'_>,
        bytes: &[u8],
        wiring: &Wiring,
        acks: Option<Acks>,
    ) {
        let refused = self.refused.take();
        let held = acks.is_some().then_some(&mut self.held);
        let settled = sent.settle(reply, bytes, refused, held);
        self.refused = settled.refused;
        if settled.is_master_gone {
            // It stays a replica; another connection may lead to its successor.
            self.is_left = true;
        }
        if let (Some(acks), Some(replicas)) = (acks, settled.replicas) {
            let missing = acks.missing(replicas);
            for held in self.held.drain(..) {
                held.settle(missing.as_ref());
            }
        }
        let now = Instant::now();
        let mut again = settled.again;
        again.retain(|request| request.is_wanted(now));
        if !again.is_empty() {
            self.send(again, wiring, settled.by_name);
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
        let connector = Connector::direct(&url, &options.access).expect("a valid URL");
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
