//! Log lines about decisions.

use std::sync::Arc;

use http::StatusCode;
use tidegate::{Limit, Limiter, PolicyDecision, Which};

use super::{AnyAttributes, Call, Engine, Entry, Redaction};
use crate::record::Recorder;

/// Where decisions are logged and recorded.
pub(super) struct Notes {
    /// Turns a key into the text that the log shows.
    pub(super) redaction: Arc<Redaction>,
    /// Keeps log lines about requests from flooding.
    lines: Limiter,
    /// Where decisions are recorded, if they are.
    pub(super) recorder: Option<Recorder>,
}

impl Notes {
    pub(super) fn new(redaction: Arc<Redaction>, recorder: Option<Recorder>) -> Self {
        Self {
            redaction,
            lines: Limiter::in_memory(Limit::per_minute(6).burst(1)),
            recorder,
        }
    }

    /// Logs and records a decision, if anything is to be noted of it.
    #[inline]
    pub(super) fn note(&self, call: &Call<'_>, decision: &PolicyDecision<'_>) {
        let is_noting = self.recorder.is_some() || tracing::enabled!(tracing::Level::DEBUG);
        if decision.would_deny() || is_noting {
            self.log(call, decision);
            if let Some(recorder) = &self.recorder {
                recorder.decided(call, decision);
            }
        }
    }

    /// One line per decision at the level of debug; one now and then for what a policy
    /// that only watches would have refused.
    #[cold]
    fn log(&self, call: &Call<'_>, decision: &PolicyDecision<'_>) {
        let policy = decision.policy().name();
        if tracing::enabled!(tracing::Level::DEBUG) {
            let key = self.key(call);
            let (allowed, source) = (decision.allowed(), decision.source().as_str());
            let denied_by = decision.denied_by();
            tracing::debug!(policy, key, allowed, source, denied_by, "decided");
        }
        if decision.would_deny() && self.lines.check(policy).allowed() {
            let key = self.key(call);
            tracing::info!(policy, key, "a policy in shadow mode would have refused");
        }
    }

    /// The keys of the policy's levels, if they may be shown, or else a hash of each.
    fn key(&self, call: &Call<'_>) -> String {
        let Ok(keys) = call.entry.policy().keys(call.attributes) else {
            return String::new();
        };
        let texts = keys.iter();
        let texts = texts.map(|key| self.shown(&key.text(), call.entry.logs_keys()));
        texts.collect::<Vec<_>>().join(" ")
    }

    fn shown(&self, key: &str, plain_keys: bool) -> String {
        match plain_keys {
            true => key.to_owned(),
            false => self.redaction.hash(key),
        }
    }
}

impl Engine {
    /// The audit line of a reset.
    pub(super) fn log_reset(
        &self,
        entry: &Entry,
        attributes: &AnyAttributes<'_>,
        which: Which<'_>,
        forgotten: usize,
    ) {
        let (policy, plain_keys) = (entry.policy().name(), entry.logs_keys());
        let keys = entry.policy().key_texts(attributes, which);
        let keys = keys.unwrap_or_default().into_iter();
        let keys = keys.map(|key| self.notes.shown(&key, plain_keys));
        let key = keys.collect::<Vec<_>>().join(" ");
        let level = match which {
            Which::Only => policy,
            Which::Level(level) => level,
            Which::All => "all",
        };
        tracing::info!(policy, level, key, forgotten, "a key was reset");
    }

    /// Counts a request that cannot be answered. A few of each status are in the log.
    #[cold]
    pub(crate) fn problem(&self, status: StatusCode, path: &str, id: Option<&str>, detail: &str) {
        self.metrics.problem(status.as_u16());
        let number = status.as_u16();
        let path: String = path.chars().take(100).collect();
        let lines = &self.notes.lines;
        match lines.check(format!("status {number}")).allowed() {
            true => tracing::warn!(
                status = number,
                path,
                id,
                detail,
                "a request cannot be answered"
            ),
            false => tracing::debug!(
                status = number,
                path,
                id,
                detail,
                "a request cannot be answered"
            ),
        }
    }
}
