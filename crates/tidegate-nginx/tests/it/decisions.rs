//! What the workers of an nginx have decided, from its access log, and whether a limit held.

use tidegate::audit::{Audit, Record};
use tidegate::{Cost, Source};
use tidegate_testkit::nginx::{Nginx, under_valgrind};

/// What logs each decision.
pub(crate) const LOG: &str = "
    log_format t '$pid $tidegate_decided_at $tidegate_source $status'; access_log FOLDER/t.log t;
    tidegate_headers off; tidegate_log_level info;";

pub(crate) struct Decision {
    pub(crate) process: u32,
    pub(crate) at_us: u64,
    pub(crate) source: Source,
    pub(crate) passed: bool,
}

fn decision(line: &str) -> Option<Decision> {
    let words: Vec<&str> = line.split(' ').collect();
    let [process, at_us, source, status] = words[..] else {
        return None;
    };
    Some(Decision {
        process: process.parse().ok()?,
        at_us: at_us.parse().ok()?,
        source: Source::ALL.into_iter().find(|it| it.as_str() == source)?,
        passed: status == "200",
    })
}

/// All decisions, but for those that killed workers have cut off in the log.
pub(crate) fn read(nginx: &Nginx, cut: usize) -> Vec<Decision> {
    let log = nginx.read("t.log");
    let decisions: Vec<Decision> = log.lines().filter_map(decision).collect();
    assert!(decisions.len() + cut >= log.lines().count(), "{log}");
    decisions
}

/// The limit holds in any stretch of time.
pub(crate) fn judge<'d>(audit: Audit, decisions: impl Iterator<Item = &'d Decision> + Clone) {
    let passed = decisions.clone().filter(|it| it.passed).count();
    let refused = decisions.clone().count() - passed;
    let enough = passed > 20 && refused > 0;
    assert!(
        enough || under_valgrind(),
        "{passed} passed, {refused} refused"
    );
    let mut sources = decisions.clone().map(|it| it.source);
    let failed = sources.any(|source| source == Source::ErrorPolicy);
    assert!(!failed || under_valgrind(), "the store was there");
    let verdict = audit.judge(decisions.map(|it| Record {
        key: b"all",
        at_us: it.at_us,
        cost: Cost::ONE,
        source: it.source,
        allowed: it.passed,
    }));
    assert!(verdict.held(), "{verdict:?}");
}
