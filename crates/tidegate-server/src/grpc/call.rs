//! Calls: one message in and one out, within a time; and services that tonic has made.

use std::convert::Infallible;
use std::pin::pin;
use std::time::Duration;

use futures_util::FutureExt;
use http::{Request, Response};
use prost::Message;
use tokio::time::timeout;
use tonic::Status;
use tonic::body::Body;
use tonic::server::UnaryService;
use tonic_prost::ProstCodec;

use super::{Answering, MAX_MESSAGE, Peer, Received, Service};

/// How long a call of one message may take, from its head to its answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// Answers a call with one message each way.
pub(crate) async fn unary<S, I, O>(service: S, request: Request<Received>) -> Response<Body>
where
    S: UnaryService<I, Response = O>,
    I: Message + Default + 'static,
    O: Message + 'static,
{
    let codec = ProstCodec::<O, I>::default();
    let grpc = tonic::server::Grpc::new(codec);
    let mut grpc = grpc.max_decoding_message_size(MAX_MESSAGE);
    let mut answered = pin!(grpc.unary(service, request));
    // Nearly every message is there with its head and decided in memory: no timer.
    if let Some(answer) = answered.as_mut().now_or_never() {
        return answer;
    }
    let answer = timeout(PATIENCE, answered).await;
    answer.unwrap_or_else(|_| {
        let why = format!("no whole message within {PATIENCE:?}");
        Status::deadline_exceeded(why).into_http()
    })
}

/// A service that tonic has made, under its name.
pub(crate) struct Tonic<S>(pub(crate) &'static str, pub(crate) S);

impl<S> Service for Tonic<S>
where
    S: tower_service::Service<Request<Received>, Response = Response<Body>, Error = Infallible>
        + Clone
        + Send
        + Sync
        + 'static,
    S::Future: Send + 'static,
{
    fn name(&self) -> &'static str {
        self.0
    }

    fn call(&self, request: Request<Received>, _: &Peer) -> Answering {
        let mut service = self.1.clone();
        Box::pin(async move {
            let answer = service.call(request).await;
            answer.unwrap_or_else(|never| match never {})
        })
    }
}
