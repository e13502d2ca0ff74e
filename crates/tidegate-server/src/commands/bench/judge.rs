//! Whether the limit held: every admitted check of every process, against the bound.

use std::time::Duration;

use tidegate::checker::{Background, Checker, Record, Verdict};
use tidegate::{Align, Cost, Kind, Limit, Mode, Policy, PolicyLevel};

use super::fleet::Gathered;
use super::plan::Plan;
use super::tally::{Offered, Told, is_bound};

/// What was judged, and what came of it.
pub(super) struct Judged {
    pub(super) levels: Vec<Level>,
    /// Why something may be missing.
    pub(super) partial: Vec<String>,
    /// Why nothing was judged.
    pub(super) unjudged: Option<String>,
    pub(super) background: Option<Formula>,
    /// Admitted or refused without the store.
    pub(super) outside: u64,
}

/// A level of the policy.
pub(super) struct Level {
    pub(super) name: String,
    pub(super) limit: Limit,
    pub(super) verdict: Verdict,
    /// What was admitted of it, what its bound allows over the run, and what its rate
    /// comes to in that time; for all keys together.
    pub(super) admitted: u64,
    pub(super) bound: f64,
    pub(super) rate: f64,
    pub(super) rate_per_second: f64,
}

/// The figures behind the bound of the mode `background`.
pub(super) struct Formula {
    pub(super) sync_interval: Duration,
    pub(super) round_trip: Duration,
    /// The longest that the store could not be reached.
    pub(super) outage: Duration,
    pub(super) staleness: Duration,
    /// What each process was offered for a key within the staleness, at most; none where
    /// that is not known, and anything may have been.
    pub(super) offered: Vec<Option<u64>>,
}

impl Judged {
    pub(super) fn held(&self) -> bool {
        self.levels.iter().all(|level| level.verdict.held())
    }
}

/// Judges a run.
pub(super) fn judge(plan: &Plan, policy: &Policy, gathered: &Gathered, losses: u32) -> Judged {
    let counted = &gathered.counted;
    let sources = || counted.by_source();
    let outside = sources().filter(|(source, _)| !is_bound(*source));
    let outside: u64 = outside.map(|(_, it)| it.admitted + it.refused).sum();
    let inside = sources().filter(|(source, _)| is_bound(*source));
    let inside: u64 = inside.map(|(_, it)| it.admitted + it.refused).sum();
    let unjudged = if policy.script().is_some() {
        Some("a script decides, which promises nothing".to_owned())
    } else if !policy.enabled() {
        Some("the policy is switched off".to_owned())
    } else if inside == 0 {
        Some("no check was decided under the limit".to_owned())
    } else {
        None
    };
    let partial = partial(gathered, outside);
    let background = (policy.mode() == Mode::Background)
        .then(|| formula(plan, gathered, policy.sync_interval()));
    let levels = match unjudged {
        Some(_) => Vec::new(),
        None => {
            let judged = policy.levels().iter().map(|level| {
                let checker = Checker::new(*level.limit()).allow_losses(losses);
                let checker = match &background {
                    Some(formula) => checker.background(formula.background()),
                    None => checker,
                };
                self::level(plan, level, gathered, checker, !partial.is_empty())
            });
            judged.collect()
        }
    };
    Judged {
        levels,
        partial,
        unjudged,
        background,
        outside,
    }
}

/// What may be missing in the record.
fn partial(gathered: &Gathered, outside: u64) -> Vec<String> {
    let counted = &gathered.counted;
    let mut why = Vec::new();
    if counted.unrecorded > 0 {
        why.push(format!(
            "{} admitted checks beyond the {} that are kept are not judged",
            counted.unrecorded,
            gathered.decisions.len()
        ));
    }
    let failed = counted.failed();
    if failed > 0 {
        why.push(format!(
            "{failed} checks had no answer, and may have been admitted"
        ));
    }
    if outside > 0 {
        why.push(format!(
            "{outside} checks were decided without the store, and may have been charged"
        ));
    }
    why
}

fn level(
    plan: &Plan,
    level: &PolicyLevel,
    gathered: &Gathered,
    checker: Checker,
    is_partial: bool,
) -> Level {
    let has_key = level.key().attributes().len() > 0;
    // One counter for all: others may use it, and earlier runs have.
    let mut checker = checker.partial(is_partial || !has_key);
    let cost = Cost::new(plan.cost.into()).unwrap_or(Cost::ONE);
    let (mut number, mut key) = (None, String::new());
    for decision in &gathered.decisions {
        if has_key && number != Some(decision.key) {
            number = Some(decision.key);
            key = plan.key(decision.key);
        }
        checker.push(&Record::admitted(&key, decision.at_us, cost));
    }
    let verdict = checker.verdict();
    let used = gathered.counted.keys.iter();
    let used: u32 = used.map(|bits| bits.count_ones()).sum();
    let keys = f64::from(if has_key { used } else { 1 });
    let (bound, rate) = allowed(level.limit(), gathered.counted.length);
    Level {
        name: level.name().to_owned(),
        limit: *level.limit(),
        admitted: verdict.admitted.saturating_mul(cost.get().into()),
        verdict,
        bound: bound * keys,
        rate: rate * keys,
        rate_per_second: allowed(level.limit(), Duration::from_secs(1)).1 * keys,
    }
}

