//! The human-readable report of a run.

use std::fmt::Write;

use hdrhistogram::Histogram;

use super::figures::{about, count, percent, thousands, time};
use super::summary::{FormulaBody, LevelBody, Offer, Part, Percentiles, Summary, VerdictBody};

/// The longest bar of the histogram.
const BAR: f64 = 40.0;

/// The largest share of the rate that says anything.
const MOST_OF_RATE: f64 = 2.0;

/// The report.
pub(super) fn text(summary: &Summary, waits: &Histogram<u64>) -> String {
    let mut text = String::new();
    for part in [
        heading(summary),
        counts(summary),
        latencies(summary),
        histogram(waits),
        verdict(summary),
    ] {
        text.push_str(&part);
        text.push('\n');
    }
    text
}

fn heading(summary: &Summary) -> String {
    let Summary {
        target,
        policy,
        mode,
        processes,
        callers,
        ..
    } = summary;
    let limits = &summary.limits;
    let mut text = format!("{target}, policy {policy}");
    if !limits.is_empty() {
        write!(text, ": {}", limits.join(" and ")).expect(TAKES_ALL);
    }
    let drawn = match summary.zipf {
        Some(exponent) => format!(" by Zipf's law ({exponent})"),
        None => String::new(),
    };
    let processes = count((*processes).into(), "process", "processes");
    let callers = count((*callers).into(), "caller", "callers");
    let keys = count(summary.keys.into(), "key", "keys");
    let each = if summary.processes == 1 { "" } else { " each" };
    let early = if summary.interrupted {
        ", interrupted"
    } else {
        ""
    };
    writeln!(
        text,
        ", {mode}\n{processes} with {callers}{each}, {keys}{drawn}, cost {}, {:.1} s{early}",
        summary.cost, summary.seconds
    )
    .expect(TAKES_ALL);
    text.push_str(&match &summary.offered {
        Some(offer) => open(offer),
        None => "closed loop: callers send the next check as soon as they have an answer\n".into(),
    });
    text
}

const TAKES_ALL: &str = "a string takes everything";

fn open(offer: &Offer) -> String {
    let reached = match offer.reached {
        true => "reached",
        false => "NOT reached",
    };
    let mut text = format!(
        "open loop: {} checks per second offered, {reached} ({} per second sent); latencies count from the scheduled time of a check\n",
        about(offer.rate),
        about(offer.sent_per_second)
    );
    if offer.late + offer.unsent > 0 {
        writeln!(
            text,
            "  {} started more than 1 ms late and {} never, because all callers or the machine were busy; their latencies include the delay",
            thousands(offer.late),
            thousands(offer.unsent)
        )
        .expect(TAKES_ALL);
    }
    text
}

fn counts(summary: &Summary) -> String {
    let by_source = |figure: fn(&super::summary::SourceCounts) -> u64| {
        let sources = summary.sources.iter();
        let sources = sources.filter(|(_, it)| figure(it) > 0);
        let sources = sources.map(|(name, it)| format!("{name} {}", thousands(figure(it))));
        sources.collect::<Vec<_>>().join(", ")
    };
    let listed = |kinds: &std::collections::BTreeMap<String, u64>| {
        let kinds = kinds.iter();
        let kinds = kinds.map(|(kind, count)| format!("{kind} {}", thousands(*count)));
        kinds.collect::<Vec<_>>().join(", ")
    };
    let mut rows = vec![
        (
            "checks",
            summary.checks,
            format!("{} per second", about(summary.checks_per_second)),
        ),
        ("admitted", summary.admitted, by_source(|it| it.admitted)),
        ("refused", summary.refused, by_source(|it| it.refused)),
        ("failed", summary.failed, listed(&summary.failures)),
    ];
    let (store, memory) = (&summary.decided_by_store, &summary.answered_from_memory);
    if memory.checks > 0 {
        let rate = |part: &Part| format!("{} per second", about(part.checks_per_second));
        let without = format!("{}, without asking the store", rate(memory));
        rows.insert(1, ("  by store", store.checks, rate(store)));
        rows.insert(2, ("  by memory", memory.checks, without));
    }
    let errors = summary.store_errors.values().sum();
    if errors > 0 {
        rows.push(("store errors", errors, listed(&summary.store_errors)));
    }
    if summary.evicted > 0 {
        let words = "keys in use that the store evicted to make room";
        rows.push(("evicted", summary.evicted, words.into()));
    }
    let mut text = String::new();
    for (name, number, words) in rows {
        let line = format!("{name:<12} {:>14}   {words}", thousands(number));
        writeln!(text, "{}", line.trim_end()).expect(TAKES_ALL);
    }
    text
}

/// Of all checks, or, where memory has answered some, of those and the others apart: the
/// two have nothing in common.
fn latencies(summary: &Summary) -> String {
    let (store, memory) = (&summary.decided_by_store, &summary.answered_from_memory);
    if memory.checks == 0 || store.checks == 0 {
        return latency("latency", &summary.latency_us);
    }
    let both = [
        latency("by store", &store.latency_us),
        latency("by memory", &memory.latency_us),
    ];
    both.concat()
}

