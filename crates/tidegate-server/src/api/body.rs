//! Reads the body of a request, with a bound on its size, on the time it takes, and on the
//! size of all bodies together.

use std::ops::Deref;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::FutureExt;
use http::StatusCode;
use http_body_util::BodyExt;
use hyper::body::{Body, Incoming, SizeHint};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::timeout;

use super::Problem;

/// The longest body.
pub(crate) const MAX_BODY: u32 = 1 << 20;

/// Of a body that is too long, how much is read and thrown away. A client that is still
/// sending when the connection ends does not see the answer.
const MAX_READ: u64 = 4 * MAX_BODY as u64;

/// How long a client may take to send it.
const PATIENCE: Duration = Duration::from_secs(10);

/// A body longer than this needs room.
const SHORT: u64 = 16 << 10;

/// How long a body may wait for room.
const WAIT: Duration = Duration::from_secs(2);

/// Room for the bodies of all requests.
pub(crate) struct Room(Semaphore);

/// The body of a request, of which a piece may have been read already.
pub(crate) struct Unread {
    first: Option<Bytes>,
    rest: Incoming,
}

/// A body, and the room that it takes as long as it is needed.
pub(crate) struct Whole<'r> {
    bytes: Bytes,
    _room: Option<SemaphorePermit<'r>>,
}

impl Room {
    /// Room for so many bytes in bodies that are not short.
    pub(crate) fn new() -> Self {
        Self(Semaphore::new(64 << 20))
    }

    async fn take(&self, bytes: u32) -> Result<SemaphorePermit<'_>, Problem> {
        let permit = timeout(WAIT, self.0.acquire_many(bytes)).await;
        let permit = permit.ok().and_then(Result::ok);
        permit.ok_or_else(|| Problem::later("too many large bodies at once"))
    }
}

impl Deref for Whole<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl From<Incoming> for Unread {
    fn from(rest: Incoming) -> Self {
        Self { first: None, rest }
    }
}

impl Unread {
    /// The whole body, if it is short and all of it is there.
    #[inline]
    pub(super) fn short(&mut self, cx: &mut Context<'_>) -> Option<Whole<'static>> {
        let Poll::Ready(Some(Ok(frame))) = Pin::new(&mut self.rest).poll_frame(cx) else {
            return None;
        };
        let bytes = frame.into_data().ok()?;
        if !self.rest.is_end_stream() || bytes.len() as u64 > SHORT {
            self.first = Some(bytes);
            return None;
        }
        Some(Whole { bytes, _room: None })
    }

    fn length(&self) -> SizeHint {
        let mut hint = self.rest.size_hint();
        let read = self.first.as_ref().map_or(0, Bytes::len) as u64;
        match hint.upper() {
            Some(upper) if hint.lower() == upper => hint.set_exact(upper + read),
            _ => hint.set_lower(hint.lower() + read),
        }
        hint
    }
}

/// The whole body.
pub(crate) async fn read<'r>(room: &'r Room, body: &mut Unread) -> Result<Whole<'r>, Problem> {
    if body.length().lower() > MAX_READ {
        return Err(too_long());
    }
    let mut collected = pin!(collect(room, body));
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

async fn collect<'r>(room: &'r Room, body: &mut Unread) -> Result<Whole<'r>, Problem> {
    let expected = body.length().exact().and_then(|it| u32::try_from(it).ok());
    let expected = expected.unwrap_or(MAX_BODY).min(MAX_BODY);
    let Unread {
        first: given,
        rest: body,
    } = body;
    // Nearly every body comes in one piece.
    let mut first: Option<Bytes> = None;
    let (mut more, mut length, mut taken) = (BytesMut::new(), 0, None);
    while given.is_some() || !body.is_end_stream() {
        let data = match given.take() {
            Some(data) => data,
            None => match body.frame().await {
                None => break,
                Some(frame) => {
                    let frame = frame.map_err(|_| Problem::bad("the body: truncated"))?;
                    let Ok(data) = frame.into_data() else {
                        continue;
                    };
                    data
                }
            },
        };
        length += data.len() as u64;
        if length > MAX_READ {
            return Err(too_long());
        }
        if length > SHORT && taken.is_none() {
            taken = Some(room.take(expected).await?);
        }
        match first {
            _ if length > u64::from(MAX_BODY) => more = BytesMut::new(),
            None => first = Some(data),
            Some(_) => more.extend_from_slice(&data),
        }
    }
    if length > u64::from(MAX_BODY) {
        return Err(too_long());
    }
    let first = first.unwrap_or_default();
    let bytes = match more.is_empty() {
        true => first,
        false => [first, more.freeze()].concat().into(),
    };
    Ok(Whole {
        bytes,
        _room: taken,
    })
}

fn too_long() -> Problem {
    let detail = format!("the body: expected at most {MAX_BODY} bytes");
    Problem::new(StatusCode::PAYLOAD_TOO_LARGE, detail)
}
