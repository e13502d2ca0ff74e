//! `GET /v1/top/{policy}`: the keys with the most requests or refusals.

use std::collections::BTreeMap;

use http::request::Parts;
use serde::Serialize;

use super::query::{Query, short};
use super::{Answer, Problem, authorize, json};
use crate::engine::Current;
use crate::top::{By, Since};

/// Keys in an answer, unless it is asked for more or fewer.
const USUAL: usize = 20;

/// The most keys in an answer.
const MOST: usize = 100;

#[derive(Serialize)]
struct TopBody<'r> {
    policy: &'r str,
    by: &'static str,
    window_s: u64,
    /// How far a count may be from the truth.
    error: u64,
    keys: Vec<KeyBody<'r>>,
}

#[derive(Serialize)]
struct KeyBody<'r> {
    key: BTreeMap<&'r str, String>,
    requests: u64,
    denied: u64,
}

pub(super) fn answer(current: &Current, policy: &str, head: &Parts) -> Result<Answer, Problem> {
    let top = current.top(policy)?;
    authorize(current, head)?;
    let (mut by, mut since, mut count) = (By::Denied, Since::Minute, USUAL);
    let query = Query::parse(head.uri.query().unwrap_or_default()).map_err(Problem::bad)?;
    query.expect(&[]).map_err(Problem::bad)?;
    for (name, value) in query.attributes() {
        let value = String::from_utf8_lossy(value);
        let expected = match (&**name, &*value) {
            ("by", "denied") => {
                by = By::Denied;
                continue;
            }
            ("by", "requests") => {
                by = By::Requests;
                continue;
            }
            ("window", "1m") => {
                since = Since::Minute;
                continue;
            }
            ("window", "1h") => {
                since = Since::Hour;
                continue;
            }
            ("n", number) => match number.parse() {
                Ok(number) if (1..=MOST).contains(&number) => {
                    count = number;
                    continue;
                }
                _ => "a whole number from 1 to 100",
            },
            ("by", _) => "denied or requests",
            ("window", _) => "1m or 1h",
            _ => {
                let name = short(name);
                return Err(Problem::bad(format!(
                    "the query: {name:?}: expected only by, window and n"
                )));
            }
        };
        let value = short(&value);
        return Err(Problem::bad(format!(
            "{name}: {value:?}: expected {expected}"
        )));
    }
    let most = top.most(by, since, count);
    let keys = most.keys.into_iter().map(|key| KeyBody {
        key: top.names().zip(key.values).collect(),
        requests: key.requests,
        denied: key.denied,
    });
    Ok(json(&TopBody {
        policy,
        by: match by {
            By::Denied => "denied",
            By::Requests => "requests",
        },
        window_s: since.seconds(),
        error: most.error,
        keys: keys.collect(),
    }))
}
