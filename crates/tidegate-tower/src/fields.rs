//! The header fields of decisions, as `http` has them.

use std::borrow::Cow;

use bytes::Bytes;
use http::header::{Entry, RETRY_AFTER};
use http::{HeaderMap, HeaderName, HeaderValue};
use tidegate::{Dialect, Headers, Policy, PolicyDecision};

use crate::limiter::LayerPolicy;

/// Fields to be added to a response.
pub(crate) type Fields = Vec<(HeaderName, HeaderValue)>;

/// What the header fields of a layer's policies have in common, made once.
#[derive(Debug, Default)]
pub(crate) struct KnownFields {
    names: Vec<(Box<str>, HeaderName)>,
    /// Whether there will never be any field.
    is_silent: bool,
    usual: Option<Usual>,
}

/// The fields of admitted requests, where one policy of one level decides: made without texts
/// on the way.
#[derive(Debug)]
enum Usual {
    /// Limit, remaining and reset, each under its name.
    Numbers([HeaderName; 3]),
    /// `RateLimit-Policy`, always the same, and how `RateLimit` begins.
    Lists(HeaderValue, Box<str>),
}

const RATE_LIMIT: HeaderName = HeaderName::from_static("ratelimit");
const RATE_LIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");

impl KnownFields {
    pub(crate) fn new(policies: &[LayerPolicy]) -> Self {
        let mut known = Self {
            names: vec![
                ("RateLimit-Policy".into(), RATE_LIMIT_POLICY),
                ("RateLimit".into(), RATE_LIMIT),
                ("Retry-After".into(), RETRY_AFTER),
            ],
            usual: match policies {
                [only] => Usual::new(only.policy()),
                _ => None,
            },
            is_silent: true,
        };
        for policy in policies.iter().map(LayerPolicy::policy) {
            known.is_silent &= *policy.headers() == Dialect::None && policy.script().is_none();
            for text in policy.headers().names().into_iter().flatten() {
                let name = HeaderName::from_bytes(text.as_bytes());
                known.names.extend(name.map(|name| (text.into(), name)));
            }
        }
        known
    }

    /// The fields of a response.
    pub(crate) fn of(&self, headers: Headers<'_>) -> Fields {
        let all = headers.into_iter();
        let mut fields = Vec::with_capacity(all.len());
        for (text, value) in all {
            let name = match self.names.iter().find(|(other, _)| **other == *text) {
                Some((_, name)) => Ok(name.clone()),
                // A script of the user's own may name others, even impossible ones.
                None => HeaderName::from_bytes(text.as_bytes()),
            };
            let value = match value {
                Cow::Owned(value) => HeaderValue::from_maybe_shared(Bytes::from(value)),
                Cow::Borrowed(value) => HeaderValue::from_str(value),
            };
            if let (Ok(name), Ok(value)) = (name, value) {
                fields.push((name, value));
            }
        }
        fields
    }

    /// The fields of an admitted request, if they are the usual ones.
    #[inline]
    pub(crate) fn of_one(&self, decision: &PolicyDecision<'_>) -> Option<Fields> {
        if self.is_silent {
            return Some(Fields::new());
        }
        self.usual.as_ref()?.fields(decision)
    }
}

impl Usual {
    fn new(policy: &Policy) -> Option<Self> {
        let [level] = policy.levels() else {
            return None;
        };
        // A block has no numbers.
        level.limit().spec().filter(|_| policy.script().is_none())?;
        match policy.headers() {
            Dialect::Ietf => {
                let text = level.header_item();
                let (name, _) = text.split_once(';')?;
                let limit = HeaderValue::from_str(text).ok()?;
                Some(Self::Lists(limit, format!("{name};r=").into()))
            }
            Dialect::XRateLimit | Dialect::Custom(_) => {
                let [limit, reset, remaining] = policy.headers().names()?;
                let name = |name: &str| HeaderName::from_bytes(name.as_bytes()).ok();
                Some(Self::Numbers([
                    name(limit)?,
                    name(remaining)?,
                    name(reset)?,
                ]))
            }
            _ => None,
        }
    }

    #[inline]
    fn fields(&self, decision: &PolicyDecision<'_>) -> Option<Fields> {
        let mut levels = decision.levels();
        let level = levels.next().filter(|level| !level.is_overridden())?;
        let numbers = level.numbers();
        let reset = numbers.reset_after();
        let seconds = reset.as_secs() + u64::from(reset.subsec_nanos() > 0);
        let [mut limit, mut remaining, mut reset] = [(); 3].map(|()| itoa::Buffer::new());
        let remaining = remaining.format(numbers.remaining());
        Some(match self {
            Self::Numbers(names) => {
                let [first, second, third] = names.clone();
                let limit = limit.format(numbers.limit());
                vec![
                    (first, value(&[limit])?),
                    (second, value(&[remaining])?),
                    (third, value(&[reset.format(seconds)])?),
                ]
            }
            Self::Lists(limit, begin) => {
                let reset = reset.format(seconds.max(1));
                let state = value(&[begin, remaining, ";t=", reset])?;
                vec![(RATE_LIMIT_POLICY, limit.clone()), (RATE_LIMIT, state)]
            }
        })
    }
}

/// A value made of these parts, in no more memory than it needs.
#[inline]
fn value(parts: &[&str]) -> Option<HeaderValue> {
    HeaderValue::from_maybe_shared(Bytes::from(parts.concat())).ok()
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
