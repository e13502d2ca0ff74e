//! Makes connections: to a server with a known address, or to the master that sentinels name.
//!
//! The client library greets the server (password, database, protocol) and matches replies
//! to commands. It sends nothing twice. Whoever has a connection drives it, and so knows at
//! once when it is lost.

use std::fmt::Display;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use redis::aio::{AsyncStream, MultiplexedConnection};
use redis::{
    AsyncConnectionConfig, Cmd, ConnectionAddr, ConnectionInfo, ErrorKind as Client,
    FromRedisValue, IntoConnectionInfo, RedisConnectionInfo, RedisError, RedisResult,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use crate::credentials::{Certificates, Credentials};
use crate::lane::{BATCH, IN_FLIGHT};
use crate::sentinel::Sentinels;

/// How long a connection may take to be made, and how long it may be silent at least,
/// before it is given up. A caller's deadline is usually much shorter: it does not wait
/// for this.
pub(crate) const SILENCE: Duration = Duration::from_secs(1);

/// Commands that may wait for the driver of a connection, which is as many as a lane can have
/// on their way; and bytes that it gathers before it writes.
const COMMANDS: usize = IN_FLIGHT * BATCH;
const GATHERED: usize = 64 << 10;

/// A connection. Commands only travel while its driver is polled.
pub(crate) struct Connection {
    pub(crate) commands: MultiplexedConnection,
    /// The server that sentinels have named for it.
    pub(crate) server: Option<Arc<str>>,
    /// Ends when the connection is lost.
    pub(crate) driver: BoxFuture<'static, ()>,
}

/// Makes connections.
#[derive(Clone)]
pub(crate) enum Connector {
    /// To this server.
    Direct(Arc<Direct>),
    /// To the master of a name.
    Sentinel(Arc<Sentinels>),
}

/// One server, and how it lets us in.
pub(crate) struct Direct {
    server: ConnectionInfo,
    tls: Option<Arc<ClientConfig>>,
    credentials: Credentials,
}

impl Connection {
    /// Asks one question.
    pub(crate) async fn ask<T: FromRedisValue>(
        &mut self,
        question: &Cmd,
        within: Duration,
    ) -> RedisResult<T> {
        let answer = timeout(within, question.query_async(&mut self.commands));
        tokio::select! {
            biased;
            answer = answer => answer.unwrap_or_else(|_| failed("the server does not answer")),
            () = &mut self.driver => failed("the server has closed the connection"),
        }
    }
}

impl Connector {
    /// A connection.
    pub(crate) async fn connect(&self) -> RedisResult<Connection> {
        match self {
            Self::Direct(direct) => direct.connect(SILENCE).await,
            Self::Sentinel(sentinels) => sentinels.connect().await,
        }
    }

    /// Whether a connection leads where a new one would. A master that was cut off from
    /// the others, or was away, does not know that it is none any more.
    pub(crate) fn leads_like(&self, connection: &Connection) -> bool {
        match (self, &connection.server) {
            (Self::Sentinel(sentinels), Some(server)) => sentinels.follow(server),
            _ => true,
        }
    }
}

impl Direct {
    pub(crate) fn new(url: &str, credentials: &Credentials) -> RedisResult<Self> {
        let server = url.into_connection_info()?;
        let certificates = credentials.certificates.as_ref();
        let tls = match (server.addr(), certificates) {
            (ConnectionAddr::TcpTls { .. }, _) => Some(Arc::new(tls(certificates)?)),
            (_, None) => None,
            (_, Some(_)) => {
                return Err(wrong("certificates need a URL that begins with rediss://"));
            }
        };
        Ok(Self {
            server,
            tls,
            credentials: credentials.clone(),
        })
    }

    /// Where the server is.
    pub(crate) fn address(&self) -> String {
        self.server.addr().to_string()
    }

    /// Connects, and tries once more when the password was changed on the way.
    pub(crate) async fn connect(&self, within: Duration) -> RedisResult<Connection> {
        let (server, credentials) = (self.server.redis_settings(), &self.credentials);
        let shown = credentials.settings(server).await?;
        match self.greet(&shown, within).await {
            Err(error) if Credentials::are_refused(&error) => {
                let now = credentials.settings(server).await;
                match now.ok().filter(|now| now.password() != shown.password()) {
                    Some(now) => self.greet(&now, within).await,
                    None => Err(error),
                }
            }
            connected => connected,
        }
    }

    /// Asks the server one question, over a connection of its own.
    pub(crate) async fn ask<T: FromRedisValue>(
        &self,
        question: &Cmd,
        within: Duration,
    ) -> RedisResult<T> {
        let mut connection = self.connect(within).await?;
        connection.ask(question, within).await
    }

    async fn greet(
        &self,
        settings: &RedisConnectionInfo,
        within: Duration,
    ) -> RedisResult<Connection> {
        let greeted = async {
            let config = AsyncConnectionConfig::new()
                .set_response_timeout(None)
                .set_pipeline_buffer_size(COMMANDS)
                .set_write_backpressure_boundary(GATHERED);
            let stream = self.open().await?;
            let greeting = MultiplexedConnection::new_with_config(settings, stream, config);
            let (commands, driver) = greeting.await?;
            Ok(Connection {
                commands,
                server: None,
                driver: Box::pin(driver),
            })
        };
        let greeted = timeout(within, greeted).await;
        greeted.unwrap_or_else(|_| failed("connecting timed out"))
    }

    async fn open(&self) -> RedisResult<Pin<Box<dyn AsyncStream + Send>>> {
        Ok(match (self.server.addr(), &self.tls) {
            (ConnectionAddr::Unix(path), _) => Box::pin(UnixStream::connect(path).await?),
            (ConnectionAddr::Tcp(host, port), _) => Box::pin(tcp(host, *port).await?),
            (ConnectionAddr::TcpTls { host, port, .. }, Some(tls)) => {
                let name = ServerName::try_from(host.clone());
                let name = name.map_err(|_| wrong("the host is not valid in a certificate"))?;
                let stream = tcp(host, *port).await?;
                let connector = TlsConnector::from(Arc::clone(tls));
                Box::pin(connector.connect(name, stream).await?)
            }
            _ => return Err(wrong("an address of an unknown kind")),
        })
    }
}

async fn tcp(host: &str, port: u16) -> std::io::Result<TcpStream> {
    let stream = TcpStream::connect((host, port)).await?;
    // A batch does not wait until the one before it has arrived.
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// The settings for TLS with these certificates: the authority that has signed the
/// server's, or else the public ones, and one of our own.
fn tls(certificates: Option<&Certificates>) -> RedisResult<ClientConfig> {
    let mut roots = RootCertStore::empty();
    match certificates.and_then(|it| it.authority.as_deref()) {
        Some(pem) => {
            for certificate in CertificateDer::pem_slice_iter(pem) {
                let certificate = certificate.map_err(invalid("the authority"))?;
                roots.add(certificate).map_err(invalid("the authority"))?;
            }
        }
        None => roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned()),
    }
    let config = ClientConfig::builder().with_root_certificates(roots);
    let Some((chain, key)) = certificates.and_then(|it| it.own.as_ref()) else {
        return Ok(config.with_no_client_auth());
    };
    let chain = CertificateDer::pem_slice_iter(chain).collect::<Result<_, _>>();
    let chain = chain.map_err(invalid("the certificate"))?;
    let key = PrivateKeyDer::from_pem_slice(key);
    let key = key.map_err(invalid("the key of the certificate"))?;
    let config = config.with_client_auth_cert(chain, key);
    config.map_err(invalid("the certificate"))
}

fn invalid<E: Display>(what: &'static str) -> impl Fn(E) -> RedisError {
    move |error| (Client::InvalidClientConfig, what, error.to_string()).into()
}

pub(crate) fn wrong(what: &'static str) -> RedisError {
    (Client::InvalidClientConfig, what).into()
}

pub(crate) fn failed<T>(how: &'static str) -> RedisResult<T> {
    Err((Client::Io, how).into())
}
