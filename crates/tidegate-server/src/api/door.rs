//! HTTP on a connection: HTTP/1.1 or HTTP/2, whichever the client begins with.

use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;

use http::Request;
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};

use super::again::Again;
use super::{Api, Scope};
use crate::engine::Engine;
use crate::serve::{Connection, Protocol, Serving, Stream};

/// The longest head of a request, its URL included.
const MAX_HEAD: usize = 64 << 10;

/// Requests of one HTTP/2 connection that are answered at once.
const MAX_STREAMS: u32 = 250;

/// What a client sends first when it speaks HTTP/2.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The HTTP interface as a protocol of a listener.
pub struct Http {
    api: Arc<Api>,
    http1: http1::Builder,
    http2: http2::Builder<TokioExecutor>,
}

impl Http {
    /// Answers what is in this scope.
    #[must_use]
    pub fn new(engine: Arc<Engine>, scope: Scope) -> Arc<Self> {
        let mut http1 = http1::Builder::new();
        http1
            .max_buf_size(MAX_HEAD)
            // Answers are short: copied behind their heads they are sent sooner than as a
            // list of two.
            .writev(false)
            // Whoever has no more to say may still want to hear the answer.
            .half_close(true);
        let mut http2 = http2::Builder::new(TokioExecutor::new());
        let max_head = u32::try_from(MAX_HEAD).expect("far below");
        http2
            .max_concurrent_streams(MAX_STREAMS)
            .max_header_list_size(max_head);
        Arc::new(Self {
            api: Arc::new(Api::new(engine, scope)),
            http1,
            http2,
        })
    }

    async fn run(
        api: Arc<Api>,
        builders: (http1::Builder, http2::Builder<TokioExecutor>),
        mut stream: Stream,
        connection: Arc<Connection>,
    ) {
        let is_http2 = tokio::select! {
            biased;
            read = stream.begins_with(PREFACE) => read,
            () = connection.ending() => return,
        };
        let Ok(is_http2) = is_http2 else {
            return;
        };
        let asked = Arc::clone(&connection);
        let service = service_fn(move |request: Request<Incoming>| {
            let busy = asked.busy();
            if asked.is_spare() {
                // It is there for this one request.
                asked.end();
            }
            let (api, connection) = (Arc::clone(&api), Arc::clone(&asked));
            async move {
                let answer = super::answer(&api, &connection, request).await;
                Ok::<_, Infallible>(answer.map(|body| body.until_sent(&connection, busy)))
            }
        });
        let io = TokioIo::new(stream);
        // hyper has one type for each version, and no trait for both.
        macro_rules! drive {
            ($served:expr) => {{
                let mut served = pin!($served);
                let (again, mut told) = (Again::new(), false);
                poll_fn(|cx| {
                    if connection.is_ending() && !told {
                        served.as_mut().graceful_shutdown();
                        told = true;
                    }
                    again.poll(cx, served.as_mut())
                })
                .await
            }};
        }
        let served = match is_http2 {
            true => {
                connection.multiplexed();
                drive!(builders.1.serve_connection(io, service))
            }
            false => drive!(builders.0.serve_connection(io, service)),
        };
        if let Err(error) = served {
            tracing::debug!(%error, "a connection broke off");
        }
    }
}

impl Protocol for Http {
    fn serve(&self, stream: Stream, connection: Arc<Connection>) -> Serving {
        let builders = (self.http1.clone(), self.http2.clone());
        let api = Arc::clone(&self.api);
        Box::pin(Self::run(api, builders, stream, connection))
    }
}