fn latency(name: &str, percentiles: &Percentiles) -> String {
    let columns = [
        ("mean", percentiles.mean),
        ("p50", percentiles.p50),
        ("p90", percentiles.p90),
        ("p99", percentiles.p99),
        ("p99.9", percentiles.p99_9),
        ("max", percentiles.max),
    ];
    let names = columns.map(|(name, _)| format!("{name:>9}")).concat();
    let values = columns.map(|(_, us)| format!("{:>9}", time(us))).concat();
    format!("{name:<9}{names}\n         {values}\n")
}

/// A row for every doubling of the latency.
fn histogram(waits: &Histogram<u64>) -> String {
    let mut rows: Vec<(u64, u64)> = Vec::new();
    for value in waits.iter_recorded() {
        let from = 1 << value.value_iterated_to().max(1).ilog2();
        match rows.last_mut() {
            Some((last, count)) if *last == from => *count += value.count_at_value(),
            _ => rows.push((from, value.count_at_value())),
        }
    }
    let all: u64 = rows.iter().map(|(_, count)| count).sum();
    let most = rows.iter().map(|(_, count)| *count).max().unwrap_or(1);
    let mut text = String::new();
    for (from, count) in rows {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a share of forty"
        )]
        let length = (BAR * count as f64 / most as f64).round() as usize;
        let share = percent(count as f64, all as f64);
        let (from, to) = (from as f64 / 1e3, from as f64 / 500.0);
        let range = format!("{} to {}", time(from), time(to));
        let line = format!("{range:>20} {share:>7}  {}", "#".repeat(length));
        writeln!(text, "{}", line.trim_end()).expect(TAKES_ALL);
    }
    text
}

fn verdict(summary: &Summary) -> String {
    let verdict = &summary.verdict;
    let mut text = String::new();
    if let Some(formula) = &verdict.background {
        text.push_str(&background(formula));
    }
    for level in &verdict.levels {
        text.push_str(&level_text(level));
    }
    if verdict.outside > 0 {
        let outside = thousands(verdict.outside);
        writeln!(
            text,
            "outside the bound: {outside} decided without the store"
        )
        .expect(TAKES_ALL);
    }
    text.push_str(&conclusion(verdict));
    text
}

fn conclusion(verdict: &VerdictBody) -> String {
    let reasons = verdict.reasons.join("; ");
    match (verdict.held, verdict.judged) {
        (None, _) => format!("verdict: none: {reasons}\n"),
        (Some(held), "partial") => {
            format!(
                "verdict: {}, as far as it could be judged: {reasons}\n",
                word(held)
            )
        }
        (Some(held), _) => format!("verdict: {}\n", word(held)),
    }
}

fn word(held: bool) -> &'static str {
    if held {
        "the limit held"
    } else {
        "the limit was BROKEN"
    }
}

fn level_text(level: &LevelBody) -> String {
    let mut text = format!(
        "{} {}: admitted {} of the {} that the bound allows over the run ({:.1} %){}\n",
        level.level,
        level.limit,
        thousands(level.admitted_cost),
        about(level.bound_over_run),
        100.0 * level.use_of_bound,
        of_rate(level.use_of_rate),
    );
    let keys = count(level.keys as u64, "key", "keys");
    let (what, stretch) = match (&level.broken, &level.tightest) {
        (Some(broken), _) => {
            let broken_keys = thousands(level.broken_keys as u64);
            (format!("BROKEN for {broken_keys} of {keys}"), broken)
        }
        (None, Some(tightest)) => (format!("held for {keys}; closest to the bound"), tightest),
        (None, None) => return text + &format!("  held for {keys}\n"),
    };
    let length = time((stretch.to_us - stretch.from_us) as f64);
    writeln!(
        text,
        "  {what}: key {}: {} admitted in the {length} from {} to {}, at most {} allowed",
        stretch.key,
        thousands(stretch.admitted),
        stretch.from_us,
        stretch.to_us,
        thousands(stretch.bound)
    )
    .expect(TAKES_ALL);
    text
}

/// What was admitted beside the rate. Of a short run the burst is most of it, and the rate
/// says nothing.
fn of_rate(share: f64) -> String {
    match share <= MOST_OF_RATE {
        true => format!(", {:.1} % of the rate", 100.0 * share),
        false => ", most of it the burst".into(),
    }
}

fn background(formula: &FormulaBody) -> String {
    let offered = formula.offered.iter().map(|offered| match offered {
        Some(offered) => thousands(*offered),
        None => "unknown".into(),
    });
    let outage = match formula.outage_us {
        0 => String::new(),
        outage_us => format!(", and {} without the store", time(outage_us as f64)),
    };
    format!(
        "background: D = {}, from a sync interval of {} and round trips of {}{outage}; offered to one key within D, by process: {}\n",
        time(formula.staleness_us as f64),
        time(formula.sync_interval_us as f64),
        time(formula.round_trip_us as f64),
        offered.collect::<Vec<_>>().join(", ")
    )
}
