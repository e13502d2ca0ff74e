//! HTTP on a connection: HTTP/1.1 or HTTP/2, whichever the client begins with.

use std::convert::Infallible;
use std::error::Error;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;

use http::{Request, Response};
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::{HttpService, service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo};

use super::again::Again;
use super::outgoing::Outgoing;
use crate::serve::{Connection, Protocol, Serving, Stream};

/// The longest head of a request, its URL included.
const MAX_HEAD: usize = 64 << 10;

/// Requests of one HTTP/2 connection that are answered at once.
const MAX_STREAMS: u32 = 250;

/// What a client sends first when it speaks HTTP/2.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Answers requests.
pub trait Handler: Send + Sync + Sized + 'static {
    /// The future of an answer.
    type Answering: Future<Output = Response<Outgoing>> + Send + 'static;

    /// Answers one.
    fn answer(asked: &Arc<Asked<Self>>, request: Request<Incoming>) -> Self::Answering;
}

/// Who answers, and on which connection. Each connection has its own, so that no request
/// writes to a count that other workers share.
#[derive(Debug)]
pub struct Asked<H> {
    /// Who answers.
    pub handler: Arc<H>,
    /// The connection.
    pub connection: Arc<Connection>,
    pub(super) again: Again,
}

/// HTTP as a protocol of a listener, for whatever answers requests.
pub struct Http<H> {
    handler: Arc<H>,
    http1: http1::Builder,
    http2: http2::Builder<TokioExecutor>,
}

impl<H: Handler> Http<H> {
    /// Lets this handler answer.
    #[must_use]
    pub fn new(handler: H) -> Arc<Self> {
        let mut http1 = http1::Builder::new();
        http1
            .max_buf_size(MAX_HEAD)
            // Answers are short: copied behind their heads they are sent sooner than as a
            // list of two.
            .writev(false)
            // A client that closes its sending side may still wait for the answer.
            .half_close(true);
        let mut http2 = http2::Builder::new(TokioExecutor::new());
        let max_head = u32::try_from(MAX_HEAD).expect("far below");
        http2
            .max_concurrent_streams(MAX_STREAMS)
            .max_header_list_size(max_head);
        Arc::new(Self {
            handler: Arc::new(handler),
            http1,
            http2,
        })
    }
}

impl<H: Handler> Protocol for Http<H> {
    fn serve(&self, stream: Stream, connection: Arc<Connection>) -> Serving {
        let (http1, http2) = (self.http1.clone(), self.http2.clone());
        let handler = Arc::clone(&self.handler);
        Box::pin(async move {
            let Some((is_http2, stream)) = version(stream, &connection).await else {
                return;
            };
            let asked = Arc::new(Asked {
                handler,
                connection: Arc::clone(&connection),
                again: Again::new(),
            });
            let polled = Arc::clone(&asked);
            let service = service_fn(move |request| {
                let busy = asked.connection.busy();
                if asked.connection.is_spare() {
                    // It is there for this one request.
                    asked.connection.end();
                }
                let answer = H::answer(&asked, request);
                async move {
                    let answer = answer.await;
                    Ok::<_, Infallible>(answer.map(|body| body.until_sent(busy)))
                }
            });
            let io = TokioIo::new(stream);
            let ended = match is_http2 {
                true => {
                    connection.multiplexed();
                    drive(http2.serve_connection(io, service), &polled).await
                }
                false => drive(http1.serve_connection(io, service), &polled).await,
            };
            if let Err(error) = ended {
                tracing::debug!(%error, "a connection was lost");
            }
        })
    }
}

/// Whether a client speaks HTTP/2; `None` when the connection ends before it says so.
async fn version(mut stream: Stream, connection: &Connection) -> Option<(bool, Stream)> {
    tokio::select! {
        biased;
        read = stream.begins_with(PREFACE) => Some((read.ok()?, stream)),
        () = connection.ending() => None,
    }
}

/// A connection of hyper's, of either version.
trait Served: Future<Output = hyper::Result<()>> {
    fn finish(self: Pin<&mut Self>);
}

impl<S> Served for http1::Connection<TokioIo<Stream>, S>
where
    S: HttpService<Incoming, ResBody = Outgoing>,
    S::Error: Into<Box<dyn Error + Send + Sync>>,
{
    fn finish(self: Pin<&mut Self>) {
        self.graceful_shutdown();
    }
}

impl<S> Served for http2::Connection<TokioIo<Stream>, S, TokioExecutor>
where
    S: HttpService<Incoming, ResBody = Outgoing>,
    S::Error: Into<Box<dyn Error + Send + Sync>>,
    S::Future: Send + 'static,
{
    fn finish(self: Pin<&mut Self>) {
        self.graceful_shutdown();
    }
}

/// Polls a connection to its end, which comes sooner when the reaper says so.
async fn drive<H>(served: impl Served, asked: &Asked<H>) -> hyper::Result<()> {
    let mut served = pin!(served);
    let mut told = false;
    poll_fn(|cx| {
        if asked.connection.is_ending() && !told {
            served.as_mut().finish();
            told = true;
        }
        asked.again.poll(cx, served.as_mut())
    })
    .await
}
