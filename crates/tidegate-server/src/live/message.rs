//! The message of a second: totals, and what they have grown by since the last one.

use std::collections::BTreeMap;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use serde::Serialize;
use tidegate::{Limit, Policy, Source};
use tidegate_redis::AnyStore;

use super::outages::Outages;
use crate::engine::{Current, Engine};
use crate::metrics::{Sum, Totals};

/// The most policies in a message: the first of the config.
const MAX_POLICIES: usize = 500;

/// The counters at one time.
#[derive(Debug)]
pub(super) struct Sample {
    taken: Instant,
    at_ms: u64,
    uptime: Duration,
    connections: i64,
    policies: Vec<PolicySample>,
    left_out: usize,
    stores: BTreeMap<String, StoreSample>,
}

#[derive(Debug)]
struct PolicySample {
    policy: Policy,
    totals: Totals,
}

#[derive(Debug)]
struct StoreSample {
    kind: &'static str,
    up: bool,
    breaker_open: bool,
    keys: Option<usize>,
    evicted: u64,
    errors: u64,
    outages: u64,
    down: Option<Duration>,
    durations: Sum,
}

#[derive(Serialize)]
struct Message<'s> {
    at_ms: u64,
    version: &'static str,
    uptime_s: u64,
    connections: i64,
    policies: Vec<PolicyBody<'s>>,
    policies_left_out: usize,
    stores: Vec<StoreBody<'s>>,
}

#[derive(Serialize)]
struct PolicyBody<'s> {
    name: &'s str,
    store: &'s str,
    mode: &'static str,
    enabled: bool,
    shadow: bool,
    trial_of: Option<&'s str>,
    script: bool,
    levels: Vec<LevelBody<'s>>,
    /// Attributes of a key.
    attributes: Vec<&'s str>,
    totals: Results<u64>,
    /// Null until two messages can be compared.
    per_s: Option<Results<f64>>,
    p50_us: Option<f64>,
    p99_us: Option<f64>,
    /// Decisions per second by source, where there were any.
    sources: BTreeMap<&'static str, f64>,
}

#[derive(Serialize)]
struct LevelBody<'s> {
    name: &'s str,
    key: &'s str,
    limit: String,
}

#[derive(Serialize)]
struct Results<T> {
    allowed: T,
    denied: T,
    would_deny: T,
}

#[derive(Serialize)]
struct StoreBody<'s> {
    name: &'s str,
    kind: &'static str,
    up: bool,
    breaker_open: bool,
    /// Of a store in memory.
    keys: Option<usize>,
    evicted: u64,
    errors: u64,
    errors_per_s: Option<f64>,
    outages: u64,
    /// For how long it has been down.
    down_s: Option<u64>,
    p50_us: Option<f64>,
    p99_us: Option<f64>,
}

