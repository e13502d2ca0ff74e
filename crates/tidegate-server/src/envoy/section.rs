//! The section `[envoy]`: how Envoy's rate limit service answers.

use std::fmt;

use tidegate::Algorithm;
use tidegate_config::Fields;
use tidegate_config::write::{field, quoted};

/// The section `[envoy]`.
///
/// `Display` prints it as it is read. `{:#}` prints defaults, too.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Envoy {
    /// What to answer when a store cannot be asked.
    pub on_error: OnError,
    /// Whether quotas are assigned to Envoys, too.
    pub quota: bool,
}

/// How limits in the form of envoyproxy/ratelimit can count.
pub(super) const ALGORITHMS: [(&str, Algorithm); 3] = [
    ("fixed_window", Algorithm::FixedWindow),
    ("token_bucket", Algorithm::TokenBucket),
    ("sliding_log", Algorithm::SlidingLog),
];

/// What Envoy is told when a store cannot be asked.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum OnError {
    /// An error of gRPC: Envoy's `failure_mode_deny` decides.
    #[default]
    Error,
    /// That the request may go on.
    Allow,
    /// That it may not.
    Deny,
}

impl OnError {
    const ALL: [(&'static str, Self); 3] = [
        ("error", Self::Error),
        ("allow", Self::Allow),
        ("deny", Self::Deny),
    ];
}

impl Envoy {
    /// Reads the section; what is wrong is in the errors.
    #[must_use]
    pub fn read(fields: &Fields<'_>) -> Self {
        let standard = Self::default();
        let envoy = Self {
            on_error: fields
                .choice("on_error", &OnError::ALL)
                .unwrap_or(standard.on_error),
            quota: fields.flag("quota").unwrap_or(standard.quota),
        };
        fields.finish();
        envoy
    }
}

/// The word for a value.
fn word<T: PartialEq>(words: &[(&'static str, T)], value: &T) -> &'static str {
    let found = words.iter().find(|(_, other)| other == value);
    found.map_or("", |(word, _)| word)
}

impl fmt::Display for Envoy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let standard = Self::default();
        if *self == standard && !f.alternate() {
            return Ok(());
        }
        writeln!(f, "[envoy]")?;
        let on_error = quoted(word(&OnError::ALL, &self.on_error));
        field(f, "on_error", &self.on_error, &standard.on_error, on_error)?;
        field(f, "quota", &self.quota, &standard.quota, self.quota)?;
        writeln!(f)
    }
}
