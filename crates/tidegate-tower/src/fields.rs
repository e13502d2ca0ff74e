//! The header fields of a decision, as `http` has them.

use std::borrow::Cow;

use bytes::Bytes;
use http::header::{Entry, RETRY_AFTER};
use http::{HeaderMap, HeaderName, HeaderValue};
use tidegate::{Dialect, Headers, Policy};

/// The names of fields that policies of a layer have, made once.
#[derive(Debug)]
pub(crate) struct Names {
    known: Box<[(Box<str>, Field)]>,
    /// What policies of one level always say of their limits.
    constant: Box<[HeaderValue]>,
    /// Whether there will never be any field.
    is_silent: bool,
}

/// A field's name.
#[derive(Debug, Clone)]
pub(crate) struct Field {
    name: HeaderName,
    is_list: bool,
}

/// Fields to be added to a response.
pub(crate) type Fields = Vec<(Field, HeaderValue)>;

const RATE_LIMIT: HeaderName = HeaderName::from_static("ratelimit");
const RATE_LIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");

impl Names {
    pub(crate) fn of<'p>(policies: impl IntoIterator<Item = &'p Policy>) -> Self {
        let list = |name| Field {
            name,
            is_list: true,
        };
        let mut names: Vec<(Box<str>, Field)> = vec![
            ("RateLimit-Policy".into(), list(RATE_LIMIT_POLICY)),
            ("RateLimit".into(), list(RATE_LIMIT)),
            ("Retry-After".into(), RETRY_AFTER.into()),
        ];
        let (mut constant, mut is_silent) = (Vec::new(), true);
        for policy in policies {
            if let [level] = policy.levels() {
                constant.extend(HeaderValue::from_str(level.header_item()));
            }
            is_silent &= *policy.headers() == Dialect::None && policy.script().is_none();
            for text in policy.headers().names().into_iter().flatten() {
                if let Ok(name) = HeaderName::from_bytes(text.as_bytes()) {
                    names.push((text.into(), name.into()));
                }
            }
        }
        Self {
            known: names.into(),
            constant: constant.into(),
            is_silent,
        }
    }

    pub(crate) fn is_silent(&self) -> bool {
        self.is_silent
    }

    /// The fields as `http` has them.
    pub(crate) fn fields(&self, headers: Headers<'_>) -> Fields {
        let all = headers.into_iter();
        let mut fields = Vec::with_capacity(all.len());
        for (text, value) in all {
            let known = self.known.iter().find(|(other, _)| **other == *text);
            // A script of the user's own may name others, even impossible ones.
            let field = match known {
                Some((_, field)) => Ok(field.clone()),
                None => HeaderName::from_bytes(text.as_bytes()).map(Field::from),
            };
            let value = match value {
                Cow::Owned(value) => HeaderValue::from_maybe_shared(Bytes::from(value)),
                Cow::Borrowed(value) => match self.constant.iter().find(|it| *it == value) {
                    Some(value) => Ok(value.clone()),
                    None => HeaderValue::from_str(value),
                },
            };
            if let (Ok(field), Ok(value)) = (field, value) {
                fields.push((field, value));
            }
        }
        fields
    }
}

/// Adds fields to those of a response. Lists grow; what a layer further in has said in
/// single numbers is nearer to what the client has asked for, and stays.
pub(crate) fn add(headers: &mut HeaderMap, fields: Fields) {
    for (field, value) in fields {
        if field.is_list {
            headers.append(field.name, value);
        } else if let Entry::Vacant(place) = headers.entry(field.name) {
            place.insert(value);
        }
    }
}

impl Field {
    /// The two lists of the usual dialect.
    pub(crate) fn lists() -> [Self; 2] {
        [RATE_LIMIT_POLICY, RATE_LIMIT].map(|name| Self {
            name,
            is_list: true,
        })
    }
}

impl From<HeaderName> for Field {
    /// A field that has one value.
    fn from(name: HeaderName) -> Self {
        Self {
            name,
            is_list: false,
        }
    }
}
