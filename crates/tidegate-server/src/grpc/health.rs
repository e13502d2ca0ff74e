//! The health service of gRPC: whether requests should come here, as `/readyz` says it.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{self, Stream};
use tokio::time::sleep;
use tonic::{Request, Response, Status};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_server::{Health, HealthServer};
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

use super::{Service, Tonic};
use crate::engine::Engine;

/// How often watchers get news.
const PERIOD: Duration = Duration::from_millis(500);

/// Answers for the server (`""`) and for the service under these names.
struct Checks {
    engine: Arc<Engine>,
    names: &'static [&'static str],
}

/// The service.
pub(crate) fn service(engine: &Arc<Engine>, names: &'static [&'static str]) -> Arc<dyn Service> {
    let checks = Checks {
        engine: Arc::clone(engine),
        names,
    };
    let server = HealthServer::new(checks).max_decoding_message_size(super::MAX_MESSAGE);
    Arc::new(Tonic("grpc.health.v1.Health", server))
}

impl Checks {
    fn status(&self, name: &str) -> Option<ServingStatus> {
        let is_known = name.is_empty() || self.names.contains(&name);
        is_known.then(|| status(&self.engine))
    }
}

fn status(engine: &Engine) -> ServingStatus {
    match engine.is_ready() {
        Ok(()) => ServingStatus::Serving,
        Err(_) => ServingStatus::NotServing,
    }
}

fn answer(status: ServingStatus) -> HealthCheckResponse {
    HealthCheckResponse {
        status: status.into(),
    }
}

#[tonic::async_trait]
impl Health for Checks {
    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        let name = request.into_inner().service;
        let status = self.status(&name);
        let status = status.ok_or_else(|| Status::not_found("no such service"))?;
        Ok(Response::new(answer(status)))
    }

    type WatchStream = Pin<Box<dyn Stream<Item = Result<HealthCheckResponse, Status>> + Send>>;

    /// Says how it is, and how it is whenever that changes, until the server stops.
    async fn watch(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let name = request.into_inner().service;
        let (engine, is_known) = (Arc::clone(&self.engine), self.status(&name).is_some());
        let told = (engine, None::<ServingStatus>);
        let stream = stream::unfold(told, move |(engine, told)| async move {
            // The last word: then the connection may end.
            if engine.is_draining() && told.is_some_and(|told| told != ServingStatus::Serving) {
                return None;
            }
            let now = || match is_known {
                true => status(&engine),
                false if engine.is_draining() => ServingStatus::NotServing,
                false => ServingStatus::ServiceUnknown,
            };
            while told == Some(now()) {
                sleep(PERIOD).await;
            }
            let now = now();
            Some((Ok(answer(now)), (engine, Some(now))))
        });
        Ok(Response::new(Box::pin(stream)))
    }
}
