//! One connection as its protocol, its socket and the reaper see it: what it is doing,
//! since when, and whether it has to end.
//!
//! The socket reports bytes, the protocol reports requests, and the reaper judges all
//! connections a few times per second. No connection has a timer of its own.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicUsize};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::sync::Notify;

use super::budget::{Budget, NoRoom, Reserved, StreamSeat};
use super::clock::{Clock, Ticks};

/// How long a client may take to send the head of a request, once it has begun, and for
/// the handshake of TLS.
pub const HEAD: Duration = Duration::from_secs(10);

/// How long a client may take no bytes, and how long it may leave a response unread at
/// least: up to one generation of 15 s longer.
pub const TAKE: Duration = Duration::from_secs(30);

/// Unread responses are counted by the time at which they were sent, in steps of this
/// length.
pub(super) const GENERATION: Duration = Duration::from_secs(15);

/// Those that count, and the one that is over.
const GENERATIONS: usize = 4;

/// How long a connection above the limit may live.
pub const SPARE: Duration = Duration::from_secs(1);

/// How long a connection may take to close.
const END: Duration = Duration::from_secs(10);

/// What a client sends first when it speaks HTTP/2.
const HTTP2: &[u8] = b"PRI * HTTP/2.0";

/// How a connection behaves, and what to do next.
#[derive(Debug)]
pub struct Connection {
    clock: Arc<Clock>,
    opened: Ticks,
    idle: Duration,
    /// The client's address; none for a unix socket.
    peer: Option<SocketAddr>,
    /// The listener's address is a loopback one.
    is_loopback: bool,
    /// It was accepted although all places were taken.
    is_spare: bool,
    /// The protocol frames its own requests: bytes between requests say nothing.
    is_multiplexed: AtomicBool,
    /// A request has begun, now or before.
    has_begun: AtomicBool,
    in_progress: AtomicU32,
    /// When the last request ended, or the connection was opened.
    quiet_since: AtomicU32,
    /// When the first byte of a request arrived that has not begun yet; 0 for none.
    head_since: AtomicU32,
    /// When the socket stopped taking bytes; 0 while it takes them.
    blocked_since: AtomicU32,
    /// Responses that the client has not read, by generation.
    unread: [AtomicU32; GENERATIONS],
    /// Bytes that wait for the client.
    pub(super) waiting: AtomicUsize,
    pub(super) budget: Arc<Budget>,
    ending_since: AtomicU32,
    state: AtomicU8,
    /// Wakes the connection's task, once it has been polled.
    task: OnceLock<Waker>,
    /// Wakes the tasks of its streams.
    ended: Notify,
}

/// The connection stays open.
const OPEN: u8 = 0;
/// The protocol should finish what it is doing and end.
const ENDING: u8 = 1;
/// It is dropped, whatever it is doing.
const OVER: u8 = 2;

/// What the reaper does with a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Nothing.
    Keep,
    /// The protocol shuts the connection down.
    End,
    /// The connection is dropped.
    Drop(&'static str),
}

/// A request in progress, until it is dropped.
#[derive(Debug)]
pub struct InProgress(Arc<Connection>);

/// A response that the client has not read, until it is dropped.
#[derive(Debug)]
pub struct UnreadResponse {
    connection: Arc<Connection>,
    generation: usize,
}

impl Connection {
    pub(super) fn new(
        clock: Arc<Clock>,
        budget: Arc<Budget>,
        idle: Duration,
        is_spare: bool,
        peer: Option<SocketAddr>,
        is_loopback: bool,
    ) -> Self {
        let opened = clock.now();
        Self {
            opened,
            clock,
            idle,
            peer,
            is_loopback,
            is_spare,
            is_multiplexed: AtomicBool::new(false),
            has_begun: AtomicBool::new(false),
            in_progress: AtomicU32::new(0),
            quiet_since: AtomicU32::new(opened.0),
            head_since: AtomicU32::new(0),
            blocked_since: AtomicU32::new(0),
            unread: Default::default(),
            waiting: AtomicUsize::new(0),
            budget,
            ending_since: AtomicU32::new(0),
            state: AtomicU8::new(OPEN),
            task: OnceLock::new(),
            ended: Notify::new(),
        }
    }

