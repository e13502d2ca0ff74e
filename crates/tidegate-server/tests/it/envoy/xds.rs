//! Limits from a control plane: one that the test plays, over real sockets.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::poll_fn;
use prost::Message;
use tidegate_server::envoy::rules::{Defaults, Domains, read_text};
use tidegate_server::envoy::wire::Unit;
use tidegate_server::envoy::xds::wire::{
    CONFIG, DiscoveryRequest, DiscoveryResponse, METHOD, RateLimitConfig, RateLimitDescriptor,
    RateLimitPolicy, Replace,
};
use tidegate_server::envoy::xds::{ClientTls, ControlPlane, drafts, watch};
use tidegate_testkit::console::is_like;
use tokio::net::TcpListener;
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tonic::body::Body;
use tonic::codec::{Codec, EncodeBody, SingleMessageCompressionOverride, Streaming};
use tonic::codegen::http::{Request, Response};
use tonic::server::NamedService;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Certificate, Identity, Server, ServerTlsConfig};
use tonic_prost::ProstCodec;

use crate::certificates::Certificates;
use crate::process::PATIENCE;

/// A stream that a client has opened: what it says, what it is told, and the headers it
/// began with.
pub(super) struct Opened {
    requests: Streaming<DiscoveryRequest>,
    responses: UnboundedSender<DiscoveryResponse>,
    token: Option<String>,
}

/// The service. It only hands over streams.
#[derive(Clone)]
struct Discovery(UnboundedSender<Opened>);

impl NamedService for Discovery {
    const NAME: &'static str = "envoy.service.discovery.v3.AggregatedDiscoveryService";
}

impl tower_service::Service<Request<Body>> for Discovery {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Ready<Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        assert_eq!(request.uri().path(), METHOD);
        let mut codec = ProstCodec::<DiscoveryResponse, DiscoveryRequest>::default();
        let (responses, mut waiting) = mpsc::unbounded_channel();
        let waiting = poll_fn(move |cx| waiting.poll_recv(cx)).map(Ok);
        let body = EncodeBody::new_server(
            codec.encoder(),
            waiting,
            None,
            SingleMessageCompressionOverride::Inherit,
            None,
        );
        let (parts, requests) = request.into_parts();
        let token = parts.headers.get("x-token");
        let opened = Opened {
            requests: Streaming::new_request(codec.decoder(), requests, None, None),
            responses,
            token: token.and_then(|it| it.to_str().ok()).map(str::to_owned),
        };
        assert!(self.0.send(opened).is_ok(), "the test goes on");
        let response = Response::builder().header("content-type", "application/grpc");
        ready(Ok(response.body(Body::new(body)).expect("a response")))
    }
}

/// A control plane that runs.
pub(super) struct Plane {
    pub(super) address: SocketAddr,
    opened: UnboundedReceiver<Opened>,
    serving: JoinHandle<()>,
}

impl Plane {
    pub(super) async fn start(tls: Option<ServerTlsConfig>) -> Self {
        Self::start_at("127.0.0.1:0".parse().expect("an address"), tls).await
    }

    async fn start_at(address: SocketAddr, tls: Option<ServerTlsConfig>) -> Self {
        let listener = TcpListener::bind(address).await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let (streams, opened) = mpsc::unbounded_channel();
        let mut server = Server::builder();
        if let Some(tls) = tls {
            server = server.tls_config(tls).expect("certificates");
        }
        let server = server.add_service(Discovery(streams));
        let serving = tokio::spawn(async move {
            let served = server.serve_with_incoming(TcpIncoming::from(listener));
            served.await.expect("a listener");
        });
        Self {
            address,
            opened,
            serving,
        }
    }

    pub(super) async fn stream(&mut self) -> Opened {
        let opened = timeout(PATIENCE, self.opened.recv()).await;
        opened.expect("in time").expect("a stream")
    }

    async fn stop(self) {
        self.serving.abort();
        drop(self.serving.await);
    }
}

impl Opened {
    pub(super) async fn request(&mut self) -> DiscoveryRequest {
        let request = timeout(PATIENCE, self.requests.message()).await;
        let request = request.expect("in time").expect("a stream that goes on");
        request.expect("a request")
    }

    pub(super) fn send(&self, version: &str, nonce: &str, configs: &[RateLimitConfig]) {
        let resources = configs.iter();
        let resources = resources.map(|config| resource(CONFIG, config.encode_to_vec()));
        self.send_any(version, nonce, resources.collect());
    }

    fn send_any(&self, version: &str, nonce: &str, resources: Vec<prost_types::Any>) {
        let response = DiscoveryResponse {
            version_info: version.into(),
            resources,
            type_url: CONFIG.into(),
            nonce: nonce.into(),
        };
        self.responses
            .send(response)
            .expect("a stream that goes on");
    }
}

