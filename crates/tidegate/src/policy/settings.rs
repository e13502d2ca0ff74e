//! How a policy is asked, and what happens when its store fails: as data.

use std::time::Duration;

/// How a node asks its store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Mode {
    /// Every check is decided by the store.
    #[default]
    Exact,
    /// A node takes tokens out of the store and spends them locally. Not available yet:
    /// no policy can be built with it.
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
