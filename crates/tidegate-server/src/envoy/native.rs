//! Requests whose domain names a policy: the entries of a descriptor are the attributes,
//! and several descriptors are charged all or none.

use smallvec::SmallVec;
use tidegate::{Attributes, Cost, PolicyDecision, Source};
use tonic::Status;

use super::section::OnError;
use super::service::status;
use super::wire::{
    Code, Descriptor, DescriptorStatus, HeaderValue, RateLimit, RateLimitRequest,
    RateLimitResponse, Unit,
};
use crate::engine::{Call, Current, Engine, Entry, Kind};

/// The attributes of a descriptor.
struct Entries<'d>(&'d Descriptor);

impl Attributes for Entries<'_> {
    #[inline]
    fn value(&self, name: &str) -> Option<&[u8]> {
        let mut entries = self.0.entries.iter();
        let entry = entries.find(|entry| entry.key == name.as_bytes());
        entry.map(|entry| &*entry.value)
    }
}

/// What a descriptor costs; nothing only looks.
fn cost(request: &RateLimitRequest, descriptor: &Descriptor) -> Result<Option<Cost>, Status> {
    if descriptor.limit.is_some() {
        return Err(Status::invalid_argument(
            "descriptor.limit: a domain that names a policy has that policy's limits: expected none",
        ));
    }
    if descriptor.is_negative_hits {
        return Err(Status::invalid_argument(
            "descriptor.is_negative_hits: a policy gives back by receipt only: expected false",
        ));
    }
    let hits = descriptor.hits_addend;
    let hits = hits.unwrap_or_else(|| request.hits_addend.max(1).into());
    // More than any limit admits is never admitted, whatever the number.
    Ok(Cost::new(u32::try_from(hits).unwrap_or(u32::MAX).into()).ok())
}

