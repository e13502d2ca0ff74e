//! `StreamRateLimitQuotas`: one stream per Envoy, reports in, assignments out.

use std::future::{Ready, ready};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{self, Stream};
use http::Request;
use tokio::time::timeout;
use tonic::server::StreamingService;
use tonic::{Response, Status, Streaming};
use tonic_prost::ProstCodec;

use super::driver::{Quotas, StreamId};
use super::outbox::Outbox;
use super::wire::{QuotaResponse, UsageReports};
use crate::engine::Engine;
use crate::grpc::{self, Answering, Peer, Received, Service};

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

    fn call(&self, request: Request<Received>, peer: &Peer) -> Answering {
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
        let Some((id, outbox)) = self.quotas.open() else {
            return grpc::refuse(Status::resource_exhausted("too many quota streams"));
        };
        let begin = Begin(Some(Opened {
            quotas: Arc::clone(&self.quotas),
            id,
            outbox,
            peer: peer.clone(),
        }));
        let request = request.map(Received::unmetered);
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
    peer: Peer,
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
        let Opened {
            quotas,
            id,
            outbox,
            peer,
        } = opened;
        tokio::spawn(listen(quotas, id, request.into_inner(), peer));
        let answers = stream::unfold(outbox, async |outbox| {
            let next = outbox.next().await?;
            Some((Ok(next), outbox))
        });
        ready(Ok(Response::new(Box::pin(answers))))
    }
}

/// Reads the reports of a stream until it ends.
async fn listen(
    quotas: Arc<Quotas>,
    id: StreamId,
    mut reports: Streaming<UsageReports>,
    mut peer: Peer,
) {
    tracing::debug!("an Envoy opened a quota stream");
    loop {
        let report = tokio::select! {
            report = timeout(SILENCE, reports.message()) => report,
            () = peer.closing() => break,
        };
        match report {
            Ok(Ok(Some(report))) => {
                if !quotas.report(id, report) {
                    break;
                }
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
