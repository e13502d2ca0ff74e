//! From what the counters say to a response: statuses, the overall code, headers, metadata
//! and statistics.

use prost_types::value::Kind;
use prost_types::{Duration, ListValue, Struct, Value};

use super::plan::{Asked, Plan};
use super::{Outcome, Outcomes};
use crate::engine::Engine;
use crate::envoy::options::Options;
use crate::envoy::section::OnError;
use crate::envoy::tally::Hits;
use crate::envoy::wire::{
    Code, Descriptor, DescriptorStatus, HeaderValue, RateLimit, RateLimitRequest,
    RateLimitResponse, Unit,
};

/// A response, and whether its descriptors refuse the request.
pub(super) struct Response {
    pub(super) message: RateLimitResponse,
    pub(super) is_over: bool,
}

/// The response of what became of each descriptor.
pub(super) fn of(
    engine: &Engine,
    request: &RateLimitRequest,
    plans: &[Plan<'_>],
    outcomes: &Outcomes,
    on_error: OnError,
) -> Response {
    let options = &engine.options;
    let mut statuses = Vec::with_capacity(plans.len());
    for (plan, outcome) in plans.iter().zip(outcomes) {
        statuses.push(match (plan, outcome) {
            (Plan::Unlimited, _) => DescriptorStatus {
                code: Code::Ok.into(),
                limit_remaining: u32::MAX,
                ..DescriptorStatus::default()
            },
            (Plan::Asked(asked), Some(Ok(outcome))) => {
                if let Some(tally) = &engine.tally {
                    let ratio = options.near_limit_ratio;
                    tally.count(&hits(&request.domain, asked, outcome, ratio));
                }
                limited(asked, outcome)
            }
            (Plan::Asked(_), Some(Err(_))) if on_error == OnError::Deny => DescriptorStatus {
                code: Code::OverLimit.into(),
                ..DescriptorStatus::default()
            },
            _ => DescriptorStatus {
                code: Code::Ok.into(),
                ..DescriptorStatus::default()
            },
        });
    }
    let quotas = Quotas::of(options, request, plans, &statuses);
    let is_over = quotas.is_over();
    let message = RateLimitResponse {
        overall_code: match is_over && !options.shadow_mode {
            true => Code::OverLimit.into(),
            false => Code::Ok.into(),
        },
        response_headers_to_add: match options.response_headers {
            true => headers(options, &statuses, &quotas),
            false => Vec::new(),
        },
        dynamic_metadata: options
            .dynamic_metadata
            .then(|| metadata(request, plans, &statuses, &quotas)),
        statuses,
        ..RateLimitResponse::default()
    };
    Response { message, is_over }
}

/// The status of a descriptor with a limit.
fn limited(asked: &Asked<'_>, outcome: &Outcome) -> DescriptorStatus {
    let is_shadow = asked.rule.is_some_and(|rule| rule.shadow_mode);
    let code = match outcome.is_over && !is_shadow {
        true => Code::OverLimit,
        false => Code::Ok,
    };
    DescriptorStatus {
        code: code.into(),
        current_limit: Some(RateLimit {
            requests_per_unit: asked.window.requests,
            unit: Unit::of(asked.window.seconds * 1_000_000).into(),
            name: asked
                .rule
                .map(|rule| rule.name.to_string())
                .unwrap_or_default(),
        }),
        limit_remaining: outcome.remaining,
        duration_until_reset: Some(Duration {
            seconds: i64::try_from(outcome.reset).unwrap_or(i64::MAX),
            nanos: 0,
        }),
    }
}

/// Who refuses a request: any limit that is over, or all groups of quotas together. A group
/// is over when one of its quotas is.
struct Quotas<'r> {
    /// The last limit that is over, and is no quota.
    over: Option<usize>,
    /// One descriptor of each group, and whether the group is over.
    groups: Vec<(&'r Descriptor, bool)>,
    /// The group of each descriptor that has one.
    of: Vec<Option<usize>>,
}

impl<'r> Quotas<'r> {
    fn of(
        options: &Options,
        request: &'r RateLimitRequest,
        plans: &[Plan<'_>],
        statuses: &[DescriptorStatus],
    ) -> Self {
        let mut quotas = Self {
            over: None,
            groups: Vec::new(),
            of: vec![None; plans.len()],
        };
        let all = request.descriptors.iter().zip(plans).zip(statuses);
        for (index, ((descriptor, plan), status)) in all.enumerate() {
            let is_over = status.code == i32::from(Code::OverLimit);
            let is_quota = match plan {
                Plan::Unlimited => continue,
                Plan::Open => options.quota_mode,
                Plan::Asked(asked) => {
                    options.quota_mode || asked.rule.is_some_and(|rule| rule.quota_mode)
                }
            };
            if !is_quota {
                if is_over {
                    quotas.over = Some(index);
                }
                continue;
            }
            let mut groups = quotas.groups.iter();
            let group = groups.position(|(other, _)| is_same_group(other, descriptor));
            let group = group.unwrap_or_else(|| {
                quotas.groups.push((descriptor, false));
                quotas.groups.len() - 1
            });
            quotas.groups[group].1 |= is_over;
            quotas.of[index] = Some(group);
        }
        quotas
    }

    fn is_over(&self) -> bool {
        let quotas_are = !self.groups.is_empty() && self.groups.iter().all(|(_, over)| *over);
        self.over.is_some() || quotas_are
    }

    /// Whether the group of a descriptor is over.
    fn is_exhausted(&self, index: usize) -> bool {
        let group = self.of.get(index).copied().flatten();
        group.is_some_and(|group| self.groups[group].1)
    }
}

/// The entries of a model behind a backend.
const BACKEND: &str = "backend_name";
const MODEL: &str = "model_name_override";

fn value<'d>(descriptor: &'d Descriptor, key: &str) -> &'d [u8] {
    let mut entries = descriptor.entries.iter().rev();
    let entry = entries.find(|entry| entry.key == key.as_bytes());
    entry.map_or(&[], |entry| &*entry.value)
}

