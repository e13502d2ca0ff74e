//! The body of a request: its bytes are on the [budget](crate::serve::Reserved) while the
//! request is handled.

use std::ops::Deref;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::FutureExt;
use http::{HeaderMap, StatusCode};
use http_body_util::BodyExt;
use hyper::body::{Body, Frame, Incoming};
use tokio::time::timeout;
use tonic::{Code, Status};

use super::Problem;
use crate::serve::{Connection, NoRoom, Reserved};

/// The longest body.
const MAX_BODY: usize = 1 << 20;

/// Of a body that is too long, how much is read and thrown away. A client that is still
/// sending when the connection ends does not see the answer.
const MAX_READ: usize = 4 * MAX_BODY;

/// How long a client may take to send it.
const PATIENCE: Duration = Duration::from_secs(10);

/// What a request takes while the server waits for its body, beside the bytes that the
/// client has sent.
const WAITING: usize = 1 << 10;

/// The body of a request. One that arrives in one piece costs nothing; every other piece is
/// reserved until the request ends.
pub struct RequestBody {
    /// A piece that was read and put back.
    first: Option<Bytes>,
    rest: Incoming,
    connection: Arc<Connection>,
    /// Bytes of the request's head, where other requests of the connection may come before
    /// this one ends.
    head: usize,
    room: Option<Arc<Reserved>>,
}

/// A body, and the room that it takes as long as it is needed.
pub(crate) struct Whole(Bytes, #[expect(dead_code)] Option<Arc<Reserved>>);

impl Deref for Whole {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl RequestBody {
    pub(super) fn new(rest: Incoming, connection: &Arc<Connection>, headers: &HeaderMap) -> Self {
        let head = match connection.is_multiplexed() && !rest.is_end_stream() {
            true => length(headers),
            false => 0,
        };
        Self {
            first: None,
            rest,
            connection: Arc::clone(connection),
            head,
            room: None,
        }
    }

    /// The connection that it comes by.
    pub(crate) fn connection(&self) -> &Arc<Connection> {
        &self.connection
    }

    /// The bytes that are reserved for it. Whoever reads messages from the body may give
    /// back what the last one took.
    pub(crate) fn room(&mut self) -> Result<Arc<Reserved>, NoRoom> {
        self.reserve(0)?;
        Ok(Arc::clone(self.room.as_ref().expect("it was made")))
    }

    fn reserve(&mut self, bytes: usize) -> Result<(), NoRoom> {
        match &self.room {
            Some(room) => room.grow(bytes),
            None => {
                let bytes = self.head + WAITING + bytes;
                self.room = Some(Arc::new(self.connection.reserve(bytes)?));
                Ok(())
            }
        }
    }

    /// The whole body, if it is there in one piece.
    #[inline]
    pub(super) fn whole_now(&mut self, cx: &mut Context<'_>) -> Option<Whole> {
        let Poll::Ready(Some(Ok(frame))) = Pin::new(&mut *self).poll_frame(cx) else {
            return None;
        };
        let bytes = frame.into_data().ok()?;
        if !self.rest.is_end_stream() {
            self.first = Some(bytes);
            return None;
        }
        Some(Whole(bytes, self.room.take()))
    }

    /// The whole body, of at most [`MAX_BODY`] and within [`PATIENCE`].
    pub(crate) async fn whole(&mut self) -> Result<Whole, Problem> {
        let read = self.first.as_ref().map_or(0, Bytes::len) as u64;
        if self.rest.size_hint().lower() + read > MAX_READ as u64 {
            return Err(too_long());
        }
        let mut collected = pin!(self.collected());
        // Nearly every body is there with its head, and needs no timer.
        if let Some(read) = collected.as_mut().now_or_never() {
            return read;
        }
        let read = timeout(PATIENCE, collected).await;
        read.unwrap_or_else(|_| {
            let detail = format!("the body: not received within {PATIENCE:?}");
            Err(Problem::new(StatusCode::REQUEST_TIMEOUT, detail))
        })
    }

    async fn collected(&mut self) -> Result<Whole, Problem> {
        let (mut pieces, mut length) = (BytesMut::new(), 0);
        while let Some(frame) = self.frame().await {
            let frame = frame.map_err(|status| match status.code() {
                Code::ResourceExhausted => Problem::from(NoRoom),
                _ => Problem::bad("the body: truncated"),
            })?;
            let Ok(data) = frame.into_data() else {
                continue;
            };
            length += data.len();
            if length > MAX_READ {
                return Err(too_long());
            }
            if length > MAX_BODY {
                // The rest is thrown away.
                pieces = BytesMut::new();
                if let Some(room) = &self.room {
                    room.shrink_to(0);
                }
            } else if length == data.len() && self.is_end_stream() {
                return Ok(Whole(data, self.room.take()));
            } else {
                pieces.extend_from_slice(&data);
            }
        }
        match length > MAX_BODY {
            true => Err(too_long()),
            false => Ok(Whole(pieces.freeze(), self.room.take())),
        }
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = Status;

    #[inline]
    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = &mut *self;
        if let Some(first) = this.first.take() {
            return Poll::Ready(Some(Ok(Frame::data(first))));
        }
        let (frame, bytes) = match Pin::new(&mut this.rest).poll_frame(cx) {
            Poll::Ready(Some(Ok(frame))) => {
                let bytes = frame.data_ref().map_or(0, Bytes::len);
                let is_all = this.room.is_none() && this.rest.is_end_stream();
                (Poll::Ready(Some(Ok(frame))), (!is_all).then_some(bytes))
            }
            Poll::Ready(Some(Err(error))) => {
                let lost = Status::from_error(Box::new(error));
                return Poll::Ready(Some(Err(lost)));
            }
            Poll::Ready(None) => (Poll::Ready(None), None),
            Poll::Pending => (Poll::Pending, this.room.is_none().then_some(0)),
        };
        match bytes.map(|bytes| this.reserve(bytes)) {
            Some(Err(full)) => Poll::Ready(Some(Err(full.into()))),
            _ => frame,
        }
    }

    fn is_end_stream(&self) -> bool {
        self.first.is_none() && self.rest.is_end_stream()
    }
}

/// What headers take in memory, about.
fn length(headers: &HeaderMap) -> usize {
    let headers = headers.iter();
    let lengths = headers.map(|(name, value)| 64 + name.as_str().len() + value.len());
    lengths.sum()
}

impl From<NoRoom> for Status {
    fn from(full: NoRoom) -> Self {
        Self::resource_exhausted(full.to_string())
    }
}

fn too_long() -> Problem {
    let detail = format!("the body: expected at most {MAX_BODY} bytes");
    Problem::new(StatusCode::PAYLOAD_TOO_LARGE, detail)
}
