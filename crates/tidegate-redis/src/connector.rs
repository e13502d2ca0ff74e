//! How a connection is made: to a server whose address is known, or to whomever the
//! sentinels call the master.

use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::io::tcp::TcpSettings;
use redis::{
    AsyncConnectionConfig, ErrorKind as Client, IntoConnectionInfo, RedisError, RedisResult, Value,
};

use crate::place::{Login, address};

/// How long a connection may be silent, or take to be made, before it is given up. A
/// caller's deadline is much shorter: it does not wait for this.
const SILENCE: Duration = Duration::from_secs(1);

/// How long a sentinel may take to answer: there are others to ask.
const SENTINEL: Duration = Duration::from_millis(250);

/// Makes connections.
#[derive(Clone)]
pub(crate) enum Connector {
    /// To this server.
    Direct(Arc<redis::Client>),
    /// To the master of a name.
    Sentinel(Arc<Sentinels>),
}

/// Those who know where the master is.
pub(crate) struct Sentinels {
    pub(crate) addresses: Vec<String>,
    pub(crate) master: String,
    pub(crate) login: Login,
    pub(crate) certificates: Option<redis::TlsCertificates>,
}

impl Connector {
    pub(crate) async fn connect(&self) -> RedisResult<MultiplexedConnection> {
        match self {
            Self::Direct(client) => connect(client, SILENCE).await,
            Self::Sentinel(sentinels) => sentinels.connect().await,
        }
    }
}

impl Sentinels {
    /// A connection to the master, as soon as one sentinel knows it and the server
    /// itself agrees.
    async fn connect(&self) -> RedisResult<MultiplexedConnection> {
        let mut last = None;
        for sentinel in &self.addresses {
            let connected = match self.master(sentinel).await {
                Ok(master) => self.connect_to(&master).await,
                Err(error) => Err(error),
            };
            match connected {
                Ok(connection) => return Ok(connection),
                Err(error) => last = Some(error),
            }
        }
        let nobody = || RedisError::from((Client::InvalidClientConfig, "no sentinel is named"));
        Err(last.unwrap_or_else(nobody))
    }

    /// Where the master is, according to a sentinel. It lets anybody in, or those whom
    /// the master lets in.
    async fn master(&self, sentinel: &str) -> RedisResult<String> {
        let anybody = self.login.anonymous();
        let answer = match self.ask(&anybody.url(sentinel)).await {
            Err(error) if error.code() == Some("NOAUTH") => {
                self.ask(&self.login.without_database().url(sentinel))
                    .await?
            }
            answer => answer?,
        };
        match answer {
            Some((host, port)) => Ok(address(&host, port)),
            None => Err((
                Client::InvalidClientConfig,
                "a sentinel does not know the master",
            )
                .into()),
        }
    }

    async fn ask(&self, url: &str) -> RedisResult<Option<(String, u16)>> {
        let client = client(url, self.certificates.as_ref())?;
        let mut connection = connect(&client, SENTINEL).await?;
        let mut question = redis::cmd("SENTINEL");
        question.arg("get-master-addr-by-name").arg(&self.master);
        question.query_async(&mut connection).await
    }

    async fn connect_to(&self, master: &str) -> RedisResult<MultiplexedConnection> {
        let url = self.login.url(master);
        let client = client(&url, self.certificates.as_ref())?;
        let mut connection = connect(&client, SILENCE).await?;
        // A sentinel may not have heard yet that it is none any more.
        let role: Value = redis::cmd("ROLE").query_async(&mut connection).await?;
        let is_master = match &role {
            Value::Array(parts) => matches!(
                parts.first(),
                Some(Value::BulkString(role)) if role == b"master"
            ),
            _ => false,
        };
        match is_master {
            true => Ok(connection),
            false => Err((Client::Io, "the server that a sentinel named is no master").into()),
        }
    }
}

/// A client of the server at this URL.
pub(crate) fn client(
    url: &str,
    certificates: Option<&redis::TlsCertificates>,
) -> RedisResult<redis::Client> {
    // A batch does not wait until the one before it has arrived.
    let tcp = TcpSettings::default().set_nodelay(true);
    let server = url.into_connection_info()?.set_tcp_settings(tcp);
    match certificates {
        Some(certificates) => redis::Client::build_with_tls(server, certificates.clone()),
        None => redis::Client::open(server),
    }
}

/// A connection that is given up after so long a silence.
pub(crate) async fn connect(
    client: &redis::Client,
    silence: Duration,
) -> RedisResult<MultiplexedConnection> {
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(silence))
        .set_response_timeout(Some(silence));
    client
        .get_multiplexed_async_connection_with_config(&config)
        .await
}
