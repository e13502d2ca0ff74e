//! A policy compiled when its config is put in force: whom to ask, where to count, and
//! all parts of an answer that are the same each time.

use std::sync::Arc;

use http::HeaderValue;
use tidegate::Policy;
use tidegate_redis::SharedHandle;

use crate::metrics::Meter;

/// A policy, ready to be asked.
#[derive(Debug)]
pub struct Entry {
    handle: SharedHandle,
    meter: Arc<Meter>,
    /// Which process can give back what this policy charges: zero for all that reach its
    /// store.
    instance: u64,
    /// What a policy of one level always says of its limit in a header.
    limit_header: Option<HeaderValue>,
    json: Pieces,
}

/// Parts of a decision in JSON that are the same each time.
#[derive(Debug)]
pub struct Pieces {
    /// How it begins, admitted and refused: up to `denied_by`.
    begin: [Box<str>; 2],
    /// From `shadow` on, where the policy would not and would refuse.
    shadow: [Box<str>; 2],
    /// How each level begins.
    levels: Box<[Box<str>]>,
}

impl Entry {
    pub(super) fn new(handle: SharedHandle, meter: Arc<Meter>, instance: u64) -> Self {
        let policy = handle.policy();
        let limit_header = match policy.levels() {
            [level] => HeaderValue::from_str(level.header_item()).ok(),
            _ => None,
        };
        Self {
            limit_header,
            json: Pieces::new(policy),
            meter,
            instance,
            handle,
        }
    }

    /// The policy.
    #[inline]
    #[must_use]
    pub fn policy(&self) -> &Policy {
        self.handle.policy()
    }

    /// Which process can give back what this policy charges; zero for all.
    #[must_use]
    pub fn instance(&self) -> u64 {
        self.instance
    }

    /// The header value for this text, if it is the one that is always the same.
    #[inline]
    #[must_use]
    pub fn limit_header(&self, text: &str) -> Option<&HeaderValue> {
        self.limit_header.as_ref().filter(|value| *value == text)
    }

    /// Parts of a decision in JSON.
    #[inline]
    #[must_use]
    pub fn json(&self) -> &Pieces {
        &self.json
    }

    #[inline]
    pub(super) fn handle(&self) -> &SharedHandle {
        &self.handle
    }

    #[inline]
    pub(super) fn meter(&self) -> &Meter {
        &self.meter
    }
}

impl Pieces {
    fn new(policy: &Policy) -> Self {
        // Names of policies and levels need no escapes.
        let (name, shadow) = (policy.name(), policy.shadow());
        let begin = |allowed: bool| {
            format!("{{\"allowed\":{allowed},\"policy\":\"{name}\",\"denied_by\":").into()
        };
        let shadow = |would_deny: bool| {
            format!(",\"shadow\":{shadow},\"would_deny\":{would_deny},\"decided_at_us\":").into()
        };
        let levels = policy.levels().iter();
        let levels = levels.map(|level| format!("{{\"name\":\"{}\"", level.name()).into());
        Self {
            begin: [begin(false), begin(true)],
            shadow: [shadow(false), shadow(true)],
            levels: levels.collect(),
        }
    }

    /// How a decision begins.
    #[inline]
    #[must_use]
    pub fn begin(&self, allowed: bool) -> &str {
        &self.begin[usize::from(allowed)]
    }

    /// What stands between the source and the time.
    #[inline]
    #[must_use]
    pub fn shadow(&self, would_deny: bool) -> &str {
        &self.shadow[usize::from(would_deny)]
    }

    /// How a level begins.
    #[inline]
    #[must_use]
    pub fn level(&self, index: usize) -> &str {
        &self.levels[index]
    }
}
