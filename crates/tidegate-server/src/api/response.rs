//! The body of a response: a text, or a stream. What the client has not read is on the
//! [budget](crate::serve::Reserved).

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use hyper::body::{Body, Frame, SizeHint};
use tonic::Status;

use crate::serve::{Connection, InProgress, NoRoom, Reserved, UnreadResponse};

/// A longer text is reserved before the request is handled.
const SHORT: usize = 4 << 10;

/// HTTP/1 copies pieces of this length into the buffer of the connection, and so holds the
/// rest back while the client does not read.
const PIECE: usize = 16 << 10;

/// The body of a response.
#[derive(Default)]
pub struct ResponseBody {
    kind: Kind,
    /// What was reserved for it.
    room: Option<Reserved>,
    /// Whether the client reads it.
    unread: Option<UnreadResponse>,
    /// Set when the response is sent.
    in_progress: Option<InProgress>,
}

#[derive(Default)]
enum Kind {
    #[default]
    Empty,
    Whole(Bytes),
    Stream(tonic::body::Body),
}

/// A piece of a body. HTTP/2 keeps it until the client has made room for all of it.
#[derive(Debug)]
pub struct Piece {
    bytes: Bytes,
    _until_read: Option<(UnreadResponse, Reserved)>,
}

/// Reserves bytes for a text of at most this length, if it is not short.
pub(crate) fn reserve(
    connection: &Arc<Connection>,
    length: usize,
) -> Result<Option<Reserved>, NoRoom> {
    let is_long = length > SHORT;
    is_long.then(|| connection.reserve(length)).transpose()
}

impl ResponseBody {
    /// A text for which bytes were reserved.
    pub(crate) fn reserved(bytes: impl Into<Bytes>, room: Option<Reserved>) -> Self {
        let body = Self::from(bytes);
        if let (Kind::Whole(bytes), Some(room)) = (&body.kind, &room) {
            room.shrink_to(bytes.len());
        }
        Self { room, ..body }
    }

    /// Frames as they come, such as events, or data and trailers.
    #[must_use]
    pub fn stream<B>(body: B) -> Self
    where
        B: Body<Data = Bytes, Error: Into<tonic::codegen::StdError>> + Send + 'static,
    {
        Self {
            kind: Kind::Stream(tonic::body::Body::new(body)),
            ..Self::default()
        }
    }

    /// Reserves the bytes of a text, unless they are.
    pub(crate) fn reserve(&mut self, connection: &Arc<Connection>) -> Result<(), NoRoom> {
        if let (Kind::Whole(bytes), None) = (&self.kind, &self.room) {
            self.room = reserve(connection, bytes.len())?;
        }
        Ok(())
    }

    /// Keeps the request in progress until the body has been sent.
    pub(super) fn until_read(mut self, in_progress: InProgress) -> Self {
        // Each piece of HTTP/2 has its own.
        let is_long = self.room.is_some() && !in_progress.connection().is_multiplexed();
        self.unread = is_long.then(|| in_progress.connection().unread_response());
        self.in_progress = Some(in_progress);
        self
    }

    /// Bytes as they go to the connection.
    fn piece(&mut self, bytes: Bytes) -> Result<Piece, NoRoom> {
        let connection = self.in_progress.as_ref().map(InProgress::connection);
        let connection = connection.filter(|connection| connection.is_multiplexed());
        let until_read = match connection {
            None => None,
            Some(connection) => {
                let room = match self.room.take() {
                    Some(room) => room,
                    None => connection.reserve(bytes.len())?,
                };
                Some((connection.unread_response(), room))
            }
        };
        Ok(Piece {
            bytes,
            _until_read: until_read,
        })
    }
}

impl<B: Into<Bytes>> From<B> for ResponseBody {
    fn from(bytes: B) -> Self {
        let bytes = bytes.into();
        Self {
            kind: match bytes.is_empty() {
                true => Kind::Empty,
                false => Kind::Whole(bytes),
            },
            ..Self::default()
        }
    }
}