/// Whether two quotas are of one model, or of the same entries where they name none.
fn is_same_group(one: &Descriptor, other: &Descriptor) -> bool {
    let model = |it| (value(it, BACKEND), value(it, MODEL));
    let is_of_none = |it| model(it) == (&[][..], &[][..]);
    match (is_of_none(one), is_of_none(other)) {
        (false, false) => model(one) == model(other),
        (true, true) => one.entries == other.entries,
        _ => false,
    }
}

/// The headers of the tightest limit: the last that is over, or else the first with the
/// least left.
fn headers(
    options: &Options,
    statuses: &[DescriptorStatus],
    quotas: &Quotas<'_>,
) -> Vec<HeaderValue> {
    let over = quotas.over.map(|index| &statuses[index]);
    let tightest = over.or_else(|| {
        let limited = statuses.iter().filter(|it| it.current_limit.is_some());
        limited.min_by_key(|it| it.limit_remaining)
    });
    let Some(status) = tightest else {
        return Vec::new();
    };
    let limit = status.current_limit.as_ref();
    let reset = status.duration_until_reset.as_ref();
    let header = |key: &String, value: i64| HeaderValue {
        key: key.clone(),
        value: value.to_string(),
    };
    match (limit, reset) {
        (Some(limit), Some(reset)) => vec![
            header(&options.limit_header, limit.requests_per_unit.into()),
            header(&options.remaining_header, status.limit_remaining.into()),
            header(&options.reset_header, reset.seconds),
        ],
        _ => Vec::new(),
    }
}

