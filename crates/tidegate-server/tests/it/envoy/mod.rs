//! Envoy's services, as Envoy and other gRPC clients meet them.

mod dropin;
mod gateway;
mod listener;
mod manual;
mod native;
mod proxy;
mod quota;
mod ratelimit;
mod rules;
mod xds;

use tidegate_server::envoy::wire::{
    Code, Descriptor, DescriptorStatus, Entry, LimitOverride, RateLimitRequest, RateLimitResponse,
    Unit,
};
use tokio::runtime::Runtime;
use tonic::Status;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic_prost::ProstCodec;

use crate::certificates::Certificates;
use crate::process::{PATIENCE, Start, Tidegate};

const SHOULD_RATE_LIMIT: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// A server with a gRPC listener, and a client of it.
pub(crate) struct Served {
    pub(crate) server: Tidegate,
    pub(crate) client: Client,
}

/// A client that waits for its answers.
pub(crate) struct Client {
    runtime: Runtime,
    channel: Channel,
}

impl Served {
    pub(crate) fn start(config: &str) -> Self {
        Self::with(Start::new(config))
    }

    pub(crate) fn with(start: Start) -> Self {
        let server = start.argument("--grpc").argument("127.0.0.1:0").start();
        let address = address(&server);
        let client = Client::new(&format!("http://{address}"));
        Self { server, client }
    }

    /// Asks in words, and says the answer in words.
    pub(crate) fn say(&self, question: &str) -> String {
        self.client.say(question)
    }
}

/// Host and port of the gRPC listener.
pub(crate) fn address(server: &Tidegate) -> String {
    let line = server.line("listening on grpc");
    let (_, address) = line.rsplit_once("://").expect("a url");
    let address = address.split(['"', '\u{1b}']).next().expect("its end");
    address.trim().to_owned()
}

impl Client {
    pub(crate) fn new(url: &str) -> Self {
        Self::of(Endpoint::from_shared(url.to_owned()).expect("a url"))
    }

    /// A client that trusts these certificates' authority, and shows one of them or none.
    fn secure(address: &str, certificates: &Certificates, shows: bool) -> Self {
        let pem = |file| certificates.read(file);
        let mut tls = ClientTlsConfig::new()
            .domain_name("localhost")
            .ca_certificate(Certificate::from_pem(pem("authority.crt")));
        if shows {
            tls = tls.identity(Identity::from_pem(pem("client.crt"), pem("client.key")));
        }
        let endpoint = Endpoint::from_shared(format!("https://{address}")).expect("a url");
        Self::of(endpoint.tls_config(tls).expect("certificates"))
    }

    fn of(endpoint: Endpoint) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build();
        let runtime = runtime.expect("a runtime");
        let guard = runtime.enter();
        let channel = endpoint.timeout(PATIENCE).connect_lazy();
        drop(guard);
        Self { runtime, channel }
    }

    pub(crate) fn ask(&self, request: RateLimitRequest) -> Result<RateLimitResponse, Status> {
        self.call(SHOULD_RATE_LIMIT, request)
    }

    /// Asks in words, and says the answer in words: `OVER: OVER 0/5, OK 3/10, OK -`, or the
    /// error.
    pub(crate) fn say(&self, question: &str) -> String {
        let answer = match self.ask(read(question)) {
            Ok(answer) => answer,
            Err(status) => return format!("{:?}: {}", status.code(), status.message()),
        };
        let code = |code| match Code::try_from(code) {
            Ok(Code::Ok) => "OK",
            Ok(Code::OverLimit) => "OVER",
            other => panic!("{other:?}"),
        };
        let statuses = answer.statuses.iter().map(|status| {
            let limit = status.current_limit.as_ref();
            let left = status.limit_remaining;
            let left = limit.map(|limit| format!("{left}/{}", limit.requests_per_unit));
            format!("{} {}", code(status.code), left.unwrap_or("-".into()))
        });
        let statuses: Vec<String> = statuses.collect();
        format!("{}: {}", code(answer.overall_code), statuses.join(", "))
    }

    /// Asks without waiting for the answer.
    pub(crate) fn start(&self, request: RateLimitRequest) -> tokio::task::JoinHandle<()> {
        let call = unary::<_, RateLimitResponse>(self.channel(), SHOULD_RATE_LIMIT, request);
        self.runtime.spawn(async { drop(call.await) })
    }

    /// One message each way.
    pub(crate) fn call<I, O>(&self, path: &'static str, message: I) -> Result<O, Status>
    where
        I: prost::Message + 'static,
        O: prost::Message + Default + 'static,
    {
        self.run(unary(self.channel(), path, message))
    }

    pub(crate) fn channel(&self) -> Channel {
        self.channel.clone()
    }

    pub(crate) fn run<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime.block_on(future)
    }
}