/// The domains that are in force, and the client that keeps them.
struct Client {
    applied: Arc<Mutex<Vec<Vec<RateLimitConfig>>>>,
    watching: JoinHandle<()>,
}

impl Client {
    fn start(from: ControlPlane) -> Self {
        let applied = Arc::new(Mutex::new(Vec::new()));
        let list = Arc::clone(&applied);
        let watching = tokio::spawn(watch(from, move |configs| {
            let built = Domains::build(drafts(configs.clone()), &Defaults::default());
            let applied = built.map_err(|errors| errors.to_string()).map(|_| {
                list.lock().expect("no panic").push(configs);
            });
            std::future::ready(applied)
        }));
        Self { applied, watching }
    }

    /// The domains of each set that was applied.
    fn applied(&self) -> Vec<Vec<String>> {
        let applied = self.applied.lock().expect("no panic");
        let domains = |set: &Vec<RateLimitConfig>| set.iter().map(|it| it.domain.clone()).collect();
        applied.iter().map(domains).collect()
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.watching.abort();
    }
}

fn control_plane(address: &str) -> ControlPlane {
    ControlPlane {
        address: address.into(),
        node: "node-1".into(),
        metadata: [("zone".to_owned(), "a".to_owned())].into(),
        headers: [("X-Token".to_owned(), "secret".to_owned())].into(),
        tls: None,
        retry: Duration::from_millis(20),
        longest_retry: Duration::from_millis(100),
    }
}

pub(super) fn config(domain: &str) -> RateLimitConfig {
    let limit = RateLimitPolicy {
        unit: Unit::Minute.into(),
        requests_per_unit: 5,
        ..RateLimitPolicy::default()
    };
    RateLimitConfig {
        name: domain.into(),
        domain: domain.into(),
        descriptors: vec![RateLimitDescriptor {
            key: "user".into(),
            rate_limit: Some(limit),
            ..RateLimitDescriptor::default()
        }],
    }
}

impl Opened {
    /// The next request: the version in force, the nonce that is answered, and why not.
    async fn say(&mut self) -> String {
        let request = self.request().await;
        assert_eq!(request.type_url, CONFIG);
        assert_eq!(request.node.expect("a node").id, "node-1");
        let (version, nonce) = (request.version_info, request.response_nonce);
        let why = request.error_detail.map(|it| format!(": {}", it.message));
        format!("{version}/{nonce}{}", why.unwrap_or_default())
    }

    /// Sends domains, which are acknowledged.
    async fn acknowledged(&mut self, version: &str, nonce: &str, domains: &[&str]) {
        let configs: Vec<_> = domains.iter().map(|it| config(it)).collect();
        self.send(version, nonce, &configs);
        assert_eq!(self.say().await, format!("{version}/{nonce}"));
    }
}

fn resource(type_url: &str, value: Vec<u8>) -> prost_types::Any {
    let type_url = type_url.into();
    prost_types::Any { type_url, value }
}

#[tokio::test]
async fn good_configs_are_acknowledged_and_bad_ones_refused_with_a_reason() {
    let mut plane = Plane::start(None).await;
    let client = Client::start(control_plane(&plane.address.to_string()));
    let mut stream = plane.stream().await;
    assert_eq!(stream.token.as_deref(), Some("secret"));
    let first = stream.request().await;
    assert_eq!((&*first.version_info, &*first.response_nonce), ("", ""));
    let metadata = first.node.expect("a node").metadata.expect("metadata");
    let kind = prost_types::value::Kind::StringValue("a".into());
    assert_eq!(metadata.fields["zone"].kind, Some(kind));
    stream.acknowledged("1", "a", &["api", "web"]).await;
    assert_eq!(client.applied(), [["api", "web"]]);
    let limit = client.applied.lock().expect("no panic")[0][0].clone();
    assert_eq!(limit, config("api"));

    let mut without_unit = config("wrong");
    without_unit.descriptors[0].rate_limit = Some(RateLimitPolicy::default());
    for (nonce, last, why) in [
        (
            "b",
            resource(CONFIG, without_unit.encode_to_vec()),
            "xds resource \"wrong\": rate_limit has no unit: expected second, minute, hour, \
             day, week, month or year, or a window such as 30s",
        ),
        (
            "c",
            resource(CONFIG, vec![0xff; 3]),
            "resource 1: not a RateLimitConfig: …",
        ),
        (
            "d",
            resource("type.googleapis.com/nope", vec![]),
            "…\"type.googleapis.com/nope\": expected…",
        ),
    ] {
        let good = resource(CONFIG, config("api").encode_to_vec());
        stream.send_any("2", nonce, vec![good, last]);
        let answer = stream.say().await;
        assert!(is_like(&answer, &format!("1/{nonce}: {why}")), "{answer}");
    }
    assert_eq!(client.applied().len(), 1, "the old configs stay");

    // A set without a domain takes it away.
    stream.acknowledged("5", "e", &["web"]).await;
    stream.acknowledged("6", "f", &[]).await;
    assert_eq!(client.applied()[1..], [vec!["web".to_owned()], vec![]]);
}

