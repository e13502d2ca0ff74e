//! A connection from its first byte to its last: HTTP/1.1 or HTTP/2, with or without
//! TLS.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use prometheus::IntGauge;
use tokio::net::TcpStream;
use tokio::time::{MissedTickBehavior, interval, timeout};
use tokio_rustls::TlsAcceptor;

use super::Shared;
use super::again::Again;
use super::listen::Io;
use crate::api;

/// How long a client may take for the handshake of TLS.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// The longest head of a request, its URL included.
const MAX_HEAD: usize = 64 << 10;

/// Requests of one HTTP/2 connection that are answered at once.
const MAX_STREAMS: u32 = 250;

/// When all connections are to end: how long a client that has just connected may take
/// to send its first request.
const FIRST_REQUEST: Duration = Duration::from_millis(500);

/// Serves a TCP connection.
pub(super) async fn run_tcp(shared: &Shared, stream: TcpStream, tls: Option<TlsAcceptor>) {
    let Some(tls) = tls else {
        return run(shared, stream).await;
    };
    match timeout(HANDSHAKE, tls.accept(stream)).await {
        Ok(Ok(stream)) => run(shared, stream).await,
        Ok(Err(error)) => tracing::debug!(%error, "no TLS connection came about"),
        Err(_) => tracing::debug!("a client took too long for the handshake of TLS"),
    }
}

/// Serves a connection. One without a request for as long as `idle` is closed; one whose
/// client does not even take what it asked for is dropped after as long again.
pub(super) async fn run(shared: &Shared, stream: impl Io) {
    let begun = Arc::new(AtomicU64::new(0));
    let service = service_fn(|request| {
        begun.fetch_add(1, Relaxed);
        api::answer(Arc::clone(&shared.app), request)
    });
    let mut builder = Builder::new(TokioExecutor::new());
    builder
        .http1()
        .max_buf_size(MAX_HEAD)
        // Answers are short: copied behind their heads they are sent sooner than as a
        // list of two.
        .writev(false)
        // Whoever has no more to say may still want to hear the answer.
        .half_close(true);
    let max_head = u32::try_from(MAX_HEAD).expect("far below");
    builder
        .http2()
        .max_concurrent_streams(MAX_STREAMS)
        .max_header_list_size(max_head);
    let connection = builder.serve_connection(TokioIo::new(stream), service);
    let mut connection = std::pin::pin!(connection);
    let again = Again::new();
    let _open = Open::new(shared.app.metrics.connections());
    let mut closing = shared.closing.clone();
    let closing = async {
        // An error says that nobody is left who could say it.
        drop(closing.wait_for(|closing| *closing).await);
        if begun.load(Relaxed) == 0 {
            tokio::time::sleep(FIRST_REQUEST).await;
        }
    };
    let mut closing = std::pin::pin!(closing);
    let (mut seen, mut ending) = (u64::MAX, false);
    let mut tick = interval(shared.idle);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            biased;
            ended = poll_fn(|cx| again.poll(cx, connection.as_mut())) => {
                if let Err(error) = ended {
                    tracing::debug!(%error, "a connection broke off");
                }
                break;
            }
            _ = tick.tick() => {
                let now = begun.load(Relaxed);
                match (now == seen, ending) {
                    (false, _) => seen = now,
                    (true, true) => break,
                    (true, false) => {
                        connection.as_mut().graceful_shutdown();
                        ending = true;
                    }
                }
            }
            () = closing.as_mut(), if !ending => {
                connection.as_mut().graceful_shutdown();
                ending = true;
            }
        }
    }
}

/// A connection that counts as open until it is dropped.
struct Open<'m>(&'m IntGauge);

impl<'m> Open<'m> {
    fn new(gauge: &'m IntGauge) -> Self {
        gauge.inc();
        Self(gauge)
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.dec();
    }
}
