//! How a policy is asked, and what happens when its store fails: as data.

use std::time::Duration;

/// How a node asks its store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Mode {
    /// Every check is decided by the store.
    #[default]
    Exact,
    /// Tokens are taken out of the store and spent locally. Not built yet.
    Lease,
    /// Decided locally, told to the store afterwards. Not built yet.
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
pub(crate) struct Settings {
    pub(crate) mode: Mode,
    pub(crate) sync_interval: Duration,
    pub(crate) refusal_memory: Duration,
    pub(crate) on_error: OnError,
    pub(crate) local_share: f64,
    pub(crate) count_denied: bool,
    pub(crate) shadow: bool,
    pub(crate) enabled: bool,
    pub(crate) store: Box<str>,
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
            enabled: true,
            store: "default".into(),
        }
    }
}
