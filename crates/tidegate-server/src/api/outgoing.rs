//! The body of a response: a short text, a long one that holds memory until the client
//! takes it, or a stream.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use super::Problem;
use crate::serve::{Busy, Held};

/// All long bodies that wait to be sent, together.
const MAX_UNSENT: usize = 32 << 20;

/// A body longer than this needs room, and is sent in pieces of this length. What has not
/// been handed out is held back from the buffers of a connection.
pub(super) const SHORT: usize = 16 << 10;

/// How long a response may wait for room.
const WAIT: Duration = Duration::from_secs(2);

/// The body of a response.
#[derive(Default)]
pub struct Outgoing {
    kind: Kind,
    /// Dropped when the body has been sent.
    _until_sent: Option<(Busy, Option<Held>)>,
}

#[derive(Default)]
enum Kind {
    #[default]
    Empty,
    Short(Bytes),
    Long(
        Bytes,
        #[expect(dead_code, reason = "held until it is dropped")] Taken,
    ),
    Stream(Pin<Box<dyn Body<Data = Bytes, Error = Infallible> + Send>>),
}

/// Room for long bodies that wait to be sent.
#[derive(Debug, Clone)]
pub(crate) struct Unsent(Arc<Semaphore>);

/// Room that a body takes until it has been sent.
#[derive(Debug, Default)]
pub(crate) struct Taken(Option<OwnedSemaphorePermit>);

impl Unsent {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Semaphore::new(MAX_UNSENT)))
    }

    /// Takes room for a response of at most so many bytes, before anything is decided or
    /// charged.
    pub(crate) async fn take(&self, bytes: usize) -> Result<Taken, Problem> {
        if bytes <= SHORT {
            return Ok(Taken(None));
        }
        let bytes = u32::try_from(bytes.min(MAX_UNSENT)).unwrap_or(u32::MAX);
        let room = Arc::clone(&self.0).acquire_many_owned(bytes);
        match timeout(WAIT, room).await {
            Ok(Ok(room)) => Ok(Taken(Some(room))),
            _ => Err(Problem::later(
                "too many large responses are waiting to be sent",
            )),
        }
    }
}

impl Taken {
    /// Gives back what is not needed for so many bytes.
    fn shrink_to(&mut self, bytes: usize) {
        if let Some(taken) = &mut self.0 {
            drop(taken.split(taken.num_permits().saturating_sub(bytes)));
        }
    }
}

impl Outgoing {
    /// A text for which room was taken.
    pub(crate) fn long(bytes: impl Into<Bytes>, mut taken: Taken) -> Self {
        let bytes: Bytes = bytes.into();
        if bytes.len() <= SHORT {
            return bytes.into();
        }
        taken.shrink_to(bytes.len());
        Self {
            kind: Kind::Long(bytes, taken),
            _until_sent: None,
        }
    }

    /// Frames as they come, such as events, or data and trailers.
    #[must_use]
    pub fn stream(body: impl Body<Data = Bytes, Error = Infallible> + Send + 'static) -> Self {
        Self {
            kind: Kind::Stream(Box::pin(body)),
            _until_sent: None,
        }
    }

    /// Keeps the request in progress until the body has been sent. A client of HTTP/2 may
    /// refuse to take it without the socket knowing.
    pub(super) fn until_sent(self, busy: Busy) -> Self {
        let connection = busy.connection();
        let is_held = match self.kind {
            Kind::Empty | Kind::Stream(_) => false,
            Kind::Short(_) => connection.is_multiplexed(),
            Kind::Long(..) => true,
        };
        let held = is_held.then(|| connection.hold());
        Self {
            _until_sent: Some((busy, held)),
            ..self
        }
    }
}

impl<B: Into<Bytes>> From<B> for Outgoing {
    fn from(bytes: B) -> Self {
        let bytes = bytes.into();
        Self {
            kind: match bytes.is_empty() {
                true => Kind::Empty,
                false => Kind::Short(bytes),
            },
            _until_sent: None,
        }
    }
}

impl Body for Outgoing {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let piece = match &mut self.kind {
            Kind::Empty => return Poll::Ready(None),
            Kind::Stream(body) => return body.as_mut().poll_frame(cx),
            Kind::Long(bytes, _) if bytes.len() > SHORT => bytes.split_to(SHORT),
            Kind::Short(bytes) | Kind::Long(bytes, _) => {
                let last = std::mem::take(bytes);
                self.kind = Kind::Empty;
                last
            }
        };
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            Kind::Empty => true,
            Kind::Short(_) | Kind::Long(..) => false,
            Kind::Stream(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            Kind::Empty => SizeHint::with_exact(0),
            Kind::Short(bytes) | Kind::Long(bytes, _) => SizeHint::with_exact(bytes.len() as u64),
            Kind::Stream(body) => body.size_hint(),
        }
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderMap;
    use http_body_util::{BodyExt, StreamBody};

    use super::*;

    #[tokio::test]
    async fn long_body_leaves_in_pieces_and_holds_its_room_to_the_last() {
        let unsent = Unsent::new();
        let room = || unsent.0.available_permits();
        let taken = unsent.take(200 << 10).await.unwrap();
        assert_eq!(room(), MAX_UNSENT - (200 << 10));
        let mut body = Outgoing::long(vec![b'x'; 40 << 10], taken);
        assert_eq!(room(), MAX_UNSENT - (40 << 10), "as much as it is long");
        for length in [SHORT, SHORT] {
            let frame = body.frame().await.unwrap().unwrap();
            assert_eq!(frame.into_data().unwrap().len(), length);
            assert_eq!(room(), MAX_UNSENT - (40 << 10));
        }
        let frame = body.frame().await.unwrap().unwrap();
        assert_eq!(frame.into_data().unwrap().len(), 8 << 10);
        assert_eq!(room(), MAX_UNSENT);
        assert!(body.is_end_stream());
    }

    #[tokio::test(start_paused = true)]
    async fn response_without_room_is_refused_after_two_seconds() {
        let unsent = Unsent::new();
        let _all = unsent.take(MAX_UNSENT).await.unwrap();
        assert!(unsent.take(SHORT).await.is_ok(), "short ones need none");
        let start = tokio::time::Instant::now();
        let problem = unsent.take(SHORT + 1).await.unwrap_err();
        assert_eq!(problem.status, 503);
        assert_eq!(start.elapsed(), WAIT);
    }

    #[tokio::test]
    async fn stream_carries_data_and_trailers() {
        let mut trailers = HeaderMap::new();
        trailers.insert("grpc-status", "0".parse().unwrap());
        let frames = [Frame::data(Bytes::from("a")), Frame::trailers(trailers)];
        let frames = frames.map(Ok::<_, Infallible>);
        let body = Outgoing::stream(StreamBody::new(futures_util::stream::iter(frames)));
        assert_eq!(body.size_hint().exact(), None);
        let body = body.collect().await.unwrap();
        assert_eq!(body.trailers().unwrap()["grpc-status"], "0");
        assert_eq!(body.to_bytes(), "a");
    }
}
