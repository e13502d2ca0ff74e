//! Threads that connections live on: one per core, each with a runtime of its own. A
//! connection stays with the worker it was given to, so nothing about it ever moves to
//! another core, and no worker takes work from another.

use std::cell::Cell;
use std::collections::HashMap;
use std::io;
use std::num::NonZero;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, available_parallelism};
use std::time::Duration;

use tokio::runtime::{self, Handle};
use tokio::sync::{Notify, watch};
use tokio::time::sleep;

use super::clock::{Clock, TICK};
use super::connection::{Connection, Verdict};

/// When all connections are to end: how long a client that has just connected may take
/// to send its first request.
const FIRST_REQUEST: Duration = Duration::from_millis(500);

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

/// All workers. They end when this is dropped and their connections are gone, or at the
/// latest with the process.
pub(super) struct Workers {
    all: Vec<Arc<Worker>>,
    /// Where to begin looking for the one with the fewest connections.
    next: AtomicUsize,
}

/// One of them.
pub(super) struct Worker {
    handle: Handle,
    open: AtomicUsize,
    clock: Arc<Clock>,
    connections: Mutex<HashMap<u64, Arc<Connection>>>,
    next: AtomicU64,
    /// There is a connection to look after.
    occupied: Notify,
}

/// A connection that is looked after until this is dropped.
pub(super) struct Place {
    worker: Arc<Worker>,
    number: u64,
    connection: Arc<Connection>,
}

impl Workers {
    /// Starts them. `closing` turns true when connections are to end.
    pub(super) fn start(closing: &watch::Receiver<bool>) -> io::Result<Self> {
        let all = (1..=count()).map(|number| Worker::start(number, closing.clone()));
        Ok(Self {
            all: all.collect::<io::Result<_>>()?,
            next: AtomicUsize::new(0),
        })
    }

    /// The one with the fewest connections. It has one more from now on, until the guard
    /// is dropped.
    pub(super) fn choose(&self) -> Chosen {
        let start = self.next.fetch_add(1, Relaxed);
        let turned = (0..self.all.len()).map(|index| (start + index) % self.all.len());
        let index = turned.min_by_key(|index| self.all[*index].open.load(Relaxed));
        let worker = Arc::clone(&self.all[index.unwrap_or_default()]);
        worker.open.fetch_add(1, Relaxed);
        Chosen(worker)
    }
}

/// A worker that was chosen for a connection, and counts it until this is dropped.
pub(super) struct Chosen(Arc<Worker>);

impl Chosen {
    /// Runs a connection there.
    pub(super) fn run<F>(self, connection: impl FnOnce(Self) -> F + Send + 'static)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let handle = self.0.handle.clone();
        handle.spawn(async move { connection(self).await });
    }

    /// Looks after a connection that begins now.
    pub(super) fn open(&self, idle: Duration, is_spare: bool) -> Place {
        let worker = Arc::clone(&self.0);
        worker.clock.update();
        let connection = Connection::new(Arc::clone(&worker.clock), idle, is_spare);
        let connection = Arc::new(connection);
        let number = worker.next.fetch_add(1, Relaxed);
        let mut connections = worker.connections();
        connections.insert(number, Arc::clone(&connection));
        if connections.len() == 1 {
            worker.occupied.notify_one();
        }
        drop(connections);
        Place {
            worker,
            number,
            connection,
        }
    }
}

impl Drop for Chosen {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Relaxed);
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
    fn start(number: usize, closing: watch::Receiver<bool>) -> io::Result<Arc<Self>> {
        let runtime = runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let worker = Arc::new(Self {
            handle: runtime.handle().clone(),
            open: AtomicUsize::new(0),
            clock: Arc::new(Clock::new()),
            connections: Mutex::default(),
            next: AtomicU64::new(0),
            occupied: Notify::new(),
        });
        let reaper = Arc::clone(&worker);
        let thread = Builder::new().name(format!("worker-{number}"));
        thread.spawn(move || {
            WORKER.set(number);
            runtime.block_on(reaper.reap(closing));
        })?;
        Ok(worker)
    }

    /// Ends connections whose time is up, for as long as there may be any.
    async fn reap(&self, mut closing: watch::Receiver<bool>) {
        let ended = async {
            // An error says that nobody is left who could give this worker a connection.
            drop(closing.wait_for(|closing| *closing).await);
            self.end(Connection::has_begun);
            sleep(FIRST_REQUEST).await;
            loop {
                self.end(|_| true);
                sleep(TICK).await;
                if closing.has_changed().is_err() && self.connections().is_empty() {
                    return;
                }
            }
        };
        tokio::select! {
            () = ended => {}
            () = self.judge() => {}
        }
    }

    /// Judges all connections, tick by tick.
    async fn judge(&self) {
        loop {
            if self.connections().is_empty() {
                self.occupied.notified().await;
                continue;
            }
            sleep(TICK).await;
            let now = self.clock.update();
            for connection in self.connections().values() {
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
        let connections = self.connections();
        let ended = connections.values().filter(|connection| which(connection));
        ended.for_each(|connection| connection.end());
    }

    fn connections(&self) -> std::sync::MutexGuard<'_, HashMap<u64, Arc<Connection>>> {
        let connections = self.connections.lock();
        connections.unwrap_or_else(PoisonError::into_inner)
    }
}
