//! Metrics, and the text of a scrape. Keys are never labels.
//!
//! Each worker counts decisions in its own block, and a scrape adds them up: no two workers
//! write to one cache line.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use prometheus::{
    Encoder, GaugeVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry,
    TextEncoder,
};
use tidegate::Source;
use tidegate_redis::{AnyStore, Policies};

use crate::serve::worker;

/// Upper ends of the histograms' buckets, as they stand in the text and in nanoseconds: a
/// decision in memory takes microseconds, one in a store that is in trouble takes its
/// deadline.
const BUCKETS: [(&str, u64); 15] = [
    ("0.000001", 1_000),
    ("0.0000025", 2_500),
    ("0.000005", 5_000),
    ("0.00001", 10_000),
    ("0.000025", 25_000),
    ("0.0001", 100_000),
    ("0.00025", 250_000),
    ("0.0005", 500_000),
    ("0.001", 1_000_000),
    ("0.0025", 2_500_000),
    ("0.005", 5_000_000),
    ("0.01", 10_000_000),
    ("0.05", 50_000_000),
    ("0.1", 100_000_000),
    ("1", 1_000_000_000),
];

/// All of them.
pub(crate) struct Metrics {
    registry: Registry,
    decisions: IntCounterVec,
    sources: IntCounterVec,
    store_errors: IntCounterVec,
    store_up: IntGaugeVec,
    breaker_open: IntGaugeVec,
    round_trip: GaugeVec,
    keys: IntGauge,
    evicted: IntCounter,
    leased_tokens: IntGaugeVec,
    leases: IntCounterVec,
    lease_calls: IntCounterVec,
    reloads: IntCounterVec,
    peeks: IntCounterVec,
    problems: IntCounterVec,
    connections: IntGauge,
    quota_streams: IntGauge,
    quota_buckets: IntGauge,
    quota_requests: IntCounterVec,
    quota_charges: IntCounterVec,
    /// By policy and store, in use or not: counters never go back. A scrape holds the
    /// lock while it sets what others have counted.
    meters: Mutex<Meters>,
}

/// By policy and store.
type Meters = BTreeMap<(Box<str>, Box<str>), Arc<Meter>>;

/// What is counted of one policy over one store.
#[derive(Debug)]
pub(crate) struct Meter(Box<[Block]>);

/// One worker's part of it. The first block is for threads that are no workers.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Block {
    /// By result, then by source.
    decisions: [[AtomicU64; Source::ALL.len()]; RESULTS.len()],
    /// How long decisions of the store took, and all others.
    durations: [Durations; 2],
    peeks: AtomicU64,
}

/// How long something took.
#[derive(Debug, Default)]
struct Durations {
    /// How many ended up in each bucket, the last of which has no end.
    counts: [AtomicU64; BUCKETS.len() + 1],
    sum_ns: AtomicU64,
}

/// What can become of a request.
const RESULTS: [&str; 3] = ["allowed", "denied", "shadow_denied"];

/// Durations that were added up.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Sum {
    counts: [u64; BUCKETS.len() + 1],
    sum_ns: u64,
}