#[tokio::test]
async fn client_waits_for_its_control_plane_and_comes_back_when_it_or_the_stream_ends() {
    let free = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = free.local_addr().expect("an address");
    drop(free);
    let client = Client::start(control_plane(&address.to_string()));
    // Some attempts may fail before it is there.
    tokio::task::yield_now().await;
    let mut plane = Plane::start_at(address, None).await;
    let mut stream = plane.stream().await;
    assert_eq!(stream.say().await, "/");
    stream.acknowledged("1", "a", &["api"]).await;
    // The stream ends: the next one begins with the version in force, and no nonce.
    drop(stream);
    let mut stream = plane.stream().await;
    assert_eq!(stream.say().await, "1/");
    // The control plane ends, and another one takes its address.
    drop(stream);
    plane.stop().await;
    assert_eq!(client.applied(), [["api"]], "the limits in force stay");
    let mut plane = Plane::start_at(address, None).await;
    let mut stream = plane.stream().await;
    assert_eq!(stream.say().await, "1/");
    stream.acknowledged("2", "b", &["web"]).await;
    assert_eq!(client.applied(), [["api"], ["web"]]);
}

#[tokio::test]
async fn certificates_are_shown_and_checked_and_read_again() {
    let certificates = Certificates::make();
    let server = Identity::from_pem(
        certificates.read("server.crt"),
        certificates.read("server.key"),
    );
    let authority = Certificate::from_pem(certificates.read("authority.crt"));
    let tls = ServerTlsConfig::new()
        .identity(server)
        .client_ca_root(authority);
    let mut plane = Plane::start(Some(tls)).await;
    let file = |name: &str| certificates.path(name).into();
    let folder = crate::process::Folder::new();
    let cert = folder.path("client.crt");
    let address = plane.address.to_string();
    let start = |identity| {
        let tls = ClientTls {
            ca: Some(file("authority.crt")),
            identity,
            server_name: Some("localhost".into()),
        };
        Client::start(ControlPlane {
            tls: Some(tls),
            ..control_plane(&address)
        })
    };
    let client = start(Some((cert.clone(), file("client.key"))));
    // The certificate is not there yet, and then it is.
    tokio::task::yield_now().await;
    std::fs::copy(certificates.path("client.crt"), &cert).expect("a file");
    let mut stream = plane.stream().await;
    assert_eq!(stream.say().await, "/");
    stream.acknowledged("1", "a", &["api"]).await;
    assert_eq!(client.applied(), [["api"]]);
    // Without a certificate, no stream is opened.
    let _stranger = start(None);
    let waited = timeout(Duration::from_millis(500), plane.opened.recv()).await;
    assert!(waited.is_err(), "a stream without a certificate");
}

/// The message that a control plane sends is the file that a person writes.
#[test]
fn config_of_a_control_plane_is_that_of_a_file() {
    let text = "domain: api
descriptors:
- key: user
  value: ann
  shadow_mode: true
  detailed_metric: true
  descriptors:
  - key: path
    quota_mode: true
    rate_limit: { unit: week, requests_per_unit: 7, name: weekly, replaces: [{ name: daily }] }
- key: bot
  rate_limit: { unlimited: true }
";
    let file = read_text(text, "config.yaml").expect("a right file");
    let path = RateLimitDescriptor {
        key: "path".into(),
        quota_mode: true,
        rate_limit: Some(RateLimitPolicy {
            unit: Unit::Week.into(),
            requests_per_unit: 7,
            name: "weekly".into(),
            replaces: vec![Replace {
                name: "daily".into(),
            }],
            ..RateLimitPolicy::default()
        }),
        ..RateLimitDescriptor::default()
    };
    let mut sent = config("api");
    sent.descriptors[0] = RateLimitDescriptor {
        key: "user".into(),
        value: "ann".into(),
        shadow_mode: true,
        detailed_metric: true,
        descriptors: vec![path],
        ..RateLimitDescriptor::default()
    };
    sent.descriptors.push(RateLimitDescriptor {
        key: "bot".into(),
        rate_limit: Some(RateLimitPolicy {
            unlimited: true,
            ..RateLimitPolicy::default()
        }),
        ..RateLimitDescriptor::default()
    });
    let sent = drafts(vec![sent]);
    let build = |drafts| Domains::build(drafts, &Defaults::default()).expect("right");
    let (file, sent) = (build(vec![file]), build(sent));
    assert_eq!(file.rules(), sent.rules());
    assert_eq!(sent.rules().len(), 2);
}
