//! What the client gets for what the zones have decided.

use std::time::Duration;

use tidegate::{Decision, Decisions, PolicyDecision, Source};

use crate::conf::{Location, Main};
use crate::log::Severity;
use crate::request::Request;
use crate::spec::Headers;

/// The zones that have decided, by number. One that refused is the last.
pub(crate) type Decided = Vec<(usize, Decision)>;

/// `$tidegate_status`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Status {
    Passed,
    Rejected,
    RejectedDryRun,
    /// No zone counts this request: all keys were empty.
    Bypassed,
    /// A store could not be asked, and `on_error` decided.
    Error,
}

impl Status {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Passed => "PASSED",
            Self::Rejected => "REJECTED",
            Self::RejectedDryRun => "REJECTED_DRY_RUN",
            Self::Bypassed => "BYPASSED",
            Self::Error => "ERROR",
        }
    }
}

/// What the variables say.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Outcome {
    pub(crate) status: Status,
    /// The zone reported: the one that refused, or that with the least remaining.
    pub(crate) zone: Option<usize>,
    pub(crate) remaining: Option<u32>,
    /// Seconds, of a request that was refused.
    pub(crate) retry_after: Option<u64>,
    /// Who decided, and when on the store's clock.
    pub(crate) decided: Option<(Source, u64)>,
}

impl Outcome {
    pub(crate) const BYPASSED: Self = Self {
        status: Status::Bypassed,
        zone: None,
        remaining: None,
        retry_after: None,
        decided: None,
    };

    fn of(decided: &[(usize, Decision)], dry_run: bool) -> Self {
        let least = || match decided {
            [only] => Some(only),
            _ => decided.iter().min_by_key(|(_, it)| it.remaining()),
        };
        let refusal = refusal(decided);
        let Some((zone, decision)) = refusal.or_else(least) else {
            return Self::BYPASSED;
        };
        let failed = decided
            .iter()
            .any(|(_, it)| it.source() == Source::ErrorPolicy);
        let status = match (refusal, dry_run) {
            _ if failed => Status::Error,
            (Some(_), true) => Status::RejectedDryRun,
            (Some(_), false) => Status::Rejected,
            (None, _) => Status::Passed,
        };
        let wait = refusal.and_then(|(_, refusal)| refusal.retry_after());
        Self {
            status,
            zone: Some(*zone),
            remaining: (!decision.levels().is_empty()).then(|| decision.remaining()),
            retry_after: wait.map(seconds),
            decided: Some((decision.source(), decision.decided_at_us())),
        }
    }
}

/// Whether the request goes on.
pub(crate) enum Verdict {
    Passes,
    /// With this status and body.
    Refused(u16, String),
}

fn refusal(decided: &[(usize, Decision)]) -> Option<&(usize, Decision)> {
    decided.last().filter(|(_, decision)| !decision.allowed())
}

/// Tells the client and the log, and says whether the request goes on.
pub(crate) fn tell(
    request: &Request<'_>,
    main: &Main,
    location: &Location,
    decided: Decided,
) -> (Outcome, Verdict) {
    let outcome = Outcome::of(&decided, location.dry_run());
    if let Some((zone, decision)) = refusal(&decided) {
        let name = main.zone(*zone).map_or("", |zone| &*zone.spec.name);
        let line = line(name, decision, location.dry_run(), outcome.retry_after);
        request.log(location.log_level(), &line);
    }
    let (refused, unavailable) = match refusal(&decided) {
        Some((_, decision)) => (!location.dry_run(), decision.is_unavailable()),
        None => (false, false),
    };
    let headers = location.headers();
    if headers == Headers::Off && !refused {
        return (outcome, Verdict::Passes);
    }
    let decisions: Decisions<'_> = decided
        .into_iter()
        .filter_map(|(zone, decision)| {
            let policy = main.zone(zone)?.spec.face(headers, location.dry_run());
            // The numbers are what counts, and a policy of one level has one key.
            let keys = policy.keys(&[("key", "")]).ok()?;
            Some(PolicyDecision::from_store(policy, &keys, decision))
        })
        .collect();
    if headers != Headers::Off {
        for (name, value) in decisions.headers().iter() {
            request.add_header(name, value);
        }
    }
    let verdict = match (refused, unavailable) {
        (false, _) => Verdict::Passes,
        // Not a quota: another status than that of a limit.
        (true, true) => Verdict::Refused(503, decisions.problem(503)),
        (true, false) => {
            let status = location.status();
            Verdict::Refused(status, decisions.problem(status))
        }
    };
    (outcome, verdict)
}

fn line(zone: &str, decision: &Decision, dry_run: bool, retry_after: Option<u64>) -> String {
    let dry_run = if dry_run { ", dry run" } else { "" };
    let what = match decision.is_unavailable() {
        true => "refusing requests while the store is unavailable",
        false => "limiting requests",
    };
    let wait = match retry_after {
        Some(seconds) => format!(", retry after {seconds} s"),
        None => ", the cost is above the limit".into(),
    };
    format!("{what}{dry_run}, by zone \"{zone}\"{wait}")
}

/// Whole seconds, rounded up, at least one.
fn seconds(wait: Duration) -> u64 {
    (wait.as_secs() + u64::from(wait.subsec_nanos() > 0)).max(1)
}

/// The severity of refusals, unless a directive says otherwise: that of `limit_req`.
pub(crate) const REFUSALS: Severity = Severity::ERROR;
