//! `StreamRateLimitQuotas`: one stream per Envoy, reports in, assignments out.

use std::future::{Ready, ready};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{self, Stream};
use http::Request;
use tokio::task::yield_now;
use tokio::time::timeout;
use tonic::server::StreamingService;
use tonic::{Response, Status, Streaming};
use tonic_prost::ProstCodec;

use super::driver::{Quotas, StreamId};
use super::outbox::Outbox;
use super::wire::{QuotaResponse, UsageReports};
use crate::api::request::RequestBody;
use crate::engine::Engine;
use crate::grpc::{self, Answering, Service};
use crate::serve::{Connection, Reserved};

/// The name of the service.
const NAME: &str = "envoy.service.rate_limit_quota.v3.RateLimitQuotaService";

/// The longest report: that of some thousand buckets.
const MAX_REPORT: usize = 256 << 10;

/// A stream without a report for this long is lost: an Envoy reports every five seconds, with
/// or without buckets.
const SILENCE: Duration = Duration::from_secs(20);

/// Envoy's rate limit quota service.
pub(crate) struct QuotaService {
    engine: Arc<Engine>,
    quotas: Arc<Quotas>,
}

impl QuotaService {
    pub(crate) fn new(engine: &Arc<Engine>) -> Self {
        Self {
            engine: Arc::clone(engine),
            quotas: Quotas::new(engine),
        }
    }
}

impl Service for QuotaService {
    fn name(&self) -> &'static str {
        NAME
    }

    fn call(&self, mut request: Request<RequestBody>) -> Answering {
        let path = request.uri().path();
        let method = path.rsplit_once('/').map(|(_, method)| method);
        if method != Some("StreamRateLimitQuotas") {
            return grpc::refuse(grpc::unknown(path));
        }
        if !self.engine.current().server.envoy.quota {
            return grpc::refuse(Status::unimplemented(
                "quotas are off: set quota = true in [envoy]",
            ));
        }
        let connection = Arc::clone(request.body().connection());
        let room = match request.body_mut().room() {
            Ok(room) => room,
            Err(full) => return grpc::refuse(full.into()),
        };
        let (id, outbox) = self.quotas.open(&connection);
        let begin = Begin(Some(Opened {
            quotas: Arc::clone(&self.quotas),
            id,
            outbox,
            connection,
            room,
        }));
        Box::pin(async move {
            let codec = ProstCodec::<QuotaResponse, UsageReports>::default();
            let grpc = tonic::server::Grpc::new(codec);
            let mut grpc = grpc.max_decoding_message_size(MAX_REPORT);
            grpc.streaming(begin, request).await
        })
    }
}

/// A stream that has begun; closed when it is dropped.
struct Opened {
    quotas: Arc<Quotas>,
    id: StreamId,
    outbox: Arc<Outbox>,
    connection: Arc<Connection>,
    /// What the message takes that is being received.
    room: Arc<Reserved>,
}

struct Begin(Option<Opened>);

impl Drop for Begin {
    fn drop(&mut self) {
        // The request was wrong: it has no stream of messages.
        if let Some(opened) = self.0.take() {
            opened.quotas.close(opened.id);
        }
    }
}

type Answers = Pin<Box<dyn Stream<Item = Result<QuotaResponse, Status>> + Send>>;

impl StreamingService<UsageReports> for Begin {
    type Response = QuotaResponse;
    type ResponseStream = Answers;
    type Future = Ready<Result<Response<Answers>, Status>>;

    fn call(&mut self, request: tonic::Request<Streaming<UsageReports>>) -> Self::Future {
        let Some(opened) = self.0.take() else {
            return ready(Err(Status::internal("a stream begins once")));
        };
        let outbox = Arc::clone(&opened.outbox);
        tokio::spawn(listen(opened, request.into_inner()));
        let answers = stream::unfold(outbox, async |outbox| {
            let next = outbox.next().await?;
            Some((Ok(next), outbox))
        });
        ready(Ok(Response::new(Box::pin(answers))))
    }
}

/// Reads the reports of a stream until it ends.
async fn listen(opened: Opened, mut reports: Streaming<UsageReports>) {
    let Opened {
        quotas,
        id,
        outbox: _,
        connection,
        room,
    } = opened;
    tracing::debug!("an Envoy opened a quota stream");
    loop {
        let report = tokio::select! {
            report = timeout(SILENCE, reports.message()) => report,
            () = connection.ending() => break,
        };
        room.shrink_to(0);
        match report {
            Ok(Ok(Some(report))) => {
                quotas.report(id, report);
                // A report may be long: it is the turn of other clients.
                yield_now().await;
            }
            Ok(Ok(None)) => break,
            Ok(Err(error)) => {
                tracing::debug!(%error, "a quota stream was lost");
                break;
            }
            Err(_) => {
                tracing::info!(
                    "an Envoy has not reported for {SILENCE:?}: closing its quota stream"
                );
                break;
            }
        }
    }
    quotas.close(id);
    tracing::debug!("a quota stream ended");
}
