//! `ShouldRateLimit`: a request in, a response or an error out.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::{Request, StatusCode};
use tidegate::CheckError;
use tidegate_redis::TryCheckError;
use tonic::server::UnaryService;
use tonic::{Code, Response, Status};

use super::wire::{RateLimitRequest, RateLimitResponse};
use super::{dropin, native};
use crate::engine::{Current, Engine};
use crate::grpc::{self, Answering, Peer, Received, Service};

/// The name of the service.
const NAME: &str = "envoy.service.ratelimit.v3.RateLimitService";

/// Envoy's rate limit service.
pub(super) struct RateLimitService {
    engine: Arc<Engine>,
}

impl RateLimitService {
    pub(super) fn new(engine: Arc<Engine>) -> Self {
        Self { engine }
    }
}

impl Service for RateLimitService {
    fn name(&self) -> &'static str {
        NAME
    }

    fn call(&self, request: Request<Received>, _: &Peer) -> Answering {
        let path = request.uri().path();
        if path
            .rsplit_once('/')
            .is_none_or(|(_, method)| method != "ShouldRateLimit")
        {
            return grpc::refuse(grpc::unknown(path));
        }
        let ask = Ask(Arc::clone(&self.engine));
        Box::pin(grpc::unary(ask, request))
    }
}

/// One call.
struct Ask(Arc<Engine>);

impl UnaryService<RateLimitRequest> for Ask {
    type Response = RateLimitResponse;
    type Future = Deciding;

    fn call(&mut self, request: tonic::Request<RateLimitRequest>) -> Deciding {
        let (engine, request) = (&self.0, request.into_inner());
        let current = engine.current();
        if let Some(answer) = answer_now(engine, &current, &request) {
            return Deciding::Now(Some(answer.map(Response::new)));
        }
        drop(current);
        let (engine, home) = (Arc::clone(engine), Arc::clone(engine));
        let is_group = request.descriptors.len() > 1;
        let work = async move {
            let current = engine.current();
            let answer = answer(&engine, &current, &request).await;
            answer.map(Response::new)
        };
        Deciding::Later(match is_group {
            false => Box::pin(work),
            // Envoy gives up after 20 ms by default. What was charged by then would stay
            // charged, although the request may be refused.
            true => Box::pin(async move { home.to_the_end(work).await }),
        })
    }
}

type Answer = Result<Response<RateLimitResponse>, Status>;

/// A decision while it is made. Most are made in memory, and need no future of their own.
#[expect(
    clippy::large_enum_variant,
    reason = "an answer in place spares the common case an allocation"
)]
enum Deciding {
    Now(Option<Answer>),
    Later(Pin<Box<dyn Future<Output = Answer> + Send>>),
}

impl Future for Deciding {
    type Output = Answer;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Answer> {
        match &mut *self {
            Self::Now(answer) => {
                Poll::Ready(answer.take().expect("not polled again after it was ready"))
            }
            Self::Later(deciding) => deciding.as_mut().poll(cx),
        }
    }
}

/// Answers a request that came by another way than gRPC.
pub(crate) async fn should_rate_limit(
    engine: &Engine,
    request: &RateLimitRequest,
) -> Result<RateLimitResponse, Status> {
    let current = engine.current();
    match answer_now(engine, &current, request) {
        Some(answer) => answer,
        None => answer(engine, &current, request).await,
    }
}

/// Decides without waiting, where that can be done.
fn answer_now(
    engine: &Engine,
    current: &Current,
    request: &RateLimitRequest,
) -> Option<Result<RateLimitResponse, Status>> {
    let answer = match is_right(request) {
        Ok(()) => match current.dropin() {
            Some(limits) => dropin::answer_now(engine, current, limits, request)?,
            None => native::answer_now(engine, current, request)?,
        },
        Err(status) => Err(status),
    };
    Some(answer.inspect_err(|status| unanswered(engine, request, status)))
}

/// Decides.
async fn answer(
    engine: &Engine,
    current: &Current,
    request: &RateLimitRequest,
) -> Result<RateLimitResponse, Status> {
    let answer = match current.dropin() {
        Some(limits) => dropin::answer(engine, current, limits, request).await,
        None => native::answer(engine, current, request).await,
    };
    answer.inspect_err(|status| unanswered(engine, request, status))
}

/// What every request must have.
fn is_right(request: &RateLimitRequest) -> Result<(), Status> {
    if request.domain.is_empty() {
        return Err(Status::invalid_argument(
            "rate limit domain must not be empty",
        ));
    }
    if request.descriptors.is_empty() {
        return Err(Status::invalid_argument(
            "rate limit descriptor list must not be empty",
        ));
    }
    Ok(())
}

/// Counts a request that has no answer, and logs a few of them.
#[cold]
fn unanswered(engine: &Engine, request: &RateLimitRequest, status: &Status) {
    let number = match status.code() {
        Code::NotFound => StatusCode::NOT_FOUND,
        Code::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::BAD_REQUEST,
    };
    let domain: String = request.domain.chars().take(64).collect();
    let path = format!("{NAME}/ShouldRateLimit, domain {domain:?}");
    engine.problem(number, &path, None, status.message());
}

/// Why there is no decision, in the words of gRPC.
pub(super) fn status(error: &TryCheckError) -> Status {
    let message = error.to_string();
    match error {
        TryCheckError::Check(CheckError::UnknownPolicy(_)) => Status::not_found(message),
        TryCheckError::Check(_) => Status::invalid_argument(message),
        TryCheckError::Store(_) => Status::unavailable(message),
    }
}
