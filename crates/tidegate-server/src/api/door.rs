//! The one HTTP server: HTTP/1.1 or HTTP/2, whichever the client begins with, and gRPC.

use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response, StatusCode, Version};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;

use super::again::Again;
use super::request::RequestBody;
use super::response::ResponseBody;
use crate::serve::{Connection, Protocol, Serving, Stream};

/// The longest head of a request, its URL included.
const MAX_HEAD: usize = 64 << 10;

/// The most headers of a request. hyper itself refuses more of them in HTTP/1.
const MAX_HEADERS: usize = 100;

/// Requests of one HTTP/2 connection that are answered at once.
const MAX_STREAMS: u32 = 100;

/// What a client of gRPC may send before the server has looked at it. An endless stream may
/// leave it unread.
const GRPC_WINDOW: u32 = 256 << 10;

/// How long a client of HTTP/2 may be silent before the server asks whether it is there, and
/// how long it may take to answer that.
const SILENCE: Duration = Duration::from_secs(20);

/// Answers requests.
pub trait Handler: Send + Sync + Sized + 'static {
    /// Whether it answers gRPC, and so HTTP/2 alone.
    const IS_GRPC: bool = false;

    /// Answers one.
    fn answer(
        asked: Arc<Asked<Self>>,
        request: Request<RequestBody>,
    ) -> impl Future<Output = Response<ResponseBody>> + Send;
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
    versions: auto::Builder<TokioExecutor>,
}

impl<H: Handler> Http<H> {
    /// Lets this handler answer.
    #[must_use]
    pub fn new(handler: H) -> Arc<Self> {
        let mut versions = auto::Builder::new(TokioExecutor::new());
        versions
            .http1()
            .max_buf_size(MAX_HEAD)
            // Answers are short: copied behind their heads they are sent sooner than as a
            // list of two.
            .writev(false)
            // A client that closes its sending side may still wait for the answer.
            .half_close(true);
        let max_head = u32::try_from(MAX_HEAD).expect("far below");
        versions
            .http2()
            .timer(TokioTimer::new())
            .keep_alive_interval(SILENCE)
            .keep_alive_timeout(SILENCE)
            .max_concurrent_streams(MAX_STREAMS)
            .max_header_list_size(max_head);
        if H::IS_GRPC {
            let mut http2 = versions.http2();
            http2.initial_connection_window_size(GRPC_WINDOW);
            versions = versions.http2_only();
        }
        Arc::new(Self {
            handler: Arc::new(handler),
            versions,
        })
    }
}

impl<H: Handler> Protocol for Http<H> {
    fn serve(&self, stream: Stream, connection: Arc<Connection>) -> Serving {
        let versions = self.versions.clone();
        let handler = Arc::clone(&self.handler);
        Box::pin(async move {
            let asked = Arc::new(Asked {
                handler,
                connection: Arc::clone(&connection),
                again: Again::new(),
            });
            let polled = Arc::clone(&asked);
            let service = service_fn(move |request: Request<Incoming>| {
                let connection = &asked.connection;
                let in_progress = connection.in_progress();
                if request.version() == Version::HTTP_2 && !connection.is_multiplexed() {
                    connection.multiplexed();
                }
                if connection.is_spare() {
                    // It is there for this one request.
                    connection.end();
                }
                let (head, body) = request.into_parts();
                let answer = (head.headers.len() <= MAX_HEADERS).then(|| {
                    let body = RequestBody::new(body, connection, &head.headers);
                    H::answer(Arc::clone(&asked), Request::from_parts(head, body))
                });
                async move {
                    let answer = match answer {
                        Some(answer) => answer.await,
                        None => too_many_headers(),
                    };
                    Ok::<_, Infallible>(answer.map(|body| body.until_read(in_progress)))
                }
            });
            let served = versions.serve_connection(TokioIo::new(stream), service);
            let mut served = pin!(served);
            let mut told = false;
            // To its end, which comes sooner when the reaper says so.
            let ended = poll_fn(|cx| {
                if connection.is_ending() && !told {
                    served.as_mut().graceful_shutdown();
                    told = true;
                }
                polled.again.poll(cx, served.as_mut())
            });
            if let Err(error) = ended.await {
                tracing::debug!(%error, "a connection was lost");
            }
        })
    }

    fn schemes(&self) -> [&'static str; 2] {
        match H::IS_GRPC {
            true => ["grpc", "grpcs"],
            false => ["http", "https"],
        }
    }
}

#[cold]
fn too_many_headers() -> Response<ResponseBody> {
    let mut answer = Response::<ResponseBody>::default();
    *answer.status_mut() = StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE;
    answer
}
