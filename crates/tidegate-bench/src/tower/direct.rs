//! Requests handed to a router by `tower::Service::call`, and their responses read to
//! the end: no socket, no runtime, nothing to wait for.

use std::hint::black_box;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use axum::Router;
use axum::body::{Body, HttpBody};
use axum::extract::{ConnectInfo, Request};
use tower::Service;

use super::lanes::{Lane, client};
use crate::limiters::Load;

/// Requests of one round.
const REQUESTS: usize = 100_000;

/// A lane that measures nanoseconds a request.
pub(super) fn lane(lane: Lane, load: Load) -> Box<dyn FnMut() -> f64> {
    let mut router = lane.router(load);
    let refuses = lane.refuses(load);
    if refuses {
        // The one request that each client has.
        run(&mut router, 1_000, false);
    }
    Box::new(move || {
        let start = Instant::now();
        run(&mut router, REQUESTS, refuses);
        start.elapsed().as_secs_f64() * 1e9 / REQUESTS as f64
    })
}

/// Makes so many requests that are admitted.
pub(super) fn requests(lane: Lane, requests: usize) {
    run(&mut lane.router(Load::Admitted), requests, false);
}

/// The loop that is timed. A layer that lets through what it should not, or the other
/// way round, is fast for nothing.
fn run(router: &mut Router, requests: usize, refused: bool) {
    let expected = if refused { 429 } else { 200 };
    for number in 0..requests {
        let mut request = Request::new(Body::empty());
        request.extensions_mut().insert(ConnectInfo(client(number)));
        let response = now(router.call(black_box(request)));
        let Ok(response) = response;
        assert_eq!(response.status(), expected, "the status of a request");
        let mut body = response.into_body();
        let mut length = 0;
        while let Some(frame) = now(std::future::poll_fn(|cx| {
            Pin::new(&mut body).poll_frame(cx)
        })) {
            let frame = frame.expect("a body in memory");
            length += frame.data_ref().map_or(0, |data| data.len());
        }
        black_box(length);
    }
}

/// The output of a future that has nothing to wait for.
fn now<F: Future>(future: F) -> F::Output {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => unreachable!("nothing here waits"),
    }
}
