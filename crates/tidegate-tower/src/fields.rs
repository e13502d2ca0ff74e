//! The header fields of a decision, as `http` has them.

use http::header::{Entry, RETRY_AFTER};
use http::{HeaderMap, HeaderName, HeaderValue};
use smallvec::SmallVec;
use tidegate::{Decisions, Policy};

/// The names of fields that policies of a layer have, made once.
#[derive(Debug)]
pub(crate) struct Names(Box<[(Box<str>, HeaderName)]>);

/// Fields to be added to a response.
pub(crate) type Fields = SmallVec<[(HeaderName, HeaderValue); 3]>;

const RATE_LIMIT: HeaderName = HeaderName::from_static("ratelimit");
const RATE_LIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");

impl Names {
    pub(crate) fn of<'p>(policies: impl IntoIterator<Item = &'p Policy>) -> Self {
        let mut names: Vec<(Box<str>, HeaderName)> = vec![
            ("RateLimit-Policy".into(), RATE_LIMIT_POLICY),
            ("RateLimit".into(), RATE_LIMIT),
            ("Retry-After".into(), RETRY_AFTER),
        ];
        for policy in policies {
            for text in policy.headers().names().into_iter().flatten() {
                if let Ok(name) = HeaderName::from_bytes(text.as_bytes()) {
                    names.push((text.into(), name));
                }
            }
        }
        Self(names.into())
    }

    /// The fields that tell a client about decisions.
    pub(crate) fn fields(&self, decisions: &Decisions<'_>) -> Fields {
        let headers = decisions.headers();
        let fields = headers.iter().filter_map(|(text, value)| {
            let known = self.0.iter().find(|(other, _)| **other == *text);
            // A script of the user's own may name others, even impossible ones.
            let name = match known {
                Some((_, name)) => name.clone(),
                None => HeaderName::from_bytes(text.as_bytes()).ok()?,
            };
            Some((name, HeaderValue::from_str(value).ok()?))
        });
        fields.collect()
    }
}

/// Adds fields to those of a response. Lists grow; what a layer further in has said in
/// single numbers is nearer to what the client has asked for, and stays.
pub(crate) fn add(headers: &mut HeaderMap, fields: Fields) {
    for (name, value) in fields {
        if name == RATE_LIMIT || name == RATE_LIMIT_POLICY {
            headers.append(name, value);
        } else if let Entry::Vacant(place) = headers.entry(name) {
            place.insert(value);
        }
    }
}