    /// A connection without a client, and with a budget of its own.
    #[cfg(test)]
    pub(crate) fn alone() -> Arc<Self> {
        Arc::new(Self::of(&Arc::default()))
    }

    /// Bytes that wait for the client.
    #[cfg(test)]
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.load(Relaxed)
    }

    /// One that shares this budget.
    #[cfg(test)]
    pub(super) fn of(budget: &Arc<Budget>) -> Self {
        let clock = Arc::new(Clock::manual());
        Self::new(clock, Arc::clone(budget), TAKE, false, None, false)
    }

    /// The client's address; `None` for a unix socket.
    #[must_use]
    pub fn peer(&self) -> Option<SocketAddr> {
        self.peer
    }

    /// Whether it came in by a loopback address, such as 127.0.0.1.
    #[inline]
    #[must_use]
    pub fn is_loopback(&self) -> bool {
        self.is_loopback
    }

    /// Says that a request is in progress until the guard is dropped. Only a connection
    /// without one is idle.
    #[must_use = "the request ends when this is dropped"]
    pub fn in_progress(self: &Arc<Self>) -> InProgress {
        self.in_progress.fetch_add(1, Relaxed);
        self.has_begun.store(true, Relaxed);
        self.head_since.store(0, Relaxed);
        InProgress(Arc::clone(self))
    }

    /// Says that a response waits for the client until the guard is dropped. A client that
    /// leaves any of them unread for longer than [`TAKE`] loses the connection.
    #[must_use = "the response is read when this is dropped"]
    pub fn unread_response(self: &Arc<Self>) -> UnreadResponse {
        let generation = self.clock.now().generation(GENERATION) % GENERATIONS;
        self.unread[generation].fetch_add(1, Relaxed);
        UnreadResponse {
            connection: Arc::clone(self),
            generation,
        }
    }

    /// Reserves bytes that wait for this client, at once or not at all.
    pub fn reserve(self: &Arc<Self>, bytes: usize) -> Result<Reserved, NoRoom> {
        Reserved::new(self, bytes)
    }

    /// A seat for a stream that does not end by itself; `None` when all are taken.
    #[must_use]
    pub fn stream_seat(&self) -> Option<StreamSeat> {
        self.budget.seat()
    }

    /// Says that bytes between requests are not the beginning of one, as in HTTP/2.
    pub fn multiplexed(&self) {
        self.is_multiplexed.store(true, Relaxed);
        self.head_since.store(0, Relaxed);
    }

    /// Whether bytes between requests are not the beginning of one.
    #[must_use]
    pub fn is_multiplexed(&self) -> bool {
        self.is_multiplexed.load(Relaxed)
    }

    /// Whether it was accepted although all places were taken: then it is there for one
    /// short answer, such as that of a health check.
    #[must_use]
    pub fn is_spare(&self) -> bool {
        self.is_spare
    }

    /// Whether the protocol should finish what it is doing and end.
    #[inline]
    #[must_use]
    pub fn is_ending(&self) -> bool {
        self.state.load(Relaxed) != OPEN
    }

    /// Waits until the connection has to end.
    pub async fn ending(&self) {
        let ended = self.ended.notified();
        if !self.is_ending() {
            ended.await;
        }
    }

    /// Tells the protocol to end, as the reaper does.
    pub fn end(&self) {
        let ended = self.state.compare_exchange(OPEN, ENDING, AcqRel, Acquire);
        if ended.is_ok() {
            self.ending_since.store(self.clock.now().0, Relaxed);
            self.ended.notify_waiters();
            self.wake();
        }
    }

    /// The socket has received these bytes.
    #[inline]
    pub(super) fn heard(&self, bytes: &[u8]) {
        if self.in_progress.load(Relaxed) == 0
            && self.head_since.load(Relaxed) == 0
            && !self.is_multiplexed.load(Relaxed)
        {
            match bytes.starts_with(HTTP2) {
                true => self.multiplexed(),
                false => self.head_since.store(self.clock.now().0, Relaxed),
            }
        }
    }

    /// A handshake has begun, which the client has to finish like the head of a request.
    pub(super) fn shake_hands(&self) {
        self.head_since.store(self.clock.now().0, Relaxed);
    }

    /// The handshake is over.
    pub(super) fn shook_hands(&self) {
        self.head_since.store(0, Relaxed);
        self.quiet_now();
    }

    /// The connection is idle from now on, unless something else goes on.
    fn quiet_now(&self) {
        self.quiet_since.store(self.clock.now().0, Relaxed);
    }

    /// The socket has taken bytes, or takes no more of them.
    #[inline]
    pub(super) fn wrote(&self, is_blocked: bool) {
        match (is_blocked, self.blocked_since.load(Relaxed)) {
            (false, 0) => {}
            (false, _) => self.blocked_since.store(0, Relaxed),
            (true, 0) => self.blocked_since.store(self.clock.now().0, Relaxed),
            (true, _) => {}
        }
    }

    /// Whether a request has begun, now or before.
    pub(super) fn has_begun(&self) -> bool {
        self.has_begun.load(Relaxed)
    }

    /// What is to become of it, `now`.
    pub(super) fn judge(&self, now: Ticks) -> Verdict {
        let is_longer = |since: &AtomicU32, than: Duration| {
            let since = since.load(Relaxed);
            since != 0 && now.is_later_by_more(Ticks(since), than)
        };
        // The next generation counts where the oldest one did.
        let oldest = (now.generation(GENERATION) + 1) % GENERATIONS;
        if is_longer(&self.blocked_since, TAKE) {
            return Verdict::Drop("the client does not read");
        }
        if self.unread[oldest].load(Relaxed) > 0 {
            return Verdict::Drop("the client does not read its responses");
        }
        if self.is_spare && now.is_later_by_more(self.opened, SPARE) {
            return Verdict::Drop("all connections are in use");
        }
        let is_unread = self.unread.iter().any(|unread| unread.load(Relaxed) > 0);
        if is_unread || self.in_progress.load(Relaxed) > 0 {
            return Verdict::Keep;
        }
        if is_longer(&self.head_since, HEAD.min(self.idle)) {
            return Verdict::Drop("the head of a request did not arrive in time");
        }
        match self.state.load(Relaxed) {
            OPEN if is_longer(&self.quiet_since, self.idle) => Verdict::End,
            ENDING if is_longer(&self.ending_since, END.min(self.idle)) => {
                Verdict::Drop("the client does not close the connection")
            }
            _ => Verdict::Keep,
        }
    }

    /// Drops the connection.
    pub(super) fn drop_now(&self) {
        self.state.store(OVER, Release);
        self.wake();
    }

    fn wake(&self) {
        if let Some(task) = self.task.get() {
            task.wake_by_ref();
        }
    }

    /// Runs what serves the connection, until it ends or the reaper drops it.
    pub(super) async fn run(&self, serve: impl Future<Output = ()>) {
        let mut serve = std::pin::pin!(serve);
        poll_fn(|cx: &mut Context<'_>| {
            // A task keeps its waker for life.
            self.task.get_or_init(|| cx.waker().clone());
            if self.state.load(Acquire) == OVER {
                return Poll::Ready(());
            }
            Pin::as_mut(&mut serve).poll(cx)
        })
        .await;
    }
}

