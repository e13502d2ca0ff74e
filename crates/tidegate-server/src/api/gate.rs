//! The gate for proxies: answers with a status that they understand, and headers for the client.

use std::borrow::Cow;

use http::header::CONTENT_TYPE;
use http::request::Parts;
use http::{HeaderName, HeaderValue, Response, StatusCode};
use tidegate::{Cost, PolicyDecision};

use super::door::Asked;
use super::query::{Query, short};
use super::response::ResponseBody;
use super::{Answer, Api, Problem, put_headers};
use crate::engine::{Call, Current, Entry};
use crate::proxies::{self, X_FORWARDED_FOR};
use crate::serve::Connection;

/// Why a refusal is no quota.
static REASON: HeaderName = HeaderName::from_static("x-tidegate-reason");

const X_FORWARDED_METHOD: HeaderName = HeaderName::from_static("x-forwarded-method");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const X_FORWARDED_URI: HeaderName = HeaderName::from_static("x-forwarded-uri");

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

pub(super) async fn answer(
    asked: &Asked<Api>,
    current: &Current,
    policy: &str,
    head: &Parts,
) -> Result<Answer, Problem> {
    let question = question(current, &asked.connection, head)?;
    let call = Call::new(current.entry(policy)?, &question.query, question.cost);
    let decision = asked.handler.engine.ask_one(&call).await?;
    Ok(response(call.entry, &decision, &question.refusal))
}

fn question<'r>(
    current: &'r Current,
    connection: &Connection,
    head: &'r Parts,
) -> Result<Question<'r>, Problem> {
    let query = head.uri.query().unwrap_or_default();
    let mut query = Query::parse(query).map_err(Problem::bad)?;
    query
        .expect(&["deny", "body", "cost"])
        .map_err(Problem::bad)?;
    for (header, attribute) in &current.gate_headers {
        if let Some(value) = once(head, header)? {
            add(&mut query, attribute, header, value.into())?;
        }
    }
    if !current.server.trusted_proxies.is_empty() {
        add_forwarded(&mut query, current, connection, head)?;
    }
    Ok(Question {
        refusal: refusal(&query)?,
        cost: cost(&query)?,
        query,
    })
}

/// Adds what a trusted proxy says of its client.
fn add_forwarded<'r>(
    query: &mut Query<'r>,
    current: &'r Current,
    connection: &Connection,
    head: &'r Parts,
) -> Result<(), Problem> {
    let proxies = &current.server.trusted_proxies;
    let peer = connection.peer().map(|peer| peer.ip().to_canonical());
    if !proxies::trust(proxies, peer) {
        return Ok(());
    }
    for (_, attribute) in &current.gate_headers {
        let (header, value) = match attribute.as_str() {
            "ip" => {
                let client = proxies::client(proxies, peer, &head.headers);
                let client = client.map(|client| client.to_string().into_bytes().into());
                (X_FORWARDED_FOR, client)
            }
            "method" => (
                X_FORWARDED_METHOD,
                once(head, &X_FORWARDED_METHOD)?.map(Cow::from),
            ),
            "host" => (
                X_FORWARDED_HOST,
                once(head, &X_FORWARDED_HOST)?.map(Cow::from),
            ),
            "path" => {
                let uri = once(head, &X_FORWARDED_URI)?;
                let path = uri.and_then(|uri| uri.split(|byte| *byte == b'?').next());
                (X_FORWARDED_URI, path.map(Cow::from))
            }
            _ => continue,
        };
        if let Some(value) = value {
            add(query, attribute, &header, value)?;
        }
    }
    Ok(())
}

/// The value of a header that may come once.
fn once<'r>(head: &'r Parts, header: &HeaderName) -> Result<Option<&'r [u8]>, Problem> {
    let mut values = head.headers.get_all(header).iter();
    let value = values.next().map(HeaderValue::as_bytes);
    match values.next() {
        None => Ok(value),
        Some(_) => Err(Problem::bad(format!(
            "the header {header} twice: expected it once"
        ))),
    }
}

/// Adds an attribute from a header.
fn add<'r>(
    query: &mut Query<'r>,
    attribute: &'r str,
    header: &HeaderName,
    value: Cow<'r, [u8]>,
) -> Result<(), Problem> {
    match query.add(attribute, value) {
        true => Ok(()),
        false => Err(Problem::bad(format!(
            "{attribute:?}: the header {header} differs from the query or another header: expected one value"
        ))),
    }
}

fn response(entry: &Entry, decision: &PolicyDecision<'_>, refusal: &Refusal) -> Answer {
    let mut answer = Response::new(ResponseBody::default());
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
    put_headers(&mut answer, entry, decision);
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