impl Metrics {
    pub(crate) fn new() -> Self {
        let registry = Registry::new();
        let metrics = Self {
            decisions: counters(
                "decisions_total",
                "Decisions by result: allowed, denied or shadow_denied.",
                &["policy", "result"],
            ),
            sources: counters(
                "source_total",
                "Decisions by source.",
                &["policy", "source"],
            ),
            store_errors: counters(
                "store_errors_total",
                "Store errors by kind.",
                &["store", "kind"],
            ),
            store_up: gauges(
                "store_up",
                "Whether the last call to the store succeeded (1) or failed (0).",
            ),
            breaker_open: gauges(
                "breaker_open",
                "Whether the breaker is open (1): the store kept failing and is not asked.",
            ),
            round_trip: known(GaugeVec::new(
                named(
                    "store_round_trip_seconds",
                    "How long the store last took to answer a batch on an idle connection.",
                ),
                &["store"],
            )),
            keys: known(IntGauge::with_opts(named("keys", "Keys in memory stores."))),
            evicted: known(IntCounter::with_opts(named(
                "evicted_total",
                "Keys that a memory store evicted while they were in use.",
            ))),
            leased_tokens: known(IntGaugeVec::new(
                named(
                    "leased_tokens",
                    "Tokens of leases that this process can spend now.",
                ),
                &["policy"],
            )),
            leases: counters(
                "leases_total",
                "Leases by event: granted, settled or lapsed.",
                &["policy", "event"],
            ),
            lease_calls: counters(
                "lease_calls_total",
                "Lease messages sent to the store.",
                &["policy"],
            ),
            reloads: counters(
                "reload_total",
                "Config reloads by result: ok or error.",
                &["result"],
            ),
            peeks: counters(
                "peeks_total",
                "Peeks and explained keys, which charge nothing.",
                &["policy"],
            ),
            problems: counters(
                "http_errors_total",
                "Requests, and checks in a batch, that failed, by HTTP status.",
                &["status"],
            ),
            connections: known(IntGauge::with_opts(named(
                "connections",
                "Open connections.",
            ))),
            quota_streams: known(IntGauge::with_opts(named(
                "quota_streams",
                "Envoys that currently report to this process.",
            ))),
            quota_buckets: known(IntGauge::with_opts(named(
                "quota_buckets",
                "Buckets with an assignment, on all streams together.",
            ))),
            quota_requests: counters(
                "quota_requests_total",
                "Requests that Envoys decided by their assignments, as they report them.",
                &["policy", "result"],
            ),
            quota_charges: counters(
                "quota_tokens_total",
                "Tokens for assignments, charged to the store or refused by it.",
                &["policy", "result"],
            ),
            meters: Mutex::default(),
            registry,
        };
        let version = env!("CARGO_PKG_VERSION");
        let build =
            named("build_info", "The running version, as a label.").const_label("version", version);
        let build = known(IntGauge::with_opts(build));
        build.set(1);
        for result in ["ok", "error"] {
            metrics.reloads.with_label_values(&[result]);
        }
        for status in ["400", "404"] {
            metrics.problems.with_label_values(&[status]);
        }
        metrics.register(build);
        metrics.register(metrics.peeks.clone());
        metrics.register(metrics.problems.clone());
        metrics.register(metrics.decisions.clone());
        metrics.register(metrics.sources.clone());
        metrics.register(metrics.store_errors.clone());
        metrics.register(metrics.store_up.clone());
        metrics.register(metrics.breaker_open.clone());
        metrics.register(metrics.round_trip.clone());
        metrics.register(metrics.keys.clone());
        metrics.register(metrics.evicted.clone());
        metrics.register(metrics.leased_tokens.clone());
        metrics.register(metrics.leases.clone());
        metrics.register(metrics.lease_calls.clone());
        metrics.register(metrics.reloads.clone());
        metrics.register(metrics.connections.clone());
        metrics.register(metrics.quota_streams.clone());
        metrics.register(metrics.quota_buckets.clone());
        metrics.register(metrics.quota_requests.clone());
        metrics.register(metrics.quota_charges.clone());
        metrics
    }

    fn register(&self, metric: impl prometheus::core::Collector + 'static) {
        let registered = self.registry.register(Box::new(metric));
        registered.expect("no two metrics have one name");
    }

    /// What is counted of a policy over a store, from now on or since before.
    pub(crate) fn meter(&self, policy: &str, store: &str) -> Arc<Meter> {
        let mut meters = self.meters();
        let meter = meters.entry((policy.into(), store.into()));
        Arc::clone(meter.or_insert_with(|| Arc::new(Meter::new())))
    }

    fn meters(&self) -> MutexGuard<'_, Meters> {
        self.meters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What policies in the mode `lease` have been through.
    fn leases(&self, limiter: &Policies) {
        self.leased_tokens.reset();
        for (policy, stats) in limiter.leases() {
            let tokens = i64::try_from(stats.leased_tokens).unwrap_or(i64::MAX);
            self.leased_tokens.with_label_values(&[policy]).set(tokens);
            let events = [
                ("granted", stats.grants),
                ("settled", stats.settles),
                ("lapsed", stats.lapsed),
            ];
            for (event, count) in events {
                raise(&self.leases.with_label_values(&[policy, event]), count);
            }
            let calls = self.lease_calls.with_label_values(&[policy]);
            raise(&calls, stats.messages);
        }
    }

    /// A config was read again, with this result.
    pub(crate) fn reloaded(&self, ok: bool) {
        let result = if ok { "ok" } else { "error" };
        self.reloads.with_label_values(&[result]).inc();
    }

    /// How often a config was read again: with success, and without.
    pub(crate) fn reloads(&self) -> [u64; 2] {
        ["ok", "error"].map(|result| self.reloads.with_label_values(&[result]).get())
    }

    /// A request could not be answered.
    pub(crate) fn problem(&self, status: u16) {
        let status = status.to_string();
        self.problems.with_label_values(&[&status]).inc();
    }

    /// The connections open now.
    pub(crate) fn connections(&self) -> &IntGauge {
        &self.connections
    }

    /// The streams of quotas, and the buckets on them.
    pub(crate) fn quotas(&self, streams: usize, buckets: usize) {
        let number = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        self.quota_streams.set(number(streams));
        self.quota_buckets.set(number(buckets));
    }

