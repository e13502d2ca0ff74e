//! Decisions in the log.

use http::StatusCode;
use tidegate::{Attributes, Policy, PolicyDecision, Which};

use super::{Current, Engine};

impl Engine {
    /// One line per decision at the level of debug; one now and then for what a policy
    /// that only watches would have refused.
    #[cold]
    pub(super) fn log<A>(&self, current: &Current, decision: &PolicyDecision<'_>, attributes: &A)
    where
        A: Attributes + ?Sized,
    {
        let policy = decision.policy().name();
        if tracing::enabled!(tracing::Level::DEBUG) {
            let key = self.logged_key(current, decision.policy(), attributes);
            let (allowed, source) = (decision.allowed(), decision.source().as_str());
            let denied_by = decision.denied_by();
            tracing::debug!(policy, key, allowed, source, denied_by, "decided");
        }
        if decision.would_deny() && self.lines.check(policy).allowed() {
            let key = self.logged_key(current, decision.policy(), attributes);
            tracing::info!(
                policy,
                key,
                "this policy only watches: it would have refused"
            );
        }
    }

    /// Who has reset what.
    pub(super) fn log_reset<A>(
        &self,
        current: &Current,
        policy: &str,
        attributes: &A,
        which: Which<'_>,
        forgotten: usize,
    ) where
        A: Attributes + ?Sized,
    {
        let Ok(entry) = current.entry(policy) else {
            return;
        };
        let key = self.logged_key(current, entry.policy(), attributes);
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
        match self.lines.check(format!("status {number}")).allowed() {
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

    /// The keys of the policy's levels, if they may be shown, or else a hash of each.
    fn logged_key<A>(&self, current: &Current, policy: &Policy, attributes: &A) -> String
    where
        A: Attributes + ?Sized,
    {
        let Ok(keys) = policy.keys(attributes) else {
            return String::new();
        };
        let texts = keys.iter().map(|key| match current.logs_keys() {
            true => key.text().into_owned(),
            false => self.redaction.hash(&key.text()),
        });
        texts.collect::<Vec<_>>().join(" ")
    }
}
