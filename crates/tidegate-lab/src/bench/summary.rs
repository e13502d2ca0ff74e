//! The result of a run, with the field names of `--json`, which are stable.

use std::collections::BTreeMap;
use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;
use tidegate::audit::Stretch;
use tidegate::{Limit, Policy};

use super::counted::{Bin, Counted};
use super::fleet::Gathered;
use super::formula::Formula;
use super::judge::{Judged, Level};
use super::plan::Plan;

/// An offered rate is reached when this much of it was sent.
const REACHED: f64 = 0.99;

#[derive(Debug, Serialize)]
pub(super) struct Summary {
    pub(super) target: String,
    pub(super) policy: String,
    pub(super) limits: Vec<String>,
    pub(super) mode: String,
    pub(super) run: String,
    pub(super) processes: u32,
    pub(super) callers: u32,
    pub(super) keys: u32,
    pub(super) keys_used: u64,
    pub(super) zipf: Option<f64>,
    pub(super) cost: u32,
    pub(super) seconds: f64,
    pub(super) interrupted: bool,
    #[serde(rename = "loop")]
    pub(super) kind: &'static str,
    pub(super) offered: Option<Offer>,
    pub(super) checks: u64,
    pub(super) checks_per_second: f64,
    pub(super) decided_by_store: Part,
    pub(super) answered_from_memory: Part,
    pub(super) admitted: u64,
    pub(super) refused: u64,
    pub(super) failed: u64,
    pub(super) sources: BTreeMap<&'static str, SourceCounts>,
    pub(super) failures: BTreeMap<String, u64>,
    pub(super) store_errors: BTreeMap<String, u64>,
    pub(super) evicted: u64,
    pub(super) store_commands: u64,
    pub(super) latency_us: Percentiles,
    pub(super) verdict: VerdictBody,
    pub(super) bins: Bins,
}

/// Some of the checks.
#[derive(Debug, Serialize)]
pub(super) struct Part {
    pub(super) checks: u64,
    pub(super) checks_per_second: f64,
    pub(super) latency_us: Percentiles,
}

/// What an open loop was to offer.
#[derive(Debug, Serialize)]
pub(super) struct Offer {
    pub(super) rate: f64,
    pub(super) checks: u64,
    pub(super) sent: u64,
    pub(super) sent_per_second: f64,
    pub(super) reached: bool,
    pub(super) late: u64,
    pub(super) unsent: u64,
    pub(super) lateness_us: Percentiles,
}

#[derive(Debug, Serialize)]
pub(super) struct SourceCounts {
    pub(super) admitted: u64,
    pub(super) refused: u64,
}

#[derive(Debug, Serialize)]
pub(super) struct Percentiles {
    pub(super) mean: f64,
    pub(super) p50: f64,
    pub(super) p90: f64,
    pub(super) p99: f64,
    pub(super) p99_9: f64,
    pub(super) max: f64,
}

#[derive(Debug, Serialize)]
pub(super) struct VerdictBody {
    /// `null` when nothing was judged.
    pub(super) held: Option<bool>,
    /// `all`, `partial` or `none`, and why.
    pub(super) judged: &'static str,
    pub(super) reasons: Vec<String>,
    pub(super) outside: u64,
    pub(super) unrecorded: u64,
    pub(super) losses: u32,
    pub(super) levels: Vec<LevelBody>,
    pub(super) background: Option<FormulaBody>,
}

#[derive(Debug, Serialize)]
pub(super) struct LevelBody {
    pub(super) level: String,
    pub(super) limit: String,
    pub(super) held: bool,
    pub(super) keys: usize,
    pub(super) broken_keys: usize,
    pub(super) admitted_cost: u64,
    pub(super) bound_over_run: f64,
    pub(super) rate_per_second: f64,
    pub(super) use_of_bound: f64,
    pub(super) use_of_rate: f64,
    pub(super) broken: Option<StretchBody>,
    pub(super) tightest: Option<StretchBody>,
}

