//! Responses that do not count.

use tidegate::Policy;
use tidegate_tower::{Key, RateLimitLayer};

use crate::support::{around_hello, by, limiter, one_policy, request, send, used, yearly};

#[tokio::test]
async fn what_the_user_says_does_not_count_is_given_back() {
    let limiter = one_policy(2);
    let layer = by(&limiter, Key::method()).refund(|response| response.status == 304);
    let mut service = around_hello(layer);
    let mut used_after = Vec::new();
    for status in ["304", "200", "304", "304", "200", "304"] {
        let answer = send(&mut service, request("/", &[("answer-with", status)])).await;
        used_after.push((answer.status.as_u16(), used(&limiter, "p", &[("k", "GET")])));
    }
    assert_eq!(
        used_after,
        [(304, 0), (200, 1), (304, 1), (304, 1), (200, 2), (429, 2)]
    );
}

#[tokio::test]
async fn every_policy_that_was_charged_gets_it_back() {
    let limiter = limiter([
        Policy::builder("site").key("").limit(yearly(10)),
        Policy::builder("pair")
            .key("{method}:{token}")
            .limit(yearly(10)),
        Policy::builder("token").key("{token}").limit(yearly(10)),
    ]);
    let layer = RateLimitLayer::builder(limiter.clone())
        .policy("site")
        .policy("pair")
        .policy("token")
        .key("method", Key::method())
        .key(
            "token",
            Key::header(http::HeaderName::from_static("token")).or_skip(),
        )
        .refund(|response| response.status.is_server_error());
    let mut service = around_hello(layer);
    let attributes = [("method", "GET"), ("token", "t")];
    let used = || ["site", "pair", "token"].map(|policy| used(&limiter, policy, &attributes));
    send(&mut service, request("/", &[("token", "t")])).await;
    assert_eq!(used(), [1, 1, 1]);
    send(
        &mut service,
        request("/", &[("token", "t"), ("answer-with", "503")]),
    )
    .await;
    assert_eq!(used(), [1, 1, 1]);
    send(&mut service, request("/", &[("answer-with", "503")])).await;
    assert_eq!(used(), [1, 1, 1]);
    send(&mut service, request("/", &[])).await;
    assert_eq!(used(), [2, 1, 1]);
}
