//! The decision of a policy, with the names of its levels.

use std::ops::Deref;
use std::time::Duration;

use smallvec::SmallVec;

use super::keys::{Keys, LevelKey};
use super::script::ScriptAnswer;
use super::{Policy, PolicyLevel};
use crate::decision::{Decision, LevelDecision, Receipt};
use crate::headers::{Headers, problem};
use crate::limit::Limit;

/// The decision of a policy.
///
/// It has the numbers of the [`Decision`] that it derefs to. Levels also have their names and the
/// limits that apply.
#[derive(Debug, Clone, PartialEq)]
#[must_use = "the decision says whether the request may proceed"]
pub struct PolicyDecision<'p> {
    policy: &'p Policy,
    details: Details,
}

/// What was decided, beside the policy.
#[derive(Debug, Clone, PartialEq)]
struct Details {
    /// The level and the case behind each level of the decision.
    cases: SmallVec<[(u16, u16); 2]>,
    decision: Decision,
    /// What a user-defined script returned beyond its verdict.
    answer: Option<Box<ScriptAnswer>>,
}

/// A [`PolicyDecision`] that borrows nothing, to keep in a request's extensions or to
/// send to another task.
///
/// ```
/// use tidegate::{Cost, Limit, OwnedDecision, Policy, PolicyLimiter};
///
/// let policy = Policy::builder("login").key("{ip}").limit(Limit::per_minute(5)).build()?;
/// let limiter = PolicyLimiter::in_memory(policy)?;
/// let decision = limiter.check(&[("ip", "203.0.113.7")], Cost::ONE)?;
/// let kept: OwnedDecision = decision.into_owned();
/// drop(limiter);
/// assert_eq!(kept.decision().remaining(), 4);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct OwnedDecision {
    policy: Policy,
    details: Details,
}

impl OwnedDecision {
    /// The decision.
    pub fn decision(&self) -> PolicyDecision<'_> {
        PolicyDecision {
            policy: &self.policy,
            details: self.details.clone(),
        }
    }
}

/// One level of a [`PolicyDecision`]: its name, its limit, its numbers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LevelReport<'d> {
    policy: &'d Policy,
    level: u16,
    case: u16,
    numbers: &'d LevelDecision,
}

/// The decisions of several policies on one request, in order. A refusal ends the list, and
/// the policies before it are refunded. Their numbers are from before the refund.
#[derive(Debug, Clone, PartialEq)]
#[must_use = "the decisions say whether the request may proceed"]
pub struct Decisions<'p>(pub(super) SmallVec<[PolicyDecision<'p>; 2]>);

impl<'p> PolicyDecision<'p> {
    #[inline]
    pub(super) fn new(
        policy: &'p Policy,
        cases: SmallVec<[(u16, u16); 2]>,
        decision: Decision,
    ) -> Self {
        Self {
            policy,
            details: Details {
                cases,
                decision,
                answer: None,
            },
        }
    }

    /// The decision of a policy for its own keys, made by a store other than the memory
    /// store: one level of the decision per key.
    pub fn from_store(policy: &'p Policy, keys: &Keys<'_>, decision: Decision) -> Self {
        Self::of_levels(policy, keys.iter(), decision)
    }

