//! How a policy is asked, and what happens when its store fails: as data.

use std::time::Duration;

/// How a node asks its store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Mode {
    /// Every check is decided by the store.
    #[default]
    Exact,
    /// A node takes tokens out of the store and spends them itself. The limit holds for all
    /// nodes together, as with `Exact`. In memory it decides as `Exact` does.
    Lease,
    /// A node decides by its own count and what it last heard from the store, and tells
    /// the store every `sync_interval`. In memory there is nobody to tell: it decides as
    /// `Exact` does.
    Background,
}

/// What to answer when the store cannot. The store in memory always can.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum OnError {
    /// The request goes on: the limiter must not become what takes a service down.
    #[default]
    Allow,
    /// The request is refused until the store answers again.
    Deny,
    /// A limiter of this process decides.
    Local,
}

/// The settings of a policy that are not limits.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// How its store is asked.
    pub mode: Mode,
    /// How often a node in background mode tells the store.
    pub sync_interval: Duration,
    /// How long a refusal is remembered at most.
    pub refusal_memory: Duration,
    /// What to answer when the store cannot.
    pub on_error: OnError,
    /// This node's share of the limit under [`OnError::Local`].
    pub local_share: f64,
    /// Whether refused requests are counted.
    pub count_denied: bool,
    /// Whether it only watches.
    pub shadow: bool,
    /// The policy whose checks it is tried on: it is asked beside that one, and never
    /// refuses.
    pub trial_of: Option<Box<str>>,
    /// Whether it is asked at all.
    pub enabled: bool,
    /// The name of the store that keeps its counts.
    pub store: Box<str>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            mode: Mode::Exact,
            sync_interval: Duration::from_millis(50),
            refusal_memory: Duration::from_secs(1),
            on_error: OnError::Allow,
            local_share: 1.0,
            count_denied: false,
            shadow: false,
            trial_of: None,
            enabled: true,
            store: "default".into(),
        }
    }
}
