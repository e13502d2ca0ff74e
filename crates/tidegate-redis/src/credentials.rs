//! Credentials for a server: certificates, a user and a password. The password may change
//! while the process runs, so it is read for each connection, and again when the server
//! refuses it.

use std::fmt;
use std::path::PathBuf;

use redis::{ErrorKind as Client, RedisConnectionInfo, RedisError, RedisResult};

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
    /// How to greet a server whose URL has these settings, with the password as it is now.
    pub(crate) async fn settings(
        &self,
        url: &RedisConnectionInfo,
    ) -> RedisResult<RedisConnectionInfo> {
        let mut settings = url.clone();
        if let Some(username) = &self.username {
            settings = settings.set_username(username);
        }
        if let Some(password) = &self.password {
            settings = settings.set_password(password.read().await?);
        }
        Ok(settings)
    }

    /// Whether the server has answered that it does not let us in with these.
    pub(crate) fn are_refused(error: &RedisError) -> bool {
        error.kind() == Client::AuthenticationFailed
            || matches!(error.code(), Some("WRONGPASS" | "NOAUTH"))
    }
}

impl Password {
    /// The password as it is now.
    async fn read(&self) -> RedisResult<String> {
        let wrong =
            |what: String| RedisError::from((Client::AuthenticationFailed, "no password", what));
        let (place, text) = match self {
            Self::Text(text) => return Ok(text.clone()),
            Self::Env(name) => {
                let text = std::env::var(name).map_err(|error| error.to_string());
                (format!("the environment variable {name}"), text)
            }
            Self::File(path) => {
                let file = path.clone();
                let read = move || read_text(&file, 1).map_err(|error| error.to_string());
                // The file may be far away.
                let text = tokio::task::spawn_blocking(read).await;
                let text = text.unwrap_or_else(|error| Err(error.to_string()));
                (path.display().to_string(), text)
            }
        };
        let text = text.map_err(|error| wrong(format!("{place}: {error}")))?;
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
