//! The settings of a policy that are not limits: its mode, and what happens when its store fails.

use std::ops::RangeInclusive;
use std::time::Duration;

/// When a node asks its store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Mode {
    /// The store decides every check.
    #[default]
    Exact,
    /// A node takes tokens out of the store and spends them locally. The limit holds for all
    /// nodes together, as with `Exact`. With a memory store, this is the same as `Exact`.
    Lease,
    /// A node decides from its own count and the last total it read from the store, and sends
    /// its counts every `sync_interval`. With a memory store, this is the same as `Exact`.
    Background,
}

/// What to answer when the store fails. A memory store never fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum OnError {
    /// Admit the request. The default of policies with a script, which only their store can
    /// run.
    Allow,
    /// Refuse requests until the store answers again.
    Deny,
    /// Let a limiter in this process decide, so that each process keeps to the limit by itself.
    #[default]
    Local,
}

impl Mode {
    /// All modes.
    pub const ALL: [Self; 3] = [Self::Exact, Self::Lease, Self::Background];

    /// Its name in the config file.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Exact => "exact",
            Self::Lease => "lease",
            Self::Background => "background",
        }
    }
}

impl OnError {
    /// All answers.
    pub const ALL: [Self; 3] = [Self::Allow, Self::Deny, Self::Local];

    /// Its name in the config file.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Deny => "deny",
            Self::Local => "local",
        }
    }

    /// What a policy answers that does not say.
    pub fn standard(is_script: bool) -> Self {
        match is_script {
            true => Self::Allow,
            false => Self::Local,
        }
    }
}

/// The settings of a policy that are not limits.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// When its store is asked.
    pub mode: Mode,
    /// How often a node in background mode sends its counts to the store.
    pub sync_interval: Duration,
    /// The longest time that a refusal is remembered.
    pub refusal_memory: Duration,
    /// What to answer when the store fails, if that is not the default.
    pub on_error: Option<OnError>,
    /// This node's share of the limit under [`OnError::Local`].
    pub local_share: f64,
    /// Whether refused requests are counted.
    pub count_denied: bool,
    /// Whether it is in shadow mode: it measures but never refuses.
    pub shadow: bool,
    /// The policy that this one is a trial of. It is checked whenever that one is, and never
    /// refuses.
    pub trial_of: Option<String>,
    /// Whether it is enabled.
    pub enabled: bool,
    /// The name of the store that keeps its counters.
    pub store: String,
}

impl Settings {
    /// How often a node in background mode can send its counts.
    pub const SYNC_INTERVALS: RangeInclusive<Duration> =
        Duration::from_millis(1)..=Duration::from_secs(60);

    /// How long a refusal can be remembered.
    pub const REFUSAL_MEMORIES: RangeInclusive<Duration> = Duration::ZERO..=Duration::from_secs(60);
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            mode: Mode::Exact,
            sync_interval: Duration::from_millis(50),
            refusal_memory: Duration::from_secs(1),
            on_error: None,
            local_share: 1.0,
            count_denied: false,
            shadow: false,
            trial_of: None,
            enabled: true,
            store: "default".into(),
        }
    }
}
