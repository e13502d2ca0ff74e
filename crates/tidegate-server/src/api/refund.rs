//! `POST /v1/refund`: what a decision charged is given back.

use http::request::Parts;
use http::{Response, StatusCode};
use hyper::body::Incoming;
use serde::Deserialize;

use super::check::unreadable;
use super::decision::instance;
use super::{Answer, Problem, authorize, body};
use crate::app::{App, Running};
use crate::receipt;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Body {
    receipt: String,
}

pub(super) async fn answer(
    app: &App,
    running: &Running,
    head: &Parts,
    body: Incoming,
) -> Result<Answer, Problem> {
    authorize(running, head)?;
    let body = body::read(&app.room, body).await?;
    let body: Body =
        serde_json::from_slice(&body).map_err(|error| Problem::bad(unreadable(error)))?;
    let returned = receipt::decode(&body.receipt)
        .ok_or_else(|| Problem::bad("receipt: expected the text of a decision's receipt"))?;
    let policy = running.limiter.policy(&returned.policy);
    // One who counts in memory cannot give back what another one has counted.
    if policy.is_some_and(|policy| instance(app, running, policy) != returned.instance) {
        return Err(Problem::new(
            StatusCode::CONFLICT,
            "receipt: of another server, which kept that count in its memory",
        ));
    }
    let (policy, attributes) = (&returned.policy, &returned.attributes);
    running
        .limiter
        .refund(policy, attributes, &returned.receipt)
        .await?;
    if let (Some(recorder), Some(policy)) = (&app.recorder, running.limiter.policy(policy)) {
        let plain_keys = running.config.server.log_keys;
        recorder.refunded(policy, attributes, &returned.receipt, plain_keys);
    }
    let mut answer = Response::new(Default::default());
    *answer.status_mut() = StatusCode::NO_CONTENT;
    Ok(answer)
}
