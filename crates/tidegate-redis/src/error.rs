//! Errors of a store, and which of them are worth a retry.

use std::fmt;
use std::sync::Arc;

use redis::{ErrorKind as Client, RedisError, ServerError};

/// Why a store did not answer.
///
/// If a key caused the error, `Display` names it. Use [`redacted`](Self::redacted), which
/// does not, for logs.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct StoreError {
    kind: ErrorKind,
    detail: Arc<str>,
    /// The keys of the check, one of which caused the error.
    keys: Arc<[String]>,
}

macro_rules! kinds {
    ($($(#[$doc:meta])+ $kind:ident = $name:literal,)+) => {
        /// The kinds of store errors, as named in metrics and log lines.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum ErrorKind {
            $($(#[$doc])+ $kind,)+
        }

        impl ErrorKind {
            /// All kinds, for example to count errors by kind.
            pub const ALL: [Self; [$($name),+].len()] = [$(Self::$kind),+];

            /// Its name in metrics.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$kind => $name,)+
                }
            }
        }
    };
}

kinds! {
    /// No connection could be made.
    Connect = "connect",
    /// The server refused the credentials.
    Auth = "auth",
    /// No answer within the deadline.
    Timeout = "timeout",
    /// The connection was lost after the check was sent, so it may have been charged.
    OutcomeUnknown = "outcome_unknown",
    /// The check was not sent, because too many others were waiting.
    QueueFull = "queue_full",
    /// The store kept failing and is not asked for a while.
    BreakerOpen = "breaker_open",
    /// The server is loading its data.
    Loading = "loading",
    /// The server is a replica.
    ReadOnly = "read_only",
    /// The server has lost its master.
    MasterDown = "master_down",
    /// The cluster is down.
    ClusterDown = "cluster_down",
    /// The keys are on another server.
    Moved = "moved",
    /// The keys are being moved.
    TryAgain = "try_again",
    /// The server is busy with a script.
    Busy = "busy",
    /// The server has no memory left.
    OutOfMemory = "out_of_memory",
    /// The server cannot write to its disk.
    Misconfigured = "misconfigured",
    /// Too few replicas acknowledged the charge.
    NoReplicas = "no_replicas",
    /// The user may not run what the scripts need.
    NoPermission = "no_permission",
    /// A key holds something that Tidegate did not write.
    WrongType = "wrong_type",
    /// A script failed or returned something invalid.
    Script = "script",
    /// Anything else.
    Other = "other",
}

impl ErrorKind {
    /// Whether a retry may help and cannot charge twice: the check certainly did not run,
    /// for a temporary reason.
    #[must_use]
    pub const fn is_worth_retrying(self) -> bool {
        matches!(
            self,
            Self::Connect
                | Self::Loading
                | Self::ReadOnly
                | Self::MasterDown
                | Self::ClusterDown
                | Self::Moved
                | Self::TryAgain
                | Self::Busy
        )
    }

    /// Whether it counts against the store, and does not concern one key, one script or
    /// Tidegate itself.
    #[must_use]
    pub const fn speaks_of_the_store(self) -> bool {
        !self.is_about_a_key() && !matches!(self, Self::QueueFull | Self::BreakerOpen)
    }

    /// Whether it concerns one key or one script.
    pub(crate) const fn is_about_a_key(self) -> bool {
        matches!(
            self,
            Self::TryAgain | Self::Moved | Self::WrongType | Self::Script
        )
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.redacted().fmt(f)?;
        // They are encoded, but how they begin is for the user to say.
        match &*self.keys {
            [] => Ok(()),
            [key] => write!(f, ": {key:?}"),
            keys => write!(f, ": one of {keys:?}"),
        }
    }
}

impl StoreError {
    pub(crate) fn new(kind: ErrorKind, detail: impl Into<Arc<str>>) -> Self {
        Self {
            kind,
            detail: detail.into(),
            keys: Arc::default(),
        }
    }

    /// The same, about these keys.
    pub(crate) fn about(self, keys: &[String]) -> Self {
        Self {
            keys: keys.into(),
            ..self
        }
    }

    /// A missed deadline, with the earlier error that caused it.
    pub(crate) fn after(self, earlier: Option<Self>) -> Self {
        match earlier {
            Some(earlier) if self.kind == ErrorKind::Timeout => {
                let detail = format!("{}, after {}", self.detail, earlier.redacted());
                Self::new(self.kind, detail)
            }
            _ => self,
        }
    }

    /// The keys in Redis, one of which caused the error. Only for errors of the kind
    /// `wrong_type`; empty for others.
    #[must_use]
    pub fn keys(&self) -> &[String] {
        &self.keys
    }

    /// The error without keys, which may be names or addresses of people.
    pub fn redacted(&self) -> impl fmt::Display {
        let Self { kind, detail, .. } = self;
        fmt::from_fn(move |f| write!(f, "{kind}: {detail}"))
    }

    /// What kind of error it is.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The message.
    pub(crate) fn detail(&self) -> &str {
        &self.detail
    }

    /// What the server has answered instead of a decision.
    pub(crate) fn from_server(error: &ServerError) -> Self {
        let details = error.details().unwrap_or_default();
        let kind = match error.code() {
            "LOADING" => ErrorKind::Loading,
            "READONLY" => ErrorKind::ReadOnly,
            "MASTERDOWN" => ErrorKind::MasterDown,
            "CLUSTERDOWN" => ErrorKind::ClusterDown,
            "MOVED" | "ASK" => ErrorKind::Moved,
            "TRYAGAIN" => ErrorKind::TryAgain,
            "NOPERM" => ErrorKind::NoPermission,
            "BUSY" => ErrorKind::Busy,
            "OOM" => ErrorKind::OutOfMemory,
            "MISCONF" => ErrorKind::Misconfigured,
            "NOREPLICAS" => ErrorKind::NoReplicas,
            "NOAUTH" | "WRONGPASS" => ErrorKind::Auth,
            "WRONGTYPE" | "TIDEGATE" => ErrorKind::WrongType,
            _ => in_script(details),
        };
        Self::new(kind, format!("{} {details}", error.code()))
    }

    /// What a script of the user's own has answered instead of a verdict. It may say
    /// anything, also what the server says before it runs a script: that is only believed
    /// in the server's own words, or a script that ran would be run again.
    pub(crate) fn from_custom_script(error: &ServerError) -> Self {
        let details = error.details().unwrap_or_default();
        let expected = match error.code() {
            "READONLY" => "You can't write against a read only",
            "TRYAGAIN" => "Multiple keys request during rehashing",
            "LOADING" => "is loading the dataset in memory",
            "MASTERDOWN" => "Link with MASTER is down",
            "CLUSTERDOWN" => "ash slot not served",
            "BUSY" => "is busy running a script",
            "NOSCRIPT" => "No matching script",
            _ => "READONLY You can't write against a read only",
        };
        let is_servers = match error.code() {
            "MOVED" | "ASK" => is_redirection(details),
            "CLUSTERDOWN" => details.contains(expected) || details.contains("luster is down"),
            _ => details.contains(expected),
        };
        let from_server = Self::from_server(error);
        match from_server.kind.is_worth_retrying() && !is_servers {
            true => Self::new(ErrorKind::Script, from_server.detail),
            false => from_server,
        }
    }

    /// What the client has met; `sent` says whether the question had left: then it may
    /// have run, whatever the client calls the error.
    pub(crate) fn from_client(error: &RedisError, sent: bool) -> Self {
        let kind = match error.kind() {
            Client::InvalidClientConfig => ErrorKind::Other,
            _ if sent => ErrorKind::OutcomeUnknown,
            Client::AuthenticationFailed => ErrorKind::Auth,
            Client::Server(_) => match error.code() {
                Some("NOAUTH" | "WRONGPASS") => ErrorKind::Auth,
                Some("LOADING") => ErrorKind::Loading,
                Some("NOPERM") => ErrorKind::NoPermission,
                Some("MASTERDOWN") => ErrorKind::MasterDown,
                _ => ErrorKind::Connect,
            },
            _ => ErrorKind::Connect,
        };
        Self::new(kind, error.to_string())
    }
}

/// Whether this reads `3999 10.0.0.1:6379`, as `MOVED` and `ASK` do.
fn is_redirection(details: &str) -> bool {
    let (slot, address) = details.split_once(' ').unwrap_or_default();
    let port = address.rsplit_once(':').map(|(_, port)| port);
    slot.parse::<u16>().is_ok() && port.is_some_and(|port| port.parse::<u16>().is_ok())
}

/// What an error out of a script says where it is one that a command in it has met: Redis 6
/// puts the code of that into the text.
const IN_SCRIPTS: [(&str, ErrorKind); 10] = [
    ("WRONGTYPE", ErrorKind::WrongType),
    ("TIDEGATE a key", ErrorKind::WrongType),
    ("OOM command not allowed", ErrorKind::OutOfMemory),
    ("MISCONF ", ErrorKind::Misconfigured),
    ("READONLY ", ErrorKind::ReadOnly),
    ("NOREPLICAS ", ErrorKind::NoReplicas),
    ("ACL failure", ErrorKind::NoPermission),
    ("NOPERM", ErrorKind::NoPermission),
    ("no permissions", ErrorKind::NoPermission),
    // Redis 7.0.
    ("user executing the script can't", ErrorKind::NoPermission),
];

fn in_script(details: &str) -> ErrorKind {
    let mut known = IN_SCRIPTS.iter();
    let known = known.find(|(words, _)| details.contains(words));
    known.map_or(ErrorKind::Script, |(_, kind)| *kind)
}

#[cfg(test)]
mod tests {
    use redis::Value;
    use tidegate_testkit::cases;

    use super::*;

    const KINDS: &str = include_str!("error.txt");

    /// As the server writes it.
    fn reply(line: &str) -> ServerError {
        let reply = redis::parse_redis_value(format!("-{line}\r\n").as_bytes());
        let Ok(Value::ServerError(error)) = reply else {
            panic!("{reply:?}");
        };
        error
    }

    #[test]
    fn error_text_of_a_custom_script_is_not_retried() {
        cases::rows(KINDS, "by a custom script", |line| {
            let error = StoreError::from_custom_script(&reply(line));
            error.kind().to_string()
        });
    }

    #[test]
    fn client_error_after_sending_is_never_retried() {
        cases::rows(KINDS, "by the client after sending", |line| {
            let error: RedisError = reply(line).into();
            let is_servers = matches!(error.kind(), Client::Server(_) | Client::Extension);
            assert!(is_servers, "{line}");
            StoreError::from_client(&error, true).kind().to_string()
        });
    }
}
