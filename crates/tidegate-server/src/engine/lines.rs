//! Decisions in the log.

use std::hash::BuildHasher;

use tidegate::{Attributes, Policy, PolicyDecision};

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

    /// The key, if it may be shown, or else a hash that tells it from others as long as
    /// this process runs. The hash has a secret of the process: otherwise a reader of the
    /// log could try all addresses.
    fn logged_key<A>(&self, current: &Current, policy: &Policy, attributes: &A) -> String
    where
        A: Attributes + ?Sized,
    {
        let Ok(keys) = policy.keys(attributes) else {
            return String::new();
        };
        let texts: Vec<String> = keys.iter().map(|key| key.text().into_owned()).collect();
        let text = texts.join(" ");
        if current.logs_keys() {
            return text;
        }
        format!("{:016x}", self.redaction.hash_one(text))
    }
}
