//! With tonic, through real sockets: a status that clients of gRPC understand.

use std::net::SocketAddr;
use std::time::Duration;

use tidegate::{Cost, Limit, ManualClock};
use tidegate_tower::{Key, RateLimitBuilder, RateLimitLayer};
use tokio::net::TcpListener;
use tonic::Code;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Server};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tonic_types::StatusExt;

use crate::support::{YEAR, around_hello, by, is_counted, on_clock, one_policy, request, send};

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
    let question = HealthCheckRequest::default;
    let answer = client.check(question()).await.expect("served");
    let state = answer.metadata().get("ratelimit");
    let state = state.expect("headers of allowed calls, too");
    assert!(state.to_str().unwrap().starts_with("\"p\";r=0;t="));
    assert!(is_counted(&limiter, "127.0.0.1"));

    let refused = client.check(question()).await.expect_err("refused");
    assert_eq!(refused.code(), Code::ResourceExhausted);
    assert_eq!(refused.message(), "rate limit exceeded");
    let details = refused.get_error_details();
    let retry = details.retry_info().expect("retry info");
    let delay = retry.retry_delay.expect("a delay");
    let minutes = Duration::from_mins(10);
    assert!((YEAR - minutes..=YEAR).contains(&delay), "{delay:?}");
    let pushback = refused.metadata().get("grpc-retry-pushback-ms");
    let pushback: u128 = pushback.unwrap().to_str().unwrap().parse().unwrap();
    assert_eq!(pushback, delay.as_nanos().div_ceil(1_000_000));
    assert!(refused.metadata().get("retry-after").is_some());
}

#[tokio::test]
async fn a_call_that_can_never_pass_is_not_to_be_tried_again() {
    let limiter = one_policy(1);
    let address = serve(layer(by(&limiter, Key::address()).cost(|_| Cost::of(2)))).await;
    let mut client = client(address).await;
    let refused = client.check(HealthCheckRequest::default()).await;
    let refused = refused.expect_err("refused");
    assert_eq!(refused.code(), Code::ResourceExhausted);
    assert!(refused.get_error_details().retry_info().is_none());
    let pushback = refused.metadata().get("grpc-retry-pushback-ms");
    assert_eq!(pushback.expect("a pushback"), "-1");
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
        let clock = ManualClock::at_us(1_000_000);
        let window = Duration::from_micros(wait_us).max(Duration::from_millis(1));
        let limiter = on_clock(&clock, Limit::per(1, window).fixed_window());
        let mut service = around_hello(by(&limiter, Key::method()));
        let grpc = [("content-type", "application/grpc")];
        send(&mut service, request("/", &grpc)).await;
        clock.advance(window - Duration::from_micros(wait_us));
        let refused = send(&mut service, request("/", &grpc)).await;
        let kind = refused.header("content-type");
        let said = (refused.status.as_u16(), kind.as_deref());
        assert_eq!(said, (200, Some("application/grpc")));
        let status = tonic::Status::from_header_map(&refused.headers).expect("a status");
        let retry = status.get_error_details().retry_info().cloned();
        let delay = retry.and_then(|retry| retry.retry_delay);
        assert_eq!(delay, Some(Duration::from_micros(wait_us)));
    }
}
