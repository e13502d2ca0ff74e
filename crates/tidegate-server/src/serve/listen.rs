//! An address that connections come in by.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener, UnixStream};

use super::{Shared, connection};
use crate::section::Address;

/// A socket that listens.
#[derive(Debug)]
pub enum Listener {
    /// On a host and a port.
    Tcp(TcpListener),
    /// On a path, which goes with it.
    Unix(UnixListener, PathBuf),
}

/// How long to wait when no connection can be accepted, as without file descriptors.
const PAUSE: Duration = Duration::from_millis(100);

impl Listener {
    pub(super) async fn open(address: &Address) -> anyhow::Result<Self> {
        match address {
            Address::Tcp(text) => {
                let listener = TcpListener::bind(text).await;
                let listener = listener.with_context(|| {
                    format!("cannot listen on {text}: choose another address with --http")
                })?;
                Ok(Self::Tcp(listener))
            }
            Address::Unix(path) => {
                let path = PathBuf::from(path);
                remove_stale(&path).await?;
                let listener = UnixListener::bind(&path);
                let listener = listener.with_context(|| {
                    format!("cannot listen on unix:{}: is the folder there, and may this user write to it?", path.display())
                })?;
                Ok(Self::Unix(listener, path))
            }
        }
    }

    /// Where it listens, as one would ask it; `secure` with TLS.
    #[must_use]
    pub fn url(&self, secure: bool) -> String {
        match self {
            Self::Tcp(listener) => {
                let scheme = if secure { "https" } else { "http" };
                let address = listener.local_addr();
                address.map_or_else(|_| "?".into(), |address| format!("{scheme}://{address}"))
            }
            Self::Unix(_, path) => format!("unix:{}", path.display()),
        }
    }

    /// Takes connections until told to stop, and those that have come before that.
    pub(super) async fn accept(self, shared: Shared) {
        let mut closing = shared.closing.clone();
        let mut last = false;
        loop {
            let Ok(permit) = shared.room.clone().acquire_owned().await else {
                return;
            };
            let accepted = tokio::select! {
                biased;
                accepted = self.next() => accepted,
                () = std::future::ready(()), if last => break,
                _ = closing.wait_for(|closing| *closing) => {
                    last = true;
                    continue;
                }
            };
            match accepted {
                Ok(Stream::Tcp(stream)) => {
                    let _ = stream.set_nodelay(true);
                    let (shared, tls) = (shared.clone(), shared.app.running().tls.clone());
                    tokio::spawn(async move {
                        connection::run_tcp(&shared, stream, tls).await;
                        drop(permit);
                    });
                }
                Ok(Stream::Unix(stream)) => {
                    let shared = shared.clone();
                    tokio::spawn(async move {
                        connection::run(&shared, stream).await;
                        drop(permit);
                    });
                }
                Err(error) => {
                    if shared.app.lines.check("accept").allowed() {
                        tracing::warn!(%error, "a connection could not be accepted");
                    }
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
        if let Self::Unix(_, path) = &self {
            let _ = std::fs::remove_file(path);
        }
    }

    async fn next(&self) -> std::io::Result<Stream> {
        match self {
            Self::Tcp(listener) => Ok(Stream::Tcp(listener.accept().await?.0)),
            Self::Unix(listener, _) => Ok(Stream::Unix(listener.accept().await?.0)),
        }
    }
}

enum Stream {
    Tcp(tokio::net::TcpStream),
    Unix(UnixStream),
}

/// What a connection is made of.
pub(super) trait Io: AsyncRead + AsyncWrite + Unpin + Send + 'static {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send + 'static> Io for T {}

/// A socket that nobody listens on is left over from a process that has died.
async fn remove_stale(path: &Path) -> anyhow::Result<()> {
    match UnixStream::connect(path).await {
        Ok(_) => anyhow::bail!(
            "unix:{}: another process listens there: choose another path with --http",
            path.display()
        ),
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
            let is_socket = std::os::unix::fs::FileTypeExt::is_socket;
            if !std::fs::symlink_metadata(path).is_ok_and(|it| is_socket(&it.file_type())) {
                anyhow::bail!(
                    "unix:{}: something is there that is no socket: choose another path with --http",
                    path.display()
                );
            }
            std::fs::remove_file(path)
                .with_context(|| format!("cannot remove the old socket {}", path.display()))
        }
        Err(_) => Ok(()),
    }
}
