//! What has to be asked about a request: which limit each descriptor has found, at what
//! cost, and under which key it counts.

use std::borrow::Cow;

use smallvec::SmallVec;
use tidegate::{Attributes, Cost};
use tonic::Status;

use super::DropIn;
use crate::engine::{Call, Entry, Kind};
use crate::envoy::rules::{Found, Quota, Rule, Window};
use crate::envoy::wire::{self, Descriptor, LimitOverride, RateLimitRequest, Unit};

/// What becomes of a descriptor.
pub(super) enum Plan<'r> {
    /// It has no limit, or another limit takes its place.
    Open,
    /// Its limit is none.
    Unlimited,
    Asked(Asked<'r>),
}

/// A descriptor with a limit.
pub(super) struct Asked<'r> {
    pub(super) window: Window,
    pub(super) rule: Option<&'r Rule>,
    /// The name of its statistics.
    pub(super) path: SmallVec<[Cow<'r, str>; 4]>,
    pub(super) entry: &'r Entry,
    pub(super) key: Vec<u8>,
    /// Whether refusals are not charged.
    pub(super) is_exact: bool,
    /// What is counted; 0 only looks.
    pub(super) hits: u64,
    /// They are taken off the count.
    pub(super) is_negative: bool,
}

impl<'r> Plan<'r> {
    /// The descriptor, where it has a limit.
    pub(super) fn asked(&self) -> Option<&Asked<'r>> {
        match self {
            Self::Asked(asked) => Some(asked),
            Self::Open | Self::Unlimited => None,
        }
    }
}

impl Asked<'_> {
    /// What to ask: more than any limit admits counts as that much.
    pub(super) fn call(&self) -> Call<'_> {
        let Ok(cost) = Cost::new(self.hits.min(u32::MAX.into())) else {
            return self.look();
        };
        Call {
            kind: match self.is_negative {
                true => Kind::GiveBack,
                false => Kind::Check,
            },
            is_strict: true,
            ..Call::new(self.entry, self, cost)
        }
    }

    /// A look at what is counted.
    pub(super) fn look(&self) -> Call<'_> {
        Call {
            kind: Kind::Peek,
            ..Call::new(self.entry, self, Cost::ONE)
        }
    }
}

impl Attributes for Asked<'_> {
    fn value(&self, name: &str) -> Option<&[u8]> {
        (name == "key").then_some(&self.key)
    }
}

/// What to ask about the descriptors of a request, in their order.
pub(super) fn of<'r>(
    dropin: &'r DropIn,
    request: &'r RateLimitRequest,
) -> Result<Vec<Plan<'r>>, Status> {
    let descriptors = request.descriptors.iter();
    let found: Result<Vec<Matched<'r>>, Status> = descriptors
        .map(|descriptor| Matched::of(dropin, &request.domain, descriptor))
        .collect();
    let found = found?;
    let replaced: SmallVec<[&str; 4]> = found
        .iter()
        .filter_map(Matched::rule)
        .flat_map(|rule| rule.replaces.iter().map(|name| &**name))
        .collect();
    let plans = found.into_iter().zip(&request.descriptors);
    Ok(plans
        .map(|(matched, descriptor)| {
            let is_replaced = matched
                .rule()
                .is_some_and(|rule| !rule.name.is_empty() && replaced.contains(&&*rule.name));
            plan(dropin, request, descriptor, matched, is_replaced)
        })
        .collect())
}

/// The limit of a descriptor.
enum Matched<'r> {
    None,
    Rule(Found<'r>),
    Override(Window),
}

impl<'r> Matched<'r> {
    fn of(dropin: &'r DropIn, domain: &str, descriptor: &'r Descriptor) -> Result<Self, Status> {
        if !dropin.domains.has(domain) {
            return Ok(Self::None);
        }
        if let Some(limit) = &descriptor.limit {
            return window(limit).map(Self::Override);
        }
        let found = dropin.domains.find(domain, &descriptor.entries);
        Ok(found.map_or(Self::None, Self::Rule))
    }

    fn rule(&self) -> Option<&'r Rule> {
        match self {
            Self::Rule(found) => Some(found.rule),
            Self::None | Self::Override(_) => None,
        }
    }
}

/// A limit that comes with a request.
fn window(limit: &LimitOverride) -> Result<Window, Status> {
    let unit = Unit::try_from(limit.unit).ok();
    let unit = unit.filter(|unit| *unit != Unit::Unknown).ok_or_else(|| {
        let message = format!(
            "descriptor.limit.unit: {}: expected SECOND (1), MINUTE (2), HOUR (3), DAY (4), MONTH (5), YEAR (6) or WEEK (7)",
            limit.unit
        );
        Status::invalid_argument(message)
    })?;
    Ok(Window {
        requests: limit.requests_per_unit,
        seconds: unit.seconds(),
    })
}

fn plan<'r>(
    dropin: &'r DropIn,
    request: &'r RateLimitRequest,
    descriptor: &'r Descriptor,
    matched: Matched<'r>,
    is_replaced: bool,
) -> Plan<'r> {
    let (domain, entries) = (&request.domain, &descriptor.entries);
    let (rule, window, exact, key, path) = match matched {
        Matched::None => return Plan::Open,
        Matched::Override(window) => {
            let values = entries.iter().map(|entry| &*entry.value);
            let path = entries.iter().map(named).collect();
            (None, window, None, key(domain, entries, values), path)
        }
        Matched::Rule(found) => {
            let rule: &Rule = found.rule;
            let (window, exact) = match rule.quota {
                Quota::Unlimited => return Plan::Unlimited,
                _ if is_replaced => return Plan::Open,
                Quota::Counted(window) => (window, None),
                Quota::Exact(window, _) => {
                    let entry = dropin.exact.get(rule.index).and_then(Option::as_ref);
                    (window, entry)
                }
            };
            let key = key(domain, entries, found.values.iter().copied());
            (Some(rule), window, exact, key, found.path)
        }
    };
    let Some(entry) = exact.or_else(|| dropin.windows.get(&window.seconds)) else {
        return Plan::Open;
    };
    let hits = descriptor.hits_addend;
    Plan::Asked(Asked {
        window,
        rule,
        path,
        entry,
        key,
        is_exact: exact.is_some(),
        hits: hits.unwrap_or_else(|| request.hits_addend.max(1).into()),
        is_negative: descriptor.is_negative_hits,
    })
}

/// The name of an entry in statistics.
fn named(entry: &wire::Entry) -> Cow<'_, str> {
    let key = String::from_utf8_lossy(&entry.key);
    match entry.value.is_empty() {
        true => key,
        false => format!("{key}_{}", String::from_utf8_lossy(&entry.value)).into(),
    }
}

/// The key of a counter: the domain, and the keys and values of the entries, so that no two
/// lists of entries have the same.
fn key<'v>(
    domain: &str,
    entries: &[wire::Entry],
    values: impl Iterator<Item = &'v [u8]>,
) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(64);
    push(&mut bytes, domain.as_bytes());
    for (entry, value) in entries.iter().zip(values) {
        for part in [&*entry.key, value] {
            bytes.push(b'~');
            push(&mut bytes, part);
        }
    }
    bytes
}

fn push(bytes: &mut Vec<u8>, part: &[u8]) {
    for byte in part {
        match byte {
            b'~' => bytes.extend_from_slice(b"%7E"),
            b'%' => bytes.extend_from_slice(b"%25"),
            byte => bytes.push(*byte),
        }
    }
}