#[derive(Debug, Serialize)]
pub(super) struct StretchBody {
    pub(super) key: String,
    pub(super) from_us: u64,
    pub(super) to_us: u64,
    pub(super) admitted: u64,
    pub(super) bound: u64,
}

#[derive(Debug, Serialize)]
pub(super) struct FormulaBody {
    pub(super) sync_interval_us: u64,
    pub(super) round_trip_us: u64,
    pub(super) outage_us: u64,
    pub(super) staleness_us: u64,
    pub(super) offered: Vec<Option<u64>>,
}

/// The run over time. Where nothing began, latencies are `null`.
#[derive(Debug, Serialize)]
pub(super) struct Bins {
    pub(super) length_ms: u64,
    pub(super) offered: Vec<u64>,
    pub(super) admitted: Vec<u64>,
    pub(super) p50_us: Vec<Option<f64>>,
    pub(super) p99_us: Vec<Option<f64>>,
    pub(super) max_us: Vec<Option<f64>>,
}

impl Summary {
    pub(super) fn new(
        target: String,
        plan: &Plan,
        policy: &Policy,
        in_force: &Result<Vec<Option<Limit>>, String>,
        gathered: &Gathered,
        judged: &Judged,
        losses: u32,
    ) -> Self {
        let counted = &gathered.counted;
        let checks = counted.answered() + counted.failed();
        let seconds = counted.length.as_secs_f64();
        let keys_used = counted.keys.iter().map(|bits| u64::from(bits.count_ones()));
        let own = || policy.levels().iter().map(|level| *level.limit());
        let limits: Vec<Limit> = match in_force {
            Ok(limits) => limits.iter().flatten().copied().collect(),
            Err(_) => own().collect(),
        };
        let sources = counted.by_source().map(|(source, it)| {
            let (admitted, refused) = (it.admitted, it.refused);
            (source.as_str(), SourceCounts { admitted, refused })
        });
        Self {
            target,
            policy: plan.policy.clone(),
            limits: match policy.script() {
                Some(_) => Vec::new(),
                None => limits.iter().map(Limit::to_string).collect(),
            },
            mode: plan.mode.clone(),
            run: plan.run.clone(),
            processes: plan.processes,
            callers: plan.callers,
            keys: plan.keys,
            keys_used: keys_used.sum(),
            zipf: plan.zipf,
            cost: plan.cost,
            seconds,
            interrupted: gathered.interrupted,
            kind: if plan.rate.is_some() {
                "open"
            } else {
                "closed"
            },
            offered: plan
                .rate
                .map(|rate| Offer::new(rate, checks, plan.duration, counted)),
            checks,
            checks_per_second: per_second(checks, seconds),
            decided_by_store: Part::new(&counted.store_waits, seconds),
            answered_from_memory: Part::new(&counted.memory_waits, seconds),
            admitted: counted.admitted(),
            refused: counted.answered() - counted.admitted(),
            failed: counted.failed(),
            sources: sources.collect(),
            failures: counted.failures.clone(),
            store_errors: counted.store_errors.clone(),
            evicted: counted.evicted,
            store_commands: counted.store_commands,
            latency_us: Percentiles::of(&counted.waits),
            verdict: VerdictBody::new(judged, counted.unrecorded, losses),
            bins: Bins::new(plan.bin, reached(&counted.bins, gathered.interrupted)),
        }
    }
}

/// The parts that a run has come to.
fn reached(bins: &[Bin], interrupted: bool) -> &[Bin] {
    let is_empty = |bin: &Bin| bin.offered == 0 && bin.admitted == 0;
    let last = bins.iter().rposition(|bin| !is_empty(bin));
    match interrupted {
        true => &bins[..=last.unwrap_or(0)],
        false => bins,
    }
}

fn per_second(checks: u64, seconds: f64) -> f64 {
    match seconds > 0.0 {
        true => checks as f64 / seconds,
        false => 0.0,
    }
}

