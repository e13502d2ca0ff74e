//! What is said about a store beside its URL.

use std::time::Duration;

use crate::access::{Access, Certificates, Password};

/// How to reach a server, and how long to wait for it.
#[derive(Debug, Clone)]
#[must_use = "options do nothing until a store is made of them"]
pub struct RedisOptions {
    pub(crate) name: String,
    pub(crate) prefix: String,
    pub(crate) timeout: Duration,
    pub(crate) connections: usize,
    pub(crate) replica_acks: u32,
    pub(crate) access: Access,
}

impl Default for RedisOptions {
    fn default() -> Self {
        Self {
            name: "default".into(),
            prefix: "tg".into(),
            timeout: Duration::from_millis(50),
            connections: 2,
            replica_acks: 0,
            access: Access::default(),
        }
    }
}

impl RedisOptions {
    /// The name of the store, in log lines.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// How keys begin: `tg` unless said otherwise. One to 64 of the characters A-Z, a-z,
    /// 0-9, `.`, `_`, `:` and `-`: [`RedisStore::new`](crate::RedisStore::new) refuses
    /// any other.
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// How long a check may take, retries included: 50 ms unless said otherwise.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Connections to the server: 2 unless said otherwise.
    pub fn connections(mut self, connections: usize) -> Self {
        self.connections = connections.max(1);
        self
    }

    /// How many replicas must have a charge before it counts as made: none unless said
    /// otherwise. Fewer within the timeout is an error, and the charge stays.
    pub fn replica_acks(mut self, replicas: u32) -> Self {
        self.replica_acks = replicas;
        self
    }

    /// Certificates for `rediss://`, in PEM: the authority that has signed the server's,
    /// where that is not a public one, and a certificate of our own with its key, where
    /// the server asks for one.
    pub fn certificates(
        mut self,
        authority: Option<Vec<u8>>,
        own: Option<(Vec<u8>, Vec<u8>)>,
    ) -> Self {
        self.access.certificates = Some(Certificates(redis::TlsCertificates {
            client_tls: own.map(|(client_cert, client_key)| redis::ClientTlsConfig {
                client_cert,
                client_key,
            }),
            root_cert: authority,
        }));
        self
    }

    /// The user to log in as, in place of one in the URL.
    pub fn username(mut self, username: impl Into<String>) -> Self {
        self.access.username = Some(username.into());
        self
    }

    /// The password, in place of one in the URL. One in a file may change while the
    /// process runs: it is read for each connection, and again when the server refuses it.
    pub fn password(mut self, password: Password) -> Self {
        self.access.password = Some(password);
        self
    }
}
