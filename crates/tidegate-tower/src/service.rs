//! The service that wraps an inner one.

use std::mem;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::{Request, Response};
use tower_service::Service;

use crate::body::ResponseBody;
use crate::future::ResponseFuture;
use crate::gate::{Gate, Passage};
use crate::head::RequestHead;

/// A service with limits, made by a [`RateLimitLayer`](crate::RateLimitLayer). All clones
/// share the same counters.
#[derive(Debug, Clone)]
pub struct RateLimit<S> {
    inner: S,
    gate: Arc<Gate>,
}

impl<S> RateLimit<S> {
    pub(crate) fn new(inner: S, gate: Arc<Gate>) -> Self {
        Self { inner, gate }
    }

    /// The inner service.
    pub fn get_ref(&self) -> &S {
        &self.inner
    }

    /// The inner service.
    pub fn get_mut(&mut self) -> &mut S {
        &mut self.inner
    }

    /// The inner service, without limits.
    pub fn into_inner(self) -> S {
        self.inner
    }
}

impl<S, B, R> Service<Request<B>> for RateLimit<S>
where
    S: Service<Request<B>, Response = Response<R>> + Clone,
{
    type Response = Response<ResponseBody<R>>;
    type Error = S::Error;
    type Future = ResponseFuture<S, B>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        if let Some(passage) = self.gate.now(&RequestHead::of(&request)) {
            return match passage {
                Passage::Pass(pass) => ResponseFuture::running(self.inner.call(request), pass),
                Passage::Refuse(response) => {
                    // A service that has said it is ready may hold a place for this
                    // request. Others are waiting for it.
                    self.inner = self.inner.clone();
                    ResponseFuture::refused(response)
                }
            };
        }
        // The service that has said it is ready goes along with the request; its clone
        // is asked for the next one.
        let clone = self.inner.clone();
        let mut service = mem::replace(&mut self.inner, clone);
        let is_ready = self.gate.wait.is_none();
        if !is_ready {
            // But nobody holds a place while waiting for a turn.
            service = self.inner.clone();
        }
        let (parts, body) = request.into_parts();
        let asking = Box::pin(self.gate.clone().decide_parts(parts));
        ResponseFuture::asking(asking, service, body, is_ready)
    }
}
