//! What is counted, and the text that a scrape gets. Keys are never labels.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use foldhash::fast::FixedState;
use prometheus::{
    Encoder, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge,
    IntGaugeVec, Opts, Registry, TextEncoder,
};
use tidegate::{Policy, PolicyDecision, Source};
use tidegate_redis::{SharedLimiter, Store};

/// Upper ends of the histograms' buckets: a decision in memory takes microseconds, one
/// in a store that is in trouble takes its deadline.
const SECONDS: [f64; 15] = [
    1e-6, 2.5e-6, 5e-6, 1e-5, 2.5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 0.01, 0.05, 0.1, 1.0,
];

/// All of them.
pub(crate) struct Metrics {
    registry: Registry,
    decisions: IntCounterVec,
    durations: HistogramVec,
    sources: IntCounterVec,
    store_durations: HistogramVec,
    store_errors: IntCounterVec,
    store_up: IntGaugeVec,
    breaker_open: IntGaugeVec,
    keys: IntGauge,
    evicted: IntCounter,
    reloads: IntCounterVec,
    connections: IntGauge,
    /// Held by a scrape while it sets what others have counted.
    scrape: Mutex<()>,
}

/// Those of each policy, at hand.
pub(crate) struct Meters(HashMap<Box<str>, Meter, FixedState>);

struct Meter {
    allowed: IntCounter,
    denied: IntCounter,
    shadow_denied: IntCounter,
    sources: [IntCounter; Source::ALL.len()],
    duration: Histogram,
    store_duration: Histogram,
}

impl Metrics {
    pub(crate) fn new() -> Self {
        let registry = Registry::new();
        let metrics = Self {
            decisions: counters(
                "decisions_total",
                "Decisions, by what became of the request.",
                &["policy", "result"],
            ),
            durations: histograms(
                "decision_duration_seconds",
                "How long a decision took.",
                "policy",
            ),
            sources: counters(
                "source_total",
                "Decisions, by who answered.",
                &["policy", "source"],
            ),
            store_durations: histograms(
                "store_duration_seconds",
                "How long a store took to decide.",
                "store",
            ),
            store_errors: counters(
                "store_errors_total",
                "Checks that a store has not answered, by why.",
                &["store", "kind"],
            ),
            store_up: gauges(
                "store_up",
                "Whether a store has answered the last question put to it.",
            ),
            breaker_open: gauges(
                "breaker_open",
                "Whether a store has kept failing, and is not asked for a while.",
            ),
            keys: known(IntGauge::with_opts(named("keys", "Keys held in memory."))),
            evicted: known(IntCounter::with_opts(named(
                "evicted_total",
                "Keys in use that were forgotten to make room, in memory.",
            ))),
            reloads: counters(
                "reload_total",
                "Times the config was read again.",
                &["result"],
            ),
            connections: known(IntGauge::with_opts(named(
                "connections",
                "Connections open now.",
            ))),
            scrape: Mutex::new(()),
            registry,
        };
        let version = env!("CARGO_PKG_VERSION");
        let build = named("build_info", "The version, as a label.").const_label("version", version);
        let build = known(IntGauge::with_opts(build));
        build.set(1);
        for result in ["ok", "error"] {
            metrics.reloads.with_label_values(&[result]);
        }
        metrics.register(build);
        metrics.register(metrics.decisions.clone());
        metrics.register(metrics.durations.clone());
        metrics.register(metrics.sources.clone());
        metrics.register(metrics.store_durations.clone());
        metrics.register(metrics.store_errors.clone());
        metrics.register(metrics.store_up.clone());
        metrics.register(metrics.breaker_open.clone());
        metrics.register(metrics.keys.clone());
        metrics.register(metrics.evicted.clone());
        metrics.register(metrics.reloads.clone());
        metrics.register(metrics.connections.clone());
        metrics
    }

    fn register(&self, metric: impl prometheus::core::Collector + 'static) {
        let registered = self.registry.register(Box::new(metric));
        registered.expect("no two metrics have one name");
    }

    /// Those of these policies.
    pub(crate) fn meters(&self, policies: &[Policy]) -> Meters {
        let meters = policies.iter().map(|policy| {
            let name = policy.name();
            let result = |result| self.decisions.with_label_values(&[name, result]);
            let meter = Meter {
                allowed: result("allowed"),
                denied: result("denied"),
                shadow_denied: result("shadow_denied"),
                sources: Source::ALL
                    .map(|source| self.sources.with_label_values(&[name, source.as_str()])),
                duration: self.durations.with_label_values(&[name]),
                store_duration: self.store_durations.with_label_values(&[policy.store()]),
            };
            (name.into(), meter)
        });
        Meters(meters.collect())
    }

