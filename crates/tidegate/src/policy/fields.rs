//! The fields of a limit one by one, as in a file: a policy's own, and those that an
//! override replaces.

use crate::error::LimitError;
use crate::limit::{Algorithm, Align, Limit, LimitSpec};
use crate::rate::Rate;

/// The fields of a limit. Those that were left out are `None`.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct LimitFields {
    /// `limit`.
    pub rate: Option<Rate>,
    /// `algorithm`.
    pub algorithm: Option<Algorithm>,
    /// `burst`.
    pub burst: Option<u64>,
    /// `strict`.
    pub strict: Option<bool>,
    /// `align`.
    pub align: Option<Align>,
    /// `block`.
    pub block: Option<bool>,
}

impl LimitFields {
    /// These fields with some of them changed. The others keep their value, except those
    /// that belong to another algorithm.
    pub(crate) fn changed(self, change: Self) -> Self {
        let algorithm = change.algorithm.or(self.algorithm);
        let kept = if algorithm.unwrap_or_default() == self.algorithm.unwrap_or_default() {
            self
        } else {
            Self {
                rate: self.rate,
                ..Self::default()
            }
        };
        Self {
            rate: change.rate.or(kept.rate),
            algorithm,
            burst: change.burst.or(kept.burst),
            strict: change.strict.or(kept.strict),
            align: change.align.or(kept.align),
            block: change.block.or(kept.block),
        }
    }

    /// The fields that are set, except `block`.
    pub(crate) fn said(&self) -> impl Iterator<Item = &'static str> {
        let said = [
            ("limit", self.rate.is_some()),
            ("algorithm", self.algorithm.is_some()),
            ("burst", self.burst.is_some()),
            ("strict", self.strict.is_some()),
            ("align", self.align.is_some()),
        ];
        let said = said.into_iter().filter(|(_, is_said)| *is_said);
        said.map(|(field, _)| field)
    }

    /// The limit they make, or the field at fault and what is wrong with it.
    pub(crate) fn limit(self) -> Result<Limit, (&'static str, String)> {
        if self.block == Some(true) {
            return Ok(Limit::block());
        }
        let missing = "missing: expected a rate such as \"100r/s\" or \"5/10s\", or block = true";
        let rate = self.rate.ok_or_else(|| ("limit", missing.to_owned()))?;
        let spec = LimitSpec {
            rate,
            algorithm: self.algorithm.unwrap_or_default(),
            burst: self.burst,
            strict: self.strict.unwrap_or_default(),
            align: self.align.unwrap_or_default(),
            gcra: false,
        };
        let limit = spec.build();
        limit.map_err(|error| (field(&error), message(&error, self.burst)))
    }
}

/// The field that an error is about.
fn field(error: &LimitError) -> &'static str {
    match error {
        LimitError::Burst(_) | LimitError::BurstRefill { .. } | LimitError::BurstOf { .. } => {
            "burst"
        }
        LimitError::StrictBurst { .. } | LimitError::StrictOf(_) => "strict",
        LimitError::AlignOf(_) => "align",
        LimitError::Requests(_)
        | LimitError::RequestsOf { .. }
        | LimitError::Window(_)
        | LimitError::Cost(_) => "limit",
    }
}

/// The error message, also for a user who has not set a burst.
fn message(error: &LimitError, burst: Option<u64>) -> String {
    match error {
        LimitError::StrictBurst { requests: 1, .. } => {
            "true with 1 request: expected a limit of at least 2 requests, and a burst below it"
                .into()
        }
        LimitError::StrictBurst { requests, .. } if burst.is_none() => {
            format!("true without a burst: expected a burst below {requests}")
        }
        _ => error.to_string(),
    }
}

/// A limit with every field set that its algorithm has.
impl From<Limit> for LimitFields {
    fn from(limit: Limit) -> Self {
        let Some(spec) = limit.spec() else {
            return Self {
                block: Some(true),
                ..Self::default()
            };
        };
        Self {
            rate: Some(spec.rate),
            algorithm: Some(spec.algorithm),
            burst: spec.capacity(),
            strict: spec.capacity().map(|_| spec.strict),
            align: spec.algorithm.profile().has_align.then_some(spec.align),
            block: None,
        }
    }
}
