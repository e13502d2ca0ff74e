//! Requests whose domain names a policy: the entries of a descriptor are the attributes,
//! and several descriptors are charged all or none.

use smallvec::SmallVec;
use tidegate::{Attributes, Cost, PolicyDecision, Source};
use tidegate_redis::TryCheckError;
use tonic::Status;

use super::section::OnError;
use super::service::status;
use super::wire::{
    Code, Descriptor, DescriptorStatus, HeaderValue, RateLimit, RateLimitRequest,
    RateLimitResponse, Unit,
};
use crate::engine::{Current, Decided, Engine};

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

/// Decides a request of one descriptor, where counts are kept in this process.
pub(super) fn answer_now(
    engine: &Engine,
    current: &Current,
    request: &RateLimitRequest,
) -> Option<Result<RateLimitResponse, Status>> {
    let [descriptor] = &request.descriptors[..] else {
        return None;
    };
    let cost = match cost(request, descriptor) {
        Ok(cost) => cost?,
        Err(status) => return Some(Err(status)),
    };
    let decided = engine.decide_now(current, &request.domain, &Entries(descriptor), cost)?;
    Some(match decided {
        Ok(decided) => Ok(one(&decided)),
        Err(error) => Err(status(&error.into())),
    })
}

/// Decides any request.
pub(super) async fn answer(
    engine: &Engine,
    current: &Current,
    request: &RateLimitRequest,
) -> Result<RateLimitResponse, Status> {
    let on_error = current.server.envoy.on_error;
    let asker = Asker {
        engine,
        current,
        policy: &request.domain,
        is_strict: on_error == OnError::Error,
    };
    let mut asked: Descriptors<'_> = SmallVec::new();
    for descriptor in &request.descriptors {
        asked.push((Entries(descriptor), cost(request, descriptor)?));
    }
    let decided = asker.all(&asked).await;
    let decided = decided.map_err(|error| status(&error))?;
    if let [decided] = &decided[..]
        && !is_undecided(&decided.decision)
    {
        return Ok(one(decided));
    }
    Ok(several(&decided, &asked, on_error))
}

type Descriptors<'d> = SmallVec<[(Entries<'d>, Option<Cost>); 4]>;

/// Asks one policy about several descriptors.
struct Asker<'c> {
    engine: &'c Engine,
    current: &'c Current,
    policy: &'c str,
    /// A store that cannot answer is an error.
    is_strict: bool,
}

impl<'c> Asker<'c> {
    /// Charges all of them, or none: what was charged before a refusal is given back, and
    /// those behind it are only looked at.
    async fn all(
        &self,
        asked: &Descriptors<'_>,
    ) -> Result<SmallVec<[Decided<'c>; 4]>, TryCheckError> {
        let mut decided: SmallVec<[Decided<'c>; 4]> = SmallVec::new();
        let mut is_refused = false;
        for (entries, cost) in asked {
            let cost = cost.filter(|_| !is_refused);
            let next = match self.one(entries, cost).await {
                Ok(next) => next,
                Err(error) => {
                    self.give_back(asked, &decided).await;
                    return Err(error);
                }
            };
            is_refused |= cost.is_some() && !next.decision.allowed();
            decided.push(next);
        }
        if is_refused {
            self.give_back(asked, &decided).await;
        }
        Ok(decided)
    }

    async fn one(
        &self,
        entries: &Entries<'_>,
        cost: Option<Cost>,
    ) -> Result<Decided<'c>, TryCheckError> {
        let (engine, current, policy) = (self.engine, self.current, self.policy);
        match cost {
            None => engine.peek(current, policy, entries, Cost::ONE).await,
            Some(cost) if self.is_strict => engine.try_decide(current, policy, entries, cost).await,
            Some(cost) => Ok(engine.decide(current, policy, entries, cost).await?),
        }
    }

    async fn give_back(&self, asked: &Descriptors<'_>, decided: &[Decided<'_>]) {
        for ((entries, _), decided) in asked.iter().zip(decided) {
            let Some(receipt) = decided.decision.receipt() else {
                continue;
            };
            let (engine, current) = (self.engine, self.current);
            let refund = engine.refund(current, self.policy, entries, &receipt).await;
            if let Err(error) = refund {
                tracing::debug!(%error, policy = self.policy, "a charge was not given back");
            }
        }
    }
}

/// The response to a request of one descriptor.
fn one(decided: &Decided<'_>) -> RateLimitResponse {
    let decision = &decided.decision;
    let status = described(decision, decision.remaining());
    RateLimitResponse {
        overall_code: status.code,
        statuses: vec![status],
        response_headers_to_add: headers(decided),
        ..RateLimitResponse::default()
    }
}

/// The response to a request of several, or to one that no store has decided.
fn several(
    decided: &[Decided<'_>],
    asked: &Descriptors<'_>,
    on_error: OnError,
) -> RateLimitResponse {
    let is_refused = decided.iter().any(|it| !it.decision.allowed());
    let statuses = decided.iter().zip(asked).map(|(decided, (_, cost))| {
        let decision = &decided.decision;
        if is_undecided(decision) {
            return undecided(decision, on_error);
        }
        let is_returned = is_refused && decision.receipt().is_some();
        let returned = cost.filter(|_| is_returned).map_or(0, Cost::get);
        let remaining = decision.remaining().saturating_add(returned);
        described(decision, remaining.min(decision.limit()))
    });
    let statuses: Vec<DescriptorStatus> = statuses.collect();
    let over = Code::OverLimit.into();
    let is_over = statuses.iter().any(|status| status.code == over);
    // The headers are those of the tightest: refused, or else with the least left.
    let tightest = decided.iter().min_by_key(|it| {
        let decision = &it.decision;
        (decision.allowed(), decision.remaining())
    });
    let tightest = tightest.filter(|it| !is_undecided(&it.decision));
    RateLimitResponse {
        overall_code: if is_over { over } else { Code::Ok.into() },
        statuses,
        response_headers_to_add: tightest.map(headers).unwrap_or_default(),
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
fn headers(decided: &Decided<'_>) -> Vec<HeaderValue> {
    if let Some([limit, left]) = decided.usual_headers() {
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
    let headers = decided.decision.headers();
    let headers = headers.into_iter().map(|(name, value)| HeaderValue {
        key: name.into_owned(),
        value: value.into_owned(),
    });
    headers.collect()
}
