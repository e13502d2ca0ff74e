//! The way of one request: asking, the service, perhaps a refund, the response.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::{Request, Response, request};
use pin_project_lite::pin_project;
use tower_service::Service;

use crate::body::ResponseBody;
use crate::fields;
use crate::gate::{Pass, Passage};
use crate::head::ResponseHead;

/// A decision that takes a while. The request's body waits elsewhere, so that it may be
/// of any type.
pub(crate) type Asking = Pin<Box<dyn Future<Output = (request::Parts, Passage)> + Send>>;

/// A refund that may take a while.
type Refund = Pin<Box<dyn Future<Output = ()> + Send>>;

pin_project! {
    /// The future of a [`RateLimit`](crate::RateLimit).
    pub struct ResponseFuture<S, B>
    where
        S: Service<Request<B>>,
    {
        #[pin]
        state: State<S, B, S::Future, S::Response>,
    }
}

pin_project! {
    #[project = StateProjection]
    enum State<S, B, F, R> {
        Refused { response: Option<Box<Response<Bytes>>> },
        /// With a service that has said it is ready, or has still to be asked.
        Asking { asking: Asking, call: Option<(S, B)>, is_ready: bool },
        /// In a box: it is rare, and should not make the others larger.
        Readying { call: Option<Box<(S, Request<B>)>>, pass: Pass },
        Running { #[pin] future: F, pass: Pass },
        Refunding { refund: Refund, response: Option<R> },
    }
}

impl<S, B> ResponseFuture<S, B>
where
    S: Service<Request<B>>,
{
    pub(crate) fn refused(response: Box<Response<Bytes>>) -> Self {
        let response = Some(response);
        Self {
            state: State::Refused { response },
        }
    }

    pub(crate) fn running(future: S::Future, pass: Pass) -> Self {
        Self {
            state: State::Running { future, pass },
        }
    }

    pub(crate) fn asking(asking: Asking, service: S, body: B, is_ready: bool) -> Self {
        let call = Some((service, body));
        Self {
            state: State::Asking {
                asking,
                call,
                is_ready,
            },
        }
    }
}

impl<S, B, R> Future for ResponseFuture<S, B>
where
    S: Service<Request<B>, Response = Response<R>>,
{
    type Output = Result<Response<ResponseBody<R>>, S::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.project().state;
        loop {
            let next = match state.as_mut().project() {
                StateProjection::Refused { response } => {
                    let response = response.take().expect(TWICE);
                    return Poll::Ready(Ok(response.map(ResponseBody::refusal)));
                }
                StateProjection::Asking {
                    asking,
                    call,
                    is_ready,
                } => {
                    let (parts, passage) = ready!(asking.as_mut().poll(cx));
                    let (mut service, body) = call.take().expect(TWICE);
                    let request = Request::from_parts(parts, body);
                    match passage {
                        Passage::Refuse(response) => State::Refused {
                            response: Some(response),
                        },
                        Passage::Pass(pass) if *is_ready => {
                            let future = service.call(request);
                            State::Running { future, pass }
                        }
                        Passage::Pass(pass) => {
                            let call = Some(Box::new((service, request)));
                            State::Readying { call, pass }
                        }
                    }
                }
                StateProjection::Readying { call, pass } => {
                    ready!(call.as_mut().expect(TWICE).0.poll_ready(cx))?;
                    let (mut service, request) = *call.take().expect(TWICE);
                    let future = service.call(request);
                    let pass = std::mem::take(pass);
                    State::Running { future, pass }
                }
                StateProjection::Running { future, pass } => {
                    let mut response = ready!(future.poll(cx))?;
                    let charged = pass.charged.take();
                    let charged = charged.filter(|it| !it.counts(&ResponseHead::of(&response)));
                    if !pass.fields.is_empty() {
                        fields::add(response.headers_mut(), std::mem::take(&mut pass.fields));
                    }
                    match charged {
                        None => return Poll::Ready(Ok(response.map(ResponseBody::inner))),
                        Some(charged) => State::Refunding {
                            refund: Box::pin(charged.give_back()),
                            response: Some(response),
                        },
                    }
                }
                StateProjection::Refunding { refund, response } => {
                    ready!(refund.as_mut().poll(cx));
                    let response = response.take().expect(TWICE);
                    return Poll::Ready(Ok(response.map(ResponseBody::inner)));
                }
            };
            state.set(next);
        }
    }
}

/// What `Future` forbids.
const TWICE: &str = "not polled again after it was ready";

impl<S, B> fmt::Debug for ResponseFuture<S, B>
where
    S: Service<Request<B>>,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}
