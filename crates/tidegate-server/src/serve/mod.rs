//! Sockets and connections: how they begin, what bounds them, and how they end.

mod connection;
mod listen;
pub(crate) mod tls;

use std::sync::Arc;
use std::time::Duration;

use tidegate::Address;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Semaphore, watch};
use tokio::time::timeout;

use crate::app::App;
pub use listen::Listener;

/// The most connections at once; more of them wait to be accepted.
const MAX_CONNECTIONS: u32 = 10_000;

/// How long requests under way may take once the listeners are closed.
const LAST_REQUESTS: Duration = Duration::from_secs(10);

/// What all connections need.
#[derive(Clone)]
struct Shared {
    app: Arc<App>,
    /// A permit a connection.
    room: Arc<Semaphore>,
    /// Turns true when connections are to end.
    closing: watch::Receiver<bool>,
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
/// are answered for as long as `drain`; then those under way are finished. SIGINT skips
/// the wait.
pub async fn run(app: Arc<App>, listeners: Vec<Listener>, drain: Duration) -> anyhow::Result<()> {
    let (close, closing) = watch::channel(false);
    let room = Arc::new(Semaphore::new(MAX_CONNECTIONS as usize));
    let (mut terminate, mut interrupt) = (
        signal(SignalKind::terminate())?,
        signal(SignalKind::interrupt())?,
    );
    for listener in listeners {
        let shared = Shared {
            app: Arc::clone(&app),
            room: Arc::clone(&room),
            closing: closing.clone(),
        };
        tokio::spawn(listener.accept(shared));
    }
    drop(closing);
    let wait = tokio::select! {
        _ = terminate.recv() => drain,
        _ = interrupt.recv() => Duration::ZERO,
    };
    app.drain();
    tracing::info!(
        seconds = wait.as_secs(),
        "shutting down: answering while others look away"
    );
    tokio::select! {
        () = tokio::time::sleep(wait) => {}
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    close.send_replace(true);
    // Every permit back means every connection gone; the sender is closed when the
    // listeners are.
    let gone = async {
        close.closed().await;
        room.acquire_many(MAX_CONNECTIONS).await.is_ok()
    };
    let gone = tokio::select! {
        gone = timeout(LAST_REQUESTS, gone) => gone.is_ok(),
        _ = terminate.recv() => false,
        _ = interrupt.recv() => false,
    };
    match gone {
        true => tracing::info!("stopped"),
        false => tracing::warn!("stopped, with connections still open"),
    }
    Ok(())
}