/// What Envoy's access log and other filters can read: the request, and the metadata of the
/// limits that have room.
fn metadata(
    request: &RateLimitRequest,
    plans: &[Plan<'_>],
    statuses: &[DescriptorStatus],
    quotas: &Quotas<'_>,
) -> Struct {
    let mut fields = Struct::default();
    let mut set = |key: &str, kind: Kind| {
        fields.fields.insert(key.into(), Value { kind: Some(kind) });
    };
    set("domain", Kind::StringValue(request.domain.clone()));
    set(
        "descriptors",
        list(request.descriptors.iter().map(described)),
    );
    if request.hits_addend != 0 {
        set("hitsAddend", Kind::NumberValue(request.hits_addend.into()));
    }
    let has_room = |index: usize| {
        statuses[index].code == i32::from(Code::Ok)
            && !matches!(plans[index], Plan::Unlimited)
            && !quotas.is_exhausted(index)
    };
    let passed: Vec<usize> = (0..plans.len()).filter(|index| has_room(*index)).collect();
    let mut merged = Struct::default();
    for index in &passed {
        if let Plan::Asked(asked) = &plans[*index]
            && let Some(metadata) = asked.rule.and_then(|rule| rule.metadata.as_ref())
        {
            merge(&mut merged, metadata);
        }
    }
    if !merged.fields.is_empty() {
        set("metadata", Kind::StructValue(merged));
    }
    if !quotas.groups.is_empty() {
        let mut backends: Vec<(&[u8], &[u8])> = Vec::new();
        for index in passed {
            let descriptor = &request.descriptors[index];
            let backend = (value(descriptor, BACKEND), value(descriptor, MODEL));
            if backend != (&[][..], &[][..]) && !backends.contains(&backend) {
                backends.push(backend);
            }
        }
        if !backends.is_empty() {
            let backends = backends.iter().map(|(backend, model)| {
                let mut fields = Struct::default();
                for (key, value) in [(BACKEND, backend), (MODEL, model)] {
                    let value = text(&String::from_utf8_lossy(value));
                    fields.fields.insert(key.into(), value);
                }
                Kind::StructValue(fields)
            });
            set("passedBackends", list(backends));
        }
    }
    fields
}

fn text(text: &str) -> Value {
    Value {
        kind: Some(Kind::StringValue(text.to_owned())),
    }
}

fn list(kinds: impl Iterator<Item = Kind>) -> Kind {
    let values = kinds.map(|kind| Value { kind: Some(kind) });
    Kind::ListValue(ListValue {
        values: values.collect(),
    })
}

/// A descriptor, as metadata.
fn described(descriptor: &Descriptor) -> Kind {
    let mut fields = Struct::default();
    let mut set = |key: &str, kind: Kind| {
        fields.fields.insert(key.into(), Value { kind: Some(kind) });
    };
    let entries = descriptor.entries.iter().map(|entry| {
        let (key, value) = (&entry.key, &entry.value);
        let (key, value) = (String::from_utf8_lossy(key), String::from_utf8_lossy(value));
        Kind::StringValue(format!("{key}={value}"))
    });
    set("entries", list(entries));
    if let Some(limit) = &descriptor.limit {
        let mut units = Unit::ALL.iter();
        let unit = units.find(|(_, unit)| i32::from(*unit) == limit.unit);
        let unit = unit.map_or("unknown", |(name, _)| name).to_uppercase();
        let requests = limit.requests_per_unit;
        let limit = format!("requests_per_unit:{requests} unit:{unit}");
        set("limit", Kind::StringValue(limit));
    }
    if let Some(hits) = descriptor.hits_addend {
        #[expect(clippy::cast_precision_loss, reason = "numbers of JSON are doubles")]
        set("hitsAddend", Kind::NumberValue(hits as f64));
    }
    Kind::StructValue(fields)
}

/// Adds fields that are not there yet.
fn merge(into: &mut Struct, from: &Struct) {
    for (key, value) in &from.fields {
        match into.fields.get_mut(key) {
            None => {
                into.fields.insert(key.clone(), value.clone());
            }
            Some(present) => {
                if let (Some(Kind::StructValue(present)), Some(Kind::StructValue(value))) =
                    (&mut present.kind, &value.kind)
                {
                    merge(present, value);
                }
            }
        }
    }
}

/// What a descriptor adds to the statistics of its limit.
fn hits<'r>(
    domain: &'r str,
    asked: &'r Asked<'_>,
    outcome: &Outcome,
    near_limit_ratio: f32,
) -> Hits<'r> {
    let (limit, total) = (u64::from(asked.window.requests), asked.hits);
    let mut hits = Hits {
        domain,
        path: &asked.path,
        total,
        over_limit: 0,
        near_limit: 0,
        within_limit: 0,
        shadow_mode: 0,
    };
    if asked.is_negative {
        hits.total = 0;
        return hits;
    }
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "a share of a u32, in the precision of the setting"
    )]
    let near = (limit as f32 * near_limit_ratio).floor() as u64;
    let after = outcome.count;
    let before = after.saturating_sub(total);
    match (outcome.is_over, asked.is_exact) {
        (true, true) => hits.over_limit = total,
        (true, false) if before >= limit => hits.over_limit = total,
        (true, false) => {
            hits.over_limit = after - limit;
            hits.near_limit = limit - near.max(before).min(limit);
        }
        (false, _) => {
            hits.within_limit = total;
            if after > near {
                hits.near_limit = total.min(after - near);
            }
        }
    }
    if outcome.is_over && asked.rule.is_some_and(|rule| rule.shadow_mode) {
        hits.shadow_mode = total;
    }
    hits
}
