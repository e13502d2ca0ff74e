//! One connection as its protocol, its socket and the reaper see it: what it is doing,
//! since when, and whether it has to end.
//!
//! The socket reports bytes, the protocol reports requests, and the reaper judges all
//! connections a few times per second. No connection has a timer of its own.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use super::clock::{Clock, Ticks};

/// How long a client may take to send the head of a request, once it has begun, and for
/// the handshake of TLS.
pub const HEAD: Duration = Duration::from_secs(10);

/// How long a client may leave a response untouched.
pub const TAKE: Duration = Duration::from_secs(30);

/// How long a connection above the limit may live.
pub const SPARE: Duration = Duration::from_secs(1);

/// How long a connection may take to close.
const END: Duration = Duration::from_secs(10);

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
    /// Responses that hold memory until the client takes them.
    held: AtomicU32,
    held_since: AtomicU32,
    ending_since: AtomicU32,
    state: AtomicU8,
    /// Wakes the connection's task, once it has been polled.
    task: OnceLock<Waker>,
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
pub struct Busy(Arc<Connection>);

/// A response that holds memory until the client has taken it.
#[derive(Debug)]
pub struct Held(Arc<Connection>);

impl Connection {
    pub(super) fn new(
        clock: Arc<Clock>,
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
            held: AtomicU32::new(0),
            held_since: AtomicU32::new(0),
            ending_since: AtomicU32::new(0),
            state: AtomicU8::new(OPEN),
            task: OnceLock::new(),
        }
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
    pub fn busy(self: &Arc<Self>) -> Busy {
        self.in_progress.fetch_add(1, Relaxed);
        self.has_begun.store(true, Relaxed);
        self.head_since.store(0, Relaxed);
        Busy(Arc::clone(self))
    }

    /// Says that a response holds memory until the guard is dropped. A client that
    /// takes none of them for [`TAKE`] loses the connection.
    #[must_use = "the response is taken when this is dropped"]
    pub fn hold(self: &Arc<Self>) -> Held {
        if self.held.fetch_add(1, Relaxed) == 0 {
            self.held_since.store(self.clock.now().0, Relaxed);
        }
        Held(Arc::clone(self))
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

    /// Waits until the connection has to end. To be polled by the connection's own task.
    pub async fn ending(&self) {
        // The reaper wakes the task, and the task polls this.
        poll_fn(|_| match self.is_ending() {
            true => Poll::Ready(()),
            false => Poll::Pending,
        })
        .await;
    }

    /// Tells the protocol to end, as the reaper does.
    pub fn end(&self) {
        let ended = self.state.compare_exchange(OPEN, ENDING, AcqRel, Acquire);
        if ended.is_ok() {
            self.ending_since.store(self.clock.now().0, Relaxed);
            self.wake();
        }
    }

    /// The socket has received bytes.
    #[inline]
    pub(super) fn heard(&self) {
        if self.in_progress.load(Relaxed) == 0
            && self.head_since.load(Relaxed) == 0
            && !self.is_multiplexed.load(Relaxed)
        {
            self.head_since.store(self.clock.now().0, Relaxed);
        }
    }

    /// A handshake has begun, which the client has to finish like the head of a request.
    pub(super) fn shake_hands(&self) {
        self.head_since.store(self.clock.now().0, Relaxed);
    }

    /// The handshake is over.
    pub(super) fn shook_hands(&self) {
        self.head_since.store(0, Relaxed);
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
        let is_busy = self.in_progress.load(Relaxed) > 0;
        if is_longer(&self.blocked_since, TAKE) {
            return Verdict::Drop("the client does not read");
        }
        if self.held.load(Relaxed) > 0 && is_longer(&self.held_since, TAKE) {
            return Verdict::Drop("the client does not read its responses");
        }
        if self.is_spare && now.is_later_by_more(self.opened, SPARE) {
            return Verdict::Drop("all connections are in use");
        }
        if is_busy {
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

impl Busy {
    /// Of which connection.
    #[must_use]
    pub fn connection(&self) -> &Arc<Connection> {
        &self.0
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        let connection = &self.0;
        if connection.in_progress.fetch_sub(1, Relaxed) == 1 {
            let now = connection.clock.now().0;
            connection.quiet_since.store(now, Relaxed);
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // Somebody takes something: the time begins anew for the others.
        let now = self.0.clock.now().0;
        self.0.held_since.store(now, Relaxed);
        self.0.held.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDLE: Duration = Duration::from_secs(75);

    fn connection(is_spare: bool) -> (Arc<Clock>, Arc<Connection>) {
        let clock = Arc::new(Clock::manual());
        let connection = Connection::new(Arc::clone(&clock), IDLE, is_spare, None, false);
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
        let busy = connection.busy();
        connection.heard();
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
        let _busy = spare.busy();
        assert_dropped(&clock, &spare, SPARE);
        let (clock, connection) = connection(false);
        let (_busy, first, _second) = (connection.busy(), connection.hold(), connection.hold());
        clock.advance(Duration::from_secs(20));
        drop(first);
        assert_dropped(&clock, &connection, TAKE);
    }

    #[test]
    fn bytes_between_multiplexed_requests_are_no_head() {
        let (clock, connection) = connection(false);
        connection.multiplexed();
        connection.heard();
        assert_eq!(sentence(&clock, &connection).0, Verdict::End);
    }
}