    /// The same for only some levels: one level of the decision per key.
    pub fn of_levels<'k>(
        policy: &'p Policy,
        keys: impl IntoIterator<Item = LevelKey<'k>>,
        decision: Decision,
    ) -> Self {
        let cases = keys.into_iter().map(|key| (key.level, key.case)).collect();
        Self::new(policy, cases, decision)
    }

    /// The same decision, without borrowing the limiter's policy.
    #[must_use]
    pub fn into_owned(self) -> OwnedDecision {
        OwnedDecision {
            policy: self.policy.clone(),
            details: self.details,
        }
    }

    /// The same decision, with what a script returned beyond its verdict.
    pub fn with_answer(mut self, answer: ScriptAnswer) -> Self {
        self.details.answer = Some(Box::new(answer));
        self
    }

    /// What a user-defined script returned beyond its verdict.
    pub fn answer(&self) -> Option<&ScriptAnswer> {
        self.details.answer.as_deref()
    }

    /// Whether the request may proceed. Always true for a policy in shadow mode.
    pub fn allowed(&self) -> bool {
        self.details.decision.allowed() || self.policy.shadow()
    }

    /// Whether a policy in shadow mode would have refused the request.
    pub fn would_deny(&self) -> bool {
        self.policy.shadow() && !self.details.decision.allowed()
    }

    /// The policy.
    pub fn policy(&self) -> &'p Policy {
        self.policy
    }

    /// The name of the first level that refused, or would have refused in shadow mode.
    pub fn denied_by(&self) -> Option<&'p str> {
        let Details {
            cases, decision, ..
        } = &self.details;
        let (level, _) = cases.get(decision.denied_by()?)?;
        Some(self.policy.levels[usize::from(*level)].name())
    }

    /// The receipt for a refund, if the check was allowed and charged to any level.
    pub fn receipt(&self) -> Option<Receipt> {
        let receipt = self.details.decision.receipt();
        receipt.filter(|_| !self.details.cases.is_empty())
    }

    /// The numbers alone, which do not borrow the policy.
    pub fn into_decision(self) -> Decision {
        self.details.decision
    }

    /// Every level that counted, in the policy's order. None when the policy is not
    /// enabled.
    pub fn levels(&self) -> impl ExactSizeIterator<Item = LevelReport<'_>> {
        let levels = self
            .details
            .cases
            .iter()
            .zip(self.details.decision.levels());
        levels.map(|(&(level, case), numbers)| LevelReport {
            policy: self.policy,
            level,
            case,
            numbers,
        })
    }

    /// The level whose numbers the decision reports.
    pub fn reported(&self) -> Option<LevelReport<'_>> {
        self.levels().nth(self.reported_index()?)
    }

    /// The headers for the client, in the policy's dialect.
    pub fn headers(&self) -> Headers<'p> {
        Headers::of([self])
    }

    /// The body of a refusal, as `application/problem+json`.
    pub fn problem(&self, status: u16) -> String {
        problem([self], status)
    }
}

/// The numbers of the decision.
impl Deref for PolicyDecision<'_> {
    type Target = Decision;

    fn deref(&self) -> &Decision {
        &self.details.decision
    }
}

impl<'d> LevelReport<'d> {
    /// The level.
    pub fn level(&self) -> &'d PolicyLevel {
        &self.policy.levels[usize::from(self.level)]
    }

    /// Its name.
    pub fn name(&self) -> &'d str {
        self.level().name()
    }

    /// The limit that applies to this key.
    pub fn limit(&self) -> &'d Limit {
        let limit = self.level().overrides.limit(self.case);
        limit.expect("levels that do not count are not in a decision")
    }

    /// Its index among the policy's levels, from 0.
    pub fn index(&self) -> usize {
        usize::from(self.level)
    }

    /// Whether an override replaces the level's own limit.
    pub fn is_overridden(&self) -> bool {
        self.level().overrides.index(self.case).is_some()
    }

    /// Its numbers.
    pub fn numbers(&self) -> &'d LevelDecision {
        self.numbers
    }

    /// Whether this level refuses, or would in shadow mode.
    pub fn refuses(&self) -> bool {
        self.numbers.retry_after() != Some(Duration::ZERO)
    }
}

impl<'p> FromIterator<PolicyDecision<'p>> for Decisions<'p> {
    /// Collects decisions that were made elsewhere, in order.
    fn from_iter<I: IntoIterator<Item = PolicyDecision<'p>>>(decisions: I) -> Self {
        Self(decisions.into_iter().collect())
    }
}

impl<'p> Decisions<'p> {
    /// Whether the request may proceed: true if every policy allows it.
    pub fn allowed(&self) -> bool {
        self.refusal().is_none()
    }

    /// The decision that refused.
    pub fn refusal(&self) -> Option<&PolicyDecision<'p>> {
        self.0.last().filter(|decision| !decision.allowed())
    }

    /// The decisions, in the order of the policies.
    pub fn as_slice(&self) -> &[PolicyDecision<'p>] {
        &self.0
    }

    /// The headers for the client. List headers have the items of all policies.
    /// Single-number headers describe one policy: the one that refused, or else the one
    /// with the least remaining.
    pub fn headers(&self) -> Headers<'p> {
        Headers::of(&self.0)
    }

    /// The body of a refusal, as `application/problem+json`.
    pub fn problem(&self, status: u16) -> String {
        problem(&self.0, status)
    }
}
