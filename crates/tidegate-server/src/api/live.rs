//! `GET /v1/live`: a stream of server-sent events.

use std::sync::Arc;

use http::request::Parts;
use http::{HeaderName, HeaderValue, Method};
use http_body_util::StreamBody;

use super::response::ResponseBody;
use super::{Answer, Api, Problem, text};
use crate::serve::Connection;

const EVENTS: HeaderValue = HeaderValue::from_static("text/event-stream");

/// Asks nginx to pass events on as they come.
static BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");

pub(super) fn answer(
    api: &Api,
    connection: &Arc<Connection>,
    head: &Parts,
) -> Result<Answer, Problem> {
    if api.engine.is_draining() {
        return Err(Problem::later("shutting down"));
    }
    let body = match head.method {
        Method::HEAD => ResponseBody::default(),
        _ => {
            let events = api.engine.live.watch(connection);
            let events = events.ok_or_else(|| Problem::later("too many viewers at once"))?;
            ResponseBody::stream(StreamBody::new(events))
        }
    };
    let mut answer = text(EVENTS, body);
    let unbuffered = HeaderValue::from_static("no");
    answer.headers_mut().insert(&BUFFERING, unbuffered);
    Ok(answer)
}