impl InProgress {
    /// Of which connection.
    #[must_use]
    pub fn connection(&self) -> &Arc<Connection> {
        &self.0
    }
}

impl Drop for InProgress {
    fn drop(&mut self) {
        let connection = &self.0;
        if connection.in_progress.fetch_sub(1, Relaxed) == 1 {
            connection.quiet_now();
        }
    }
}

impl Drop for UnreadResponse {
    fn drop(&mut self) {
        let connection = &self.connection;
        connection.unread[self.generation].fetch_sub(1, Relaxed);
        connection.quiet_now();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDLE: Duration = Duration::from_secs(75);

    fn connection(is_spare: bool) -> (Arc<Clock>, Arc<Connection>) {
        let clock = Arc::new(Clock::manual());
        let (budget, shared) = (Arc::default(), Arc::clone(&clock));
        let connection = Connection::new(shared, budget, IDLE, is_spare, None, false);
        (clock, Arc::new(connection))
    }

    /// The first verdict other than to keep it, and after how many seconds.
    fn sentence(clock: &Clock, connection: &Connection) -> (Verdict, Duration) {
        let start = clock.now();
        loop {
            clock.advance(Duration::from_millis(250));
            let verdict = connection.judge(clock.now());
            let passed = clock.now().since(start);
            if verdict != Verdict::Keep || passed > 10 * IDLE {
                return (verdict, passed);
            }
        }
    }

    fn assert_dropped(clock: &Clock, connection: &Connection, expected: Duration) {
        let (verdict, passed) = sentence(clock, connection);
        assert!(matches!(verdict, Verdict::Drop(_)));
        assert_about(passed, expected);
    }

    /// Sentenced after this time or a little later, and never earlier.
    fn assert_about(passed: Duration, expected: Duration) {
        let late = expected + Duration::from_millis(500);
        assert!(expected < passed && passed <= late, "{passed:?}");
    }

    #[test]
    fn connection_without_a_request_in_progress_is_asked_to_end_and_then_dropped() {
        let (clock, connection) = connection(false);
        let busy = connection.in_progress();
        connection.heard(b"GET");
        let (verdict, _) = sentence(&clock, &connection);
        assert_eq!(
            verdict,
            Verdict::Keep,
            "a stream lives as long as it is read"
        );
        drop(busy);
        let (verdict, passed) = sentence(&clock, &connection);
        assert_eq!(verdict, Verdict::End);
        assert_about(passed, IDLE);
        connection.end();
        assert!(connection.is_ending());
        assert_dropped(&clock, &connection, END);
    }

    #[test]
    fn requests_in_progress_keep_neither_a_spare_connection_nor_one_that_takes_nothing() {
        let (clock, spare) = connection(true);
        let _busy = spare.in_progress();
        assert_dropped(&clock, &spare, SPARE);
        let (clock, connection) = connection(false);
        let _busy = connection.in_progress();
        connection.wrote(true);
        assert_dropped(&clock, &connection, TAKE);
    }

    #[test]
    fn response_unread_for_30_to_45_s_ends_the_connection_whatever_else_is_read() {
        for offset in 0..4 {
            let (clock, connection) = connection(false);
            clock.advance(GENERATION.mul_f64(0.3) * offset);
            let start = clock.now();
            let _unread = connection.unread_response();
            while connection.judge(clock.now()) == Verdict::Keep {
                drop(connection.unread_response());
                clock.advance(Duration::from_millis(250));
            }
            let passed = clock.now().since(start);
            let verdict = connection.judge(clock.now());
            assert!(matches!(verdict, Verdict::Drop(_)), "{verdict:?}");
            assert!((TAKE..=TAKE + GENERATION).contains(&passed), "{passed:?}");
        }
    }

    #[test]
    fn bytes_between_multiplexed_requests_are_no_head() {
        let (clock, connection) = connection(false);
        connection.multiplexed();
        connection.heard(b"GET");
        assert_eq!(sentence(&clock, &connection).0, Verdict::End);
    }
}
