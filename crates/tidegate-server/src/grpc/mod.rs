//! gRPC: services by name, behind the one HTTP server.
//!
//! ```text
//! stream -> api/door (HTTP/2) -> a service, by the first part of the path -> tonic (messages)
//! ```
//!
//! A [`Service`] is one file elsewhere; this module knows none of them but health and
//! reflection, which every gRPC server has. Requests run on the worker that has their
//! connection.

pub(crate) mod health;
pub(crate) mod reflection;

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response};
use hyper::body::{Body as HttpBody, Frame};
use tokio::time::{Sleep, sleep};
use tonic::Status;
use tonic::body::Body;

use crate::api::door::{Asked, Handler};
use crate::api::request::RequestBody;
use crate::api::response::ResponseBody;
use crate::serve::{Connection, StreamSeat};

/// The longest message of a request.
pub(crate) const MAX_MESSAGE: usize = 64 << 10;

/// How long a call may take, from its head to its answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// Streams that do not end by themselves. Each has a seat, and ends when its connection does.
const ENDLESS: [&str; 4] = [
    "/envoy.service.rate_limit_quota.v3.RateLimitQuotaService/StreamRateLimitQuotas",
    "/grpc.health.v1.Health/Watch",
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
];

/// A request while it is answered.
pub type Answering = Pin<Box<dyn Future<Output = Response<Body>> + Send>>;

/// A gRPC service.
pub trait Service: Send + Sync + 'static {
    /// Its name with its package: the first part of its paths.
    fn name(&self) -> &'static str;

    /// Answers a call of one of its methods.
    fn call(&self, request: Request<RequestBody>) -> Answering;
}

/// All services of a listener.
pub struct Grpc(pub Vec<Arc<dyn Service>>);

/// A call: its answer begins within ten seconds.
pub struct Call {
    answering: Answering,
    /// Most calls are answered at once, and need no timer.
    deadline: Option<Pin<Box<Sleep>>>,
    endless: Option<(StreamSeat, Arc<Connection>)>,
}

impl Handler for Grpc {
    const IS_GRPC: bool = true;

    fn answer(
        asked: Arc<Asked<Self>>,
        request: Request<RequestBody>,
    ) -> impl Future<Output = Response<ResponseBody>> + Send {
        let connection = &asked.connection;
        let path = request.uri().path();
        let name = path.strip_prefix('/').and_then(|path| path.split_once('/'));
        let services = &asked.handler.0;
        let service = name.and_then(|(name, _)| services.iter().find(|it| it.name() == name));
        let mut endless = None;
        let answering = match service {
            _ if connection.is_spare() => refuse(Status::unavailable("all connections are in use")),
            None => refuse(unknown(path)),
            Some(service) if ENDLESS.contains(&path) => match connection.stream_seat() {
                None => refuse(Status::resource_exhausted("too many streams")),
                Some(seat) => {
                    endless = Some((seat, Arc::clone(connection)));
                    service.call(request)
                }
            },
            Some(service) => service.call(request),
        };
        Call {
            answering,
            deadline: None,
            endless,
        }
    }
}

impl Future for Call {
    type Output = Response<ResponseBody>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let answer = match this.answering.as_mut().poll(cx) {
            Poll::Ready(answer) => answer,
            Poll::Pending => {
                let deadline = this
                    .deadline
                    .get_or_insert_with(|| Box::pin(sleep(PATIENCE)));
                ready!(deadline.as_mut().poll(cx));
                let why = format!("no whole message within {PATIENCE:?}");
                Status::deadline_exceeded(why).into_http()
            }
        };
        Poll::Ready(match this.endless.take() {
            None => answer.map(ResponseBody::stream),
            Some((seat, connection)) => answer.map(|body| {
                ResponseBody::stream(Endless {
                    body,
                    ending: Box::pin(async move { connection.ending().await }),
                    is_over: false,
                    _seat: seat,
                })
            }),
        })
    }
}

/// The messages of a stream, until it or the connection ends.
struct Endless {
    body: Body,
    ending: Pin<Box<dyn Future<Output = ()> + Send>>,
    is_over: bool,
    _seat: StreamSeat,
}

impl HttpBody for Endless {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if self.is_over {
            return Poll::Ready(None);
        }
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) {
            return Poll::Ready(frame);
        }
        ready!(self.ending.as_mut().poll(cx));
        self.is_over = true;
        let mut trailers = HeaderMap::new();
        trailers.insert(Status::GRPC_STATUS, HeaderValue::from_static("0"));
        Poll::Ready(Some(Ok(Frame::trailers(trailers))))
    }

    fn is_end_stream(&self) -> bool {
        self.is_over || self.body.is_end_stream()
    }
}

/// A service that tonic has made, under its name.
pub(crate) struct Tonic<S>(pub(crate) &'static str, pub(crate) S);

impl<S> Service for Tonic<S>
where
    S: tower_service::Service<
            Request<RequestBody>,
            Response = Response<Body>,
            Error = Infallible,
            Future: Send + 'static,
        > + Clone
        + Send
        + Sync
        + 'static,
{
    fn name(&self) -> &'static str {
        self.0
    }

    fn call(&self, request: Request<RequestBody>) -> Answering {
        let mut service = self.1.clone();
        Box::pin(async move {
            let answer = service.call(request).await;
            answer.unwrap_or_else(|never| match never {})
        })
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
