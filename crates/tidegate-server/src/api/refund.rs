//! `POST /v1/refund`: gives back what a decision charged.

use http::request::Parts;
use http::{Response, StatusCode};
use serde::Deserialize;

use super::check::unreadable;
use super::request::RequestBody;
use super::{Answer, Api, Problem, authorize};
use crate::engine::Current;
use crate::receipt;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Body {
    receipt: String,
}

pub(super) async fn answer(
    api: &Api,
    current: &Current,
    head: &Parts,
    body: &mut RequestBody,
) -> Result<Answer, Problem> {
    authorize(current, head)?;
    let body = body.whole().await?;
    let body: Body =
        serde_json::from_slice(&body).map_err(|error| Problem::bad(unreadable(error)))?;
    let returned = receipt::decode(&body.receipt)
        .ok_or_else(|| Problem::bad("receipt: expected the receipt of a decision"))?;
    let entry = current.entry(&returned.policy)?;
    // A server that counts in memory cannot refund what another server counted.
    if entry.instance() != returned.instance {
        return Err(Problem::new(
            StatusCode::CONFLICT,
            "receipt: issued by another server, which counts in its own memory",
        ));
    }
    let (attributes, receipt) = (&returned.attributes, &returned.receipt);
    api.engine.refund(entry, attributes, receipt).await?;
    let mut answer = Response::new(Default::default());
    *answer.status_mut() = StatusCode::NO_CONTENT;
    Ok(answer)
}
