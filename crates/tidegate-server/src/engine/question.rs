//! What a door asks of a policy.

use tidegate::{Attributes, Case, Check, Cost, PolicyDecision, PolicyLimiter, Question};
use tidegate_redis::TryCheckError;

use super::{Bucket, Entry};

/// Named values, of any door: one instance of the engine decides for all of them.
pub type AnyAttributes<'q> = dyn Attributes + Sync + 'q;

/// What becomes of a call.
pub type Answer<'q> = Result<PolicyDecision<'q>, TryCheckError>;

/// A question to a policy, and what is to be done about it.
#[derive(Clone, Copy)]
pub struct Call<'q> {
    /// Whom to ask.
    pub entry: &'q Entry,
    /// What about.
    pub attributes: &'q AnyAttributes<'q>,
    /// What it costs, or would cost.
    pub cost: Cost,
    /// The limit that came with the call, in place of the policy's own.
    pub bucket: Option<&'q Bucket>,
    /// What the answer is for.
    pub kind: Kind,
    /// Whether a store that cannot answer is an error, whatever the policy's `on_error` says.
    pub is_strict: bool,
}

/// What the answer to a call is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// It admits or refuses a request, and charges what it admits.
    Check,
    /// It shows the numbers at this cost, and charges nothing.
    Peek,
    /// It shows the numbers after the cost was taken off a count of a fixed window.
    GiveBack,
    /// It charges for what an Envoy may admit: logged and recorded, but no decision.
    Assign,
}

impl<'q> Call<'q> {
    /// A check.
    pub fn new(entry: &'q Entry, attributes: &'q AnyAttributes<'q>, cost: Cost) -> Self {
        Self {
            entry,
            attributes,
            cost,
            bucket: None,
            kind: Kind::Check,
            is_strict: false,
        }
    }

    /// The question alone.
    pub(super) fn question(&self) -> Question<'q, AnyAttributes<'q>> {
        let question = Question {
            limit: self.bucket.map(Bucket::limit),
            ..Question::new(self.attributes, self.cost)
        };
        match self.kind {
            Kind::Check | Kind::Assign => question,
            Kind::Peek => Question {
                look: true,
                ..question
            },
            Kind::GiveBack => Question {
                look: true,
                cost: Cost::ONE,
                ..question
            },
        }
    }

    /// The only check of a question that has one, in memory, and whose limit it is under.
    #[inline]
    pub(super) fn only_check(&self, memory: &'q PolicyLimiter) -> Option<(Check<'q>, Case)> {
        let only = match self.bucket {
            Some(bucket) => bucket.check(self.attributes),
            None => memory.only_check(self.attributes),
        };
        only.map(|(check, case)| (check.cost(self.cost), case))
    }

    /// Whose limit that check is under.
    #[inline]
    pub(super) fn case(&self, memory: &PolicyLimiter) -> Option<Case> {
        match self.bucket {
            Some(bucket) => bucket.case(),
            None => Some(memory.only_check(self.attributes)?.1),
        }
    }
}
