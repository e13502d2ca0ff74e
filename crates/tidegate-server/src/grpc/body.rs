//! Bodies of requests and responses. Long requests take room of which all connections
//! together have so much; a request is in progress until its response is sent.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use hyper::body::Incoming;
use tonic::Status;
use tonic::body::Body;

use crate::serve::Busy;

/// A request longer than this needs room until it is answered.
const SHORT: usize = 4 << 10;

/// Room for the bytes of all requests that are not short.
const MAX_ALL: usize = 64 << 20;

/// Bytes of requests that are not short.
pub(super) type Memory = AtomicUsize;

/// The body of a request.
pub struct Received {
    body: Incoming,
    /// Bytes of the message that is being received.
    read: usize,
    counted: usize,
    is_metered: bool,
    memory: Arc<Memory>,
}

impl Received {
    pub(super) fn new(body: Incoming, memory: Arc<Memory>) -> Self {
        Self {
            body,
            read: 0,
            counted: 0,
            is_metered: true,
            memory,
        }
    }

    /// The messages of a stream that goes on: what was read is gone when it has been
    /// handled, so only the size of each message is bounded.
    pub(crate) fn unmetered(mut self) -> Self {
        self.is_metered = false;
        self
    }

    fn count(&mut self, bytes: usize) -> Result<(), Status> {
        self.read = self.read.saturating_add(bytes);
        if self.read <= SHORT || !self.is_metered {
            return Ok(());
        }
        let more = self.read - self.counted;
        self.counted = self.read;
        match self.memory.fetch_add(more, Relaxed) + more <= MAX_ALL {
            true => Ok(()),
            false => Err(Status::resource_exhausted("too many long requests at once")),
        }
    }
}

impl Drop for Received {
    fn drop(&mut self) {
        if self.counted > 0 {
            self.memory.fetch_sub(self.counted, Relaxed);
        }
    }
}

impl HttpBody for Received {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        Poll::Ready(match frame {
            Some(Ok(frame)) => {
                let bytes = frame.data_ref().map_or(0, Bytes::len);
                Some(self.count(bytes).map(|()| frame))
            }
            Some(Err(error)) => Some(Err(Status::from_error(Box::new(error)))),
            None => None,
        })
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The body of a response: the request is in progress until it is sent.
pub(super) struct UntilSent {
    body: Body,
    _busy: Busy,
}

impl UntilSent {
    pub(super) fn new(body: Body, busy: Busy) -> Self {
        Self { body, _busy: busy }
    }
}

impl HttpBody for UntilSent {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