async fn unary<I, O>(channel: Channel, path: &'static str, message: I) -> Result<O, Status>
where
    I: prost::Message + 'static,
    O: prost::Message + Default + 'static,
{
    let mut grpc = Grpc::new(channel);
    let ready = grpc.ready().await;
    ready.map_err(|error| Status::unavailable(error.to_string()))?;
    let codec = ProstCodec::<I, O>::default();
    let path = PathAndQuery::from_static(path);
    let answer = grpc.unary(tonic::Request::new(message), path, codec).await;
    answer.map(tonic::Response::into_inner)
}

pub(crate) fn entry(key: &str, value: &[u8]) -> Entry {
    Entry {
        key: key.as_bytes().to_vec().into(),
        value: value.to_vec().into(),
    }
}

/// Reads `domain: key=value,key=value *hits @requests | ...; *hits`. Hits below zero are
/// negative hits, and a limit that comes along is per second.
fn read(question: &str) -> RateLimitRequest {
    let (domain, text) = question.split_once(": ").expect(question);
    let (text, hits) = text.split_once("; *").unwrap_or((text, "0"));
    let descriptors = text.split(" | ").filter(|it| !it.is_empty());
    RateLimitRequest {
        domain: domain.into(),
        descriptors: descriptors.map(read_descriptor).collect(),
        hits_addend: hits.parse().expect(question),
    }
}

fn read_descriptor(text: &str) -> Descriptor {
    let mut words = text.split(' ');
    let entries = words.next().expect("entries").split(',');
    let entries = entries.map(|it| it.split_once('=').expect("key=value"));
    let mut descriptor = descriptor(&entries.collect::<Vec<_>>());
    for word in words {
        if let Some(hits) = word.strip_prefix('*') {
            let hits: i64 = hits.parse().expect("hits");
            descriptor.is_negative_hits = hits < 0;
            descriptor.hits_addend = Some(hits.unsigned_abs());
        } else {
            let requests = word.strip_prefix('@').expect("@requests");
            descriptor.limit = Some(LimitOverride {
                requests_per_unit: requests.parse().expect("requests"),
                unit: Unit::Second.into(),
            });
        }
    }
    descriptor
}

fn descriptor(entries: &[(&str, &str)]) -> Descriptor {
    let entries = entries.iter();
    let entries = entries.map(|(key, value)| entry(key, value.as_bytes()));
    Descriptor {
        entries: entries.collect(),
        ..Descriptor::default()
    }
}

pub(crate) fn request(domain: &str, descriptors: &[&[(&str, &str)]]) -> RateLimitRequest {
    RateLimitRequest {
        domain: domain.to_owned(),
        descriptors: descriptors.iter().map(|it| descriptor(it)).collect(),
        hits_addend: 0,
    }
}

/// The overall code, and then that of each descriptor.
pub(crate) fn codes(answer: &RateLimitResponse) -> Vec<Code> {
    let code = |code: i32| Code::try_from(code).expect("a code");
    let statuses = answer.statuses.iter().map(|status| code(status.code));
    std::iter::once(code(answer.overall_code))
        .chain(statuses)
        .collect()
}

/// Limit and name, what is left, and the seconds until that changes.
pub(crate) fn numbers(status: &DescriptorStatus) -> (Option<(u32, String)>, u32, Option<i64>) {
    let limit = status.current_limit.as_ref();
    let limit = limit.map(|limit| (limit.requests_per_unit, limit.name.clone()));
    let reset = status.duration_until_reset.as_ref();
    (limit, status.limit_remaining, reset.map(|it| it.seconds))
}
