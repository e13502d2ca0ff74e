//! A layer of one limit, responders of your own, and the body of a refusal.

use bytes::Bytes;
use http::{Response, StatusCode};
use http_body::Body as _;
use http_body_util::BodyExt;
use tidegate_tower::{Key, RateLimitLayer, Reason};
use tower::{Layer, Service, ServiceExt};

use crate::support::{around_hello, by, hello, one_policy, request, send, statuses, yearly};

#[tokio::test]
async fn one_limit_and_one_key_make_a_layer() {
    let layer = RateLimitLayer::new(yearly(2), Key::method());
    let (mut one, mut clone) = (layer.layer(hello()), layer.clone().layer(hello()));
    assert_eq!(statuses(&mut one, 1).await, [200]);
    assert_eq!(statuses(&mut clone, 2).await, [200, 429]);
    let refused = send(&mut one, request("/", &[])).await;
    let told = refused.header("ratelimit-policy");
    assert_eq!(told.as_deref(), Some("\"default\";q=2;w=31536000"));
}

#[test]
#[should_panic(expected = "the path \"users/{id}\": expected it to begin with a slash")]
fn a_key_that_cannot_be_meant_does_not_make_a_layer() {
    let _ = RateLimitLayer::new(yearly(2), Key::path_parameter("users/{id}", "id"));
}

#[tokio::test]
async fn a_refusal_has_a_body_of_known_length() {
    let mut service = around_hello(by(&one_policy(1), Key::method()));
    send(&mut service, request("/", &[])).await;
    let service = service.ready().await.unwrap();
    let mut body = service.call(request("/", &[])).await.unwrap().into_body();
    let hint = body.size_hint().exact().expect("a length");
    assert!(!body.is_end_stream());
    let frame = body.frame().await.unwrap().unwrap();
    assert_eq!(frame.into_data().unwrap().len() as u64, hint);
}

#[tokio::test]
async fn a_responder_of_ones_own_answers_in_any_way() {
    let layer =
        by(&one_policy(1), Key::header(http::header::HOST).or_refuse()).responder(|refusal| {
            match refusal.reason() {
                Reason::Missing(name) => Response::new(format!("{name}?")),
                _ => {
                    let wait = refusal.retry_after().expect("waiting helps").as_secs() / 86_400;
                    let path = refusal.request().uri.path();
                    let mut response = Response::new(format!("{path}: {wait} days"));
                    *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
                    refusal.add_headers(response.headers_mut());
                    response
                }
            }
        });
    let mut service = around_hello(layer);
    let missing = send(&mut service, request("/x", &[])).await;
    assert_eq!((missing.status, &*missing.body), (StatusCode::OK, "k?"));
    assert!(missing.headers.is_empty());
    send(&mut service, request("/x", &[("host", "h")])).await;
    let refused = send(&mut service, request("/x", &[("host", "h")])).await;
    let said = (refused.status.as_u16(), &*refused.body);
    assert_eq!(said, (503, "/x: 364 days"));
    assert!(refused.header("retry-after").is_some());
    assert!(refused.header("ratelimit").is_some());

    // A client of gRPC would not understand that.
    let grpc = [("host", "h"), ("content-type", "application/grpc+proto")];
    let refused = send(&mut service, request("/x", &grpc)).await;
    assert_eq!((refused.status.as_u16(), &*refused.body), (200, ""));
    assert_eq!(refused.header("grpc-status").as_deref(), Some("8"));
}

#[tokio::test]
async fn the_usual_response_can_be_changed() {
    let layer = by(&one_policy(1), Key::method()).responder(|refusal| {
        let mut response: Response<Bytes> = refusal.response();
        response.headers_mut().insert("x-more", 1.into());
        response
    });
    let mut service = around_hello(layer);
    send(&mut service, request("/", &[])).await;
    let refused = send(&mut service, request("/", &[])).await;
    assert_eq!(refused.status, 429);
    assert_eq!(refused.header("x-more").as_deref(), Some("1"));
    assert!(refused.body.contains("quota-exceeded"));
}