/// What the bound allows a key in this time, and what the rate comes to.
pub(super) fn allowed(limit: &Limit, time: Duration) -> (f64, f64) {
    let Some(spec) = limit.spec() else {
        return (0.0, 0.0);
    };
    let windows = time.as_secs_f64() / spec.rate.window().as_secs_f64();
    let requests = f64::from(spec.rate.requests());
    match limit.kind() {
        Kind::TokenBucket(bucket) => {
            let burst = f64::from(bucket.burst());
            let refill = if bucket.is_strict() {
                requests - burst
            } else {
                requests
            };
            (burst + refill * windows, refill * windows)
        }
        // Windows that begin at any time may be cut at both ends.
        Kind::FixedWindow(fixed) if fixed.align() == Align::Epoch => {
            (requests * (windows.floor() + 2.0), requests * windows)
        }
        Kind::SlidingWindow(_) => (requests * (windows.floor() + 2.0), requests * windows),
        _ => (requests * (windows.floor() + 1.0), requests * windows),
    }
}

fn formula(plan: &Plan, gathered: &Gathered, sync_interval: Duration) -> Formula {
    let Told { round_trip, outage } = gathered.counted.told;
    let mut formula = Formula {
        sync_interval,
        round_trip,
        outage,
        staleness: Duration::ZERO,
        offered: Vec::new(),
    };
    formula.staleness = formula.background().staleness();
    let width = plan.offered_bin.unwrap_or(sync_interval);
    let offered = gathered.offered.iter().map(|offered| {
        let checks = most(offered.as_ref()?, width, formula.staleness);
        Some(checks.saturating_mul(plan.cost.into()))
    });
    formula.offered = offered.collect();
    formula
}

impl Formula {
    fn background(&self) -> Background {
        let offered = self.offered.iter();
        let offered = offered.map(|offered| offered.unwrap_or(u64::MAX));
        let nodes = Background::new(self.sync_interval, self.round_trip, offered);
        nodes.outage(self.outage)
    }
}

/// The most checks of a key in any stretch of this length: no fewer, and at most those
/// of two bins more.
fn most(offered: &[Offered], width: Duration, length: Duration) -> u64 {
    let reach = length.as_nanos().div_ceil(width.as_nanos());
    let reach = u32::try_from(reach).unwrap_or(u32::MAX);
    let mut sorted = offered.to_vec();
    sorted.sort_unstable_by_key(|offer| (offer.key, offer.bin));
    let (mut first, mut sum, mut most) = (0, 0, 0);
    for offer in &sorted {
        sum += u64::from(offer.checks);
        while sorted[first].key != offer.key || offer.bin - sorted[first].bin > reach {
            sum -= u64::from(sorted[first].checks);
            first += 1;
        }
        most = most.max(sum);
    }
    most
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_that_was_offered_is_never_too_little() {
        let offer = |key, bin, checks| Offered { key, bin, checks };
        let offered = [
            offer(1, 0, 5),
            offer(1, 9, 3),
            offer(2, 0, 4),
            offer(2, 1, 2),
            offer(2, 0, 1),
            offer(2, 3, 1),
        ];
        let time = Duration::from_millis;
        assert_eq!(most(&offered, time(10), time(10)), 7);
        assert_eq!(most(&offered, time(10), time(11)), 7);
        assert_eq!(most(&offered, time(10), time(30)), 8);
        assert_eq!(most(&offered, time(10), time(100)), 8);
        assert_eq!(most(&[], time(10), time(30)), 0);
    }

    #[test]
    fn what_a_bound_allows_over_a_run() {
        let cases = [
            ("100r/s", (1_100.0, 1_000.0)),
            ("100r/s burst=20", (1_020.0, 1_000.0)),
            ("100r/s burst=20 strict", (820.0, 800.0)),
            ("100r/s fixed_window", (1_100.0, 1_000.0)),
            ("100r/s fixed_window align=epoch", (1_200.0, 1_000.0)),
            ("100r/s sliding_window", (1_200.0, 1_000.0)),
            ("100r/s sliding_log", (1_100.0, 1_000.0)),
            ("block", (0.0, 0.0)),
        ];
        for (limit, expected) in cases {
            let limit = Limit::parse(limit).unwrap();
            let ten = Duration::from_secs(10);
            assert_eq!(allowed(&limit, ten), expected, "{limit}");
        }
    }
}