    /// An Envoy reports what it has admitted and refused.
    pub(crate) fn quota_reported(&self, policy: &str, allowed: u64, denied: u64) {
        for (result, count) in [("allowed", allowed), ("denied", denied)] {
            let counter = self.quota_requests.with_label_values(&[policy, result]);
            // No Envoy counts further, and the sum must not overflow.
            counter.inc_by(count.min(1 << 40));
        }
    }

    /// Tokens were charged for assignments, or refused.
    pub(crate) fn quota_charged(&self, policy: &str, charged: u32, refused: u32) {
        for (result, count) in [("charged", charged), ("refused", refused)] {
            let counter = self.quota_charges.with_label_values(&[policy, result]);
            counter.inc_by(count.into());
        }
    }

    /// The text for a scrape, with what the stores say now.
    pub(crate) fn text(&self, limiter: &Policies) -> Vec<u8> {
        let meters = self.meters();
        // Stores of a config before this one are gone.
        self.store_up.reset();
        self.breaker_open.reset();
        self.round_trip.reset();
        let (mut keys, mut evicted) = (0, 0);
        for (name, store) in limiter.stores() {
            let (up, breaker_open) = match store {
                AnyStore::Memory(store) => {
                    let stats = store.stats();
                    keys += stats.keys;
                    evicted += stats.evicted;
                    (true, false)
                }
                AnyStore::Redis(store) => {
                    let stats = store.stats();
                    for (kind, errors) in stats.errors {
                        let labels = [name, kind.as_str()];
                        raise(&self.store_errors.with_label_values(&labels), errors);
                    }
                    if let Some(round_trip) = stats.round_trip {
                        let gauge = self.round_trip.with_label_values(&[name]);
                        gauge.set(round_trip.as_secs_f64());
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
        self.leases(limiter);
        let (mut by_policy, mut by_store) = (BTreeMap::new(), BTreeMap::new());
        for ((policy, store), meter) in meters.iter() {
            let (of_policy, of_store) = (
                by_policy.entry(&**policy).or_insert_with(Totals::default),
                by_store.entry(&**store).or_insert_with(Sum::default),
            );
            of_policy.add(meter, of_store);
        }
        for (policy, totals) in &by_policy {
            if totals.peeks > 0 {
                raise(&self.peeks.with_label_values(&[*policy]), totals.peeks);
            }
            for (result, counts) in RESULTS.iter().zip(&totals.decisions) {
                let counter = self.decisions.with_label_values(&[*policy, *result]);
                raise(&counter, counts.iter().sum());
            }
            for (index, source) in Source::ALL.iter().enumerate() {
                let total = totals.decisions.iter().map(|counts| counts[index]).sum();
                let counter = self.sources.with_label_values(&[*policy, source.as_str()]);
                raise(&counter, total);
            }
        }
        let mut text = Vec::new();
        let written = TextEncoder::new().encode(&self.registry.gather(), &mut text);
        written.expect("a vector takes everything, and no metric is without a name");
        let mut text = String::from_utf8(text).expect("names and numbers are text");
        let of_policies = by_policy
            .iter()
            .map(|(name, totals)| (*name, totals.durations));
        histogram(
            &mut text,
            "decision_duration_seconds",
            "Time per decision, in seconds.",
            "policy",
            of_policies,
        );
        histogram(
            &mut text,
            "store_duration_seconds",
            "Time a store took per decision, in seconds.",
            "store",
            by_store.into_iter(),
        );
        text.into()
    }
}

/// What all workers have counted of a policy.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Totals {
    /// By result (allowed, denied, would have been denied), then by source.
    pub(crate) decisions: [[u64; Source::ALL.len()]; RESULTS.len()],
    pub(crate) durations: Sum,
    peeks: u64,
}

impl Totals {
    /// Adds what was counted over one store, and to that store what it took.
    fn add(&mut self, meter: &Meter, store: &mut Sum) {
        for block in &meter.0 {
            let counts = block.decisions.iter().flatten();
            for (total, count) in self.decisions.iter_mut().flatten().zip(counts) {
                *total += count.load(Relaxed);
            }
            for durations in &block.durations {
                self.durations.add(durations);
            }
            store.add(&block.durations[0]);
            self.peeks += block.peeks.load(Relaxed);
        }
    }
}

impl Sum {
    /// The time within which this share of what was added since `before` was done, in
    /// microseconds: the upper end of its bucket. `None` where nothing was added, or where
    /// it took longer than the last bucket.
    pub(crate) fn quantile_us(&self, before: &Self, share: f64) -> Option<f64> {
        let counts = self.counts.iter().zip(&before.counts);
        let added: Vec<u64> = counts
            .map(|(now, then)| now.saturating_sub(*then))
            .collect();
        let total: u64 = added.iter().sum();
        let mut rest = (total as f64 * share).ceil().max(1.0);
        for (count, (_, end_ns)) in added.iter().zip(BUCKETS) {
            rest -= *count as f64;
            if rest <= 0.0 {
                return Some(end_ns as f64 / 1_000.0);
            }
        }
        None
    }

    /// Adds another sum.
    pub(crate) fn add_sum(&mut self, other: &Self) {
        for (total, count) in self.counts.iter_mut().zip(other.counts) {
            *total += count;
        }
        self.sum_ns += other.sum_ns;
    }

    fn add(&mut self, durations: &Durations) {
        for (total, count) in self.counts.iter_mut().zip(&durations.counts) {
            *total += count.load(Relaxed);
        }
        self.sum_ns += durations.sum_ns.load(Relaxed);
    }
}

/// Writes a histogram with a series for each value of a label. Names of policies and
/// stores need no escapes.
fn histogram<'n>(
    text: &mut String,
    name: &str,
    help: &str,
    label: &str,
    series: impl Iterator<Item = (&'n str, Sum)>,
) {
    let name = format!("tidegate_{name}");
    let mut line = |arguments: std::fmt::Arguments<'_>| {
        writeln!(text, "{arguments}").expect("a string takes everything");
    };
    line(format_args!("# HELP {name} {help}"));
    line(format_args!("# TYPE {name} histogram"));
    for (value, sum) in series {
        let mut total = 0;
        let ends = BUCKETS.iter().map(|(text, _)| *text).chain(["+Inf"]);
        for (end, count) in ends.zip(sum.counts) {
            total += count;
            line(format_args!(
                "{name}_bucket{{{label}=\"{value}\",le=\"{end}\"}} {total}"
            ));
        }
        let seconds = Duration::from_nanos(sum.sum_ns).as_secs_f64();
        line(format_args!("{name}_sum{{{label}=\"{value}\"}} {seconds}"));
        line(format_args!("{name}_count{{{label}=\"{value}\"}} {total}"));
    }
}

impl Meter {
    /// What was counted so far, and how long the decisions of the store took.
    pub(crate) fn totals(&self) -> (Totals, Sum) {
        let (mut totals, mut store) = (Totals::default(), Sum::default());
        totals.add(self, &mut store);
        (totals, store)
    }

    fn new() -> Self {
        let blocks = (0..=worker::count()).map(|_| Block::default());
        Self(blocks.collect())
    }

    /// Counts decisions of one source by result, which took so long together, in a block
    /// that no other worker writes to.
    #[inline]
    pub(crate) fn count(&self, results: [u64; RESULTS.len()], source: Source, took: Duration) {
        let total: u64 = results.iter().sum();
        let (Some(block), true) = (self.0.get(worker::number()), total > 0) else {
            return;
        };
        let index = Source::ALL.iter().position(|other| *other == source);
        for (counts, result) in block.decisions.iter().zip(results) {
            if result > 0 {
                counts[index.unwrap_or_default()].fetch_add(result, Relaxed);
            }
        }
        let durations = &block.durations[usize::from(source != Source::Store)];
        let ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let bucket = BUCKETS.iter().position(|(_, end)| ns / total <= *end);
        durations.counts[bucket.unwrap_or(BUCKETS.len())].fetch_add(total, Relaxed);
        durations.sum_ns.fetch_add(ns, Relaxed);
    }

    /// Counts questions that charged nothing.
    #[inline]
    pub(crate) fn count_peeks(&self, peeks: u64) {
        if let (Some(block), true) = (self.0.get(worker::number()), peeks > 0) {
            block.peeks.fetch_add(peeks, Relaxed);
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

fn known<T>(metric: prometheus::Result<T>) -> T {
    metric.expect("names and labels written in the source are right")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_dashboard_shows_what_there_is() {
        let metrics = Metrics::new();
        let config = "[stores.shared]\nurl = \"redis://127.0.0.1:1\"\n\
                      [[policies]]\nname = \"default\"\nlimit = \"10r/s\"\n\
                      [[policies]]\nname = \"leased\"\nlimit = \"10r/s\"\n\
                      store = \"shared\"\nmode = \"lease\"\n";
        let config = tidegate_config::Config::parse(config, "tidegate.toml").unwrap();
        let limiter = Policies::from_config(&config, "".as_ref()).unwrap();
        metrics.meter("default", "default").count_peeks(1);
        metrics.quota_reported("default", 1, 0);
        metrics.quota_charged("default", 1, 0);
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
