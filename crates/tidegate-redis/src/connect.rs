//! Makes connections: to a server with a known address, or to the master that sentinels name.

use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, ConnectionAddr, RedisResult, Value};
use rustls::ClientConfig;

use crate::credentials::{Certificates, Credentials};
use crate::sentinel::Sentinels;
use crate::socket::{Socket, tls};

/// How long a connection may take to be made, and how long it may be silent at least,
/// before it is given up. A caller's deadline is usually much shorter: it does not wait
/// for this.
pub(crate) const SILENCE: Duration = Duration::from_secs(1);

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
    client: redis::Client,
    tls: Option<Arc<ClientConfig>>,
    credentials: Credentials,
}

/// A connection, and the server that sentinels have named for it.
pub(crate) type Connected = (Socket, Option<Arc<str>>);

impl Connector {
    /// A connector to the server at this URL.
    pub(crate) fn direct(url: &str, credentials: &Credentials) -> RedisResult<Self> {
        Ok(Self::Direct(Arc::new(Direct::new(
            url,
            credentials.clone(),
        )?)))
    }

    /// A connection.
    pub(crate) async fn connect(&self) -> RedisResult<Connected> {
        match self {
            Self::Direct(direct) => {
                let (socket, _) = direct.connect(false).await?;
                Ok((socket, None))
            }
            Self::Sentinel(sentinels) => sentinels.connect().await,
        }
    }

    /// Whether a connection leads where a new one would. A master that was cut off from
    /// the others, or was away, does not know that it is none any more.
    pub(crate) fn leads_to(&self, server: Option<&str>) -> bool {
        match (self, server) {
            (Self::Sentinel(sentinels), Some(server)) => sentinels.follow(server),
            _ => true,
        }
    }
}

impl Direct {
    pub(crate) fn new(url: &str, credentials: Credentials) -> RedisResult<Self> {
        let client = credentials.client(url)?;
        Ok(Self {
            tls: tls_of(&client, credentials.certificates.as_ref())?,
            client,
            credentials,
        })
    }

    /// Connects, and tries once more when the password was changed on the way. With
    /// `role`, the server is asked for it.
    pub(crate) async fn connect(&self, role: bool) -> RedisResult<(Socket, Option<Value>)> {
        let Self {
            client,
            tls,
            credentials,
        } = self;
        let shown = credentials.settings(client).await?;
        let connected = Socket::connect(client, &shown, tls.as_ref(), SILENCE, role).await;
        match connected {
            Err(error) if credentials.has_changed(&error, client, &shown).await => {
                let now = credentials.settings(client).await?;
                Socket::connect(client, &now, tls.as_ref(), SILENCE, role).await
            }
            connected => connected,
        }
    }
}

/// The settings for TLS, where the client's server has it.
fn tls_of(
    client: &redis::Client,
    certificates: Option<&Certificates>,
) -> RedisResult<Option<Arc<ClientConfig>>> {
    match client.get_connection_info().addr() {
        ConnectionAddr::TcpTls { .. } => Ok(Some(Arc::new(tls(certificates)?))),
        _ => Ok(None),
    }
}

/// A connection that is given up when it takes so long to be made, or is silent for so
/// long.
pub(crate) async fn connect(
    client: &redis::Client,
    making: Duration,
    silence: Duration,
) -> RedisResult<MultiplexedConnection> {
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(making))
        .set_response_timeout(Some(silence));
    client
        .get_multiplexed_async_connection_with_config(&config)
        .await
}
