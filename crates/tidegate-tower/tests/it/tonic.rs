//! With tonic, through real sockets: a status that clients of gRPC understand.

use std::net::SocketAddr;
use std::time::Duration;

use tidegate::{Cost, Limit};
use tidegate_tower::{Key, RateLimitBuilder, RateLimitLayer};
use tokio::net::TcpListener;
use tonic::Code;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Server};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tonic_types::StatusExt;

use crate::support::{by, is_counted, one_policy, request, send};

/// The health service with limits, on a free port until the test ends.
async fn serve(layer: RateLimitLayer) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let (_, health) = tonic_health::server::health_reporter();
    let server = Server::builder().layer(layer).add_service(health);
    let incoming = TcpIncoming::from(listener);
    tokio::spawn(async move { server.serve_with_incoming(incoming).await });
    address
}

async fn client(address: SocketAddr) -> HealthClient<Channel> {
    let channel = Channel::from_shared(format!("http://{address}")).expect("a url");
    HealthClient::new(channel.connect().await.expect("a server"))
}

fn layer(layer: RateLimitBuilder) -> RateLimitLayer {
    layer.build().expect("a layer")
}

#[tokio::test]
async fn a_call_too_many_is_resource_exhausted_with_the_time_to_wait() {
    let limiter = one_policy(1);
    let address = serve(layer(by(&limiter, Key::address()))).await;
    let mut client = client(address).await;
    let answer = client
        .check(HealthCheckRequest::default())
        .await
        .expect("served");
    let told = answer
        .metadata()
        .get("ratelimit")
        .expect("headers of allowed calls, too");
    assert!(told.to_str().unwrap().starts_with("\"p\";r=0;t="));
    assert!(is_counted(&limiter, "127.0.0.1"));

    let refused = client
        .check(HealthCheckRequest::default())
        .await
        .expect_err("refused");
    assert_eq!(refused.code(), Code::ResourceExhausted);
    assert_eq!(refused.message(), "rate limit exceeded");
    let details = refused.get_error_details();
    let delay = details
        .retry_info()
        .expect("retry info")
        .retry_delay
        .expect("a delay");
    let year = Duration::from_secs(365 * 86_400);
    assert!(
        delay > year - Duration::from_secs(600) && delay <= year,
        "{delay:?}"
    );
    let pushback = refused
        .metadata()
        .get("grpc-retry-pushback-ms")
        .expect("a pushback");
    let pushback: u128 = pushback.to_str().unwrap().parse().unwrap();
    assert_eq!(pushback, delay.as_nanos().div_ceil(1_000_000));
    assert!(refused.metadata().get("retry-after").is_some());
}

#[tokio::test]
async fn a_call_that_can_never_pass_is_not_to_be_tried_again() {
    let limiter = one_policy(1);
    let address = serve(layer(by(&limiter, Key::address()).cost(|_| Cost::of(2)))).await;
    let refused = client(address)
        .await
        .check(HealthCheckRequest::default())
        .await;
    let refused = refused.expect_err("refused");
    assert_eq!(refused.code(), Code::ResourceExhausted);
    assert!(refused.get_error_details().retry_info().is_none());
    let pushback = refused
        .metadata()
        .get("grpc-retry-pushback-ms")
        .expect("a pushback");
    assert_eq!(pushback, "-1");
}

#[tokio::test]
async fn waits_of_any_length_are_encoded_as_others_decode_them() {
    for wait_us in [
        1,
        999,
        1_000,
        127_000_000,
        128_000_000,
        1_000_001,
        300 * 86_400_000_000,
    ] {
        // What is left of the window after the first request is the whole of it.
        let clock = tidegate::ManualClock::at_us(1_000_000);
        let store = tidegate::MemoryStore::builder()
            .clock(clock.clone())
            .build();
        let window = Duration::from_micros(wait_us).max(Duration::from_millis(1));
        let policy = tidegate::Policy::builder("p").key("{k}");
        let policy = policy.limit(Limit::per(1, window).fixed_window()).build();
        let limiter =
            tidegate::PolicyLimiter::with_stores([("default", store)], [policy.expect("a policy")]);
        let layer = layer(by(&std::sync::Arc::new(limiter.unwrap()), Key::method()));
        let mut service = tower::Layer::layer(&layer, crate::support::hello());
        let grpc = [("content-type", "application/grpc")];
        send(&mut service, request("/", &grpc)).await;
        clock.advance(window - Duration::from_micros(wait_us));
        let refused = send(&mut service, request("/", &grpc)).await;
        assert_eq!(refused.status, 200);
        assert_eq!(
            refused.header("content-type").as_deref(),
            Some("application/grpc")
        );
        let status = tonic::Status::from_header_map(&refused.headers).expect("a status");
        let delay = status
            .get_error_details()
            .retry_info()
            .and_then(|it| it.retry_delay);
        assert_eq!(delay, Some(Duration::from_micros(wait_us)));
    }
}
