//! Limits from a control plane, such as Envoy Gateway: a client of the aggregated discovery
//! service (xDS, state of the world), for one type of resource.
//!
//! ```text
//! control plane -> DiscoveryResponse -> RateLimitConfig, one per domain -> apply
//!               <- version: applied, or the old one and why
//! ```
//!
//! Configs that cannot be applied are answered with a reason (NACK), and the old ones stay.
//! When the control plane is gone, they stay as well, and the client connects again.
//!
//! | file | what it is |
//! | --- | --- |
//! | [`wire`] | the messages |
//! | `drafts` | from those to limits that are validated like those of a file |
//! | `connect` | the connection: plain or TLS, with certificates that may be renewed |
//! | `watch` | the stream: what is subscribed, applied, and answered |

mod connect;
mod drafts;
mod watch;
pub mod wire;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

pub use drafts::drafts;
pub use watch::watch;

/// Where configs come from.
#[derive(Debug, Clone)]
pub struct ControlPlane {
    /// Host and port.
    pub address: String,
    /// By which name the control plane knows this client.
    pub node: String,
    /// What else it is told about this client.
    pub metadata: BTreeMap<String, String>,
    /// Headers that each stream begins with.
    pub headers: BTreeMap<String, String>,
    /// TLS, if it is to be used.
    pub tls: Option<ClientTls>,
    /// How long to wait before the first attempt to connect again. Each attempt that fails
    /// doubles it.
    pub retry: Duration,
    /// The longest wait.
    pub longest_retry: Duration,
}

/// How to connect by TLS. Files are read for every connection, so that certificates can be
/// renewed.
#[derive(Debug, Clone, Default)]
pub struct ClientTls {
    /// The authority that has signed the control plane's certificate, if it is not a public
    /// one.
    pub ca: Option<PathBuf>,
    /// A certificate and its key, to show to the control plane.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// The name in the control plane's certificate, if it is not its host.
    pub server_name: Option<String>,
}
