//! The section `[envoy]`: how Envoy's rate limit service answers.

use std::fmt;

use super::rules::Defaults;
use tidegate::{Algorithm, Mode};
use tidegate_config::{Fields, Rows, Table};

/// The section `[envoy]`.
///
/// `Display` prints it as it is read. `{:#}` prints defaults, too.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Envoy {
    /// The file or directory of limits in the form of envoyproxy/ratelimit. Without it, a
    /// domain names a policy.
    pub config: Option<String>,
    /// What to answer when a store cannot be asked.
    pub on_error: OnError,
    /// How those limits count.
    pub algorithm: Algorithm,
    /// How a node asks about them.
    pub mode: Mode,
    /// The store that keeps their counts.
    pub store: String,
    /// Whether files about the same domain add to it. Otherwise, a second one is an error.
    pub merge_domains: bool,
    /// Whether quotas are assigned to Envoys, too.
    pub quota: bool,
}

/// How limits in the form of envoyproxy/ratelimit can count.
pub(super) const ALGORITHMS: [(&str, Algorithm); 3] = [
    ("fixed_window", Algorithm::FixedWindow),
    ("token_bucket", Algorithm::TokenBucket),
    ("sliding_log", Algorithm::SlidingLog),
];

/// The answer to Envoy while a store is down.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum OnError {
    /// An error of gRPC: Envoy's `failure_mode_deny` decides.
    #[default]
    Error,
    /// Admit the request.
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

impl Default for Envoy {
    fn default() -> Self {
        Self {
            config: None,
            on_error: OnError::default(),
            algorithm: Algorithm::FixedWindow,
            mode: Mode::Exact,
            store: "default".into(),
            merge_domains: false,
            quota: false,
        }
    }
}

impl Envoy {
    /// What limits have that do not say otherwise.
    #[must_use]
    pub fn defaults(&self) -> Defaults {
        Defaults {
            algorithm: self.algorithm,
            mode: self.mode,
            merge_domains: self.merge_domains,
        }
    }

    /// Reads the section; what is wrong is in the errors.
    #[must_use]
    pub fn read(fields: &Fields<'_>) -> Self {
        let envoy = fields.rows(Self::default());
        let cannot_lease = match envoy.algorithm {
            Algorithm::FixedWindow => Some("fixed_window counts refused requests, too"),
            Algorithm::SlidingLog => Some("sliding_log cannot lease"),
            _ => None,
        };
        if let (Mode::Lease, Some(why), Some(_)) = (envoy.mode, cannot_lease, &envoy.config) {
            let message = format!(
                "\"lease\" with algorithm = \"{}\": expected \"exact\" or \"background\", or algorithm = \"token_bucket\": {why}",
                envoy.algorithm
            );
            fields.error("mode", message);
        }
        fields.finish();
        envoy
    }
}

impl Table for Envoy {
    fn rows(&mut self, rows: &mut Rows<'_>) {
        rows.choice("on_error", &OnError::ALL, &mut self.on_error);
        rows.path("config", &mut self.config);
        rows.choice("algorithm", &ALGORITHMS, &mut self.algorithm);
        let modes = Mode::ALL.map(|mode| (mode.as_str(), mode));
        rows.choice("mode", &modes, &mut self.mode);
        rows.text("store", "the name of a store", &mut self.store);
        rows.flag("merge_domains", &mut self.merge_domains);
        rows.flag("quota", &mut self.quota);
    }
}

impl fmt::Display for Envoy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let standard = Self::default();
        if *self == standard && !f.alternate() {
            return Ok(());
        }
        writeln!(f, "[envoy]")?;
        self.print(f, &standard)?;
        writeln!(f)
    }
}