impl Body for ResponseBody {
    type Data = Piece;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Piece>, Status>>> {
        let this = &mut *self;
        let bytes = match &mut this.kind {
            Kind::Empty => return Poll::Ready(None),
            Kind::Whole(bytes) if bytes.len() > PIECE && this.unread.is_some() => {
                bytes.split_to(PIECE)
            }
            Kind::Whole(bytes) => {
                let last = std::mem::take(bytes);
                this.kind = Kind::Empty;
                last
            }
            Kind::Stream(body) => match ready!(Pin::new(body).poll_frame(cx)).transpose()? {
                None => return Poll::Ready(None),
                Some(frame) => match frame.into_data() {
                    Ok(bytes) => bytes,
                    Err(frame) => {
                        let frame = frame.map_data(|_| unreachable!("it has no data"));
                        return Poll::Ready(Some(Ok(frame)));
                    }
                },
            },
        };
        let piece = this.piece(bytes)?;
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            Kind::Empty => true,
            Kind::Whole(_) => false,
            Kind::Stream(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            Kind::Empty => SizeHint::with_exact(0),
            Kind::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Kind::Stream(body) => body.size_hint(),
        }
    }
}

impl Buf for Piece {
    #[inline]
    fn remaining(&self) -> usize {
        self.bytes.len()
    }

    #[inline]
    fn chunk(&self) -> &[u8] {
        &self.bytes
    }

    #[inline]
    fn advance(&mut self, count: usize) {
        self.bytes.advance(count);
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderMap;
    use http_body_util::{BodyExt, StreamBody};

    use super::*;

    /// The lengths of the pieces that a text leaves in.
    async fn pieces(body: &mut ResponseBody) -> Vec<Piece> {
        let mut pieces = Vec::new();
        while let Some(frame) = body.frame().await {
            pieces.push(frame.unwrap().into_data().unwrap());
        }
        pieces
    }

    #[tokio::test]
    async fn long_text_holds_its_room_until_it_is_sent_or_read() {
        for is_http2 in [false, true] {
            let connection = Connection::alone();
            if is_http2 {
                connection.multiplexed();
            }
            let room = reserve(&connection, 200 << 10).unwrap();
            let body = ResponseBody::reserved(vec![b'x'; 40 << 10], room);
            assert_eq!(connection.waiting(), 40 << 10, "as much as it is long");
            let mut body = body.until_read(connection.in_progress());
            let pieces = pieces(&mut body).await;
            let lengths: Vec<usize> = pieces.iter().map(Buf::remaining).collect();
            assert_eq!(connection.waiting(), 40 << 10);
            match is_http2 {
                false => {
                    assert_eq!(lengths, [PIECE, PIECE, 8 << 10]);
                    drop(body);
                }
                true => {
                    assert_eq!(lengths, [40 << 10]);
                    drop(body);
                    assert_eq!(connection.waiting(), 40 << 10);
                    drop(pieces);
                }
            }
            assert_eq!(connection.waiting(), 0);
        }
    }

    #[tokio::test]
    async fn pieces_of_http2_that_find_no_room_end_their_stream() {
        let connection = Connection::alone();
        connection.multiplexed();
        let _all = connection.reserve(16 << 20).unwrap();
        let mut body = ResponseBody::from("short").until_read(connection.in_progress());
        let error = body.frame().await.unwrap().err().unwrap();
        assert_eq!(error.code(), tonic::Code::ResourceExhausted);
        assert!(ResponseBody::from("short").reserve(&connection).is_ok());
        let long = "x".repeat(SHORT + 1);
        assert!(ResponseBody::from(long).reserve(&connection).is_err());
    }

    #[tokio::test]
    async fn stream_carries_data_and_trailers() {
        let mut trailers = HeaderMap::new();
        trailers.insert("grpc-status", "0".parse().unwrap());
        let frames = [Frame::data(Bytes::from("a")), Frame::trailers(trailers)];
        let frames = frames.map(Ok::<_, Status>);
        let body = ResponseBody::stream(StreamBody::new(futures_util::stream::iter(frames)));
        assert_eq!(body.size_hint().exact(), None);
        let body = body.collect().await.unwrap();
        assert_eq!(body.trailers().unwrap()["grpc-status"], "0");
        assert_eq!(body.to_bytes(), "a");
    }
}
