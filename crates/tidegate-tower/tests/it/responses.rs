//! What clients see: headers in every dialect, refusals, responders, bodies.

use bytes::Bytes;
use http::{Response, StatusCode};
use http_body::Body as _;
use tidegate::{Cost, Dialect, Limit, Policy};
use tidegate_tower::{Key, RateLimitLayer, Reason};
use tower::{Service, ServiceExt};

use crate::support::{Answer, around_hello, by, limiter, one_policy, request, send};

async fn first_and_second(dialect: Dialect) -> [Answer; 2] {
    let policy = Policy::builder("p")
        .key("")
        .limit(Limit::per_day(1).fixed_window());
    let limiter = limiter([policy.headers(dialect)]);
    let mut service = around_hello(RateLimitLayer::builder(limiter).policy("p"));
    let mut answers = Vec::new();
    for _ in 0..2 {
        answers.push(send(&mut service, request("/", &[])).await);
    }
    answers.try_into().expect("two answers")
}

/// A header that is a number of seconds until tomorrow.
fn is_about_a_day(answer: &Answer, name: &str) -> bool {
    let seconds = answer.header(name).expect(name).parse::<u32>();
    (86_000..=86_400).contains(&seconds.expect("a number"))
}

#[tokio::test]
async fn allowed_and_refused_responses_have_the_headers_of_the_dialect() {
    let [allowed, refused] = first_and_second(Dialect::Ietf).await;
    for answer in [&allowed, &refused] {
        assert_eq!(
            answer.header("ratelimit-policy").as_deref(),
            Some("\"p\";q=1;w=86400")
        );
        assert!(
            answer
                .header("ratelimit")
                .unwrap()
                .starts_with("\"p\";r=0;t=")
        );
    }
    assert_eq!((allowed.status, &*allowed.body), (StatusCode::OK, "hello"));
    assert_eq!(allowed.header("retry-after"), None);
    assert_eq!(refused.status, 429);
    assert!(is_about_a_day(&refused, "retry-after"));

    let [allowed, refused] = first_and_second(Dialect::XRateLimit).await;
    for answer in [&allowed, &refused] {
        assert_eq!(answer.header("x-ratelimit-limit").as_deref(), Some("1"));
        assert_eq!(answer.header("x-ratelimit-remaining").as_deref(), Some("0"));
        assert!(is_about_a_day(answer, "x-ratelimit-reset"));
        assert_eq!(answer.header("ratelimit"), None);
    }
    assert!(is_about_a_day(&refused, "retry-after"));

    let [_, refused] = first_and_second(Dialect::Draft06).await;
    assert_eq!(
        refused.header("ratelimit-policy").as_deref(),
        Some("1;w=86400")
    );
    assert_eq!(refused.header("ratelimit-limit").as_deref(), Some("1"));

    let names = ["My-Limit", "My-Reset", "My-Remaining"].map(Into::into);
    let [allowed, _] = first_and_second(Dialect::Custom(names)).await;
    assert_eq!(allowed.header("my-remaining").as_deref(), Some("0"));

    let [allowed, refused] = first_and_second(Dialect::None).await;
    assert_eq!(allowed.headers.len(), 0, "{:?}", allowed.headers);
    assert_eq!(refused.header("retry-after"), None);
}

#[tokio::test]
async fn a_refusal_is_a_problem_with_a_length() {
    let [_, refused] = first_and_second(Dialect::Ietf).await;
    assert_eq!(
        refused.header("content-type").as_deref(),
        Some("application/problem+json")
    );
    let problem: serde_json::Value = serde_json::from_str(&refused.body).expect("JSON");
    assert_eq!(problem["status"], 429);
    assert_eq!(problem["violated-policies"], serde_json::json!(["p"]));
    let kind = "https://iana.org/assignments/http-problem-types#quota-exceeded";
    assert_eq!(problem["type"], kind);

    let mut service = around_hello(by(&one_policy(1), Key::method()));
    send(&mut service, request("/", &[])).await;
    let service = service.ready().await.unwrap();
    let body = service.call(request("/", &[])).await.unwrap().into_body();
    assert_eq!(body.size_hint().exact(), Some(refused.body.len() as u64));
    assert!(!body.is_end_stream());
}

#[tokio::test]
async fn a_cost_above_the_limit_has_no_time_to_come_back() {
    let layer = by(&one_policy(1), Key::method()).cost(|_| Cost::of(2));
    let refused = send(&mut around_hello(layer), request("/", &[])).await;
    assert_eq!(refused.status, 429);
    assert_eq!(refused.header("retry-after"), None);
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
    assert_eq!(
        (refused.status.as_u16(), &*refused.body),
        (503, "/x: 364 days")
    );
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

#[tokio::test]
async fn shadow_policy_refuses_nothing() {
    let policy = Policy::builder("p").key("").limit(Limit::per_day(1));
    let limiter = limiter([policy.shadow(true)]);
    let mut service = around_hello(RateLimitLayer::builder(limiter).policy("p"));
    for _ in 0..3 {
        assert_eq!(send(&mut service, request("/", &[])).await.status, 200);
    }
}
