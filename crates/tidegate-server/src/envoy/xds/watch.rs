//! The stream of configs: subscribes, applies what comes, and says whether it could.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use prost::Message;
use prost_types::value::Kind;
use prost_types::{Struct, Value};
use tokio::sync::mpsc;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::metadata::{AsciiMetadataKey, AsciiMetadataValue};
use tonic::{Code, Request};
use tonic_prost::ProstCodec;

use super::ControlPlane;
use super::connect::{connect, with_sources};
use super::wire::{
    CONFIG, DiscoveryRequest, DiscoveryResponse, METHOD, Node, RateLimitConfig, Status,
};

/// The longest message of a control plane.
const MAX_RESPONSE: usize = 64 << 20;

/// The longest reason that is sent for a config that is not applied.
const MAX_REASON: usize = 4 << 10;

/// Receives configs, for ever. Each set of them replaces the one before. `apply` puts it in
/// force, or says what is wrong with it; then nothing changes.
pub async fn watch<F, A>(from: ControlPlane, mut apply: F)
where
    F: FnMut(Vec<RateLimitConfig>) -> A,
    A: Future<Output = Result<(), String>>,
{
    let mut accepted = String::new();
    let mut wait = from.retry;
    loop {
        let mut heard = false;
        let ended = stream(&from, &mut accepted, &mut heard, &mut apply).await;
        if heard {
            wait = from.retry;
        }
        let pause = jittered(wait);
        tracing::warn!(
            "control plane {}: {ended}; the limits in force stay, retry in {pause:.1?}",
            from.address
        );
        tokio::time::sleep(pause).await;
        wait = wait.saturating_mul(2).min(from.longest_retry);
    }
}

/// One stream, from its beginning to its end; why it has ended.
async fn stream<F, A>(
    from: &ControlPlane,
    accepted: &mut String,
    heard: &mut bool,
    apply: &mut F,
) -> String
where
    F: FnMut(Vec<RateLimitConfig>) -> A,
    A: Future<Output = Result<(), String>>,
{
    let channel = match connect(from).await {
        Ok(channel) => channel,
        Err(why) => return format!("cannot connect: {why}"),
    };
    // One request is on its way at most, and the next one only after a response.
    let (requests, mut waiting) = mpsc::channel(1);
    let waiting = futures_util::stream::poll_fn(move |cx| waiting.poll_recv(cx));
    let asked = match headers(from, Request::new(waiting)) {
        Ok(asked) => asked,
        Err(why) => return why,
    };
    let first = DiscoveryRequest {
        version_info: accepted.clone(),
        node: Some(node(from)),
        type_url: CONFIG.into(),
        ..DiscoveryRequest::default()
    };
    if requests.send(first).await.is_err() {
        return "the stream ended".into();
    }
    let mut grpc = Grpc::new(channel).max_decoding_message_size(MAX_RESPONSE);
    if let Err(error) = grpc.ready().await {
        return with_sources(&error);
    }
    let codec = ProstCodec::<DiscoveryRequest, DiscoveryResponse>::default();
    let answers = grpc.streaming(asked, PathAndQuery::from_static(METHOD), codec);
    let mut answers = match answers.await {
        Ok(answers) => answers.into_inner(),
        Err(status) => return said(&status),
    };
    loop {
        let response = match answers.message().await {
            Ok(Some(response)) => response,
            Ok(None) => return "it closed the stream".into(),
            Err(status) => return said(&status),
        };
        *heard = true;
        let Some(answer) = answer(from, response, accepted, apply).await else {
            continue;
        };
        if requests.send(answer).await.is_err() {
            return "the stream ended".into();
        }
    }
}

/// Applies a response, and says what to answer; nothing to one of another type.
async fn answer<F, A>(
    from: &ControlPlane,
    response: DiscoveryResponse,
    accepted: &mut String,
    apply: &mut F,
) -> Option<DiscoveryRequest>
where
    F: FnMut(Vec<RateLimitConfig>) -> A,
    A: Future<Output = Result<(), String>>,
{
    let DiscoveryResponse {
        version_info: version,
        type_url,
        nonce,
        ..
    } = &response;
    if type_url != CONFIG {
        tracing::warn!(
            "control plane {}: a response of the type {type_url:?} is ignored: expected {CONFIG}",
            from.address
        );
        return None;
    }
    let resources = response.resources.len();
    let applied = match configs(&response) {
        Ok(configs) => apply(configs).await,
        Err(why) => Err(why),
    };
    let error_detail = match applied {
        Ok(()) => {
            tracing::info!(
                version,
                resources,
                "limits of the control plane are in force"
            );
            accepted.clone_from(version);
            None
        }
        Err(why) => {
            for line in why.lines() {
                tracing::error!(
                    version,
                    error = line,
                    "limits of the control plane are wrong, and the old ones stay in force"
                );
            }
            Some(Status {
                code: Code::InvalidArgument.into(),
                message: why.chars().take(MAX_REASON).collect(),
            })
        }
    };
    Some(DiscoveryRequest {
        version_info: accepted.clone(),
        node: Some(node(from)),
        type_url: CONFIG.into(),
        response_nonce: nonce.clone(),
        error_detail,
    })
}

/// The configs in a response.
fn configs(response: &DiscoveryResponse) -> Result<Vec<RateLimitConfig>, String> {
    let resources = response.resources.iter().enumerate();
    let configs = resources.map(|(index, resource)| {
        if resource.type_url != CONFIG {
            let found = &resource.type_url;
            return Err(format!(
                "resource {index}: type {found:?}: expected {CONFIG}"
            ));
        }
        let config = RateLimitConfig::decode(&*resource.value);
        config.map_err(|error| format!("resource {index}: not a RateLimitConfig: {error}"))
    });
    configs.collect()
}

fn node(from: &ControlPlane) -> Node {
    let fields = from.metadata.iter().map(|(name, value)| {
        let kind = Some(Kind::StringValue(value.clone()));
        (name.clone(), Value { kind })
    });
    let fields = fields.collect();
    Node {
        id: from.node.clone(),
        metadata: (!from.metadata.is_empty()).then_some(Struct { fields }),
        user_agent_name: "tidegate".into(),
    }
}

fn headers<T>(from: &ControlPlane, mut request: Request<T>) -> Result<Request<T>, String> {
    for (name, value) in &from.headers {
        let wrong = || format!("the header {name:?}: expected a name and a value of HTTP");
        let key: AsciiMetadataKey = name.to_ascii_lowercase().parse().map_err(|_| wrong())?;
        let value: AsciiMetadataValue = value.parse().map_err(|_| wrong())?;
        request.metadata_mut().insert(key, value);
    }
    Ok(request)
}

/// What a status of gRPC says.
fn said(status: &tonic::Status) -> String {
    let text = format!("{}: {}", status.code(), status.message());
    match std::error::Error::source(status) {
        Some(source) => format!("{text}: {}", with_sources(source)),
        None => text,
    }
}

/// Between a half and all of it, so that clients of a control plane that restarts do not
/// come back at once.
fn jittered(wait: Duration) -> Duration {
    let random = RandomState::new().hash_one(0_u8) % 1_000;
    let half = wait / 2;
    half + half.mul_f64(f64::from(u16::try_from(random).unwrap_or(0)) / 1_000.0)
}
