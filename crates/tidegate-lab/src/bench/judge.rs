//! The verdict: compares every admitted check of every process with the bound.

use std::time::Duration;

use tidegate::audit::{Audit, Record, Verdict};
use tidegate::{Cost, Limit, Mode, Policy, PolicyLevel};

use super::figures::thousands;
use super::fleet::Gathered;
use super::formula::{Formula, allowed};
use super::plan::Plan;
use super::tally::is_bound;

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

impl Judged {
    pub(super) fn held(&self) -> bool {
        self.levels.iter().all(|level| level.verdict.held())
    }
}

/// Judges a run.
pub(super) fn judge(
    plan: &Plan,
    policy: &Policy,
    limits: &Result<Vec<Option<Limit>>, String>,
    gathered: &Gathered,
    losses: u32,
) -> Judged {
    let counted = &gathered.counted;
    let sources = || counted.by_source();
    let outside = sources().filter(|(source, _)| !is_bound(*source));
    let outside: u64 = outside.map(|(_, it)| it.admitted + it.refused).sum();
    let inside = sources().filter(|(source, _)| is_bound(*source));
    let inside: u64 = inside.map(|(_, it)| it.admitted + it.refused).sum();
    let unjudged = if policy.script().is_some() {
        Some("a script has no bound to check".to_owned())
    } else if !policy.enabled() {
        Some("the policy is disabled".to_owned())
    } else if let Err(why) = limits {
        Some(why.clone())
    } else if limits.iter().flatten().all(Option::is_none) {
        Some("an override exempts this key".to_owned())
    } else if inside == 0 {
        Some("no check was decided under the limit".to_owned())
    } else {
        None
    };
    let partial = partial(gathered, outside);
    let background = (policy.mode() == Mode::Background)
        .then(|| Formula::new(plan, gathered, policy.sync_interval()));
    let levels = match (limits, &unjudged) {
        (Err(_), _) | (_, Some(_)) => Vec::new(),
        (Ok(limits), None) => {
            let judge = Judge {
                plan,
                gathered,
                losses,
                formula: background.as_ref(),
                is_partial: !partial.is_empty(),
            };
            let levels = policy.levels().iter().zip(limits);
            let levels = levels.filter_map(|(level, limit)| Some(judge.level(level, (*limit)?)));
            levels.collect()
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
            thousands(counted.unrecorded),
            thousands(gathered.decisions.len() as u64)
        ));
    }
    let failed = counted.failed();
    if failed > 0 {
        why.push(format!(
            "{} checks had no answer, and may have been admitted",
            thousands(failed)
        ));
    }
    if outside > 0 {
        why.push(format!(
            "{} checks were decided without the store, and may have been charged",
            thousands(outside)
        ));
    }
    why
}

/// What all levels are judged by.
struct Judge<'a> {
    plan: &'a Plan,
    gathered: &'a Gathered,
    losses: u32,
    formula: Option<&'a Formula>,
    is_partial: bool,
}

impl Judge<'_> {
    fn level(&self, level: &PolicyLevel, limit: Limit) -> Level {
        let counted = &self.gathered.counted;
        let has_key = self.plan.has_keys(level);
        let mut audit = Audit::new(limit)
            .allow_losses(self.losses)
            // One counter for all: others may use it, and earlier runs have. Where a server's
            // windows begin, it does not say.
            .partial(self.is_partial || !has_key || self.plan.target.is_server());
        if let Some(formula) = self.formula {
            audit = audit.background(formula.background());
        }
        let cost = Cost::new(self.plan.cost.into()).unwrap_or(Cost::ONE);
        let (mut number, mut key) = (None, String::new());
        for decision in &self.gathered.decisions {
            if has_key && number != Some(decision.key) {
                number = Some(decision.key);
                key = self.plan.key(decision.key);
            }
            audit.push(&Record::admitted(&key, decision.at_us, cost));
        }
        let verdict = audit.verdict();
        let used: u32 = counted.keys.iter().map(|bits| bits.count_ones()).sum();
        let keys = f64::from(if has_key { used } else { 1 });
        let (bound, rate) = allowed(&limit, counted.length, self.formula);
        let (_, rate_per_second) = allowed(&limit, Duration::from_secs(1), None);
        Level {
            name: level.name().to_owned(),
            limit,
            admitted: verdict.admitted.saturating_mul(cost.get().into()),
            verdict,
            bound: bound * keys,
            rate: rate * keys,
            rate_per_second: rate_per_second * keys,
        }
    }
}
