//! A connection to a server: a stream of bytes, in the clear or through TLS. The client
//! library greets the server on it (password, database) and then hands it over.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, ConnectionAddr, ErrorKind as Client, RedisConnectionInfo, RedisResult,
    Value,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::credentials::Certificates;

/// A connection.
pub(crate) enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl Socket {
    /// Connects to the client's server within this time, and greets it with these
    /// settings. With `role`, the server is asked for it, and the answer returned.
    pub(crate) async fn connect(
        client: &redis::Client,
        settings: &RedisConnectionInfo,
        tls: Option<&Arc<ClientConfig>>,
        within: Duration,
        role: bool,
    ) -> RedisResult<(Self, Option<Value>)> {
        let connected = timeout(within, Self::greeted(client, settings, tls, within, role)).await;
        let slow = || Err((Client::Io, "connecting timed out").into());
        connected.unwrap_or_else(|_| slow())
    }

    async fn greeted(
        client: &redis::Client,
        settings: &RedisConnectionInfo,
        tls: Option<&Arc<ClientConfig>>,
        within: Duration,
        role: bool,
    ) -> RedisResult<(Self, Option<Value>)> {
        let socket = Self::open(client.get_connection_info().addr(), tls).await?;
        let lent = Lent(Arc::new(Mutex::new(Some(socket))));
        let config = AsyncConnectionConfig::new().set_response_timeout(Some(within));
        let greeting = MultiplexedConnection::new_with_config(settings, lent.clone(), config);
        let (mut connection, driver) = greeting.await?;
        let mut answer = None;
        if role {
            let question = redis::cmd("ROLE");
            let asked = question.query_async::<Value>(&mut connection);
            answer = tokio::select! {
                answer = asked => Some(answer?),
                () = driver => None,
            };
        } else {
            drop(driver);
        }
        let lost = || (Client::Io, "the server has closed the connection");
        let socket = lent.lock().take().ok_or_else(lost)?;
        Ok((socket, answer))
    }

    async fn open(address: &ConnectionAddr, tls: Option<&Arc<ClientConfig>>) -> RedisResult<Self> {
        match address {
            ConnectionAddr::Unix(path) => Ok(Self::Unix(UnixStream::connect(path).await?)),
            ConnectionAddr::Tcp(host, port) => Ok(Self::Tcp(tcp(host, *port).await?)),
            ConnectionAddr::TcpTls { host, port, .. } => {
                let wrong = |what| (Client::InvalidClientConfig, what);
                let config = tls.ok_or_else(|| wrong("TLS is not configured"))?;
                let name = ServerName::try_from(host.clone());
                let name = name.map_err(|_| wrong("the host is not valid in a certificate"))?;
                let stream = tcp(host, *port).await?;
                let connector = TlsConnector::from(Arc::clone(config));
                let stream = connector.connect(name, stream).await?;
                Ok(Self::Tls(Box::new(stream)))
            }
            _ => Err((Client::InvalidClientConfig, "an address of an unknown kind").into()),
        }
    }
}

async fn tcp(host: &str, port: u16) -> io::Result<TcpStream> {
    let stream = TcpStream::connect((host, port)).await?;
    // A batch does not wait until the one before it has arrived.
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// The settings for TLS with these certificates: the authority that has signed the
/// server's, or else the public ones, and one of our own.
pub(crate) fn tls(certificates: Option<&Certificates>) -> RedisResult<ClientConfig> {
    let wrong = |what: &'static str, error: String| (Client::InvalidClientConfig, what, error);
    let mut roots = RootCertStore::empty();
    match certificates.and_then(|it| it.authority.as_deref()) {
        Some(pem) => {
            for certificate in CertificateDer::pem_slice_iter(pem) {
                let certificate =
                    certificate.map_err(|error| wrong("the authority", error.to_string()))?;
                let added = roots.add(certificate);
                added.map_err(|error| wrong("the authority", error.to_string()))?;
            }
        }
        None => roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned()),
    }
    let config = ClientConfig::builder().with_root_certificates(roots);
    let Some((chain, key)) = certificates.and_then(|it| it.own.as_ref()) else {
        return Ok(config.with_no_client_auth());
    };
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(chain).collect();
    let chain = chain.map_err(|error| wrong("the certificate", error.to_string()))?;
    let key = PrivateKeyDer::from_pem_slice(key);
    let key = key.map_err(|error| wrong("the key of the certificate", error.to_string()))?;
    let config = config.with_client_auth_cert(chain, key);
    Ok(config.map_err(|error| wrong("the certificate", error.to_string()))?)
}

impl AsyncRead for Socket {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_read(context, buffer),
            Self::Unix(stream) => Pin::new(stream).poll_read(context, buffer),
            Self::Tls(stream) => Pin::new(stream).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_write(context, bytes),
            Self::Unix(stream) => Pin::new(stream).poll_write(context, bytes),
            Self::Tls(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_flush(context),
            Self::Unix(stream) => Pin::new(stream).poll_flush(context),
            Self::Tls(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_shutdown(context),
            Self::Unix(stream) => Pin::new(stream).poll_shutdown(context),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}

/// A socket that the client library has for the greeting.
#[derive(Clone)]
struct Lent(Arc<Mutex<Option<Socket>>>);

impl Lent {
    fn lock(&self) -> MutexGuard<'_, Option<Socket>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn poll<T>(
        &self,
        poll: impl FnOnce(Pin<&mut Socket>) -> Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        match &mut *self.lock() {
            Some(socket) => poll(Pin::new(socket)),
            None => Poll::Ready(Err(io::ErrorKind::NotConnected.into())),
        }
    }
}

impl AsyncRead for Lent {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.poll(|socket| socket.poll_read(context, buffer))
    }
}

impl AsyncWrite for Lent {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll(|socket| socket.poll_write(context, bytes))
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll(|socket| socket.poll_flush(context))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        // It is not the library's to close.
        Poll::Ready(Ok(()))
    }
}