impl Sample {
    /// The counters now.
    pub(super) fn take(engine: &Engine, current: &Current, outages: &Outages) -> Self {
        let mut stores: BTreeMap<String, StoreSample> = current
            .limiter
            .stores()
            .map(|(name, store)| (name.to_owned(), StoreSample::new(name, store, outages)))
            .collect();
        let (mut policies, mut left_out) = (Vec::new(), 0);
        for entry in current.watched_all() {
            let (totals, stored) = entry.totals();
            if let Some(store) = stores.get_mut(entry.policy().store()) {
                store.durations.add_sum(&stored);
            }
            match policies.len() < MAX_POLICIES {
                true => policies.push(PolicySample {
                    policy: entry.policy().clone(),
                    totals,
                }),
                false => left_out += 1,
            }
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        Self {
            taken: Instant::now(),
            at_ms: u64::try_from(now.unwrap_or_default().as_millis()).unwrap_or(u64::MAX),
            uptime: engine.uptime(),
            connections: engine.metrics.connections().get(),
            policies,
            left_out,
            stores,
        }
    }

    /// It as a server-sent event, with what has happened since another one.
    pub(super) fn event(&self, before: Option<&Self>) -> Bytes {
        let passed = before.map(|before| self.taken - before.taken);
        let passed = passed.filter(|it| !it.is_zero()).map(|it| it.as_secs_f64());
        let policies = self.policies.iter().map(|it| {
            let mut others = before.iter().flat_map(|before| &before.policies);
            let before = others.find(|other| other.policy.name() == it.policy.name());
            it.body(before.map(|before| &before.totals).zip(passed))
        });
        let stores = self.stores.iter().map(|(name, it)| {
            let before = before.and_then(|before| before.stores.get(name));
            it.body(name, before.zip(passed))
        });
        let message = Message {
            at_ms: self.at_ms,
            version: env!("CARGO_PKG_VERSION"),
            uptime_s: self.uptime.as_secs(),
            connections: self.connections,
            policies: policies.collect(),
            policies_left_out: self.left_out,
            stores: stores.collect(),
        };
        let json = serde_json::to_string(&message).expect("what is made here can be written");
        format!("data: {json}\n\n").into()
    }
}

impl PolicySample {
    fn body(&self, before: Option<(&Totals, f64)>) -> PolicyBody<'_> {
        let (policy, totals) = (&self.policy, &self.totals);
        let per_s = before.map(|(before, passed)| {
            let rate = |result: usize| {
                let sum = |totals: &Totals| totals.decisions[result].iter().sum::<u64>();
                grown(sum(totals), sum(before), passed)
            };
            Results {
                allowed: rate(0),
                denied: rate(1),
                would_deny: rate(2),
            }
        });
        let sources = Source::ALL
            .iter()
            .enumerate()
            .filter_map(|(place, source)| {
                let (before, passed) = before?;
                let sum = |totals: &Totals| totals.decisions.iter().map(|it| it[place]).sum();
                let rate = grown(sum(totals), sum(before), passed);
                (rate > 0.0).then_some((source.as_str(), rate))
            });
        let total = |result: usize| totals.decisions[result].iter().sum();
        let script = policy.script().is_some();
        let levels = policy.levels().iter().map(|level| LevelBody {
            name: level.name(),
            key: level.key().as_str(),
            limit: match script {
                true => "script".into(),
                false => limit(level.limit()),
            },
        });
        let quantile = |share| totals.durations.quantile_us(&before?.0.durations, share);
        PolicyBody {
            name: policy.name(),
            store: policy.store(),
            mode: policy.mode().as_str(),
            enabled: policy.enabled(),
            shadow: policy.shadow(),
            trial_of: policy.trial_of(),
            script,
            levels: levels.collect(),
            attributes: policy.attributes(),
            totals: Results {
                allowed: total(0),
                denied: total(1),
                would_deny: total(2),
            },
            per_s,
            p50_us: quantile(0.5),
            p99_us: quantile(0.99),
            sources: sources.collect(),
        }
    }
}

/// A limit in a few words: `100r/s, burst 20`.
fn limit(limit: &Limit) -> String {
    let Some(spec) = limit.spec() else {
        return "block".into();
    };
    match spec.burst {
        Some(burst) => format!("{}, burst {burst}", spec.rate),
        None => spec.rate.to_string(),
    }
}

impl StoreSample {
    fn new(name: &str, store: &AnyStore, outages: &Outages) -> Self {
        let seen = outages.of(name);
        let common = Self {
            kind: "memory",
            up: true,
            breaker_open: false,
            keys: None,
            evicted: 0,
            errors: 0,
            outages: seen.outages,
            down: seen.down_since.map(|since| since.elapsed()),
            durations: Sum::default(),
        };
        match store {
            AnyStore::Memory(store) => {
                let stats = store.stats();
                Self {
                    keys: Some(stats.keys),
                    evicted: stats.evicted,
                    ..common
                }
            }
            AnyStore::Redis(store) => {
                let stats = store.stats();
                Self {
                    kind: "redis",
                    up: stats.up,
                    breaker_open: stats.breaker_open,
                    errors: stats.errors.iter().map(|(_, count)| *count).sum(),
                    ..common
                }
            }
        }
    }

    fn body<'s>(&'s self, name: &'s str, before: Option<(&Self, f64)>) -> StoreBody<'s> {
        let quantile = |share| self.durations.quantile_us(&before?.0.durations, share);
        StoreBody {
            name,
            kind: self.kind,
            up: self.up,
            breaker_open: self.breaker_open,
            keys: self.keys,
            evicted: self.evicted,
            errors: self.errors,
            errors_per_s: before.map(|(it, passed)| grown(self.errors, it.errors, passed)),
            outages: self.outages,
            down_s: self.down.map(|down| down.as_secs()),
            p50_us: quantile(0.5),
            p99_us: quantile(0.99),
        }
    }
}

/// By how much a counter grows per second. A counter that begins anew has not grown.
fn grown(now: u64, before: u64, passed_s: f64) -> f64 {
    let rate = now.saturating_sub(before) as f64 / passed_s;
    (rate * 10.0).round() / 10.0
}
