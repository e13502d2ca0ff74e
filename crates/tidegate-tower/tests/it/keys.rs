//! Keys: where values come from.

use http::{HeaderName, Method};
use tidegate::Policy;
use tidegate_tower::{Key, RateLimitLayer};
use tower::Layer;

use crate::support::{
    around_hello, by, count_keys, hello, is_counted, limiter, one_policy, request, send, used,
    yearly,
};

const TOKEN: &str = "abc";
/// The SHA-256 of it.
const HASHED: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

#[derive(Clone)]
struct User(u64);

#[tokio::test]
async fn every_source_gives_the_value_it_says() {
    let api_key = HeaderName::from_static("x-api-key");
    let headers = [
        ("x-api-key", "k1"),
        ("x-api-key", "k2"),
        ("authorization", "Bearer abc"),
    ];
    for (name, key, value) in [
        ("header", Key::header(api_key.clone()), "k1"),
        ("bearer token", Key::bearer_token(), HASHED),
        ("method", Key::method(), "POST"),
        ("path", Key::path_parameter("/users/{id}", "id"), "4 2"),
        (
            "extension",
            Key::extension(|user: &User| Some(user.0.to_string())),
            "7",
        ),
        (
            "function",
            Key::function(|head| head.uri.query().map(str::to_owned)),
            "q=1",
        ),
        ("hashed", Key::function(|_| Some(TOKEN)).hashed(), HASHED),
    ] {
        let limiter = one_policy(1);
        let mut service = around_hello(by(&limiter, key));
        let mut request = request("/users/4%202?q=1", &headers);
        *request.method_mut() = Method::POST;
        request.extensions_mut().insert(User(7));
        assert_eq!(send(&mut service, request).await.status, 200, "{name}");
        assert!(is_counted(&limiter, value), "{name}");
        assert_eq!(count_keys(&limiter), 1, "{name}");
    }
}

#[tokio::test]
async fn attributes_are_combined_by_templates_and_levels() {
    let limiter = limiter([Policy::builder("p")
        .level("resource", "{id}", yearly(3))
        .level("consumer", "{id}:{token}", yearly(2))]);
    let layer = RateLimitLayer::builder(limiter.clone())
        .policy("p")
        .key("id", Key::path_parameter("/resources/{id}", "id"))
        .key("token", Key::bearer_token());
    let mut service = around_hello(layer);
    let mut answers = Vec::new();
    for token in ["Bearer a", "Bearer a", "Bearer a", "Bearer b", "Bearer b"] {
        let request = request("/resources/1", &[("authorization", token)]);
        answers.push(send(&mut service, request).await.status.as_u16());
    }
    assert_eq!(answers, [200, 200, 429, 200, 429]);
    let other = request("/resources/2", &[("authorization", "Bearer b")]);
    assert_eq!(send(&mut service, other).await.status, 200);
}

#[tokio::test]
async fn a_token_does_not_reach_the_store() {
    let limiter = one_policy(1);
    let mut service = around_hello(by(&limiter, Key::bearer_token()));
    send(
        &mut service,
        request("/", &[("authorization", "Bearer abc")]),
    )
    .await;
    assert!(!is_counted(&limiter, TOKEN));
}

#[tokio::test]
async fn one_limit_and_one_key_make_a_layer() {
    let layer = RateLimitLayer::new(yearly(2), Key::method());
    let mut service = layer.layer(hello());
    let mut clone = layer.clone().layer(hello());
    assert_eq!(send(&mut service, request("/", &[])).await.status, 200);
    assert_eq!(send(&mut clone, request("/", &[])).await.status, 200);
    let refused = send(&mut service.clone(), request("/", &[])).await;
    assert_eq!(refused.status, 429);
    assert_eq!(
        refused.header("ratelimit-policy").as_deref(),
        Some("\"default\";q=2;w=31536000")
    );
}

#[tokio::test]
#[should_panic(expected = "the path \"users/{id}\": expected it to begin with a slash")]
async fn impossible_key_is_an_error_at_build_time() {
    let _ = RateLimitLayer::new(yearly(2), Key::path_parameter("users/{id}", "id"));
}

#[tokio::test]
async fn a_policy_without_a_key_needs_none() {
    let limiter = limiter([Policy::builder("site").key("").limit(yearly(1))]);
    let layer = RateLimitLayer::builder(limiter.clone()).policy("site");
    let mut service = around_hello(layer);
    assert_eq!(send(&mut service, request("/", &[])).await.status, 200);
    assert_eq!(send(&mut service, request("/", &[])).await.status, 429);
    assert_eq!(used(&limiter, "site", &()), 1);
}
