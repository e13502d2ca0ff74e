//! `POST /v1/check`: one check in JSON, or up to 1,000.

use std::borrow::Cow;
use std::fmt;
use std::future::poll_fn;
use std::marker::PhantomData;
use std::slice;
use std::task::Poll;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::de::{Error as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use smallvec::SmallVec;
use tidegate::{Attributes, Cost};

use super::door::Asked;
use super::query::{MAX_ATTRIBUTES, Pairs, short};
use super::request::{RequestBody, Whole};
use super::response::{self, ResponseBody};
use super::{Answer, Api, JSON, Problem, decision, has_numbers, put_headers, quick, text};
use crate::engine::{self, Call, Current, Kind};

/// The most questions in one request.
const MAX_BATCH: usize = 1_000;

/// A longer body may have a response for which bytes have to be reserved.
const SMALL: usize = 2 << 10;

/// A question.
#[derive(Debug, PartialEq, Eq)]
pub struct Question<'a> {
    pub(super) policy: Cow<'a, str>,
    pub(super) attributes: Pairs<'a>,
    pub(super) cost: Cost,
    pub(super) peek: bool,
}

impl Attributes for Question<'_> {
    #[inline]
    fn value(&self, name: &str) -> Option<&[u8]> {
        self.attributes.as_slice().value(name)
    }
}

impl Question<'_> {
    /// What to ask the engine.
    fn call<'q>(&'q self, current: &'q Current) -> Result<Call<'q>, Problem> {
        let mut call = Call::new(current.entry(&self.policy)?, self, self.cost);
        if self.peek {
            has_numbers(call.entry.policy())?;
            call.kind = Kind::Peek;
        }
        Ok(call)
    }
}

/// A question in JSON.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Body<'a> {
    #[serde(borrow)]
    policy: Text<'a>,
    #[serde(borrow, default)]
    key: Option<Text<'a>>,
    #[serde(borrow, default)]
    attributes: Option<Texts<'a>>,
    #[serde(borrow, default)]
    attributes_b64: Option<Texts<'a>>,
    #[serde(default)]
    cost: Price,
    #[serde(default)]
    peek: bool,
}

/// What a body asks.
#[derive(Debug)]
pub enum Questions<'a> {
    /// One question.
    One(Question<'a>),
    /// A list of them, of which some may be wrong.
    Many(Vec<Result<Question<'a>, String>>),
}

/// Reads the questions in a body: one, or a list of them.
pub fn parse(body: &[u8]) -> Result<Questions<'_>, String> {
    if let Some(question) = quick::question(body) {
        return Ok(Questions::One(question));
    }
    // Once, and not for each text in it.
    let Ok(text) = std::str::from_utf8(body) else {
        return Err(not_text(body));
    };
    match body.iter().find(|byte| !byte.is_ascii_whitespace()) {
        None => Err("the body: empty: expected a check in JSON".into()),
        Some(b'[') => {
            let elements: Vec<&RawValue> = serde_json::from_str(text).map_err(unreadable)?;
            if elements.len() > MAX_BATCH {
                let count = elements.len();
                return Err(format!(
                    "the body: {count} checks: expected at most {MAX_BATCH}"
                ));
            }
            let elements = elements.iter();
            let questions = elements.map(|raw| question(raw.get()));
            Ok(Questions::Many(questions.collect()))
        }
        Some(_) => question(text).map(Questions::One),
    }
}

/// What is wrong with a body that is no text, and where.
#[cold]
fn not_text(body: &[u8]) -> String {
    let read = serde_json::from_slice::<serde_json::Value>(body);
    read.map_or_else(unreadable, |_| "the body: expected UTF-8".into())
}

/// Reads one question.
pub(super) fn question(text: &str) -> Result<Question<'_>, String> {
    let body: Body<'_> = serde_json::from_str(text).map_err(unreadable)?;
    let mut attributes: Pairs<'_> = SmallVec::new();
    for (name, value) in body.attributes.into_iter().flat_map(|texts| texts.0) {
        attributes.push((name.0, value.into_bytes()));
    }
    if let Some(key) = body.key {
        attributes.push(("key".into(), key.into_bytes()));
    }
    for (name, value) in body.attributes_b64.into_iter().flat_map(|texts| texts.0) {
        let bytes = STANDARD.decode(&*value.0).map_err(|error| {
            let name = short(&name.0);
            format!("attributes_b64: {name:?}: {error}: expected base64")
        })?;
        attributes.push((name.0, bytes.into()));
    }
    if attributes.len() > MAX_ATTRIBUTES {
        return Err(format!("expected at most {MAX_ATTRIBUTES} attributes"));
    }
    for (index, (name, _)) in attributes.iter().enumerate() {
        if attributes[..index].iter().any(|(other, _)| other == name) {
            let name = short(name);
            return Err(format!("the attribute {name:?} twice: expected it once"));
        }
    }
    Ok(Question {
        policy: body.policy.0,
        attributes,
        cost: body.cost.0,
        peek: body.peek,
    })
}

/// Why a body cannot be read. It may repeat a part of the body, but not all of it.
pub(super) fn unreadable(error: serde_json::Error) -> String {
    const MOST: usize = 300;
    const END: usize = 150;
    let text = error.to_string();
    let count = text.chars().count();
    if count <= MOST {
        return format!("the body: {text}");
    }
    let start: String = text.chars().take(MOST - END).collect();
    let end: String = text.chars().skip(count - END).collect();
    format!("the body: {start}…{end}")
}

