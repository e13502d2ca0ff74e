//! The gate for proxies: answers with a status that they understand, and headers for the client.

use http::header::CONTENT_TYPE;
use http::request::Parts;
use http::{HeaderName, HeaderValue, Response, StatusCode};
use tidegate::Cost;

use super::outgoing::Outgoing;
use super::query::{Query, short};
use super::{Answer, Api, Problem, put_headers};
use crate::engine::{Current, Decided};

/// Why a refusal is no quota.
static REASON: HeaderName = HeaderName::from_static("x-tidegate-reason");

/// What a refusal looks like.
struct Refusal {
    /// The status that the request asks for, if any.
    status: Option<StatusCode>,
    with_body: bool,
}

/// What is asked.
struct Question<'r> {
    query: Query<'r>,
    refusal: Refusal,
    cost: Cost,
}

/// Answers where nothing has to be waited for; `None` elsewhere.
#[inline]
pub(super) fn answer_now(
    api: &Api,
    current: &Current,
    policy: &str,
    head: &Parts,
) -> Option<Result<Answer, Problem>> {
    let question = match question(current, head) {
        Ok(question) => question,
        Err(problem) => return Some(Err(problem)),
    };
    let (attributes, cost) = (question.query.attributes(), question.cost);
    let decided = api.engine.decide_now(current, policy, attributes, cost)?;
    let decided = decided.map_err(Problem::from);
    Some(decided.map(|decided| response(&decided, &question.refusal)))
}

pub(super) async fn answer(
    api: &Api,
    current: &Current,
    policy: &str,
    head: &Parts,
) -> Result<Answer, Problem> {
    let question = question(current, head)?;
    let (attributes, cost) = (question.query.attributes(), question.cost);
    let decided = api.engine.decide(current, policy, attributes, cost);
    Ok(response(&decided.await?, &question.refusal))
}

fn question<'r>(current: &'r Current, head: &'r Parts) -> Result<Question<'r>, Problem> {
    let query = head.uri.query().unwrap_or_default();
    let mut query = Query::parse(query).map_err(Problem::bad)?;
    query
        .expect(&["deny", "body", "cost"])
        .map_err(Problem::bad)?;
    for (header, attribute) in &current.gate_headers {
        let mut values = head.headers.get_all(header).iter();
        if let Some(value) = values.next() {
            if values.next().is_some() {
                let detail = format!("the header {header} twice: expected it once");
                return Err(Problem::bad(detail));
            }
            query.add(attribute, value.as_bytes());
        }
    }
    Ok(Question {
        refusal: refusal(&query)?,
        cost: cost(&query)?,
        query,
    })
}

fn response(decided: &Decided<'_>, refusal: &Refusal) -> Answer {
    let decision = &decided.decision;
    let mut answer = Response::new(Outgoing::default());
    if !decision.allowed() {
        let usual = match decision.is_unavailable() {
            true => StatusCode::SERVICE_UNAVAILABLE,
            false => StatusCode::TOO_MANY_REQUESTS,
        };
        let status = refusal.status.unwrap_or(usual);
        if decision.is_unavailable() {
            // A proxy that asks for one status tells both apart by this.
            let reason = HeaderValue::from_static("store-unavailable");
            answer.headers_mut().insert(&REASON, reason);
        }
        *answer.status_mut() = status;
        if refusal.with_body {
            *answer.body_mut() = decision.problem(status.as_u16()).into();
            let kind = HeaderValue::from_static("application/problem+json");
            answer.headers_mut().insert(CONTENT_TYPE, kind);
        }
    }
    put_headers(&mut answer, decided);
    answer
}

fn refusal(query: &Query<'_>) -> Result<Refusal, Problem> {
    let status = match query.reserved("deny") {
        None => None,
        Some(text) => {
            let status = number(&text).and_then(|status| u16::try_from(status).ok());
            let status = status.filter(|status| (400..600).contains(status));
            let status = status.and_then(|status| StatusCode::from_u16(status).ok());
            Some(status.ok_or_else(|| {
                let text = short(&text);
                Problem::bad(format!("deny: {text:?}: expected a status from 400 to 599"))
            })?)
        }
    };
    let with_body = match query.reserved("body").as_deref() {
        None => true,
        Some("none") => false,
        Some(text) => {
            let text = short(text);
            return Err(Problem::bad(format!("body: {text:?}: expected none")));
        }
    };
    Ok(Refusal { status, with_body })
}

/// What the request costs.
fn cost(query: &Query<'_>) -> Result<Cost, Problem> {
    let Some(text) = query.reserved("cost") else {
        return Ok(Cost::ONE);
    };
    let cost = number(&text).and_then(|number| Cost::new(number).ok());
    cost.ok_or_else(|| {
        let (text, most) = (short(&text), u32::MAX);
        Problem::bad(format!(
            "cost: {text:?}: expected a whole number from 1 to {most}"
        ))
    })
}

/// A number of digits, without a sign.
fn number(text: &str) -> Option<u64> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| digits)
}
