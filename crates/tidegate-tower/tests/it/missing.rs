//! A key that cannot be found: skipped, refused or shared, and never an error.

use http::HeaderName;
use tidegate::Policy;
use tidegate_tower::{Key, RateLimitLayer};

use crate::support::{
    around_hello, by, count_keys, is_counted, limiter, one_policy, request, send, statuses, used,
    yearly,
};

fn api_key() -> Key {
    Key::header(HeaderName::from_static("x-api-key"))
}

#[tokio::test]
async fn requests_without_a_value_share_a_key_unless_said_otherwise() {
    for (key, shared) in [
        (api_key(), ""),
        (api_key().or_shared("anonymous"), "anonymous"),
    ] {
        let limiter = one_policy(2);
        let mut service = around_hello(by(&limiter, key));
        assert_eq!(statuses(&mut service, 3, &[]).await, [200, 200, 429]);
        assert!(is_counted(&limiter, shared));
        assert_eq!(
            statuses(&mut service, 1, &[("x-api-key", "a")]).await,
            [200]
        );
    }
}

#[tokio::test]
async fn or_they_are_not_counted() {
    let limiter = one_policy(1);
    let mut service = around_hello(by(&limiter, api_key().or_skip()));
    assert_eq!(statuses(&mut service, 3, &[]).await, [200; 3]);
    assert_eq!(count_keys(&limiter), 0);
    assert_eq!(
        statuses(&mut service, 2, &[("x-api-key", "a")]).await,
        [200, 429]
    );
}

#[tokio::test]
async fn or_they_are_refused() {
    let limiter = one_policy(1);
    let mut service = around_hello(by(&limiter, api_key().or_refuse()));
    let refused = send(&mut service, request("/", &[])).await;
    assert_eq!(refused.status, 400);
    assert_eq!(
        refused.header("content-type").as_deref(),
        Some("application/problem+json")
    );
    assert_eq!(
        refused.body,
        "{\"type\":\"about:blank\",\"title\":\"Bad Request\",\"status\":400,\
         \"detail\":\"the attribute k is missing\"}"
    );
    assert!(serde_json::from_str::<serde_json::Value>(&refused.body).is_ok());
    assert_eq!(count_keys(&limiter), 0);
    let grpc = request("/", &[("content-type", "application/grpc")]);
    let refused = send(&mut service, grpc).await;
    assert_eq!(refused.status, 200);
    assert_eq!(refused.header("grpc-status").as_deref(), Some("3"));
    assert_eq!(
        refused.header("grpc-message").as_deref(),
        Some("the attribute k is missing")
    );
}

#[tokio::test]
async fn only_policies_that_need_the_value_are_skipped() {
    let limiter = limiter([
        Policy::builder("site").key("").limit(yearly(10)),
        Policy::builder("token").key("{token}").limit(yearly(1)),
    ]);
    let layer = RateLimitLayer::builder(limiter.clone())
        .policy("site")
        .policy("token")
        .key("token", Key::bearer_token().or_skip());
    let mut service = around_hello(layer);
    assert_eq!(statuses(&mut service, 3, &[]).await, [200; 3]);
    assert_eq!(used(&limiter, "site", &()), 3);
    let token = [("authorization", "Bearer a")];
    assert_eq!(statuses(&mut service, 2, &token).await, [200, 429]);
    assert_eq!(used(&limiter, "site", &()), 4);
}

#[tokio::test]
async fn a_missing_extension_is_no_error() {
    #[derive(Clone)]
    struct Absent;
    for key in [
        Key::address(),
        Key::peer_address(),
        Key::extension(|_: &Absent| Some("x")),
        Key::path_parameter("/elsewhere/{id}", "id"),
        Key::bearer_token(),
        Key::function(|_| None::<String>),
    ] {
        let limiter = one_policy(1);
        let mut service = around_hello(by(&limiter, key));
        assert_eq!(statuses(&mut service, 2, &[]).await, [200, 429]);
        assert!(is_counted(&limiter, ""));
    }
}
