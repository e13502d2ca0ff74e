//! Credentials for a server: certificates, a user and a password. The password may change
//! while the process runs, so it is read for each connection, and again when the server
//! refuses it.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use redis::io::tcp::TcpSettings;
use redis::{
    ErrorKind as Client, IntoConnectionInfo, ProtocolVersion, RedisConnectionInfo, RedisError,
    RedisResult,
};

use crate::config::read_text;

/// Where the password of a store is.
///
/// `Debug` hides a text.
#[derive(Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Password {
    /// The password itself.
    Text(String),
    /// In this environment variable.
    Env(String),
    /// In this file, without a newline at the end. The file is read for each
    /// connection, so a new password needs no restart.
    File(PathBuf),
}

/// Certificates in PEM. `Debug` hides them: one of them may be a key.
#[derive(Clone, Hash)]
pub(crate) struct Certificates {
    /// Whose signature a server's certificate needs, or else that of a public authority.
    pub(crate) authority: Option<Vec<u8>>,
    /// A certificate of our own, and its key.
    pub(crate) own: Option<(Vec<u8>, Vec<u8>)>,
}

/// How servers of a store let us in.
#[derive(Debug, Clone, Default, Hash)]
pub(crate) struct Credentials {
    pub(crate) certificates: Option<Certificates>,
    pub(crate) username: Option<String>,
    pub(crate) password: Option<Password>,
}

impl Credentials {
    /// A client of the server at this URL, as the URL logs in.
    pub(crate) fn client(&self, url: &str) -> RedisResult<redis::Client> {
        // A batch does not wait until the one before it has arrived.
        let tcp = TcpSettings::default().set_nodelay(true);
        self.open(url.into_connection_info()?.set_tcp_settings(tcp))
    }

    /// The same with the password as it is now.
    pub(crate) async fn client_now(&self, url: &str) -> RedisResult<redis::Client> {
        let client = self.client(url)?;
        let settings = self.settings(&client).await?;
        let info = client.get_connection_info().clone();
        self.open(info.set_redis_settings(settings))
    }

    fn open(&self, server: redis::ConnectionInfo) -> RedisResult<redis::Client> {
        let Some(Certificates { authority, own }) = self.certificates.clone() else {
            return redis::Client::open(server);
        };
        let certificates = redis::TlsCertificates {
            client_tls: own.map(|(client_cert, client_key)| redis::ClientTlsConfig {
                client_cert,
                client_key,
            }),
            root_cert: authority,
        };
        redis::Client::build_with_tls(server, certificates)
    }

    /// How to greet the client's server, with the password as it is now.
    pub(crate) async fn settings(
        &self,
        client: &redis::Client,
    ) -> RedisResult<RedisConnectionInfo> {
        let settings = client.get_connection_info().redis_settings().clone();
        // The protocol that `wire.rs` reads, whatever the URL asks for.
        let mut settings = settings.set_protocol(ProtocolVersion::RESP2);
        if let Some(username) = &self.username {
            settings = settings.set_username(username);
        }
        if let Some(password) = &self.password {
            settings = settings.set_password(password.read().await?);
        }
        Ok(settings)
    }

    /// Whether a server that has answered like this may let us in with the password that
    /// there is now, and not with the one it was shown.
    pub(crate) async fn has_changed(
        &self,
        error: &RedisError,
        client: &redis::Client,
        shown: &RedisConnectionInfo,
    ) -> bool {
        let is_refused = error.kind() == Client::AuthenticationFailed
            || matches!(error.code(), Some("WRONGPASS" | "NOAUTH"));
        if !is_refused || self.password.is_none() {
            return false;
        }
        let now = self.settings(client).await;
        now.is_ok_and(|now| now.password() != shown.password())
    }
}

impl Password {
    /// The password as it is now.
    async fn read(&self) -> RedisResult<String> {
        let wrong =
            |what: String| RedisError::from((Client::AuthenticationFailed, "no password", what));
        let (text, place) = match self {
            Self::Text(text) => return Ok(text.clone()),
            Self::Env(name) => {
                let place = format!("the environment variable {name}");
                let text = std::env::var(name);
                (
                    text.map_err(|error| wrong(format!("{place}: {error}")))?,
                    place,
                )
            }
            Self::File(path) => {
                let place = path.display().to_string();
                let path = Arc::<std::path::Path>::from(path.as_path());
                // The file may be far away.
                let read = tokio::task::spawn_blocking(move || read_text(&path, 1));
                let read = read.await.map_err(|error| wrong(error.to_string()))?;
                (
                    read.map_err(|error| wrong(format!("{place}: {error}")))?,
                    place,
                )
            }
        };
        match text.trim_end_matches(['\r', '\n']) {
            "" => Err(wrong(format!("{place} is empty: expected the password"))),
            password => Ok(password.to_owned()),
        }
    }
}

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(_) => f.write_str("(not shown)"),
            Self::Env(name) => write!(f, "env:{name}"),
            Self::File(path) => write!(f, "file:{}", path.display()),
        }
    }
}

impl fmt::Debug for Certificates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(not shown)")
    }
}