pub(super) async fn answer(
    asked: &Asked<Api>,
    current: &Current,
    body: &mut RequestBody,
) -> Result<Answer, Problem> {
    let api = &*asked.handler;
    let body = whole(asked, body).await?;
    // Before anything is charged: a response that finds no room is an error.
    let room = response::reserve(&asked.connection, most_bytes(&body))?;
    match parse(&body).map_err(Problem::bad)? {
        Questions::One(question) => {
            let call = question.call(current)?;
            let decision = api.engine.ask_one(&call).await?;
            let mut json = Vec::with_capacity(decision::LENGTH);
            decision::write(&mut json, &call, &decision);
            let mut answer = text(JSON, ResponseBody::reserved(json, room));
            put_headers(&mut answer, call.entry, &decision);
            Ok(answer)
        }
        Questions::Many(questions) => {
            let json = Box::pin(many(api, current, &questions)).await;
            Ok(text(JSON, ResponseBody::reserved(json, room)))
        }
    }
}

/// The whole body. Nearly every one is short, and there with its head.
async fn whole(asked: &Asked<Api>, body: &mut RequestBody) -> Result<Whole, Problem> {
    let woken = asked.again.is_woken();
    let Some(body) = poll_fn(|cx| Poll::Ready(body.whole_now(cx))).await else {
        return Box::pin(body.whole()).await;
    };
    // hyper wakes the connection when a piece of a body is taken, also when it was the last
    // one.
    if !woken {
        asked.again.forget();
    }
    Ok(body)
}

/// Answers a list of checks, of which those for one store travel together.
async fn many(api: &Api, current: &Current, questions: &[Result<Question<'_>, String>]) -> Vec<u8> {
    let calls = questions.iter().map(|question| match question {
        Ok(question) => question.call(current),
        Err(detail) => Err(Problem::bad(detail.clone())),
    });
    let calls: Vec<Result<Call<'_>, Problem>> = calls.collect();
    let asked: Vec<Call<'_>> = calls.iter().flatten().copied().collect();
    let mut json = Vec::with_capacity(decision::LENGTH * calls.len());
    let mut rest = calls.iter();
    let each = |call: &Call<'_>, answer: &engine::Answer<'_>| {
        put_wrong(api, &mut json, &mut rest);
        match answer {
            Ok(decision) => {
                json.push(b',');
                decision::write(&mut json, call, decision);
            }
            Err(error) => put_problem(api, &mut json, &error.clone().into()),
        }
    };
    api.engine.ask(&asked, each).await;
    put_wrong(api, &mut json, &mut rest);
    match json.first_mut() {
        Some(first) => *first = b'[',
        None => json.push(b'['),
    }
    json.push(b']');
    json
}

/// Writes why calls cannot be asked, up to and without the next that is.
fn put_wrong(api: &Api, json: &mut Vec<u8>, rest: &mut slice::Iter<'_, Result<Call<'_>, Problem>>) {
    while let Some(Err(problem)) = rest.next() {
        put_problem(api, json, problem);
    }
}

/// Writes why there is no decision, behind a comma.
#[cold]
fn put_problem(api: &Api, json: &mut Vec<u8>, problem: &Problem) {
    let (status, detail) = (problem.status, &problem.detail);
    api.engine.problem(status, "/v1/check", None, detail);
    json.extend(b",{\"error\":");
    decision::put_any(json, &problem.body());
    json.push(b'}');
}

/// About as many bytes as the response to a request can have: so many for each check,
/// and receipts repeat attributes in base64.
fn most_bytes(body: &[u8]) -> usize {
    let checks = match body.len() > SMALL || body.first() == Some(&b'[') {
        true => body.iter().filter(|byte| **byte == b'{').count(),
        false => 1,
    };
    checks.min(MAX_BATCH) * decision::LENGTH + body.len() / 2 * 3
}

/// A text that is not copied where that can be helped.
#[derive(Debug)]
struct Text<'a>(Cow<'a, str>);

/// Names and values.
#[derive(Debug)]
struct Texts<'a>(Vec<(Text<'a>, Text<'a>)>);

/// What a check costs.
#[derive(Debug, Default)]
struct Price(Cost);

impl<'a> Text<'a> {
    fn into_bytes(self) -> Cow<'a, [u8]> {
        match self.0 {
            Cow::Borrowed(text) => text.as_bytes().into(),
            Cow::Owned(text) => text.into_bytes().into(),
        }
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Text<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;

        impl<'de> Visitor<'de> for Reader {
            type Value = Text<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }

            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
                Ok(Text(text.into()))
            }

            fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
                Ok(Text(text.to_owned().into()))
            }
        }

        deserializer.deserialize_str(Reader)
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Texts<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader<'a>(PhantomData<&'a ()>);

        impl<'de: 'a, 'a> Visitor<'de> for Reader<'a> {
            type Value = Texts<'a>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of strings, such as {\"ip\": \"203.0.113.7\"}")
            }

            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Self::Value, M::Error> {
                let mut texts = Vec::new();
                while let Some(pair) = map.next_entry()? {
                    texts.push(pair);
                    if texts.len() > MAX_ATTRIBUTES {
                        let error = format_args!("expected at most {MAX_ATTRIBUTES} attributes");
                        return Err(M::Error::custom(error));
                    }
                }
                Ok(Texts(texts))
            }
        }

        deserializer.deserialize_map(Reader(PhantomData))
    }
}

impl<'de> Deserialize<'de> for Price {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;

        impl Visitor<'_> for Reader {
            type Value = Price;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a cost, a whole number from 1 to {}", u32::MAX)
            }

            fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<Price, E> {
                let wrong = |_| E::invalid_value(serde::de::Unexpected::Unsigned(number), &self);
                Cost::new(number).map(Price).map_err(wrong)
            }
        }

        deserializer.deserialize_u64(Reader)
    }
}
