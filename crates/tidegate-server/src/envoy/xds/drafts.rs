//! From the messages of a control plane to limits that can be validated like those of a
//! file.

use std::sync::Arc;

use super::wire::{RateLimitConfig, RateLimitDescriptor, RateLimitPolicy};
use crate::envoy::rules::{DescriptorDraft, DomainDraft, LimitDraft, Place};
use crate::envoy::wire::Unit;

/// The domains of a control plane. Errors name the resource, which has no lines.
#[must_use]
pub fn drafts(configs: Vec<RateLimitConfig>) -> Vec<DomainDraft> {
    let domains = configs.into_iter().map(|config| {
        let file = Arc::from(format!("xds resource {:?}", config.name));
        let place = Place { file, line: 0 };
        DomainDraft {
            domain: config.domain,
            descriptors: descriptors(&place, config.descriptors),
            place,
        }
    });
    domains.collect()
}

fn descriptors(place: &Place, from: Vec<RateLimitDescriptor>) -> Vec<DescriptorDraft> {
    let descriptors = from.into_iter().map(|from| DescriptorDraft {
        rate_limit: from.rate_limit.map(|policy| limit(place, policy)),
        descriptors: descriptors(place, from.descriptors),
        shadow_mode: from.shadow_mode,
        quota_mode: from.quota_mode,
        detailed_metric: from.detailed_metric,
        ..DescriptorDraft::new(place.clone(), from.key, from.value)
    });
    descriptors.collect()
}

fn limit(place: &Place, from: RateLimitPolicy) -> LimitDraft {
    // A unit of a later version is no unit, which is an error.
    let unit = Unit::try_from(from.unit).unwrap_or(Unit::Unknown);
    LimitDraft {
        requests_per_unit: Some(from.requests_per_unit),
        unit: (unit != Unit::Unknown).then_some(unit),
        unlimited: from.unlimited,
        name: from.name,
        replaces: from.replaces.into_iter().map(|it| it.name).collect(),
        ..LimitDraft::new(place.clone())
    }
}
