//! Sockets and connections, whatever they speak: how they begin, what bounds them, and
//! how they end.
//!
//! [`Listener`]s accept connections on the main runtime and give each to the worker with
//! the fewest. There a [`Protocol`] serves it, and the reaper ends it when its time is
//! up.

mod budget;
mod clock;
mod connection;
#[cfg(test)]
mod in_memory;
mod listen;
mod stream;
pub(crate) mod tls;
pub(crate) mod worker;

use std::sync::Arc;
use std::time::Duration;

use prometheus::IntGauge;
use tidegate::{Limit, Limiter};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;

use crate::engine::Engine;
pub use budget::{NoRoom, Reserved, StreamSeat};
pub use connection::{Connection, HEAD, InProgress, SPARE, TAKE, UnreadResponse};
pub use listen::{Listener, Protocol, Room, Serving, Tls};
pub use stream::Stream;
use worker::Workers;

/// The most connections of clients at once.
pub const MAX_CONNECTIONS: usize = 10_000;

/// When all of them are taken, so many more are accepted for one short answer each, so
/// that health checks go through.
pub const SPARE_CONNECTIONS: usize = 500;

/// How long requests under way may take once the listeners are closed.
const LAST_REQUESTS: Duration = Duration::from_secs(10);

/// How long a store may take to hear of the last decisions in the background.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// What all connections need.
struct Shared {
    workers: Workers,
    /// Whose config says how long a connection may be idle.
    engine: Arc<Engine>,
    /// Turns true when connections are to end.
    closing: watch::Receiver<bool>,
    /// Connections open now.
    open: IntGauge,
    /// Keeps log lines about connections from flooding.
    lines: Limiter,
}

/// What others may tell this process to do.
#[derive(Debug)]
pub struct Signals(mpsc::UnboundedReceiver<Told>);

/// How to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Told {
    /// SIGTERM: drain first.
    Terminate,
    /// SIGINT: without the wait.
    Interrupt,
}

impl Signals {
    /// Listens to them from now on, on the runtime that calls this.
    pub fn new() -> std::io::Result<Self> {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let (sender, receiver) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            loop {
                let told = tokio::select! {
                    _ = terminate.recv() => Told::Terminate,
                    _ = interrupt.recv() => Told::Interrupt,
                };
                if sender.send(told).is_err() {
                    return;
                }
            }
        });
        Ok(Self(receiver))
    }

    /// Waits until this process has to stop.
    pub(crate) async fn stopped(&mut self) {
        self.next().await;
    }

    /// Waits for the next one.
    async fn next(&mut self) -> Told {
        match self.0.recv().await {
            Some(told) => told,
            // Nobody is left to tell anything.
            None => std::future::pending().await,
        }
    }
}

/// Answers requests until told to stop. On SIGTERM readiness goes first, while requests
/// are answered for as long as `server.drain` of the config in force; then those under way are finished. SIGINT
/// skips the wait; a second signal ends it all at once.
pub async fn run(
    engine: Arc<Engine>,
    listeners: Vec<Listener>,
    signals: Signals,
) -> std::io::Result<()> {
    run_on(Workers::start()?, engine, listeners, signals).await;
    Ok(())
}

/// [`run`], with these workers.
async fn run_on(
    workers: Workers,
    engine: Arc<Engine>,
    listeners: Vec<Listener>,
    mut signals: Signals,
) {
    let (close, closing) = watch::channel(false);
    let shared = Arc::new(Shared {
        workers,
        engine: Arc::clone(&engine),
        closing,
        open: engine.metrics.connections().clone(),
        lines: Limiter::in_memory(Limit::per_minute(6).burst(1)),
    });
    let reaper = Arc::clone(&shared);
    let reaper = tokio::spawn(async move {
        let closing = reaper.closing.clone();
        reaper.workers.reap(closing).await;
    });
    let rooms: Vec<Room> = listeners.iter().map(|it| it.room().clone()).collect();
    let accepting = listeners.into_iter();
    let accepting = accepting.map(|listener| tokio::spawn(listener.accept(Arc::clone(&shared))));
    let accepting: Vec<_> = accepting.collect();
    let wait = match signals.next().await {
        Told::Terminate => engine.current().server.drain,
        Told::Interrupt => Duration::ZERO,
    };
    engine.drain();
    tracing::info!(
        "shutting down: draining for {} s while load balancers stop sending traffic",
        wait.as_secs()
    );
    let gone = async {
        tokio::time::sleep(wait).await;
        close.send_replace(true);
        let gone = async {
            for listener in accepting {
                drop(listener.await);
            }
            for room in &rooms {
                room.is_empty().await;
            }
        };
        let gone = timeout(LAST_REQUESTS, gone).await.is_ok();
        // What was admitted in the background, the others should know.
        let told = engine.current().limiter.flush(LAST_WORDS).await;
        if !told {
            tracing::warn!("some background counts were not sent to the store");
        }
        gone
    };
    let gone = tokio::select! {
        gone = gone => gone,
        _ = signals.next() => false,
    };
    reaper.abort();
    match gone {
        true => tracing::info!("stopped"),
        false => tracing::warn!("stopped, with connections still open"),
    }
}
