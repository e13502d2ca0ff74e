//! The ceiling of the benchmark of Envoy's rate limit service: a handler that answers
//! without a look at the request, on tonic's own server with its defaults.
//!
//! `grpc-hello PORT` listens there until it is killed. It is a program of its own because
//! `tidegate-bench` counts what is allocated, which takes time.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::pin::Pin;
use std::task::{Context, Poll};

use hyper::{Request, Response};
use tidegate_server::envoy::wire::{
    Code, DescriptorStatus, HeaderValue, RateLimit, RateLimitRequest, RateLimitResponse, Unit,
};
use tonic::body::Body;
use tonic::server::{Grpc, NamedService, UnaryService};
use tonic::{Status, transport::Server};
use tonic_prost::ProstCodec;

/// What `tidegate serve` answers to an admitted call, as of some moment.
fn answer() -> RateLimitResponse {
    let header = |key: &str, value: &str| HeaderValue {
        key: key.into(),
        value: value.into(),
    };
    RateLimitResponse {
        overall_code: Code::Ok.into(),
        statuses: vec![DescriptorStatus {
            code: Code::Ok.into(),
            current_limit: Some(RateLimit {
                requests_per_unit: 1,
                unit: Unit::Unknown.into(),
                name: "api".into(),
            }),
            limit_remaining: 999_998,
            duration_until_reset: Some(prost_types::Duration {
                seconds: 1_200,
                nanos: 0,
            }),
        }],
        response_headers_to_add: vec![
            header("RateLimit-Policy", "\"api\";q=1;w=600"),
            header("RateLimit", "\"api\";r=999998;t=1200"),
        ],
        ..RateLimitResponse::default()
    }
}

#[derive(Clone, Copy)]
struct Hello;

impl UnaryService<RateLimitRequest> for Hello {
    type Response = RateLimitResponse;
    type Future = Ready<Result<tonic::Response<RateLimitResponse>, Status>>;

    fn call(&mut self, _: tonic::Request<RateLimitRequest>) -> Self::Future {
        ready(Ok(tonic::Response::new(answer())))
    }
}

impl NamedService for Hello {
    const NAME: &'static str = "envoy.service.ratelimit.v3.RateLimitService";
}

impl tower::Service<Request<Body>> for Hello {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        Box::pin(async move {
            let codec = ProstCodec::<RateLimitResponse, RateLimitRequest>::default();
            Ok(Grpc::new(codec).unary(Self, request).await)
        })
    }
}

fn main() {
    let port = std::env::args().nth(1).and_then(|port| port.parse().ok());
    let port: u16 = port.expect("usage: grpc-hello PORT");
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.enable_all().build().expect("a runtime");
    let served = Server::builder().add_service(Hello);
    let served = runtime.block_on(async {
        tokio::select! {
            served = served.serve(([127, 0, 0, 1], port).into()) => served,
            // Ends as it should, so that callgrind writes what it has counted.
            stopped = tokio::signal::ctrl_c() => {
                stopped.expect("signals");
                Ok(())
            }
        }
    });
    served.expect("a free port");
}
