//! tower's contract: ready first, and nobody holds a place that is not used.

use std::convert::Infallible;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use http::{Request, Response};
use tidegate::{Limit, Policy};
use tidegate_testkit::redis::Server;
use tidegate_tower::{Key, RateLimit, RateLimitLayer};
use tower::limit::ConcurrencyLimit;
use tower::{Layer, Service, ServiceExt, service_fn};

use crate::shared::{PATIENT, over, store};
use crate::support::{Body, Hello, by, hello, one_policy, request, statuses};

/// What is there without waiting.
fn now<F: Future>(future: F) -> Option<F::Output> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}

/// Whether a clone would be ready. It does not stay in the queue for a place.
fn is_ready<S: Service<Request<Body>> + Clone>(service: &S) -> bool {
    now(service.clone().ready()).is_some()
}

/// A place for one request at a time.
fn one_place() -> ConcurrencyLimit<Hello> {
    ConcurrencyLimit::new(hello(), 1)
}

#[tokio::test]
async fn it_is_ready_when_the_service_inside_is() {
    let layer = by(&one_policy(5), Key::method()).build().expect("a layer");
    let mut first = layer.layer(one_place());
    let second = first.clone();
    assert!(now(first.ready()).is_some());
    assert!(!is_ready(&second), "the place is taken");
    drop(first);
    assert!(is_ready(&second));
}

#[tokio::test]
async fn a_refused_request_gives_its_place_back() {
    let layer = by(&one_policy(1), Key::method()).build().expect("a layer");
    let mut first = layer.layer(one_place());
    let second = first.clone();
    assert_eq!(statuses(&mut first, 2).await, [200, 429]);
    assert!(is_ready(&second), "a refusal holds no place");
}

#[tokio::test]
async fn who_waits_for_a_turn_holds_no_place() {
    let never = |_| std::future::pending();
    let layer = by(&one_policy(1), Key::method()).wait(Duration::MAX, 10, never);
    let mut first = layer.build().expect("a layer").layer(one_place());
    let second = first.clone();
    assert_eq!(statuses(&mut first, 1).await, [200]);
    let mut waiting = Box::pin(first.ready().await.expect("ready").call(request("/", &[])));
    assert!(now(&mut waiting).is_none());
    assert!(is_ready(&second));
}

/// A limiter of one request per minute, in Redis.
fn in_redis(server: &Server) -> RateLimit<ConcurrencyLimit<Hello>> {
    let policy = Policy::builder("p").key("").limit(Limit::per_minute(1));
    let layer = over(store(server, PATIENT), policy.build().expect("a policy"));
    layer.build().expect("a layer").layer(one_place())
}

#[tokio::test]
async fn a_limiter_that_is_awaited_keeps_the_place_until_it_has_answered() {
    let server = Server::start();
    let mut first = in_redis(&server);
    let second = first.clone();
    let mut call = Box::pin(first.ready().await.expect("ready").call(request("/", &[])));
    assert!(now(&mut call).is_none(), "Redis was asked");
    assert!(!is_ready(&second), "the place is this request's");
    assert_eq!(call.await.expect("an answer").status(), 200);
    assert_eq!(statuses(&mut first, 2).await, [429, 429]);
    assert!(is_ready(&second), "a refusal holds no place");
}

#[tokio::test]
async fn errors_of_the_service_are_its_own() {
    #[derive(Debug, PartialEq)]
    struct Broken;
    let broken = service_fn(async |_: Request<Body>| Err::<Response<Body>, _>(Broken));
    let layer = by(&one_policy(2), Key::method()).refund(|_| true);
    let mut service = layer.build().expect("a layer").layer(broken);
    let error = service.ready().await.unwrap().call(request("/", &[])).await;
    assert_eq!(error.unwrap_err(), Broken);
}

#[test]
fn bodies_and_services_need_not_be_sent_between_threads() {
    use std::rc::Rc;
    let local = service_fn(|request: Request<Rc<str>>| {
        std::future::ready(Ok::<_, Infallible>(Response::new(request.into_body())))
    });
    let mut service = RateLimitLayer::new(Limit::per_minute(1), Key::method()).layer(local);
    let response = now(service.call(Request::new("x".into()))).expect("no await");
    assert_eq!(response.expect("an answer").status(), 200);
}
