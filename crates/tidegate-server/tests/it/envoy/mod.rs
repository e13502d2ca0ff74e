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
    Code, Descriptor, DescriptorStatus, Entry, RateLimitRequest, RateLimitResponse,
};
use tokio::runtime::Runtime;
use tonic::Status;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic_prost::ProstCodec;

use crate::process::{PATIENCE, Start, Tidegate};

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

    pub(crate) fn ask(&self, request: RateLimitRequest) -> Result<RateLimitResponse, Status> {
        self.client.ask(request)
    }

    /// The codes of one call: overall, and of each descriptor.
    pub(crate) fn codes(&self, domain: &str, descriptors: &[&[(&str, &str)]]) -> Vec<Code> {
        let answer = self.ask(request(domain, descriptors)).expect("an answer");
        codes(&answer)
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

    pub(crate) fn of(endpoint: Endpoint) -> Self {
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
        let path = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
        self.call(path, request)
    }

    /// Asks without waiting for the answer.
    pub(crate) fn start(&self, request: RateLimitRequest) -> tokio::task::JoinHandle<()> {
        let mut grpc = Grpc::new(self.channel.clone());
        self.runtime.spawn(async move {
            grpc.ready().await.expect("a connection");
            let codec = ProstCodec::<RateLimitRequest, RateLimitResponse>::default();
            let path = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
            let path = PathAndQuery::from_static(path);
            drop(grpc.unary(tonic::Request::new(request), path, codec).await);
        })
    }

    /// One message each way.
    pub(crate) fn call<I, O>(&self, path: &'static str, message: I) -> Result<O, Status>
    where
        I: prost::Message + 'static,
        O: prost::Message + Default + 'static,
    {
        let mut grpc = Grpc::new(self.channel.clone());
        self.runtime.block_on(async {
            let ready = grpc.ready().await;
            ready.map_err(|error| Status::unavailable(error.to_string()))?;
            let codec = ProstCodec::<I, O>::default();
            let path = PathAndQuery::from_static(path);
            let answer = grpc.unary(tonic::Request::new(message), path, codec).await;
            answer.map(tonic::Response::into_inner)
        })
    }

    pub(crate) fn channel(&self) -> Channel {
        self.channel.clone()
    }

    pub(crate) fn run<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime.block_on(future)
    }
}

pub(crate) fn entry(key: &str, value: &[u8]) -> Entry {
    Entry {
        key: key.as_bytes().to_vec().into(),
        value: value.to_vec().into(),
    }
}

pub(crate) fn descriptor(entries: &[(&str, &str)]) -> Descriptor {
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
