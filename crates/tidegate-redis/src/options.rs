//! The options of a store, in addition to its URL.

use std::time::Duration;

use crate::credentials::{Certificates, Credentials, Password};

/// How to reach a server, and how long to wait for it.
#[derive(Debug, Clone, Hash)]
#[must_use = "options do nothing until a store is made of them"]
pub struct RedisOptions {
    pub(crate) name: String,
    pub(crate) prefix: String,
    pub(crate) timeout: Duration,
    pub(crate) connections: usize,
    pub(crate) replica_acks: u32,
    pub(crate) credentials: Credentials,
}

impl Default for RedisOptions {
    fn default() -> Self {
        Self {
            name: "default".into(),
            prefix: "tg".into(),
            timeout: Duration::from_millis(50),
            connections: 2,
            replica_acks: 0,
            credentials: Credentials::default(),
        }
    }
}

impl RedisOptions {
    /// The name of the store, in log lines.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// The prefix of all keys; `tg` by default. It has 1 to 64 of the characters A-Z, a-z,
    /// 0-9, `.`, `_`, `:` and `-`; otherwise [`RedisStore::new`](crate::RedisStore::new)
    /// fails.
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// The deadline of a check, retries included; 50 ms by default.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Connections to each server; 2 by default.
    pub fn connections(mut self, connections: usize) -> Self {
        self.connections = connections.max(1);
        self
    }

    /// How many replicas must acknowledge a charge; none by default. If fewer do so within
    /// the timeout, the check fails, and the charge stays.
    pub fn replica_acks(mut self, replicas: u32) -> Self {
        self.replica_acks = replicas;
        self
    }

    /// Certificates for `rediss://`, in PEM: the CA that signed the server's certificate, if
    /// it is not a public one, and a client certificate with its key, if the server asks for
    /// one.
    pub fn certificates(
        mut self,
        authority: Option<Vec<u8>>,
        own: Option<(Vec<u8>, Vec<u8>)>,
    ) -> Self {
        self.credentials.certificates = Some(Certificates { authority, own });
        self
    }

    /// The user name, instead of the one in the URL.
    pub fn username(mut self, username: impl Into<String>) -> Self {
        self.credentials.username = Some(username.into());
        self
    }

    /// The password, instead of the one in the URL. A password in a file may change while the
    /// process runs: it is read for each connection, and again when the server refuses it.
    pub fn password(mut self, password: Password) -> Self {
        self.credentials.password = Some(password);
        self
    }
}
