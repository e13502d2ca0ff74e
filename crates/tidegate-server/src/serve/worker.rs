//! The threads that serve connections: one per core, each with its own runtime. A
//! connection stays with the worker it was given to, so nothing about it ever moves to
//! another core, and no worker takes work from another.

use std::cell::Cell;
use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::num::NonZero;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, available_parallelism};
use std::time::Duration;

use tokio::runtime::{self, Handle};
use tokio::sync::watch;
use tokio::time::sleep;

use super::budget::Budget;
use super::clock::{Clock, TICK};
use super::connection::{Connection, Verdict};

/// When all connections are to end: how long a client that has just connected may take
/// to send its first request.
pub(super) const FIRST_REQUEST: Duration = Duration::from_millis(500);

thread_local! {
    /// The number of this thread's worker, from 1; 0 on all other threads.
    static WORKER: Cell<usize> = const { Cell::new(0) };
}

/// The number of the worker this thread is, from 1; 0 for all other threads. What is
/// counted by this number is written by one thread only.
#[inline]
pub(crate) fn number() -> usize {
    WORKER.get()
}

/// How many workers there are on this machine.
pub(crate) fn count() -> usize {
    available_parallelism().map_or(1, NonZero::get)
}

/// All workers. They end when this is dropped.
pub(super) struct Workers {
    all: Vec<Worker>,
    /// Where to begin looking for the one with the fewest connections.
    next: AtomicUsize,
    /// Turns true when the threads should end.
    _over: watch::Sender<bool>,
}

/// One of them.
struct Worker {
    handle: Handle,
    shared: Arc<Shared>,
}

/// What a worker and the reaper know of the worker's connections.
struct Shared {
    open: AtomicUsize,
    clock: Arc<Clock>,
    budget: Arc<Budget>,
    connections: Mutex<HashMap<u64, Arc<Connection>>>,
    next: AtomicU64,
}

/// A connection that is looked after until this is dropped.
pub(super) struct Place {
    worker: Arc<Shared>,
    number: u64,
    connection: Arc<Connection>,
}

impl Workers {
    /// Starts them.
    pub(super) fn start() -> io::Result<Self> {
        let (over, is_over) = watch::channel(false);
        let (clock, budget) = (Arc::new(Clock::new()), Arc::default());
        let start = |number| {
            let shared = Shared::new(&clock, &budget);
            Worker::start(number, shared, is_over.clone())
        };
        let all = (1..=count()).map(start);
        Ok(Self {
            all: all.collect::<io::Result<_>>()?,
            next: AtomicUsize::new(0),
            _over: over,
        })
    }

    /// One worker on the runtime that calls this, whose clock a test may pause.
    #[cfg(test)]
    pub(super) fn here() -> Self {
        let worker = Worker {
            handle: Handle::current(),
            shared: Arc::new(Shared::new(&Arc::new(Clock::new()), &Arc::default())),
        };
        Self {
            all: vec![worker],
            next: AtomicUsize::new(0),
            _over: watch::Sender::new(false),
        }
    }

    /// The one with the fewest connections. It has one more from now on, until the guard
    /// is dropped.
    pub(super) fn choose(&self) -> Chosen {
        let start = self.next.fetch_add(1, Relaxed);
        let turned = (0..self.all.len()).map(|index| (start + index) % self.all.len());
        let index = turned.min_by_key(|index| self.all[*index].shared.open.load(Relaxed));
        let worker = &self.all[index.unwrap_or_default()];
        worker.shared.open.fetch_add(1, Relaxed);
        Chosen {
            handle: worker.handle.clone(),
            worker: Arc::clone(&worker.shared),
        }
    }

    /// Ends connections whose time is up, tick by tick, and all of them when `closing`
    /// says so. One task does this for all workers, so that workers have no timers.
    pub(super) async fn reap(&self, mut closing: watch::Receiver<bool>) {
        let judging = async {
            loop {
                sleep(TICK).await;
                self.judge();
            }
        };
        tokio::select! {
            () = judging => {}
            _ = closing.wait_for(|closing| *closing) => {}
        }
        self.end(Connection::has_begun);
        sleep(FIRST_REQUEST).await;
        loop {
            self.end(|_| true);
            sleep(TICK).await;
            self.judge();
        }
    }

    fn judge(&self) {
        for worker in &self.all {
            let now = worker.shared.clock.update();
            for connection in worker.shared.connections().values() {
                match connection.judge(now) {
                    Verdict::Keep => {}
                    Verdict::End => connection.end(),
                    Verdict::Drop(why) => {
                        tracing::debug!("closing a connection: {why}");
                        connection.drop_now();
                    }
                }
            }
        }
    }

    fn end(&self, which: impl Fn(&Connection) -> bool) {
        for worker in &self.all {
            let connections = worker.shared.connections();
            let ended = connections.values().filter(|connection| which(connection));
            ended.for_each(|connection| connection.end());
        }
    }
}

/// A worker that was chosen for a connection, and counts it until this is dropped.
pub(super) struct Chosen {
    handle: Handle,
    worker: Arc<Shared>,
}

impl Chosen {
    /// Runs a connection there.
    pub(super) fn run<F>(self, connection: impl FnOnce(Self) -> F + Send + 'static)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let handle = self.handle.clone();
        handle.spawn(async move { connection(self).await });
    }

    /// Looks after a connection that begins now.
    pub(super) fn open(
        &self,
        idle: Duration,
        is_spare: bool,
        peer: Option<SocketAddr>,
        is_loopback: bool,
    ) -> Place {
        let worker = Arc::clone(&self.worker);
        let (clock, budget) = (Arc::clone(&worker.clock), Arc::clone(&worker.budget));
        let connection = Connection::new(clock, budget, idle, is_spare, peer, is_loopback);
        let connection = Arc::new(connection);
        let number = worker.next.fetch_add(1, Relaxed);
        let kept = Arc::clone(&connection);
        worker.connections().insert(number, kept);
        Place {
            worker,
            number,
            connection,
        }
    }
}

impl Drop for Chosen {
    fn drop(&mut self) {
        self.worker.open.fetch_sub(1, Relaxed);
    }
}

impl Place {
    pub(super) fn connection(&self) -> &Arc<Connection> {
        &self.connection
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.worker.connections().remove(&self.number);
    }
}

impl Worker {
    fn start(
        number: usize,
        shared: Shared,
        mut is_over: watch::Receiver<bool>,
    ) -> io::Result<Self> {
        let runtime = runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let worker = Self {
            handle: runtime.handle().clone(),
            shared: Arc::new(shared),
        };
        let thread = Builder::new().name(format!("worker-{number}"));
        thread.spawn(move || {
            WORKER.set(number);
            // An error says that the sender is gone, which says the same.
            drop(runtime.block_on(is_over.changed()));
        })?;
        Ok(worker)
    }
}

impl Shared {
    fn new(clock: &Arc<Clock>, budget: &Arc<Budget>) -> Self {
        Self {
            open: AtomicUsize::new(0),
            clock: Arc::clone(clock),
            budget: Arc::clone(budget),
            connections: Mutex::default(),
            next: AtomicU64::new(0),
        }
    }

    fn connections(&self) -> MutexGuard<'_, HashMap<u64, Arc<Connection>>> {
        let connections = self.connections.lock();
        connections.unwrap_or_else(PoisonError::into_inner)
    }
}
