//! gRPC as a protocol of a listener: HTTP/2, and services by name.
//!
//! ```text
//! stream -> hyper (HTTP/2) -> a service, by the first part of the path -> tonic (messages)
//! ```
//!
//! A [`Service`] is one file elsewhere; this module knows none of them but health and
//! reflection, which every gRPC server has. Requests run on the worker that has their
//! connection.

mod body;
mod call;
pub(crate) mod health;
pub(crate) mod reflection;

use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;

use http::{Request, Response};
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::sync::watch;
use tonic::Status;
use tonic::body::Body;

pub(crate) use body::Received;
use body::{Memory, UntilSent};
pub(crate) use call::{Tonic, unary};

use crate::serve::{Connection, Protocol, Serving, Stream};

/// Requests of one connection that are answered at once. A proxy that has more opens
/// another connection.
const MAX_STREAMS: u32 = 250;

/// The longest headers of a request.
const MAX_HEAD: u32 = 16 << 10;

/// The longest message of a request.
pub(crate) const MAX_MESSAGE: usize = 64 << 10;

/// A request while it is answered.
pub type Answering = Pin<Box<dyn Future<Output = Response<Body>> + Send>>;

/// A gRPC service.
pub trait Service: Send + Sync + 'static {
    /// Its name with its package: the first part of its paths.
    fn name(&self) -> &'static str;

    /// Answers a call of one of its methods.
    fn call(&self, request: Request<Received>, peer: &Peer) -> Answering;
}

/// Who calls.
#[derive(Debug, Clone)]
pub struct Peer {
    connection: Arc<Connection>,
    closing: watch::Receiver<bool>,
}

impl Peer {
    /// Waits until the connection has to end: streams that would never end by themselves
    /// end then.
    pub async fn closing(&mut self) {
        // An error says that the connection is gone, which says the same.
        drop(self.closing.wait_for(|closing| *closing).await);
    }
}

/// gRPC, for a listener.
pub struct Grpc(Arc<Shared>);

struct Shared {
    services: Vec<Arc<dyn Service>>,
    http2: http2::Builder<TokioExecutor>,
    memory: Arc<Memory>,
}

impl Grpc {
    /// Lets these services answer.
    #[must_use]
    pub fn new(services: Vec<Arc<dyn Service>>) -> Arc<Self> {
        let mut http2 = http2::Builder::new(TokioExecutor::new());
        http2
            .max_concurrent_streams(MAX_STREAMS)
            .max_header_list_size(MAX_HEAD);
        Arc::new(Self(Arc::new(Shared {
            services,
            http2,
            memory: Arc::default(),
        })))
    }
}

impl Protocol for Grpc {
    fn serve(&self, stream: Stream, connection: Arc<Connection>) -> Serving {
        let shared = Arc::clone(&self.0);
        Box::pin(async move {
            connection.multiplexed();
            let (close, closing) = watch::channel(false);
            let peer = Peer {
                connection: Arc::clone(&connection),
                closing,
            };
            let http2 = shared.http2.clone();
            let service = service_fn(move |request| {
                let busy = peer.connection.busy();
                let answering = shared.answer(request, &peer);
                async move {
                    let answer = answering.await;
                    Ok::<_, Infallible>(answer.map(|body| UntilSent::new(body, busy)))
                }
            });
            let served = http2.serve_connection(TokioIo::new(stream), service);
            let mut served = pin!(served);
            let ended = poll_fn(|cx| {
                if connection.is_ending() && !*close.borrow() {
                    served.as_mut().graceful_shutdown();
                    close.send_replace(true);
                }
                served.as_mut().poll(cx)
            });
            if let Err(error) = ended.await {
                tracing::debug!(%error, "a connection was lost");
            }
        })
    }

    fn schemes(&self) -> [&'static str; 2] {
        ["grpc", "grpcs"]
    }
}

impl Shared {
    fn answer(&self, request: Request<Incoming>, peer: &Peer) -> Answering {
        if peer.connection.is_spare() {
            // It is there for this one request.
            peer.connection.end();
            return refuse(Status::unavailable("all connections are in use"));
        }
        let path = request.uri().path();
        let name = path.strip_prefix('/').and_then(|path| path.split_once('/'));
        let Some((name, _)) = name else {
            return refuse(unknown(path));
        };
        let service = self.services.iter().find(|it| it.name() == name);
        let Some(service) = service else {
            return refuse(unknown(path));
        };
        let received = request.map(|body| Received::new(body, Arc::clone(&self.memory)));
        service.call(received, peer)
    }
}

/// The answer to a method that is not there.
pub(crate) fn unknown(path: &str) -> Status {
    let path: String = path.chars().take(200).collect();
    Status::unimplemented(format!("{path}: no such method"))
}

/// An answer that is an error.
pub(crate) fn refuse(status: Status) -> Answering {
    Box::pin(std::future::ready(status.into_http()))
}
