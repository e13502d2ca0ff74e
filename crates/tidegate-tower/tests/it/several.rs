//! Several policies on one route, and layers within layers.

use tidegate::{Dialect, Policy};
use tidegate_tower::{Key, RateLimitLayer};
use tower::Layer;

use crate::support::{around_hello, hello, limiter, request, send, statuses, used, yearly};

#[tokio::test]
async fn a_refusal_gives_back_what_earlier_policies_have_charged() {
    let limiter = limiter([
        Policy::builder("site").key("").limit(yearly(10)),
        Policy::builder("method").key("{method}").limit(yearly(2)),
    ]);
    let layer = RateLimitLayer::builder(limiter.clone())
        .policy("site")
        .policy("method")
        .key("method", Key::method());
    let mut service = around_hello(layer);
    assert_eq!(
        statuses(&mut service, 5, &[]).await,
        [200, 200, 429, 429, 429]
    );
    assert_eq!(used(&limiter, "site", &()), 2);
    let refused = send(&mut service, request("/", &[])).await;
    assert_eq!(
        refused.header("ratelimit-policy").as_deref(),
        Some("\"site\";q=10;w=31536000, \"method\";q=2;w=31536000")
    );
    assert!(
        refused.body.contains("\"violated-policies\":[\"method\"]"),
        "{}",
        refused.body
    );
}

#[tokio::test]
async fn layers_within_layers_tell_of_all_lists_and_of_the_inner_numbers() {
    let limiter = limiter([
        Policy::builder("outer").key("").limit(yearly(10)),
        Policy::builder("inner").key("").limit(yearly(3)),
        Policy::builder("numbers")
            .key("")
            .limit(yearly(5))
            .headers(Dialect::XRateLimit),
        Policy::builder("others")
            .key("")
            .limit(yearly(4))
            .headers(Dialect::XRateLimit),
    ]);
    let layer = |policy: &str| {
        let layer = RateLimitLayer::builder(limiter.clone()).policy(policy);
        layer.build().expect("a layer")
    };
    let mut lists = layer("outer").layer(layer("inner").layer(hello()));
    let answer = send(&mut lists, request("/", &[])).await;
    assert_eq!(
        answer.header("ratelimit-policy").as_deref(),
        Some("\"inner\";q=3;w=31536000, \"outer\";q=10;w=31536000")
    );
    let mut numbers = layer("numbers").layer(layer("others").layer(hello()));
    let answer = send(&mut numbers, request("/", &[])).await;
    assert_eq!(answer.header("x-ratelimit-limit").as_deref(), Some("4"));
    assert_eq!(answer.header("x-ratelimit-remaining").as_deref(), Some("3"));
}
