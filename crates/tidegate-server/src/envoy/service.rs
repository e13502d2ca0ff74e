//! `ShouldRateLimit`: a request in, a response or an error out.

use std::pin::Pin;
use std::sync::Arc;

use http::{Request, StatusCode};
use tidegate::CheckError;
use tidegate_redis::TryCheckError;
use tonic::server::UnaryService;
use tonic::{Code, Response, Status};
use tonic_prost::ProstCodec;

use super::wire::{RateLimitRequest, RateLimitResponse};
use super::{dropin, native};
use crate::api::request::RequestBody;
use crate::engine::Engine;
use crate::grpc::{self, Answering, Service};

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

    fn call(&self, request: Request<RequestBody>) -> Answering {
        let path = request.uri().path();
        if path
            .rsplit_once('/')
            .is_none_or(|(_, method)| method != "ShouldRateLimit")
        {
            return grpc::refuse(grpc::unknown(path));
        }
        let ask = Ask(Arc::clone(&self.engine));
        Box::pin(async move {
            let codec = ProstCodec::<RateLimitResponse, RateLimitRequest>::default();
            let grpc = tonic::server::Grpc::new(codec);
            let mut grpc = grpc.max_decoding_message_size(grpc::MAX_MESSAGE);
            grpc.unary(ask, request).await
        })
    }
}

/// One call.
struct Ask(Arc<Engine>);

impl UnaryService<RateLimitRequest> for Ask {
    type Response = RateLimitResponse;
    type Future = Pin<Box<dyn Future<Output = Result<Response<RateLimitResponse>, Status>> + Send>>;

    fn call(&mut self, request: tonic::Request<RateLimitRequest>) -> Self::Future {
        let (engine, request) = (Arc::clone(&self.0), request.into_inner());
        let is_group = request.descriptors.len() > 1;
        let asked = Arc::clone(&engine);
        let work = async move {
            let answer = should_rate_limit(&asked, &request).await;
            answer.map(Response::new)
        };
        match is_group {
            false => Box::pin(work),
            // Envoy gives up after 20 ms by default. What was charged by then would stay
            // charged, although the request may be refused.
            true => Box::pin(async move { engine.to_the_end(work).await }),
        }
    }
}

/// Decides, by whichever way the request came.
pub(crate) async fn should_rate_limit(
    engine: &Engine,
    request: &RateLimitRequest,
) -> Result<RateLimitResponse, Status> {
    let current = engine.current();
    let answer = match (is_right(request), current.dropin()) {
        (Err(status), _) => Err(status),
        (Ok(()), Some(limits)) => Box::pin(dropin::answer(engine, &current, limits, request)).await,
        (Ok(()), None) => native::answer(engine, &current, request).await,
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