impl Part {
    fn new(waits: &Histogram<u64>, seconds: f64) -> Self {
        Self {
            checks: waits.len(),
            checks_per_second: per_second(waits.len(), seconds),
            latency_us: Percentiles::of(waits),
        }
    }
}

impl Offer {
    fn new(rate: f64, sent: u64, duration: Duration, counted: &Counted) -> Self {
        let checks = sent + counted.unsent;
        Self {
            rate,
            checks,
            sent,
            sent_per_second: per_second(sent, duration.min(counted.length).as_secs_f64()),
            reached: sent as f64 >= REACHED * checks as f64,
            late: counted.late,
            unsent: counted.unsent,
            lateness_us: Percentiles::of(&counted.lateness),
        }
    }
}

impl Percentiles {
    fn of(histogram: &Histogram<u64>) -> Self {
        let at = |quantile: f64| histogram.value_at_quantile(quantile) as f64 / 1e3;
        Self {
            mean: histogram.mean() / 1e3,
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p99_9: at(0.999),
            max: histogram.max() as f64 / 1e3,
        }
    }
}

impl VerdictBody {
    fn new(judged: &Judged, unrecorded: u64, losses: u32) -> Self {
        let is_judged = judged.unjudged.is_none();
        let reasons = match &judged.unjudged {
            Some(reason) => vec![reason.clone()],
            None => judged.partial.clone(),
        };
        Self {
            held: is_judged.then(|| judged.held()),
            judged: match (is_judged, reasons.is_empty()) {
                (false, _) => "none",
                (true, false) => "partial",
                (true, true) => "all",
            },
            reasons,
            outside: judged.outside,
            unrecorded,
            losses,
            levels: judged.levels.iter().map(LevelBody::from).collect(),
            background: judged.background.as_ref().map(FormulaBody::from),
        }
    }
}

impl From<&Level> for LevelBody {
    fn from(level: &Level) -> Self {
        let verdict = &level.verdict;
        let share = |whole: f64| match whole > 0.0 {
            true => level.admitted as f64 / whole,
            false => 0.0,
        };
        Self {
            level: level.name.clone(),
            limit: level.limit.to_string(),
            held: verdict.held(),
            keys: verdict.keys,
            broken_keys: verdict.broken_keys,
            admitted_cost: level.admitted,
            bound_over_run: level.bound,
            rate_per_second: level.rate_per_second,
            use_of_bound: share(level.bound),
            use_of_rate: share(level.rate),
            broken: verdict.broken.as_ref().map(StretchBody::from),
            tightest: verdict.tightest.as_ref().map(StretchBody::from),
        }
    }
}

impl From<&Stretch> for StretchBody {
    fn from(stretch: &Stretch) -> Self {
        Self {
            key: stretch.key.escape_ascii().to_string(),
            from_us: stretch.from_us,
            to_us: stretch.to_us,
            admitted: stretch.admitted,
            bound: stretch.bound,
        }
    }
}

impl From<&Formula> for FormulaBody {
    fn from(formula: &Formula) -> Self {
        let us = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        Self {
            sync_interval_us: us(formula.sync_interval),
            round_trip_us: us(formula.round_trip),
            outage_us: us(formula.outage),
            staleness_us: us(formula.staleness),
            offered: formula.offered.clone(),
        }
    }
}

impl Bins {
    fn new(length: Duration, bins: &[Bin]) -> Self {
        let at = |quantile: f64| {
            let bins = bins.iter().map(move |bin| {
                let value = bin.waits.value_at_quantile(quantile) as f64 / 1e3;
                (!bin.waits.is_empty()).then_some(value)
            });
            bins.collect()
        };
        Self {
            length_ms: u64::try_from(length.as_millis()).unwrap_or(u64::MAX),
            offered: bins.iter().map(|bin| bin.offered).collect(),
            admitted: bins.iter().map(|bin| bin.admitted).collect(),
            p50_us: at(0.5),
            p99_us: at(0.99),
            max_us: at(1.0),
        }
    }
}
