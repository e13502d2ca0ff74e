//! A policy compiled when its config takes effect: its limiter, its counters, and all parts
//! of an answer that never change.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::HeaderValue;
use tidegate::{Dialect, Policy, PolicyDecision, Source};
use tidegate_redis::PolicyLimiter;

use super::decide::Counts;
use crate::metrics::{Meter, Sum, Totals};
use crate::serve::worker;
use crate::top::Top;

/// A policy, ready to be asked.
#[derive(Debug, Clone)]
pub struct Entry {
    handle: PolicyLimiter,
    /// Where its decisions are counted. Envoy's requests are counted as a whole, and not the
    /// limits that they ask.
    meter: Option<Arc<Meter>>,
    top: Arc<Top>,
    /// What is asked beside it.
    trials: Vec<Arc<Self>>,
    /// Which process can give back what this policy charges: zero for all that reach its
    /// store.
    instance: u64,
    /// Whether its keys may stand in logs and records.
    logs_keys: bool,
    /// What a policy of one level says in its headers.
    usual_headers: Option<Usual>,
    json: Pieces,
}

/// The headers of a policy of one level, in the usual dialect.
#[derive(Debug, Clone)]
struct Usual {
    /// `RateLimit-Policy`, which is always the same: one value for each worker, so that
    /// no two of them count its users together.
    limit: Box<[HeaderValue]>,
    /// How `RateLimit` begins.
    left: Box<[u8]>,
}

/// Parts of a decision in JSON that are the same each time.
#[derive(Debug, Clone)]
pub struct Pieces {
    /// How it begins, admitted and refused: up to `denied_by`.
    begin: [Box<str>; 2],
    /// From `source` to the time, of the store's decisions: where the policy would not
    /// and would refuse.
    stored: [Box<str>; 2],
    /// The same from `shadow` on, for every source.
    shadow: [Box<str>; 2],
    /// How each level begins.
    levels: Box<[Box<str>]>,
}

impl Entry {
    pub(crate) fn new(
        handle: PolicyLimiter,
        (meter, top): (Option<Arc<Meter>>, Arc<Top>),
        instance: u64,
        logs_keys: bool,
    ) -> Self {
        let policy = handle.policy();
        Self {
            usual_headers: Usual::new(policy),
            json: Pieces::new(policy),
            meter,
            top,
            trials: Vec::new(),
            instance,
            logs_keys,
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

    /// Parts of a decision in JSON.
    #[inline]
    #[must_use]
    pub fn json(&self) -> &Pieces {
        &self.json
    }

    #[inline]
    pub(super) fn handle(&self) -> &PolicyLimiter {
        &self.handle
    }

    /// Whether its keys may stand in logs and records.
    pub(crate) fn logs_keys(&self) -> bool {
        self.logs_keys
    }

    /// Counts decisions of one source, which took so long together.
    #[inline]
    pub(super) fn count(&self, counts: &Counts, source: Source, took: Duration) {
        if let Some(meter) = &self.meter {
            meter.count(counts.results, source, took);
            meter.count_peeks(counts.peeks);
        }
    }

    /// Counts a question that charged nothing.
    pub(super) fn count_peek(&self) {
        if let Some(meter) = &self.meter {
            meter.count_peeks(1);
        }
    }

    /// What was counted of it so far, and how long the decisions of its store took.
    pub(crate) fn totals(&self) -> (Totals, Sum) {
        let meter = self.meter.as_ref();
        meter.map(|meter| meter.totals()).unwrap_or_default()
    }

    /// The most frequent keys.
    #[inline]
    pub(crate) fn top(&self) -> &Arc<Top> {
        &self.top
    }

    /// What is asked beside it.
    #[inline]
    pub(super) fn trials(&self) -> &[Arc<Self>] {
        &self.trials
    }

    /// The same, counted together with another one.
    pub(super) fn counted_with(self, other: &Self) -> Self {
        Self {
            meter: other.meter.clone(),
            top: Arc::clone(&other.top),
            ..self
        }
    }

    /// Has this entry's policy tried on the checks of another one.
    pub(super) fn try_on(&self, other: &mut Self) {
        other.trials.push(Arc::new(self.clone()));
    }
}

impl Usual {
    fn new(policy: &Policy) -> Option<Self> {
        let [level] = policy.levels() else {
            return None;
        };
        let is_usual = *policy.headers() == Dialect::Ietf && policy.script().is_none();
        let text = level.header_item();
        let (name, _) = text.split_once(';')?;
        let limit = (0..=worker::count()).map(|_| HeaderValue::from_str(text).ok());
        is_usual.then_some(Self {
            limit: limit.collect::<Option<_>>()?,
            left: format!("{name};r=").into_bytes().into(),
        })
    }
}

impl Entry {
    /// `RateLimit-Policy` and `RateLimit` of a request that may go on, where the policy
    /// has one level, with its own limit, and the usual dialect. They are the same as
    /// those of [`PolicyDecision::headers`](tidegate::PolicyDecision::headers).
    #[inline]
    #[must_use]
    pub fn usual_headers(&self, decision: &PolicyDecision<'_>) -> Option<[HeaderValue; 2]> {
        let usual = self.usual_headers.as_ref()?;
        let mut levels = decision.levels();
        let level = levels.next().filter(|level| !level.is_overridden())?;
        if !decision.allowed() || level.limit().spec().is_none() {
            return None;
        }
        let limit = usual.limit.get(worker::number())?.clone();
        let numbers = level.numbers();
        let reset = numbers.reset_after();
        let seconds = reset.as_secs() + u64::from(reset.subsec_nanos() > 0);
        let (mut remaining, mut reset) = (itoa::Buffer::new(), itoa::Buffer::new());
        let remaining = remaining.format(numbers.remaining()).as_bytes();
        let reset = reset.format(seconds.max(1)).as_bytes();
        let parts = [&*usual.left, remaining, b";t=", reset];
        let mut left = Vec::with_capacity(parts.iter().map(|part| part.len()).sum());
        parts.iter().for_each(|part| left.extend_from_slice(part));
        let left = HeaderValue::from_maybe_shared(Bytes::from(left)).ok()?;
        Some([limit, left])
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
        let shadow: [Box<str>; 2] = [shadow(false), shadow(true)];
        let store = Source::Store.as_str();
        let stored = |shadow: &str| format!(",\"source\":\"{store}\"{shadow}").into();
        let levels = policy.levels().iter();
        let levels = levels.map(|level| format!("{{\"name\":\"{}\"", level.name()).into());
        Self {
            begin: [begin(false), begin(true)],
            stored: shadow.each_ref().map(|shadow| stored(shadow)),
            shadow,
            levels: levels.collect(),
        }
    }

    /// How a decision begins.
    #[inline]
    #[must_use]
    pub fn begin(&self, allowed: bool) -> &str {
        &self.begin[usize::from(allowed)]
    }

    /// What stands between the numbers and the time of a decision that the store made.
    #[inline]
    #[must_use]
    pub fn stored(&self, would_deny: bool) -> &str {
        &self.stored[usize::from(would_deny)]
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