/// Decides.
pub(super) async fn answer(
    engine: &Engine,
    current: &Current,
    request: &RateLimitRequest,
) -> Result<RateLimitResponse, Status> {
    let on_error = current.server.envoy.on_error;
    let mut asked: SmallVec<[(Entries<'_>, Option<Cost>); 4]> = SmallVec::new();
    for descriptor in &request.descriptors {
        asked.push((Entries(descriptor), cost(request, descriptor)?));
    }
    let entry = current.entry(&request.domain);
    let entry = entry.map_err(|error| status(&error.into()))?;
    let calls = asked.iter().map(|(entries, cost)| Call {
        kind: cost.map_or(Kind::Peek, |_| Kind::Check),
        is_strict: on_error == OnError::Error,
        ..Call::new(entry, entries, cost.unwrap_or(Cost::ONE))
    });
    let calls: SmallVec<[Call<'_>; 4]> = calls.collect();
    if let [call] = &calls[..] {
        let decision = engine.ask_one(call).await;
        let decision = decision.map_err(|error| status(&error))?;
        return Ok(match is_undecided(&decision) {
            true => several(&calls, &[decision], on_error),
            false => one(entry, &decision),
        });
    }
    let decisions = Box::pin(engine.ask_all(&calls)).await;
    let decisions = decisions.map_err(|error| status(&error))?;
    Ok(several(&calls, &decisions, on_error))
}

/// The response to a request of one descriptor.
fn one(entry: &Entry, decision: &PolicyDecision<'_>) -> RateLimitResponse {
    let status = described(decision, decision.remaining());
    RateLimitResponse {
        overall_code: status.code,
        statuses: vec![status],
        response_headers_to_add: headers(entry, decision),
        ..RateLimitResponse::default()
    }
}

/// The response to a request of several, or to one that no store has decided.
fn several(
    calls: &[Call<'_>],
    decisions: &[PolicyDecision<'_>],
    on_error: OnError,
) -> RateLimitResponse {
    let is_refused = decisions.iter().any(|decision| !decision.allowed());
    let statuses = calls.iter().zip(decisions).map(|(call, decision)| {
        if is_undecided(decision) {
            return undecided(decision, on_error);
        }
        let is_returned = is_refused && decision.receipt().is_some();
        let returned = if is_returned { call.cost.get() } else { 0 };
        let remaining = decision.remaining().saturating_add(returned);
        described(decision, remaining.min(decision.limit()))
    });
    let statuses: Vec<DescriptorStatus> = statuses.collect();
    let over = Code::OverLimit.into();
    let is_over = statuses.iter().any(|status| status.code == over);
    // The headers are those of the tightest: refused, or else with the least left.
    let tightest = calls.iter().zip(decisions);
    let tightest = tightest.min_by_key(|(_, it)| (it.allowed(), it.remaining()));
    let tightest = tightest.filter(|(_, decision)| !is_undecided(decision));
    let headers = tightest.map(|(call, decision)| headers(call.entry, decision));
    RateLimitResponse {
        overall_code: if is_over { over } else { Code::Ok.into() },
        statuses,
        response_headers_to_add: headers.unwrap_or_default(),
        ..RateLimitResponse::default()
    }
}

/// What a decision says about its descriptor.
fn described(decision: &PolicyDecision<'_>, remaining: u32) -> DescriptorStatus {
    let code = match decision.allowed() {
        true => Code::Ok,
        false => Code::OverLimit,
    };
    let Some(level) = decision.reported() else {
        return DescriptorStatus {
            code: code.into(),
            ..DescriptorStatus::default()
        };
    };
    let (policy, numbers) = (decision.policy(), level.numbers());
    let name = match policy.levels() {
        [_] => policy.name().to_owned(),
        _ => format!("{}.{}", policy.name(), level.name()),
    };
    let spec = level.limit().spec();
    let (requests, unit) = spec.map_or((numbers.limit(), Unit::Unknown), |spec| {
        let rate = spec.rate;
        (rate.requests(), Unit::of(rate.window_us()))
    });
    let wait = match decision.allowed() {
        true => Some(numbers.reset_after()),
        false => decision.retry_after(),
    };
    DescriptorStatus {
        code: code.into(),
        current_limit: Some(RateLimit {
            requests_per_unit: requests,
            unit: unit.into(),
            name,
        }),
        limit_remaining: remaining,
        duration_until_reset: wait.map(seconds),
    }
}

/// Whether no store has decided it. Envoy gets what `[envoy] on_error` says then, and not what
/// the policy does without its store.
fn is_undecided(decision: &PolicyDecision<'_>) -> bool {
    matches!(decision.source(), Source::ErrorPolicy | Source::Local)
}

/// The status of a descriptor that no store has decided.
fn undecided(decision: &PolicyDecision<'_>, on_error: OnError) -> DescriptorStatus {
    let code = match on_error {
        OnError::Error | OnError::Allow => Code::Ok,
        OnError::Deny => Code::OverLimit,
    };
    DescriptorStatus {
        code: code.into(),
        duration_until_reset: decision
            .retry_after()
            .filter(|_| code == Code::OverLimit)
            .map(seconds),
        ..DescriptorStatus::default()
    }
}

/// Whole seconds, rounded up: what Envoy makes a `Retry-After` of.
fn seconds(time: std::time::Duration) -> prost_types::Duration {
    let seconds = time.as_secs() + u64::from(time.subsec_nanos() > 0);
    prost_types::Duration {
        seconds: i64::try_from(seconds).unwrap_or(i64::MAX),
        nanos: 0,
    }
}

/// The header fields of a decision, in the dialect of its policy.
fn headers(entry: &Entry, decision: &PolicyDecision<'_>) -> Vec<HeaderValue> {
    if let Some([limit, left]) = entry.usual_headers(decision) {
        let text = |value: &http::HeaderValue| value.to_str().unwrap_or_default().to_owned();
        return vec![
            HeaderValue {
                key: "RateLimit-Policy".into(),
                value: text(&limit),
            },
            HeaderValue {
                key: "RateLimit".into(),
                value: text(&left),
            },
        ];
    }
    let headers = decision.headers();
    let headers = headers.into_iter().map(|(name, value)| HeaderValue {
        key: name.into_owned(),
        value: value.into_owned(),
    });
    headers.collect()
}
