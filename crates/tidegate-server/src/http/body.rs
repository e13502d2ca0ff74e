//! Reading the body of a request: so many bytes, within so much time, and no more.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::StatusCode;
use http_body_util::BodyExt;
use hyper::body::{Body, Incoming};

use super::Problem;

/// The longest body.
pub(crate) const MAX_BODY: usize = 1 << 20;

/// Of a body that is too long, how much is read and thrown away. A client that is still
/// sending when the connection ends does not see the answer.
const MAX_READ: usize = 4 * MAX_BODY;

/// How long a client may take to send it.
const PATIENCE: Duration = Duration::from_secs(10);

/// The whole body.
pub(super) async fn read(body: Incoming) -> Result<Bytes, Problem> {
    let known = body.size_hint().lower();
    if known > MAX_READ as u64 {
        return Err(too_long());
    }
    let read = tokio::time::timeout(PATIENCE, collect(body)).await;
    read.unwrap_or_else(|_| {
        let detail = format!("the body: not there within {PATIENCE:?}");
        Err(Problem::new(StatusCode::REQUEST_TIMEOUT, detail))
    })
}

async fn collect(mut body: Incoming) -> Result<Bytes, Problem> {
    // Nearly every body comes in one piece.
    let mut first: Option<Bytes> = None;
    let (mut more, mut length) = (BytesMut::new(), 0);
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| Problem::bad("the body: cut off"))?;
        let Ok(data) = frame.into_data() else {
            continue;
        };
        length += data.len();
        if length > MAX_READ {
            return Err(too_long());
        }
        match first {
            _ if length > MAX_BODY => more = BytesMut::new(),
            None => first = Some(data),
            Some(_) => more.extend_from_slice(&data),
        }
    }
    if length > MAX_BODY {
        return Err(too_long());
    }
    let first = first.unwrap_or_default();
    if more.is_empty() {
        return Ok(first);
    }
    Ok([first, more.freeze()].concat().into())
}

fn too_long() -> Problem {
    let detail = format!("the body: expected at most {MAX_BODY} bytes");
    Problem::new(StatusCode::PAYLOAD_TOO_LARGE, detail)
}