    /// A config was read again, with this result.
    pub(crate) fn reloaded(&self, ok: bool) {
        let result = if ok { "ok" } else { "error" };
        self.reloads.with_label_values(&[result]).inc();
    }

    /// The connections open now.
    pub(crate) fn connections(&self) -> &IntGauge {
        &self.connections
    }

    /// The text for a scrape, with what the stores say now.
    pub(crate) fn text(&self, limiter: &SharedLimiter) -> Vec<u8> {
        let _alone = self.scrape.lock().unwrap_or_else(PoisonError::into_inner);
        // Stores of a config before this one are gone.
        self.store_up.reset();
        self.breaker_open.reset();
        let (mut keys, mut evicted) = (0, 0);
        for (name, store) in limiter.stores() {
            let (up, breaker_open) = match store {
                Store::Memory(store) => {
                    let stats = store.stats();
                    keys += stats.keys;
                    evicted += stats.evicted;
                    (true, false)
                }
                Store::Redis(store) => {
                    let stats = store.stats();
                    for (kind, errors) in stats.errors {
                        let labels = [name, kind.as_str()];
                        raise(&self.store_errors.with_label_values(&labels), errors);
                    }
                    (stats.up, stats.breaker_open)
                }
            };
            self.store_up.with_label_values(&[name]).set(up.into());
            let breaker = self.breaker_open.with_label_values(&[name]);
            breaker.set(breaker_open.into());
        }
        self.keys.set(i64::try_from(keys).unwrap_or(i64::MAX));
        raise(&self.evicted, evicted);
        let mut text = Vec::new();
        let written = TextEncoder::new().encode(&self.registry.gather(), &mut text);
        written.expect("a vector takes everything, and no metric is without a name");
        text
    }
}

impl Meters {
    /// Counts a decision that took so long.
    pub(crate) fn count(&self, decision: &PolicyDecision<'_>, took: Duration) {
        let Some(meter) = self.0.get(decision.policy().name()) else {
            return;
        };
        match (decision.allowed(), decision.would_deny()) {
            (_, true) => meter.shadow_denied.inc(),
            (true, false) => meter.allowed.inc(),
            (false, false) => meter.denied.inc(),
        }
        let source = decision.source();
        if let Some(index) = Source::ALL.iter().position(|other| *other == source) {
            meter.sources[index].inc();
        }
        let seconds = took.as_secs_f64();
        meter.duration.observe(seconds);
        if source == Source::Store {
            meter.store_duration.observe(seconds);
        }
    }
}

/// Sets a counter to what somebody else has counted. Less than before means that they
/// have begun anew.
fn raise(counter: &IntCounter, total: u64) {
    if total < counter.get() {
        counter.reset();
    }
    counter.inc_by(total - counter.get());
}

fn named(name: &str, help: &str) -> Opts {
    Opts::new(name, help).namespace("tidegate")
}

fn counters(name: &str, help: &str, labels: &[&str]) -> IntCounterVec {
    known(IntCounterVec::new(named(name, help), labels))
}

fn gauges(name: &str, help: &str) -> IntGaugeVec {
    known(IntGaugeVec::new(named(name, help), &["store"]))
}

fn histograms(name: &str, help: &str, label: &str) -> HistogramVec {
    let options = HistogramOpts::from(named(name, help)).buckets(SECONDS.to_vec());
    known(HistogramVec::new(options, &[label]))
}

fn known<T>(metric: prometheus::Result<T>) -> T {
    metric.expect("names and labels written in the source are right")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_dashboard_shows_what_there_is() {
        let metrics = Metrics::new();
        let config = tidegate_config::Config::default();
        let limiter = SharedLimiter::from_config(&config, "".as_ref()).unwrap();
        metrics.meters(&config.policies);
        metrics
            .store_errors
            .with_label_values(&["default", "other"]);
        let text = String::from_utf8(metrics.text(&limiter)).unwrap();
        let dashboard = include_str!("../../../deploy/grafana.json");
        let is_part = |sign: char| sign.is_ascii_alphanumeric() || sign == '_';
        let mut shown: Vec<&str> = dashboard
            .split(|sign| !is_part(sign))
            .filter(|word| word.starts_with("tidegate_"))
            .map(|word| word.strip_suffix("_bucket").unwrap_or(word))
            .collect();
        shown.sort_unstable();
        shown.dedup();
        let mut all: Vec<&str> = text
            .lines()
            .filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next())
            .collect();
        all.sort_unstable();
        assert_eq!(shown, all);
    }
}
