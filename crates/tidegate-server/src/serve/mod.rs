//! Sockets and connections: how they begin, what bounds them, and how they end.

mod again;
mod connection;
mod listen;
pub(crate) mod tls;

use std::sync::Arc;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{Semaphore, watch};
use tokio::time::timeout;

use crate::app::App;
use crate::section::Address;
pub use listen::Listener;

/// The most connections at once; more of them wait to be accepted.
const MAX_CONNECTIONS: u32 = 10_000;

/// How long requests under way may take once the listeners are closed.
const LAST_REQUESTS: Duration = Duration::from_secs(10);

/// How long a store may take to hear of the last decisions in the background.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// What all connections need.
#[derive(Clone)]
struct Shared {
    app: Arc<App>,
    /// How long a connection may be without a request.
    idle: Duration,
    /// A permit a connection.
    room: Arc<Semaphore>,
    /// Turns true when connections are to end.
    closing: watch::Receiver<bool>,
}

/// How long things may take.
#[derive(Debug, Clone, Copy)]
pub struct Times {
    /// After SIGTERM, how long to go on answering.
    pub drain: Duration,
    /// How long a connection may be without a request.
    pub idle: Duration,
}

/// What others may tell this process to do.
#[derive(Debug)]
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// Listens to them from now on.
    pub fn new() -> std::io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    /// Waits for either of them. Whether it is a polite one.
    async fn next(&mut self) -> bool {
        tokio::select! {
            _ = self.terminate.recv() => true,
            _ = self.interrupt.recv() => false,
        }
    }
}

/// Opens the sockets.
pub async fn listen(addresses: &[Address]) -> anyhow::Result<Vec<Listener>> {
    let mut listeners = Vec::new();
    for address in addresses {
        listeners.push(Listener::open(address).await?);
    }
    Ok(listeners)
}

/// Answers requests until told to stop. On SIGTERM readiness goes first, while requests
/// are answered for as long as [`Times::drain`]; then those under way are finished. SIGINT skips
/// the wait; a second signal ends it all at once.
pub async fn run(app: Arc<App>, listeners: Vec<Listener>, mut signals: Signals, times: Times) {
    let (close, closing) = watch::channel(false);
    let room = Arc::new(Semaphore::new(MAX_CONNECTIONS as usize));
    for listener in listeners {
        let shared = Shared {
            app: Arc::clone(&app),
            idle: times.idle,
            room: Arc::clone(&room),
            closing: closing.clone(),
        };
        tokio::spawn(listener.accept(shared));
    }
    drop(closing);
    let wait = match signals.next().await {
        true => times.drain,
        false => Duration::ZERO,
    };
    app.drain();
    tracing::info!(
        seconds = wait.as_secs(),
        "shutting down: answering while others look away"
    );
    let gone = async {
        tokio::time::sleep(wait).await;
        close.send_replace(true);
        // Every permit back means every connection gone; the sender is closed when the
        // listeners are.
        let gone = async {
            close.closed().await;
            room.acquire_many(MAX_CONNECTIONS).await.is_ok()
        };
        let gone = timeout(LAST_REQUESTS, gone).await.is_ok();
        // What was admitted in the background, the others should know.
        let told = app.running().limiter.flush(LAST_WORDS).await;
        if !told {
            tracing::warn!("a store was not told all that was admitted in the background");
        }
        gone
    };
    let gone = tokio::select! {
        gone = gone => gone,
        _ = signals.next() => false,
    };
    match gone {
        true => tracing::info!("stopped"),
        false => tracing::warn!("stopped, with connections still open"),
    }
}
